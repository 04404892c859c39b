// Calls that are over, and those in progress, by what is known of them.

import { outcomeFilter } from "./analysis.js";
import { search } from "./api.js";
import { empty, make, say, table } from "./dom.js";
import { lasted, milliseconds, parties, time } from "./words.js";

const FIELDS = [
  ["text", "Words that were said", "search", "refund, lett*"],
  ["number", "Number", "search", "+49 30 1234"],
  ["agent", "Agent", "text", ""],
  ["from", "From", "datetime-local", ""],
  ["to", "To", "datetime-local", ""],
  ["min_latency", "Slowest answer from", "number", "ms"],
];
const CHECKS = [["failed", "Something failed"], ["interrupted", "Interrupted"]];

export async function showHistory(main, rest, signal) {
  const query = Object.fromEntries(new URLSearchParams(rest.replace(/^\?/, "")));
  const list = make("div");
  main.replaceChildren(make("h1", {}, "History"), filters(query), list);
  await fill(list, query, signal, "");
}

function filters(query) {
  const form = make("form", { className: "filters", role: "search" });
  for (const [name, label, type, placeholder] of FIELDS) {
    const value = type === "datetime-local" && query[name] ? local(query[name]) : query[name] ?? "";
    form.append(make("label", {}, make("span", {}, label), make("input", { name, type, placeholder, value, min: type === "number" ? 0 : "" })));
  }
  form.append(outcomeFilter(query.analysis));
  for (const [name, label] of CHECKS) {
    form.append(make("label", { className: "check" }, make("input", { name, type: "checkbox", checked: query[name] === "true" }), label));
  }
  form.append(make("button", { type: "submit", className: "primary" }, "Search"),
    make("a", { href: "#/history", className: "quiet" }, "All"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = new URLSearchParams();
    for (const input of form.elements) {
      if (input.type === "checkbox" && input.checked) wanted.set(input.name, "true");
      else if (input.type === "datetime-local" && input.value) wanted.set(input.name, new Date(input.value).toISOString());
      else if (input.name && input.type !== "checkbox" && input.value.trim()) wanted.set(input.name, input.value.trim());
    }
    location.hash = `#/history/?${wanted}`;
  });
  return form;
}

async function fill(list, query, signal, cursor) {
  let found;
  try {
    found = await search({ limit: 50, ...query, ...(cursor ? { cursor } : {}) });
  } catch (error) {
    if (error.status !== 400) throw error;
    list.replaceChildren(empty("That cannot be looked for", error.message)); // the form stays
    return say(error.message);
  }
  if (signal.aborted) return;
  const { calls, cursor: next } = found;
  list.querySelector(".more")?.remove();
  if (!calls.length && !cursor) {
    const none = Object.keys(query).length
      ? empty("No such calls", "Other words, a longer time, or fewer digits of the number may find them.")
      : empty("No calls yet", "Every call is listed here as soon as it is answered: from the page, a phone, a carrier or a program.");
    list.append(none);
    return say("No calls");
  }
  const rows = calls.map(cells);
  const body = list.querySelector("tbody");
  if (body) body.append(...table("", COLUMNS, rows).querySelector("tbody").children);
  else list.append(table("Calls", COLUMNS, rows));
  say(`${list.querySelectorAll("tbody tr").length} calls`);
  if (next) {
    const more = make("button", { type: "button", className: "more" }, "Earlier calls");
    more.addEventListener("click", () => { more.disabled = true; fill(list, query, signal, next); });
    list.append(more);
  }
}

const COLUMNS = ["Who", "When", "Lasted", "Agent", "Turns", "Slowest answer", "Ended"];

function cells(call) {
  const marks = [];
  if (call.failures) marks.push(make("span", { className: "mark bad", title: "something failed" }, "⚠"));
  if (call.interruptions) marks.push(make("span", { className: "mark", title: `interrupted ${call.interruptions} times` }, "✂"));
  if (call.recording) marks.push(make("span", { className: "mark", title: "recorded" }, "●"));
  if (call.forgotten) marks.push(make("span", { className: "mark", title: "words and numbers were deleted" }, "∅"));
  return [
    make("a", { href: `#/call/${encodeURIComponent(call.call_id)}`, dir: "auto" }, parties(call)),
    time(call.started),
    call.state === "live" ? make("span", { className: "live" }, "on the line") : lasted(call.seconds),
    call.agent,
    String(call.turns),
    milliseconds(call.latency_max_ms),
    make("span", {}, call.end_reason, " ", ...marks),
  ];
}

function local(text) {
  const date = new Date(text);
  return Number.isNaN(+date) ? "" : new Date(date - date.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}
