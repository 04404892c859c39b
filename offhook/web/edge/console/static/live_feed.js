// The calls in progress as they go on: by server-sent events, or by asking where those do not come.

import { search } from "./api.js";

const ASK_MS = 2000;
/** How long calls are asked for before events are tried again. */
const AGAIN_MS = 30000;
const LAST_TURNS = 6;

/** Resolves after that time, or once the view is left. */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

/**
 * Follows the calls until `signal` is aborted. `changed(calls, number, fault)` gets all that are followed, the
 * last first, how many there are in all, and what is wrong with the store, if anything. Throws what the API refuses.
 */
export async function follow(signal, changed) {
  while (!signal.aborted) {
    await listen(signal, changed);
    for (const until = Date.now() + AGAIN_MS; Date.now() < until && !signal.aborted;) {
      const { calls } = await search({ state: "live", limit: 200 });
      if (signal.aborted) return;
      const asked = calls.map((call) => ({ ...call, last_turns: call.last_words ? [{ who: "", text: call.last_words }] : [] }));
      changed(asked, asked.length, "");
      await pause(ASK_MS, signal);
    }
  }
}

/** Resolves once events come no more. */
function listen(signal, changed) {
  return new Promise((resolve) => {
    const calls = new Map();
    let number = 0, source, drawing = 0;
    const draw = (fault = "") => {
      cancelAnimationFrame(drawing);
      drawing = requestAnimationFrame(() => signal.aborted || changed(sorted(calls), number, fault));
    };
    const end = () => { source.close(); resolve(); };
    const on = (kind, apply) => source.addEventListener(kind, ({ data }) => apply(JSON.parse(data)));
    const change = (kind, apply) => on(kind, (data) => {
      const call = calls.get(data.call_id);
      if (call) apply(call, data);
      draw();
    });
    const open = () => {
      source = new EventSource("calls/events");
      on("snapshot", (data) => {
        calls.clear();
        for (const call of data.calls) calls.set(call.call_id, call);
        number = data.number;
        draw();
      });
      on("started", (call) => { calls.set(call.call_id, { ...call, last_turns: [] }); draw(); });
      on("number", (data) => { number = data.number; draw(); });
      on("unavailable", ({ error }) => { calls.clear(); draw(error); });
      on("reconnect", () => { source.close(); open(); });
      change("turn", (call, { who, text, turns_so_far: turns }) => {
        call.last_turns = [...call.last_turns, { who, text }].slice(-LAST_TURNS);
        call.turns_so_far = turns;
      });
      change("agent", (call, { agent }) => { call.agent = agent; });
      change("latency", (call, { latency_ms: ms }) => { call.latency_ms = ms; });
      change("failed", (call, { failures }) => { call.failures = failures; });
      change("hands", (call, { hands }) => { call.hands = hands; });
      change("hold", (call, { on_hold: held }) => { call.on_hold = held; });
      for (const kind of ["ended", "left_out"]) on(kind, ({ call_id: id }) => { calls.delete(id); draw(); });
      // A browser comes back by itself, unless it was refused.
      source.addEventListener("error", () => {
        if (source.readyState === EventSource.CLOSED) end();
        else draw("The server does not answer; it is tried again.");
      });
    };
    signal.addEventListener("abort", end, { once: true });
    open();
  });
}

function sorted(calls) {
  return [...calls.values()].sort((one, other) => other.started.localeCompare(one.started));
}
