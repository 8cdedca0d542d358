// The second tab: state, verification, charts, plan.
import { $, h } from "./dom.js";
import { get, health } from "./api.js";
import { Chart } from "./charts.js";
import { parse, quantile, sum } from "./metrics.js";

const EVERY_MS = 2000, WINDOW = 8;  // quantiles are over so many scrapes

const count = (value) => (value >= 1e6 ? `${+(value / 1e6).toFixed(1)}M` : value >= 1e4 ? `${+(value / 1e3).toFixed(1)}k` : `${+value.toFixed(value < 10 ? 1 : 0)}`);
const time = (s) => (s === 0 ? "0" : s < 1e-3 ? `${+(s * 1e6).toFixed(0)} µs` : s < 1 ? `${+(s * 1e3).toFixed(s < 0.1 ? 1 : 0)} ms` : `${+s.toFixed(1)} s`);
const percent = (value) => `${+(value * 100).toFixed(value < 0.05 ? 2 : 0)} %`;
export const bytes = (n) => { let u = 0; while (n >= 1000 && u < 4) { n /= 1000; ++u; } return `${n.toFixed(u && n < 100 ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][u]}`; };

const card = (title, ...children) => h("section.card", {}, h("h2", {}, title), ...children);
const facts = (entries) => h("dl.facts", {}, entries.filter(([, value]) => value !== undefined && value !== "")
  .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

let began = null, charts = null, scrapes = [], timer = 0, opened = false;

function makeCharts() {
  return {
    tokens: new Chart("Tokens a second", [{ label: "generated", className: "c1" }, { label: "prompt", className: "c2" }], count),
    sequences: new Chart("Sequences", [{ label: "running", className: "c1" }, { label: "waiting", className: "c3" }], count),
    first: new Chart("Time to the first token", [{ label: "p50", className: "c1" }, { label: "p99", className: "c3" }], time),
    between: new Chart("Between tokens", [{ label: "p50", className: "c1" }, { label: "p99", className: "c3" }], time),
    cache: new Chart("Cache in use", [{ label: "held", className: "c1" }, { label: "kept prefixes", className: "c2" }], percent),
    step: new Chart("A step", [{ label: "all", className: "c1" }, { label: "kernels", className: "c2" }], time),
  };
}

// The axis grows from one minute to five.
const keep = (now) => Math.min(300, Math.max(60, 60 * Math.ceil((now - began) / 60)));

function draw(now) {
  began ??= now;
  const window_s = keep(now);
  const after = scrapes.at(-1), before = scrapes.at(-2), old = scrapes[Math.max(0, scrapes.length - 1 - WINDOW)];
  if (!before) return;
  const delta = (name) => Math.max(0, sum(after.samples, name) - sum(before.samples, name));
  const rate = (name) => delta(name) / (after.at - before.at);
  const gauge = (name) => sum(after.samples, name);
  const both = (name) => [0.5, 0.99].map((share) => quantile(share, old.samples, after.samples, name));
  const steps = delta("plumb_steps_total");
  charts.tokens.add(now, [rate("plumb_generated_tokens_total"), rate("plumb_prompt_tokens_total")], window_s);
  charts.sequences.add(now, [gauge("plumb_sequences_running"), gauge("plumb_sequences_waiting")], window_s);
  charts.first.add(now, both("plumb_time_to_first_token_seconds"), window_s);
  charts.between.add(now, both("plumb_inter_token_seconds"), window_s);
  charts.cache.add(now, [gauge("plumb_cache_usage_ratio"), gauge("plumb_cache_pages_cached") / Math.max(1, gauge("plumb_cache_pages"))], window_s);
  charts.step.add(now, ["plumb_step_seconds_total", "plumb_op_seconds_total"].map((name) => (steps ? delta(name) / steps : null)), window_s);
}

async function scrape() {
  const note = $("scrape-note");
  try {
    const samples = parse(await (await get("metrics", { admin: true })).text());
    scrapes.push({ at: performance.now() / 1000, samples });
    if (scrapes.length > WINDOW + 1) scrapes.shift();
    draw(performance.now() / 1000);
    if (note) note.textContent = "";
  } catch (error) {
    if (note) note.textContent = error.status === 401 || error.status === 403
      ? "The charts need the administrator's key: put it into the settings." : `No figures: ${error.message}`;
  }
}

// ---- verification ----

const verdictOf = (check) => String(check.verdict ?? check.status ?? check.result ?? "");
const shown = (value) => (value === undefined || value === null ? "" : typeof value === "number" ? value.toPrecision(3) : typeof value === "object" ? JSON.stringify(value) : String(value));

function receipt(data) {
  const checks = Array.isArray(data.checks) ? data.checks : null;
  if (!checks) return h("pre.raw", {}, JSON.stringify(data, null, 1));
  const rest = Object.entries(data).filter(([, value]) => typeof value !== "object").map(([key, value]) => [key.replaceAll("_", " "), shown(value)]);
  const row = (check) => {
    const verdict = verdictOf(check);
    const good = /pass|ok|good/i.test(verdict), skipped = /skip|not/i.test(verdict);
    return h("tr", {}, h("td", {}, check.name ?? check.check ?? ""), h("td.number", {}, shown(check.figure ?? check.value)),
      h("td.number", {}, shown(check.bound)), h("td", {}, h(`span.badge.${good ? "good" : skipped ? "quiet" : "bad"}`, {}, verdict)),
      h("td.soft", {}, shown(check.detail ?? check.note ?? check.why ?? "")));
  };
  return [facts(rest), h("div.table", {}, h("table", {}, h("thead", {}, h("tr", {}, ["Check", "Figure", "Bound", "Verdict", ""].map((t) => h("th", {}, t)))),
    h("tbody", {}, checks.map(row))))];
}

async function verification(state) {
  if (state.verification !== "verified")
    return h("p", {}, h("span.badge.warn", {}, "unverified"), " No verification has run on this server.");
  try {
    return receipt(await (await get("verification", { admin: true })).json());
  } catch (error) {
    return h("p.soft", {}, error.message);
  }
}

// ---- plan ----

// Layers that run the same kernels in the same places are one line.
function siteGroups(sites) {
  const groups = new Map();
  for (const site of sites) {
    const place = site.name.replace(/(^|\.)layers?\.\d+\./, "$1layers.*.").replace(/experts?\.\d+/, "experts.*");
    const layer = /layers?\.(\d+)\./.exec(site.name)?.[1];
    for (const choice of site.choices ?? []) {
      const key = [place, site.on, choice.rows, choice.kernel].join("|");
      if (!groups.has(key)) groups.set(key, { place, site, choice, layers: [] });
      if (layer !== undefined) groups.get(key).layers.push(Number(layer));
    }
  }
  return [...groups.values()];
}

function ranges(numbers) {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  const out = [];
  for (const n of sorted) {
    const last = out.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else out.push([n, n]);
  }
  return out.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
}

function planTable(plan) {
  const filter = h("input.filter", { type: "search", placeholder: "Filter by place, op or kernel", "aria-label": "Filter" });
  const body = h("tbody");
  const rows = siteGroups(plan.sites ?? []).map(({ place, site, choice, layers }) => {
    const refused = (choice.candidates ?? []).filter((c) => !c.accepted);
    const others = h("details.why", {}, h("summary", {}, choice.kernel),
      h("p", {}, choice.why), refused.length > 0 && h("ul", {}, refused.map((c) => h("li", {}, h("b", {}, c.kernel), " refused: ",
        (c.refusals ?? []).map((r) => (typeof r === "string" ? r : r.why ?? JSON.stringify(r))).join("; ")))));
    const row = h("tr", {}, h("td", {}, place, layers.length > 0 && h("span.soft", {}, ` ${ranges(layers)}`)), h("td", {}, site.op), h("td", {}, site.on),
                  h("td.number", {}, choice.rows), h("td", {}, others));
    row.dataset.text = `${place} ${site.op} ${site.on} ${choice.kernel}`.toLowerCase();
    return row;
  });
  const apply = () => body.replaceChildren(...rows.filter((row) => row.dataset.text.includes(filter.value.toLowerCase())));
  filter.addEventListener("input", apply);
  apply();
  return [filter, h("div.table", {}, h("table", {}, h("thead", {}, h("tr", {}, ["Place, layers", "Op", "On", "Rows", "Kernel"].map((t) => h("th", {}, t)))), body))];
}

async function planCards() {
  let plan;
  try {
    plan = await (await get("plan", { admin: true })).json();
  } catch (error) {
    return [card("Plan", h("p.soft", {}, error.message))];
  }
  const memory = plan.memory ?? [];
  const total = memory.reduce((all, entry) => all + (entry.bytes ?? 0), 0);
  const memoryRows = memory.map((entry) => h("tr", {}, h("td", {}, entry.category),
    h("td.grow", {}, h("meter", { min: 0, max: total, value: entry.bytes })), h("td.number", {}, bytes(entry.bytes))));
  const flags = (plan.flags ?? []).map((flag) => h("tr", {}, h("td", {}, flag.name), h("td", {}, shown(flag.effective)),
    h("td.soft", {}, flag.asked !== flag.effective ? `asked: ${shown(flag.asked)}` : ""), h("td.soft", {}, flag.source)));
  return [
    h("div.two", {}, card("Memory", h("div.table", {}, h("table", {}, h("tbody", {}, memoryRows, h("tr.total", {}, h("td", {}, "all"), h("td"), h("td.number", {}, bytes(total))))))),
      card("Options in force", h("div.table.tall", {}, h("table", {}, h("tbody", {}, flags))))),
    card("Kernels", facts([["plan", plan.fingerprint], ["device", plan.device], ["numerics", plan.numeric_profile]]),
      (plan.notes ?? []).length > 0 && h("ul.notes", {}, plan.notes.map((note) => h("li", {}, note))), ...planTable(plan)),
  ];
}

async function build() {
  const page = $("server-page");
  const info = await get("model_info").then((a) => a.json()).catch(() => null);
  const state = await health().catch(() => ({ state: "unreachable" }));
  charts ??= makeCharts();
  const good = state.state === "ready";
  page.replaceChildren(
    card("Server", facts([["state", h(`span.badge.${good ? "good" : "bad"}`, {}, state.state)],
      ["verification", h(`span.badge.${state.verification === "verified" ? "good" : "warn"}`, {}, state.verification ?? "unknown")],
      ["model", info?.served_names?.[0]], ["context", info && `${info.max_model_len.toLocaleString()} tokens`],
      ["weights", info?.weight_format], ["cache", info?.kv_format], ["fingerprint", info && h("code", {}, info.plan_fingerprint)]])),
    h("p.note", { id: "scrape-note", role: "status" }),
    h("div.charts", {}, Object.values(charts).map((chart) => chart.root)),
    card("Verification", ...[await verification(state)].flat()),
    ...(await planCards()));
}

export function showServer(visible) {
  clearInterval(timer);
  if (!visible) return;
  if (!opened) build();
  opened = true;
  scrape();
  timer = setInterval(() => document.hidden || scrape(), EVERY_MS);
}
export function rebuildServer() {
  opened = false;
}
