// Calls in progress, at all servers that share the store, with words as they come.

import { hangUp } from "./api.js";
import { empty, make, say } from "./dom.js";
import { follow } from "./live_feed.js";
import { lasted, milliseconds, parties, sideOf, speaker, wayIn } from "./words.js";

const TICK_MS = 1000;

export async function showLive(main, rest, signal, who) {
  const list = make("ul", { className: "live-calls" });
  const none = empty("Nobody is on the line", "Calls appear here as soon as they are answered, from every server that shares the database.");
  const note = make("p", { className: "soft", hidden: true });
  const wrong = make("p", { className: "notice bad", role: "alert", hidden: true });
  const cards = new Map();
  none.hidden = true;
  main.replaceChildren(make("h1", {}, "Live"), wrong, note, list, none);
  const timer = setInterval(() => { for (const card of cards.values()) card.tick(); }, TICK_MS);
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });
  await follow(signal, (calls, number, fault) => {
    showCount(number);
    wrong.hidden = !fault;
    if (fault && wrong.textContent !== fault) wrong.textContent = fault;
    note.hidden = number <= calls.length;
    note.textContent = `${number} calls are in progress; these are the last ${calls.length}.`;
    none.hidden = calls.length > 0 || Boolean(fault);
    const there = new Set(calls.map((call) => call.call_id));
    for (const [id, card] of cards) if (!there.has(id)) { card.element.remove(); cards.delete(id); }
    calls.forEach((call, place) => {
      let card = cards.get(call.call_id);
      if (!card) {
        card = cardOf(call, who);
        cards.set(call.call_id, card);
        if (place === 0 && cards.size > 1) say(`A call of ${parties(call)} has begun`);
      }
      if (list.children[place] !== card.element) list.insertBefore(card.element, list.children[place] ?? null);
      card.show(call);
    });
  });
}

/** One call, whose element stays the same while what it says changes: whatever has the focus keeps it. */
function cardOf(call, who) {
  const time = make("span", { className: "for" });
  const facts = make("p", { className: "soft facts-line" });
  const words = make("ol", { className: "last-turns" });
  const state = make("span", { className: "badge" });
  const element = make("li", { className: "card" },
    make("div", { className: "card-head" },
      make("h2", {}, make("a", { href: `#/call/${encodeURIComponent(call.call_id)}`, dir: "auto" }, parties(call))), state, time),
    facts, words, who === "admin" ? end(call) : "");
  const started = new Date(call.started);
  const tick = () => { time.textContent = lasted((Date.now() - started) / 1000); };
  let shown = "";
  const show = (now) => {
    const text = JSON.stringify([now.agent, now.last_turns, now.latency_ms, now.turns_so_far, now.failures, now.on_hold, now.hands]);
    if (text === shown) return;
    shown = text;
    state.textContent = now.on_hold ? "on hold" : "talking";
    state.dataset.state = now.on_hold ? "waiting" : "up";
    facts.replaceChildren(...[
      now.agent, wayIn(now),
      now.turns_so_far ? `${now.turns_so_far} ${now.turns_so_far === 1 ? "turn" : "turns"}` : "",
      now.latency_ms ? `answered in ${milliseconds(now.latency_ms)}` : "", now.server,
      now.hands?.length ? `✋ ${now.hands.join(", ")}` : "",
    ].filter(Boolean).map((fact) => make("span", { dir: "auto" }, fact)));
    if (now.failures) facts.prepend(make("span", { className: "bad" }, "⚠ something failed"));
    words.replaceChildren(...now.last_turns.slice(-3).map((turn) => make("li", { className: turn.who ? sideOf(turn.who) : "unknown" },
      turn.who && make("span", { className: "who", dir: "auto" }, speaker(turn.who)),
      make("span", { className: "last", dir: "auto" }, turn.text ?? "(words are not kept)"))));
  };
  tick();
  return { element, show, tick };
}

function end(call) {
  const button = make("button", { type: "button", className: "quiet hang-up", ariaLabel: `Hang up the call of ${parties(call)}` }, "Hang up");
  button.addEventListener("click", async () => {
    if (!confirm(`Hang up the call of ${parties(call)}?`)) return;
    button.disabled = true;
    await hangUp(call.call_id).catch((error) => {
      button.disabled = false;
      alert(error.status === 404 ? `This call is at ${call.server}: it can be ended there.` : error.message);
    });
  });
  return button;
}

export function showCount(number) {
  const count = document.getElementById("live-count");
  count.textContent = number;
  count.hidden = !number;
}
