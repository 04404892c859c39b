// What calls add up to.

import { numbers } from "./api.js";
import { draw, empty, make, table } from "./dom.js";
import { count, edgeName, lasted, milliseconds, money } from "./words.js";

const RANGES = [["1h", "Hour"], ["24h", "Day"], ["7d", "Week"], ["4w", "Four weeks"], ["52w", "Year"]];
const [WIDTH, HEIGHT] = [720, 120];

export async function showNumbers(main, rest, signal) {
  const range = RANGES.some(([name]) => name === rest) ? rest : "24h";
  const sums = await numbers({ from: range });
  if (signal.aborted) return;
  const ranges = make("nav", { className: "ranges", ariaLabel: "Time" }, ...RANGES.map(([name, label]) =>
    make("a", { href: `#/numbers/${name}`, ariaCurrent: name === range ? "true" : null }, label)));
  main.replaceChildren(make("h1", {}, "Numbers"), ranges);
  if (!sums.all.calls) {
    main.append(empty("No calls in this time", "A longer time may have some."));
    return;
  }
  main.append(cards(sums.all), chart(sums));
  for (const [by, title, of] of GROUPS) {
    if (sums[by].some((row) => row.of)) main.append(make("h2", {}, title), table(title, [of, ...COLUMNS], sums[by].map((sum) => row(sum, by, range))));
  }
}

function cards(all) {
  const list = [
    ["Calls", count(all.calls)], ["Answered", count(all.answered)], ["Minutes", count(Math.round(all.seconds / 60))],
    ["Answered in, median", milliseconds(all.latency_p50_ms)], ["Slowest answer, 95 of 100 calls", milliseconds(all.latency_p95_ms)],
    ["Interruptions", count(all.interruptions)], ["Failures", count(all.failures)], ["Cost", money(all.cost)],
  ];
  return make("dl", { className: "cards" }, ...list.filter(([, value]) => value).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

const GROUPS = [["by_agent", "Agents", "Agent"], ["by_reason", "Why calls ended", "Reason"], ["by_trunk", "Trunks", "Trunk"], ["by_edge", "Ways in", "Way"]];
const COLUMNS = ["Calls", "Average", "Turns", "Interruptions", "Failures", "Cost"];

/** The parameter by which the calls of a row are found. */
const FOUND_BY = { by_agent: "agent", by_reason: "reason", by_trunk: "trunk", by_edge: "edge" };

function row(sum, by, range) {
  const name = by === "by_edge" ? edgeName(sum.of) : sum.of;
  const query = new URLSearchParams({ [FOUND_BY[by]]: sum.of, from: range });
  return [sum.of ? make("a", { href: `#/history/?${query}`, dir: "auto" }, name) : "(none)", count(sum.calls), lasted(sum.seconds / sum.calls), count(sum.turns), count(sum.interruptions), count(sum.failures), money(sum.cost)];
}

function chart({ from, to, bucket_seconds: bucket, by_time: rows }) {
  const buckets = Math.max(1, Math.ceil((to - from) / bucket));
  const most = Math.max(...rows.map((r) => r.calls));
  const width = WIDTH / buckets;
  const day = new Intl.DateTimeFormat(undefined, bucket < 86400 ? { dateStyle: "short", timeStyle: "short" } : { dateStyle: "medium" });
  const bars = rows.map((r) => {
    const height = (r.calls / most) * HEIGHT;
    const bar = draw("rect", { x: r.of * width, y: HEIGHT - height, width: Math.max(1, width - 1), height });
    bar.append(draw("title"));
    bar.firstChild.textContent = `${day.format(new Date((from + r.of * bucket) * 1000))}: ${count(r.calls)} calls`;
    return bar;
  });
  const picture = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", preserveAspectRatio: "none", "aria-label": `Calls by ${bucket < 86400 ? "hour" : "day"}, at most ${most}` }, ...bars);
  return make("figure", {}, picture, make("figcaption", { className: "soft" }, `Calls by ${bucket < 86400 ? "hour" : "day"}; the highest bar is ${count(most)}.`));
}
