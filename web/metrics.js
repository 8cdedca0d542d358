// Prometheus' text format, read far enough for our own charts.

export function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((m) => [m[1], m[2]]));
    samples.push({ name: match[1], labels, value: Number(match[3].replace("Inf", "Infinity")) });
  }
  return samples;
}

export const sum = (samples, name) => samples.filter((s) => s.name === name).reduce((total, s) => total + s.value, 0);

const buckets = (samples, name) => new Map(samples.filter((s) => s.name === `${name}_bucket`).map((s) => [Number(s.labels.le.replace("+Inf", "Infinity")), s.value]));

/** Of what was observed between two scrapes; null when nothing was. Linear inside a bucket, as Prometheus does. */
export function quantile(share, before, after, name) {
  const old = buckets(before, name);
  const counts = [...buckets(after, name)].map(([le, count]) => [le, count - (old.get(le) ?? 0)]).sort((a, b) => a[0] - b[0]);
  const total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  const rank = share * total;
  let [lower, below] = [0, 0];
  for (const [le, count] of counts) {
    if (count >= rank) return Number.isFinite(le) ? lower + (le - lower) * (rank - below) / Math.max(count - below, 1e-9) : lower;
    [lower, below] = [le, count];
  }
  return lower;
}
