// The events of a call as a list that people can read: words, and between them what was done.

import { make } from "./dom.js";
import { clock, milliseconds } from "./words.js";

/** Kinds of events that are told by what follows them. */
const UNTOLD = new Set(["call_started", "speech_started", "interrupted", "tokens_used", "playout_paused", "turn_latency"]);
const SPANS = {
  speech_end: "silence noticed", asr_final: "final words", turn_decided: "turn decided",
  llm_first_token: "agent’s first word", tts_first_audio: "first sound", first_packet: "first packet",
};

/** Items of a list; `seek(ms)` jumps in the recording, null without one. */
export function storyOf(events, seek) {
  const longest = Math.max(1, ...events.filter((e) => e.event === "turn_latency").map((e) => e.total_ms));
  const items = [];
  let spoke = 0, answered = null, cut = null, latency = null, free = true, before = 0;
  for (const event of events) {
    switch (event.event) {
      case "speech_started": if (free) [spoke, free] = [event.at_ms, false]; break;
      case "turn_latency": [latency, answered] = [event, event.at_ms]; break;
      case "interrupted": cut = event; break;
      case "caller_typed":
        items.push(words("caller", event, event.at_ms, seek));
        before = event.at_ms;
        break;
      case "caller_turn":
        items.push(words("caller", event, Math.min(spoke || event.at_ms, event.at_ms), seek));
        [spoke, free, before] = [0, true, event.at_ms];
        break;
      case "agent_turn":
        items.push(words("agent", event, Math.min(answered ?? before, event.at_ms), seek, cut));
        if (latency) items.push(waterfall(latency, longest, latency.at_ms));
        [answered, cut, latency, before] = [null, null, null, event.at_ms];
        break;
      default: if (!UNTOLD.has(event.event)) items.push(other(event, seek));
    }
  }
  // In the order in which they began: an answer that is cut is told when the cut is.
  return items.sort((one, other) => one.dataset.from - other.dataset.from);
}

/** When the sound begins on the clock of the events, and its silent spans on its own, in ms. */
export function soundOf(events) {
  let offset = null, silent = null, on = false, paused = false;
  const gaps = [];
  for (const event of events) {
    switch (event.event) {
      case "recording_started": on = true; offset ??= event.at_ms; break;
      case "recording_stopped": on = false; break;
      case "recording_paused": paused = true; break;
      case "recording_resumed": paused = false; break;
      default: continue;
    }
    if (offset === null) continue;
    const at = event.at_ms - offset;
    if (on && !paused) {
      if (silent !== null) gaps.push([silent.at, at, silent.why]);
      silent = null;
    } else silent ??= { at, why: on ? "paused" : "stopped" };
  }
  if (silent !== null) gaps.push([silent.at, Infinity, silent.why]);
  return { offset: offset ?? 0, gaps };
}

function words(who, event, from, seek, cut = null) {
  const said = make("p", { className: "words", dir: "auto" }, event.text ?? "(words are not kept)");
  if (cut?.unheard) said.append(" ", make("s", { title: "not heard: the caller interrupted" }, cut.unheard));
  return make("li", { className: who, data: { from, to: event.at_ms } },
    moment(from, seek), make("span", { className: "who" }, who === "caller" ? "Caller" : "Agent"), said);
}

function moment(ms, seek) {
  if (!seek) return make("span", { className: "at" }, clock(ms));
  return make("button", { type: "button", className: "at", onclick: () => seek(ms), title: "Listen from here" }, clock(ms));
}

function waterfall({ spans, total_ms: total }, longest, from) {
  const bar = make("span", { className: "strip", ariaHidden: "true" });
  for (const [name, ms] of spans) {
    const piece = make("i", { data: { span: name }, title: `${SPANS[name] ?? name}: ${milliseconds(ms)}` });
    piece.style.flexGrow = ms;
    bar.append(piece);
  }
  bar.style.width = `${(100 * total) / longest}%`;
  const told = spans.map(([name, ms]) => `${SPANS[name] ?? name} ${milliseconds(ms)}`).join(", ");
  return make("li", { className: "latency", data: { from, to: from } },
    make("details", {}, make("summary", {}, bar, `answered in ${milliseconds(total)}`), make("p", {}, told)));
}

const TOLD = {
  tool_used: (e) => [`Tool ${e.name}${e.failed ? " failed" : ""}, ${milliseconds(e.took_ms)}`, e.arguments, e.result],
  agent_failed: (e) => [`${e.place.replaceAll("_", " ")}: ${e.fault.replaceAll("_", " ")}; ${e.action.replaceAll("_", " ")}`, e.cause],
  agent_changed: (e) => [`${e.agent} takes the call over from ${e.before}`, e.text],
  node_entered: (e) => [`Flow: ${e.before} → ${e.node}`, e.function && `by ${e.function}`],
  detail_noted: (e) => [`Noted: ${e.name}`, e.text],
  dtmf: () => ["A key was pressed"],
  language_changed: (e) => [`The caller goes on in ${e.language}`],
  passages_found: (e) => [`Documents were searched (${e.by})`, e.text, (e.sources ?? []).join(", ")],
  playout_resumed: (e) => [e.text ? `“${e.text}” was no interruption` : "A sound was no interruption"],
  answer_dropped: () => ["An answer begun in a pause was dropped"],
  call_held: (e) => [`On hold, by the ${e.by}`],
  call_resumed: (e) => [`Back from hold, by the ${e.by}`],
  recording_started: (e) => [`Recording started, by the ${e.by}`, e.notice && `“${e.notice}”`],
  recording_paused: (e) => [`Recording paused, by the ${e.by}: nothing is kept until it goes on`],
  recording_resumed: (e) => [`Recording goes on, by the ${e.by}`],
  recording_stopped: (e) => [`Recording stopped, by the ${e.by}`],
  transfer_failed: (e) => [`Transfer to ${e.target} failed`, e.reason],
  answered_by: (e) => [`Answered by: ${e.by.replace("_", ", ")} (${e.why})`],
  message_left: (e) => [`Message left: ${e.text ?? ""}`],
  call_transferred: (e) => [`Transferred to ${e.target}`],
  call_ended: (e) => [`Ended: ${e.reason}`],
};

function other(event, seek) {
  const [title, ...more] = TOLD[event.event]?.(event) ?? [event.event.replaceAll("_", " ")];
  const bad = event.event === "agent_failed" || event.failed;
  return make("li", { className: bad ? "other bad" : "other", data: { from: event.at_ms, to: event.at_ms } },
    moment(event.at_ms, seek), make("span", { className: "what", dir: "auto" }, title),
    ...more.filter(Boolean).map((text) => make("p", { className: "more-of-it", dir: "auto" }, text)));
}
