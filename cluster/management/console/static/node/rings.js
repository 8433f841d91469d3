// Figures of the last ten minutes, kept in this page alone: the node keeps none for it.

/** How far back a ring goes, how many samples it has at most, and of how many things there are rings. */
export const SPAN_S = 600;
const SAMPLES_MAX = 400;
const RINGS_MAX = 200;

/** Name -> {names, columns}; the one that was used last at the end. */
const rings = new Map();

function ringOf(name, names) {
  const ring = rings.get(name) ?? { names, columns: [[], ...names.map(() => [])] };
  rings.delete(name);
  rings.set(name, ring);
  if (rings.size > RINGS_MAX) rings.delete(rings.keys().next().value);
  return ring;
}

/** Add a sample: `values` has a number, or null, by each of `names`. Gives columns: times in seconds, then the values. */
export function sample(name, names, values, now = Date.now() / 1_000) {
  const ring = ringOf(name, names);
  ring.columns[0].push(now);
  names.forEach((one, place) => ring.columns[place + 1].push(values[one] ?? null));
  let old = ring.columns[0].findIndex((time) => time >= now - SPAN_S);
  old = Math.max(old, ring.columns[0].length - SAMPLES_MAX);
  if (old > 0) ring.columns.forEach((column) => column.splice(0, old));
  return ring.columns.map((column) => column.slice());
}

/** Forget everything: somebody else logs in. */
export function forget() {
  rings.clear();
}
