// Calls that are over, and those in progress, by what is known of them.

import { outcomeFilter } from "./analysis.js";
import { agents, search, trunks } from "./api.js";
import { empty, make, say, table } from "./dom.js";
import { edgeName, lasted, milliseconds, parties, shortTime, wayIn, ZONE } from "./words.js";

const FIELDS = [
  ["text", "Words that were said", "search", "refund, lett*"],
  ["number", "Number", "search", "+49 30 1234"],
  ["from", "From", "datetime-local", ""],
  ["to", "To", "datetime-local", ""],
  ["agent", "Agent", "list", ""],
  ["trunk", "Trunk", "list", ""],
  ["edge", "Way in", "list", ""],
  ["state", "State", "choice", ""],
  ["reason", "Ended by", "search", "the caller hung up"],
  ["min_latency", "Slowest answer from", "number", "ms"],
  ["min_seconds", "Lasted from", "number", "s"],
];
const STATES = [["", "any"], ["live", "on the line"], ["ended", "over"]];
const EDGES = ["webrtc", "sip", "realtime", "whip"];
const CHECKS = [["failed", "Something failed"], ["interrupted", "Interrupted"]];
/** Fields that are always there; the others are opened. */
const USUAL = new Set(["text", "number", "from", "to"]);

/** The search that was looked at last, to come back to. */
let last = "#/history";
export const lastSearch = () => last;

export async function showHistory(main, rest, signal) {
  last = `#/history/${rest}`;
  const query = Object.fromEntries(new URLSearchParams(rest.replace(/^\?/, "")));
  const list = make("div");
  main.replaceChildren(make("h1", {}, "History"), filters(query), list);
  suggest();
  await fill(list, query, signal, "");
}

function filters(query) {
  const form = make("form", { className: "filters", role: "search" });
  const usual = make("div", { className: "fields" }), more = make("div", { className: "fields" });
  for (const field of FIELDS) (USUAL.has(field[0]) ? usual : more).append(fieldOf(field, query));
  more.append(outcomeFilter(query.analysis));
  for (const [name, label] of CHECKS) {
    more.append(make("label", { className: "check" }, make("input", { name, type: "checkbox", checked: query[name] === "true" }), label));
  }
  const used = Object.keys(query).filter((name) => !USUAL.has(name)).length;
  usual.append(make("button", { type: "submit", className: "primary" }, "Search"));
  if (Object.keys(query).length) usual.append(make("a", { href: "#/history", className: "quiet" }, "All calls"));
  form.append(usual, make("details", { open: used > 0 }, make("summary", {}, used ? `More filters (${used} used)` : "More filters"), more));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = `#/history/?${wantedOf(form)}`;
  });
  return form;
}

function fieldOf([name, label, type, placeholder], query) {
  const given = query[name] ?? "";
  let input;
  if (type === "choice") {
    input = make("select", { name }, ...STATES.map(([value, text]) => make("option", { value, selected: value === given }, text)));
  } else if (type === "list") {
    input = make("input", { name, type: "text", value: given, list: `known-${name}`, autocomplete: "off" });
    const known = name === "edge" ? EDGES : [];
    return make("label", {}, make("span", {}, label), input,
      make("datalist", { id: `known-${name}` }, ...known.map((value) => make("option", { value }, edgeName(value)))));
  } else {
    const value = type === "datetime-local" && given ? local(given) : given;
    input = make("input", { name, type, placeholder, value, ...(type === "number" ? { min: 0 } : {}), ...(type === "datetime-local" ? { title: `in your time zone, ${ZONE}` } : {}) });
  }
  return make("label", {}, make("span", {}, label), input);
}

/** What the fields of a form ask for, as parameters of the API and of the link. */
function wantedOf(form) {
  const wanted = new URLSearchParams();
  for (const input of form.elements) {
    const value = input.value?.trim();
    if (!input.name || !value) continue;
    if (input.type === "checkbox") { if (input.checked) wanted.set(input.name, "true"); }
    else wanted.set(input.name, input.type === "datetime-local" ? new Date(value).toISOString() : value);
  }
  return wanted;
}

/** Offers the names of agents and trunks, which are known a moment later. */
async function suggest() {
  const offer = (name, values) => document.getElementById(`known-${name}`)?.append(...values.map((value) => make("option", { value })));
  const known = [
    agents({}).then((found) => offer("agent", [...found.agents, ...found.others].map((agent) => agent.name))),
    trunks().then((found) => {
      offer("trunk", found.trunks.map((trunk) => trunk.name).filter(Boolean));
      offer("edge", [...new Set(found.trunks.map((trunk) => trunk.kind))].filter((kind) => kind !== "strangers" && !EDGES.includes(kind)));
    }),
  ];
  await Promise.allSettled(known); // without them one writes the name
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

const COLUMNS = ["Who", "When", "Lasted", "Agent", "Way in", "Turns", "Slowest answer", "Ended"];

function cells(call) {
  const marks = [];
  if (call.failures) marks.push(make("span", { className: "mark bad", title: "something failed", role: "img", ariaLabel: "something failed" }, "⚠"));
  if (call.interruptions) marks.push(make("span", { className: "mark", title: `interrupted ${call.interruptions} times`, role: "img", ariaLabel: `interrupted ${call.interruptions} times` }, "✂"));
  if (call.recording) marks.push(make("span", { className: "mark", title: "recorded", role: "img", ariaLabel: "recorded" }, "●"));
  if (call.forgotten) marks.push(make("span", { className: "mark", title: "words and numbers were deleted", role: "img", ariaLabel: "words and numbers were deleted" }, "∅"));
  return [
    make("a", { href: `#/call/${encodeURIComponent(call.call_id)}`, dir: "auto" }, parties(call)),
    shortTime(call.started),
    call.state === "live" ? make("span", { className: "live" }, "on the line") : lasted(call.seconds),
    call.agent,
    wayIn(call),
    call.state === "live" ? "" : String(call.turns),
    milliseconds(call.latency_max_ms),
    call.end_reason || marks.length ? make("span", {}, call.end_reason, ...marks.flatMap((mark) => ["\u00a0", mark])) : "",
  ];
}

function local(text) {
  const date = new Date(text);
  return Number.isNaN(+date) ? "" : new Date(date - date.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}
