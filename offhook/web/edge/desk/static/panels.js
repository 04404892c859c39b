// What is shown beside the phone: the queues of the extension, and who is at the other end of its calls.

import { make, say } from "../console/dom.js";
import { Beside } from "./beside.js";
import { change, events } from "./panels_api.js";
import { lasted } from "./times.js";

const STATES = {
  ready: ["up", "Ready"], ringing: ["waiting", "Rings"], speaking: ["waiting", "In a call"],
  wrap_up: ["waiting", "Wrap-up"], paused: ["down", "Paused"],
  no_phone: ["down", "No phone"],
};

/**
 * Called once somebody has signed in. `context` has `root`, the element to be filled; `number`, the extension; `phone`, an
 * EventTarget with the events "ringing", "answered", "held" and "ended", whose detail is {id, caller, name, headers, …};
 * and the methods answer(id) and explain(id, why), which says why the call will have ended. Returns what ends it, when they sign out.
 */
export function start(context) {
  const fault = make("p", { className: "fault", role: "status" });
  const queues = make("div", { className: "queues" });
  const calls = make("div", { className: "beside" });
  context.root.replaceChildren(fault, queues, calls);
  const shown = new Map(); // by the server's id of the call
  const phones = new Map(); // the phone's id of a call that rings or goes on, by the server's
  const leaving = new AbortController();
  const of = ({ detail: { headers } }) => Object.entries(headers ?? {}).find(([name]) => name.toLowerCase() === "x-offhook-call")?.[1];
  const listen = (type, then) => context.phone.addEventListener(type, (event) => {
    if (of(event)) then(of(event), event.detail.id);
  }, { signal: leaving.signal });
  listen("ringing", (id, phone) => phones.set(id, phone));
  listen("ended", (id) => phones.delete(id));

  const showCalls = (found) => {
    fault.textContent = "";
    const there = new Set(found.map(({ call_id: id }) => id));
    for (const [id, panel] of shown) {
      if (there.has(id)) continue;
      panel.over();
      // The last one stays for the note about it, until another one comes.
      if (there.size || !panel.wasUp) { panel.element.remove(); shown.delete(id); }
    }
    for (const call of found) {
      let panel = shown.get(call.call_id);
      if (!panel) {
        panel = new Beside(call.call_id, {
          phone: {
            answer: () => context.answer(phones.get(call.call_id)),
            explain: (why) => context.explain(phones.get(call.call_id), why),
          },
          close: () => { panel.element.remove(); shown.delete(call.call_id); },
        });
        shown.set(call.call_id, panel);
        calls.prepend(panel.element);
        if (call.briefing) say(`A call for ${call.target.replace(/^queue:/, "")} from ${call.name || call.number}`);
      }
      panel.show(call);
    }
  };
  const showQueues = (found) => {
    const focused = document.activeElement?.dataset?.queue;
    queues.replaceChildren(...(found.length ? [make("h2", {}, "Queues"), ...found.map(queueOf)] : []));
    if (focused) [...queues.querySelectorAll("button")].find(({ dataset }) => dataset.queue === focused)?.focus();
  };
  const tick = setInterval(() => {
    for (const element of context.root.querySelectorAll("[data-since]")) element.textContent = lasted(Number(element.dataset.since));
  }, 1000);
  const stop = events({
    queues: showQueues, calls: showCalls,
    lost: () => { fault.textContent = "What is shown here may be old: the server does not answer, and is tried again."; },
  });
  return () => {
    stop();
    leaving.abort();
    clearInterval(tick);
  };
}

function queueOf({ name, state, waiting, waiting_since: since, calls_back: back }) {
  const [kind, words] = STATES[state];
  const pause = state !== "paused";
  const set = async (paused) => {
    try {
      await change(`queues/${encodeURIComponent(name)}`, { paused });
    } catch (error) {
      say(error.message);
    }
  };
  const buttons = [make("button", { type: "button", data: { queue: name }, onclick: () => set(pause) }, pause ? "Pause" : "Ready")];
  if (state === "wrap_up") buttons.unshift(make("button", { type: "button", className: "primary", data: { queue: `${name} ready` }, onclick: () => set(false) }, "Ready"));
  const wait = since ? make("span", {}, ", the first for ", make("span", { data: { since } }, lasted(since))) : "";
  return make("div", { className: "card", role: "group", "aria-label": `Queue ${name}` },
    make("div", { className: "card-head" },
      make("h3", { dir: "auto" }, name), make("span", { className: "badge", data: { state: kind } }, words)),
    make("p", { className: "soft" }, waiting === 1 ? "1 caller waits" : `${waiting} callers wait`, wait),
    back ? make("p", { dir: "auto" }, `${back} is called back: your phone rings once they have answered.`) : "",
    make("div", { className: "row-actions" }, ...buttons));
}
