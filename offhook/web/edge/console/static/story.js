// The events of a call as a list that people can read: words, and between them what was done.

import { make } from "./dom.js";
import { partsOf, SPANS } from "./parts.js";
import { clock, milliseconds, sideOf, speaker } from "./words.js";

/** Items of a list; `seek(ms)` jumps in the recording, null without one. */
export function storyOf(events, seek) {
  const longest = Math.max(1, ...events.filter((e) => e.event === "turn_latency").map((e) => e.total_ms));
  return partsOf(events).map((part) => {
    if (part.part === "words") return words(part, seek);
    return part.part === "latency" ? waterfall(part.event, longest, part.from) : other(part.event, seek);
  });
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

function words({ who, event, from, to, cut }, seek) {
  const said = make("p", { className: "words", dir: "auto" }, event.text ?? "(words are not kept)");
  if (cut?.unheard) said.append(" ", make("s", { title: "not heard: the caller interrupted" }, cut.unheard));
  return make("li", { className: sideOf(who), data: { from, to } },
    moment(from, seek), make("span", { className: "who", dir: "auto" }, speaker(who)), said);
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
  member_joined: (e) => [`${e.member} has joined (${e.role})`, e.number],
  member_changed: (e) => [`${e.member}: ${e.role}${e.muted ? ", muted" : ""}${e.on_hold ? ", on hold" : ""}`],
  member_left: (e) => [`${e.member} has left`, e.reason],
  member_raised_hand: (e) => [`✋ ${e.member} would like to speak`],
  member_lowered_hand: (e) => [`${e.member} has lowered the hand`],
  room_turn: (e) => ["The agent has understood", e.text],
  agent_left: () => ["People have taken the call over"],
  agent_returned: () => ["The agent is back"],
  agent_instructed: (e) => [e.spoken ? "The operator has the agent say" : "The operator writes to the agent", e.text],
  call_held: (e) => [`On hold, by the ${e.by}`],
  call_resumed: (e) => [`Back from hold, by the ${e.by}`],
  recording_started: (e) => [`Recording started, by the ${e.by}`, e.notice && `“${e.notice}”`],
  recording_paused: (e) => [`Recording paused, by the ${e.by}: nothing is kept until it goes on`],
  recording_resumed: (e) => [`Recording goes on, by the ${e.by}`],
  recording_stopped: (e) => [`Recording stopped, by the ${e.by}`],
  transfer_failed: (e) => [`Transfer to ${e.target} failed`, e.reason],
  answered_by: (e) => [`Answered by: ${e.by.replace("_", ", ")} (${e.why})`],
  message_left: (e) => [`Message left: ${e.text ?? ""}`],
  voicemail_left: (e) => [`Voicemail for ${e.mailbox} (${e.seconds} s)`, e.text],
  transfer_progress: (e) => [`Transfer to ${e.target}: ${[e.state, e.address].filter(Boolean).join(", ")}`, e.reason],
  call_transferred: (e) => [`Transferred to ${e.target}`],
  participants_known: (e) => ["Taking part", (e.participants ?? []).map((p) => [p.name, p.number].filter(Boolean).join(" ")).join(", ")],
  words_missing: (e) => [`The words of ${e.side === "called" ? "the other side" : speaker(e.side)} are missing`, e.cause],
  call_ended: (e) => [`Ended: ${e.reason}`],
};

function other(event, seek) {
  const [title, ...more] = TOLD[event.event]?.(event) ?? [event.event.replaceAll("_", " ")];
  const bad = ["agent_failed", "words_missing"].includes(event.event) || event.failed;
  return make("li", { className: bad ? "other bad" : "other", data: { from: event.at_ms, to: event.at_ms } },
    moment(event.at_ms, seek), make("span", { className: "what", dir: "auto" }, title),
    ...more.filter(Boolean).map((text) => make("p", { className: "more-of-it", dir: "auto" }, text)));
}
