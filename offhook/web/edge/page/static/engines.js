// The operator's view of the engines that `auto` brings in: what this machine could run, how far that
// has come, and what has failed. Callers get none of it from the server.

import { acceptEngines } from "./signalling.js";

const VERBS = { asr: "hear", tts: "speak" };
const COMING = ["starting", "downloading", "loading", "failed"];

const element = (id) => document.getElementById(id);

/** Whether the server is to be asked again soon. */
export function areComing(engines) {
  return Object.values(engines ?? {}).some(({ state }) => COMING.includes(state));
}

/** Shows `engines`, the states by kind; undefined where there is nothing to show. */
export function showEngines(engines) {
  const all = Object.entries(engines ?? {});
  const offered = all.filter(([, { state }]) => state === "offered");
  const coming = all.filter(([, { state }]) => COMING.includes(state));
  element("engines").hidden = !offered.length && !coming.length;
  element("engines-offer").hidden = !offered.length;
  const bytes = offered.reduce((sum, [, engine]) => sum + (engine.bytes ?? 0), 0);
  element("engines-words").textContent =
    `Better speech${bytes ? `, ${sizeOf(bytes)}` : ""}`;
  const could = offered.map(([kind, engine]) => `${VERBS[kind]} with ${described(engine)}`);
  element("engines-details").textContent =
    `This machine could ${could.join(" and ")}. Calls go on meanwhile, and new ones use what is ready.`;
  const list = element("engines-coming");
  while (list.children.length > coming.length) list.lastChild.remove();
  coming.forEach(([kind, engine], at) => {
    const item = list.children[at] ?? list.appendChild(newItem());
    item.querySelector("span").textContent = progressOf(kind, engine);
    const bar = item.querySelector("progress");
    bar.value = engine.fraction;
    bar.hidden = engine.state === "failed";
  });
}

/** Accepts the offer. */
export async function accept() {
  const button = element("engines-accept");
  button.disabled = true;
  try {
    showEngines(await acceptEngines());
  } finally {
    button.disabled = false;
  }
}

function newItem() {
  const item = document.createElement("li");
  const bar = document.createElement("progress");
  bar.setAttribute("aria-label", "Loaded");
  item.append(document.createElement("span"), bar);
  return item;
}

function described({ title, model, bytes, licence }) {
  const facts = [model, bytes && `${sizeOf(bytes)} to download`, licence];
  return `${title} (${facts.filter(Boolean).join(", ")})`;
}

/** How far an engine has come, in a sentence. */
export function progressOf(kind, { title: own, state, fraction, bytes, retry_s: retry, fault, offline }) {
  const name = `${own}, to ${VERBS[kind]} with`;
  if (state === "failed") {
    const again = `trying again in ${Math.ceil(retry)} s`;
    if (offline) return `Could not download ${own} (no network); ${again}.`;
    return `${own} could not be loaded; ${again}. ${fault}`;
  }
  if (state === "downloading") {
    const size = bytes ? ` ${sizeOf(bytes)}` : "";
    return `${name}: downloading${size}, ${Math.floor(100 * fraction)} % done`;
  }
  return `${name}: ${state}`;
}

function sizeOf(bytes) {
  return bytes < 1e9 ? `${Math.round(bytes / 1e6)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;
}
