// Server-sent events, with reconnection, while the page is visible.

import { painted } from "./frames.js";

const lost = new Set();

function note(stream, isLost) {
  if (isLost) lost.add(stream);
  else lost.delete(stream);
  const shown = document.getElementById("lost");
  if (shown.hidden !== (lost.size === 0)) shown.hidden = lost.size === 0;
}

/**
 * A stream of events. kinds: the names of events. hear(kind, data): called with each. back(): the stream is connected
 * (again), and events may have been missed. A hidden page has none: a browser has six connections.
 */
export class Stream {
  #source = null;
  #timer = 0;
  #tries = 0;
  #over = false;
  #last = "";

  constructor(path, kinds, hear, back) {
    Object.assign(this, { path, kinds, hear, back });
    this.visible = () => (document.hidden ? this.#close() : this.#open());
    document.addEventListener("visibilitychange", this.visible);
    if (!document.hidden) this.#open();
  }

  /** End it for good. */
  end() {
    this.#over = true;
    document.removeEventListener("visibilitychange", this.visible);
    this.#close();
    note(this, false);
  }

  #open() {
    if (this.#over || this.#source) return;
    clearTimeout(this.#timer);
    const path = this.#last ? this.path.replace(/after=\d+/, `after=${this.#last}`) : this.path;
    this.#source = new EventSource(path);
    this.#source.onopen = () => {
      this.#tries = 0;
      note(this, false);
      this.back();
    };
    this.#source.onerror = () => this.#retry();
    for (const kind of this.kinds) {
      this.#source.addEventListener(kind, (event) => {
        this.#last = event.lastEventId || this.#last;
        painted(() => this.hear(kind, JSON.parse(event.data)));
      });
    }
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  // A browser gives up for good where an answer is an error, as while another server takes the lead. We do not.
  #retry() {
    this.#close();
    if (this.#over) return;
    this.#tries += 1;
    if (this.#tries > 1) note(this, true); // one that the server ended in good order comes back at once
    const seconds = this.#tries === 1 ? 0.2 : Math.min(2 ** this.#tries / 2, 15);
    this.#timer = setTimeout(() => this.#open(), 1000 * seconds);
  }
}
