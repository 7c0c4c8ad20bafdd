// Work that follows from data, measured from its beginning to the frame that shows it.

const UPDATE = "fedcore-update";

/** Do `work` and measure it, with the layout and painting that follow from it, as performance entry `UPDATE`. */
export function painted(work) {
  const start = performance.now();
  const result = work();
  requestAnimationFrame(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      performance.measure(UPDATE, { start, end: performance.now() });
      performance.clearMeasures(UPDATE); // whoever observes has it; nobody wants a list that grows for days
    };
    port2.postMessage(null);
  });
  return result;
}

/** A function that calls `work` soon, never while it is under way, and then waits `pause` milliseconds. */
export function paced(work, pause) {
  let busy = false;
  let again = false;
  let ended = false;
  async function go() {
    if (ended) return;
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    const start = performance.now();
    try {
      await work();
    } finally {
      const took = performance.now() - start;
      setTimeout(() => {
        busy = false;
        if (again) {
          again = false;
          go();
        }
      }, Math.max(pause, 3 * took)); // a slow line is not kept full
    }
  }
  go.end = () => {
    ended = true;
  };
  return go;
}
