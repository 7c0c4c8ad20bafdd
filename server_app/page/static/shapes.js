// One mark for each state of a site in an exchange: they differ in shape first, and then in colour.

/** Letter of the server's answer: what it means. */
export const MARKS = {
  d: "aggregated",
  u: "received",
  t: "training",
  j: "waiting",
  x: "dropped out",
  "!": "excluded: protocol violation",
  ".": "not selected",
};

/** The colours of the theme that is shown. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return {
    ink: of("--ink"),
    muted: of("--muted"),
    faint: of("--faint"),
    line: of("--line"),
    accent: of("--accent"),
    warn: of("--warn"),
    bad: of("--bad"),
    surface: of("--surface"),
  };
}

const TURN = 2 * Math.PI;

/** Draw a mark in a cell of this size, in CSS pixels. */
export function drawMark(pen, letter, x, y, width, height, colours) {
  const size = Math.min(width, height, 16) - 3;
  const [left, top] = [x + (width - size) / 2, y + (height - size) / 2];
  const [cx, cy, r] = [x + width / 2, y + height / 2, size / 2];
  pen.lineWidth = 1.6;
  pen.beginPath();
  if (letter === "d") {
    pen.fillStyle = colours.accent;
    pen.roundRect(left, top, size, size, 2);
    pen.fill();
  } else if (letter === "u") {
    pen.strokeStyle = pen.fillStyle = colours.accent;
    pen.roundRect(left + 0.8, top + 0.8, size - 1.6, size - 1.6, 2);
    pen.stroke();
    pen.fillRect(left, cy, size, r);
  } else if (letter === "t") {
    pen.fillStyle = colours.muted;
    pen.moveTo(left + 1, top);
    pen.lineTo(left + size, cy);
    pen.lineTo(left + 1, top + size);
    pen.fill();
  } else if (letter === "j") {
    pen.strokeStyle = colours.muted;
    pen.arc(cx, cy, r - 1, 0, TURN);
    pen.stroke();
  } else if (letter === "x") {
    pen.strokeStyle = colours.warn;
    pen.lineWidth = 2;
    pen.moveTo(left, top);
    pen.lineTo(left + size, top + size);
    pen.moveTo(left + size, top);
    pen.lineTo(left, top + size);
    pen.stroke();
  } else if (letter === "!") {
    pen.fillStyle = colours.bad;
    pen.moveTo(cx, top - 1);
    pen.lineTo(left + size + 1, cy);
    pen.lineTo(cx, top + size + 1);
    pen.lineTo(left - 1, cy);
    pen.fill();
  } else {
    pen.fillStyle = colours.faint;
    pen.arc(cx, cy, 1.2, 0, TURN);
    pen.fill();
  }
}

/** Make a canvas this large in CSS pixels; its pen, scaled to the screen's own pixels, over nothing drawn. */
export function penOf(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) {
    [canvas.width, canvas.height] = [w, h];
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

let kept = { key: "", sprites: new Map() };

/** Every mark as a small picture of this size: thousands of them are copied more quickly than drawn. */
export function spritesOf(width, height, colours) {
  const key = JSON.stringify([width, height, window.devicePixelRatio, colours]);
  if (kept.key === key) return kept.sprites;
  const sprites = new Map();
  for (const letter of Object.keys(MARKS)) {
    const canvas = document.createElement("canvas");
    drawMark(penOf(canvas, width, height), letter, 0, 0, width, height, colours);
    sprites.set(letter, canvas);
  }
  kept = { key, sprites };
  return sprites;
}
