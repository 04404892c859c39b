// Calls in progress, at all servers that share the store.

import { hangUp, search } from "./api.js";
import { empty, make, table } from "./dom.js";
import { lasted, parties } from "./words.js";

const EVERY_MS = 2000;

export async function showLive(main, rest, signal, who) {
  const list = make("div");
  main.replaceChildren(make("h1", {}, "Live"), list);
  while (!signal.aborted) {
    const { calls } = await search({ state: "live", limit: 200 });
    if (signal.aborted) return;
    showCount(calls.length);
    // A button that has the focus keeps it.
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    list.replaceChildren(calls.length ? rows(calls, who) : empty("Nobody is on the line", "Calls appear here as soon as they are answered."));
    if (focused) list.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, EVERY_MS);
      signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
    });
  }
}

function rows(calls, who) {
  const columns = ["Who", "For", "Agent", "Last words", "Turns", "Server", ...(who === "admin" ? ["End"] : [])];
  return table("Calls in progress", columns, calls.map((call) => [
    make("a", { href: `#/call/${encodeURIComponent(call.call_id)}`, data: { key: `show ${call.call_id}` } }, parties(call)),
    lasted((Date.now() - new Date(call.started)) / 1000),
    call.agent,
    make("span", { className: "last", dir: "auto" }, call.last_words ?? ""),
    call.turns_so_far ?? "",
    call.server,
    ...(who === "admin" ? [end(call)] : []),
  ]));
}

function end(call) {
  const button = make("button", { type: "button", className: "quiet", data: { key: `end ${call.call_id}` } }, "Hang up");
  button.addEventListener("click", async () => {
    if (!confirm(`Hang up the call of ${parties(call)}?`)) return;
    button.disabled = true;
    await hangUp(call.call_id).catch((error) => alert(error.message));
  });
  return button;
}

export function showCount(number) {
  const count = document.getElementById("live-count");
  count.textContent = number;
  count.hidden = !number;
}
