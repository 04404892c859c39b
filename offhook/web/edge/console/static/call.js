// One call: who it was, what was said and done, how long answers took, and its sound.

import { analysisOf } from "./analysis.js";
import { call as get, forget, recording, timeline } from "./api.js";
import { empty, make } from "./dom.js";
import { soundOf, storyOf } from "./story.js";
import { waveform } from "./waveform.js";
import { count, lasted, milliseconds, money, parties, time } from "./words.js";

const EVERY_MS = 2000;

export async function showCall(main, rest, signal, who) {
  const id = decodeURIComponent(rest);
  let known = await get(id).catch((error) => {
    if (error.status !== 404) throw error;
    return null;
  });
  if (signal.aborted) return;
  if (known === null) {
    main.replaceChildren(empty("There is no such call", "It may be older than this server keeps calls ([records] days)."));
    return;
  }
  const story = make("ol", { className: "story" });
  const player = playerOf(known, who);
  main.replaceChildren(
    make("p", {}, make("a", { href: "#/history" }, "← History")),
    make("h1", { dir: "auto" }, parties(known)),
    facts(known), ...analysisOf(known, player.seek), player.element, ...details(known),
    make("h2", {}, "What was said and done"), story, actions(known, who));
  let shown = -1;
  for (;;) {
    const { timeline: events } = await timeline(id);
    if (signal.aborted) return;
    if (events.length !== shown) {
      shown = events.length;
      player.note(events);
      story.replaceChildren(...storyOf(events, player.seek));
      if (!shown) story.append(make("li", { className: "soft" }, known.forgotten ? "The words of this call have been deleted." : "Nothing was said."));
    }
    if (known.state !== "live") break;
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    if (signal.aborted) return;
    known = await get(id);
  }
  player.follow(story);
  document.title = `${parties(known)} · offhook`;
}

function facts(call) {
  const list = [
    ["When", time(call.started)],
    ["Lasted", call.state === "live" ? "on the line" : lasted(call.seconds)],
    ["Ended", call.end_reason && `${call.end_reason}${call.ended_by ? ` (${call.ended_by})` : ""}`],
    ["Agents", call.agents.join(", ")],
    ["By", [call.edge, call.trunk].filter(Boolean).join(", ")],
    ["Turns", `${count(call.turns)}${call.interruptions ? `, ${count(call.interruptions)} interruptions` : ""}`],
    ["Answered in", call.latency_ms === null ? "" : `${milliseconds(call.latency_ms)} (median), ${milliseconds(call.latency_max_ms)} (slowest)`],
    ["Line", call.mos === null ? "" : `MOS ${call.mos.toFixed(2)}`],
    ["Transferred to", call.transferred_to],
    ["Tokens", call.input_tokens ? `${count(call.input_tokens)} in, ${count(call.output_tokens)} out` : ""],
    ["Cost", money(call.cost)],
    ["Server", call.server],
    ["Listened to by", call.looks.map(({ who, at }) => `${who}, ${new Date(at).toLocaleString()}`).join("; ")],
    ["Call", make("code", {}, call.call_id)],
  ];
  return make("dl", { className: "facts" }, ...list.filter(([, value]) => value).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

const DETAILS = [["collected", "Found out"], ["variables", "Variables"], ["headers", "Headers"], ["statistics", "Packets"], ["record", "Record"]];

function details(call) {
  return DETAILS.filter(([name]) => call[name] && Object.keys(call[name]).length).map(([name, title]) =>
    make("details", { open: name === "collected" }, make("summary", {}, title),
      make("dl", { className: "facts" }, ...Object.entries(call[name]).map(([key, value]) =>
        make("div", {}, make("dt", {}, key.replaceAll("_", " ")),
          make("dd", { dir: "auto" }, shown(value)))))));
}

function shown(value) {
  if (typeof value === "number") return String(Number(value.toPrecision(4)));
  return value !== null && typeof value === "object" ? JSON.stringify(value) : String(value ?? "");
}

/** The player, what jumps to a time in ms, and what marks the words that are heard. */
function playerOf(call, who) {
  const none = { seek: null, follow: () => {}, note: () => {} };
  if (!call.recording) return { element: "", ...none };
  if (who !== "admin") return { element: make("p", { className: "soft" }, "Recorded; the reader’s key does not let you listen."), ...none };
  const audio = make("audio", { controls: true, preload: "none", src: recording(call.call_id) });
  const load = make("button", { type: "button" }, "Show the sound");
  const element = make("div", { className: "player" }, audio, load);
  load.addEventListener("click", async () => {
    load.disabled = true;
    load.replaceWith(await waveform(audio, call.seconds, sound.gaps));
  });
  let sound = soundOf([]);
  return {
    element,
    note: (events) => { sound = soundOf(events); },
    seek: (ms) => { audio.currentTime = Math.max(0, ms - sound.offset) / 1000; audio.play(); },
    follow: (story) => audio.addEventListener("timeupdate", () => mark(story, audio.currentTime * 1000 + sound.offset)),
  };
}

function mark(story, ms) {
  let current = null;
  for (const item of story.children) {
    if (Number(item.dataset.from) <= ms && ms < Number(item.dataset.to) + 300) current = item;
  }
  for (const item of story.querySelectorAll(".now")) if (item !== current) item.classList.remove("now");
  if (current && !current.classList.contains("now")) {
    current.classList.add("now");
    current.scrollIntoView({ block: "nearest" });
  }
}

function actions(call, who) {
  const row = make("div", { className: "actions" });
  const copy = make("button", { type: "button" }, "Copy the link");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(location.href);
    copy.textContent = "Copied";
  });
  row.append(copy, make("a", { href: `calls/${encodeURIComponent(call.call_id)}/timeline`, download: `${call.call_id}.json` }, "Download the events"));
  if (who !== "admin") return row;
  if (call.recording) row.append(make("a", { href: recording(call.call_id), download: `${call.call_id}.ogg` }, "Download the recording"));
  if (call.state === "ended" && !call.forgotten) {
    const button = make("button", { type: "button", className: "danger" }, "Forget this call");
    button.addEventListener("click", async () => {
      if (!confirm("Delete the words, numbers, variables and the recording of this call for ever?")) return;
      button.disabled = true;
      await forget(call.call_id);
      dispatchEvent(new HashChangeEvent("hashchange"));
    });
    row.append(button);
  }
  return row;
}

