// What a model has found of a call that is over, and the filter by it.

import { make } from "./dom.js";
import { clock, money } from "./words.js";

const OUTCOMES = {
  success: "Success", failure: "Failure", unknown: "Unclear", done: "Summed up",
  waiting: "Not analysed yet", error: "Could not be analysed",
};

/** Elements of the page of one call; `seek(ms)` jumps in the recording, null without one. */
export function analysisOf({ analysis: found }, seek) {
  if (!found) return [];
  const parts = [make("h2", {}, "What became of it"),
    make("p", {}, make("span", { className: "verdict", data: { verdict: found.outcome } }, OUTCOMES[found.outcome] ?? found.outcome))];
  if (found.fault) parts.push(make("p", { className: "soft", dir: "auto" }, found.fault));
  if (found.summary) parts.push(make("p", { dir: "auto" }, found.summary));
  if (found.criteria?.length) parts.push(make("ul", { className: "criteria" }, ...found.criteria.map((one) => criterion(one, seek))));
  const values = Object.entries(found.extracted ?? {}).filter(([, value]) => value !== null);
  if (values.length) {
    parts.push(make("dl", { className: "facts" }, ...values.map(([name, value]) =>
      make("div", {}, make("dt", {}, name.replaceAll("_", " ")), make("dd", { dir: "auto" }, String(value))))));
  }
  const small = [found.model && `by ${found.model}`, money(found.cost) && `cost ${money(found.cost)}`,
    found.left_out && `${found.left_out} lines in the middle of the call were not read`].filter(Boolean);
  if (small.length) parts.push(make("p", { className: "soft" }, small.join(", ")));
  return [make("section", { className: "analysis", ariaLabel: "Analysis" }, ...parts)];
}

function criterion({ name, criterion: text, verdict, reason, at_ms: at }, seek) {
  const moment = at === null ? "" : seek
    ? make("button", { type: "button", className: "at", onclick: () => seek(at), title: "Listen from here" }, clock(at))
    : make("span", { className: "soft" }, clock(at));
  return make("li", {},
    make("span", { className: "verdict", data: { verdict } }, OUTCOMES[verdict]), " ",
    make("b", { title: text, dir: "auto" }, name.replaceAll("_", " ")), " ", moment,
    make("p", { dir: "auto" }, reason));
}

/** A choice of what became of calls, for the form of a search. */
export function outcomeFilter(wanted) {
  const choices = Object.entries({ "": "Anything", ...OUTCOMES }).map(([value, label]) =>
    make("option", { value, selected: value === (wanted ?? "") }, label));
  return make("label", {}, make("span", {}, "What became of it"), make("select", { name: "analysis" }, ...choices));
}
