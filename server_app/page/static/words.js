// Formats numbers and names states in plain English.

const UNITS = ["bytes", "KB", "MB", "GB", "TB"];

/** A number of bytes, in decimal units. */
export function bytes(count) {
  let [value, unit] = [count, 0];
  while (value >= 999.5 && unit < UNITS.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

/** Seconds as a person says them. */
export function duration(seconds) {
  if (seconds < 1) return "under a second";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129_600) return `${(seconds / 3600).toFixed(1).replace(/\.0$/, "")} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

/** A metric's value: four digits that count. */
export function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** An ISO time as this person's clock shows it. */
export function when(iso) {
  if (!iso) return "–";
  const time = new Date(iso);
  const today = time.toDateString() === new Date().toDateString();
  const clock = time.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return today ? `today ${clock}` : `${time.toLocaleDateString([], { day: "numeric", month: "short" })} ${clock}`;
}

/** "1 site", "2 sites". */
export function count(many, one, more = `${one}s`) {
  return `${many.toLocaleString("en")} ${many === 1 ? one : more}`;
}

/** A state of a run: a sign that differs in shape, and words. */
export const STATUS = {
  waiting: ["◌", "waiting"],
  running: ["▶", "running"],
  finished: ["✓", "finished"],
  failed: ["✕", "failed"],
  cancelled: ["■", "stopped"],
  interrupted: ["‖", "interrupted"],
};

/** Whether a run has come to its end. */
export function isOver(status) {
  return !["waiting", "running"].includes(status);
}

const STAGES = {
  advertise: "Sites are joining this round",
  share: "Sites agree on secret keys with each other",
  input: "Sites work on their own data and send their updates",
  consistency: "Sites confirm whose updates are in the sum",
  unmask: "The server removes the masks from the sum",
};

/** What happens in a stage of an exchange. */
export function stageText(stage, kind) {
  if (stage === "input" && kind === "evaluate") return "Sites test the model on their own data";
  return STAGES[stage] ?? (stage ? `Stage ${stage}` : "Between rounds");
}

/** States of a client. */
export const CLIENT = {
  away: "not connected",
  waiting: "waiting",
  training: "training",
  uploading: "sending its update",
  done: "done",
  dropped: "dropped out",
};

/** Text with a capital first letter. */
export function capital(text) {
  return text.replace(/^./, (first) => first.toUpperCase());
}

/** A metric's name for people: the app's own, without the prefix that says where it was measured. */
export function metricName(name) {
  const bare = name.replace(/^(evaluation|evaluate|eval|training|train|test|validation|val)[-_/]/i, "");
  const known = { acc: "Accuracy", accuracy: "Accuracy", loss: "Loss", auc: "AUC" };
  return known[bare.toLowerCase()] ?? capital(bare.replaceAll("_", " "));
}

/** Seconds that a run has left, by how long its last rounds took; null if unknown. */
export function timeLeft(rounds, planned) {
  if (!planned || !rounds.length || rounds.length >= planned) return null;
  const last = rounds.slice(-5).map((round) => round.seconds);
  return (planned - rounds.at(-1).round) * (last.reduce((a, b) => a + b, 0) / last.length);
}
