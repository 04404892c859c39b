// Everything on the page around the words: buttons, clock, notices, the quality panel.

import { wordFor } from "./quality.js";
import { wordsFor } from "./problems.js";

const ON_LINE = ["talking", "reconnecting"];
const ON_HOOK = ["idle", "connecting", "ended", "failed"];

/** Element id → the states of the call in which it is there. */
const SHOWN_IN = {
  call: ON_HOOK,
  clock: ON_LINE,
  quality: ON_LINE,
  type: ON_LINE,
  mute: ON_LINE,
  hangup: ON_LINE,
};

const STATUS = {
  idle: "Press to call",
  connecting: "Connecting…",
  talking: "You are through",
  reconnecting: "Connection lost, reconnecting…",
  failed: "Press to call again",
};

export function element(id) {
  return document.getElementById(id);
}

/** Shows a state of the call; `why` is the reason in words of a call that ended. */
export function showState(state, why) {
  document.body.dataset.state = state;
  for (const [id, states] of Object.entries(SHOWN_IN)) {
    element(id).hidden = !states.includes(state);
  }
  element("quality").open = false;
  element("status").textContent = STATUS[state] ?? why ?? "";
  showCallButton(state);
  for (const button of suggestions()) button.disabled = state !== "talking";
}

function showCallButton(state) {
  const again = state === "ended" || state === "failed";
  const label = state === "connecting" ? "Cancel the call" : again ? "Call again" : "Call";
  element("call-label").textContent = label;
}

export function suggestions() {
  return element("try").querySelectorAll("button");
}

/** Who has the word, in the middle of the line. */
export function showPhase(text) {
  element("phase").textContent = text;
}

export function showTimer(seconds) {
  element("timer").textContent = clock(seconds);
}

export function clock(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

export function showMute(muted, possible) {
  const button = element("mute");
  button.setAttribute("aria-pressed", String(muted));
  button.title = muted ? "Unmute (M)" : "Mute (M)";
  button.disabled = !possible;
  document.body.classList.toggle("muted", muted);
}

/** The list of microphones with the one in use chosen. */
export function showMicrophones(microphones, chosen) {
  const options = microphones
    .filter(({ id }) => id !== "default" && id !== "communications")
    .map(({ id, label }, at) => new Option(label || `Microphone ${at + 1}`, id));
  const select = element("microphone");
  select.replaceChildren(new Option("Default microphone", ""), ...options);
  select.value = options.some(({ value }) => value === chosen) ? chosen : "";
}

// --- notices

/** What went wrong and what to do; null takes it away. */
export function showProblem(problem) {
  element("notice").hidden = problem === null;
  if (problem === null) return;
  const { title, help, typing, key } = wordsFor(problem);
  element("notice-title").textContent = title;
  element("notice-help").replaceChildren(...help.map(paragraph));
  element("notice-actions").hidden = !typing;
  element("notice-key").hidden = !key;
  if (key) element("key").select();
}

/** Under a problem: when to try again. Not announced each second. */
export function showRetry(seconds) {
  let line = element("retry");
  if (!line) {
    line = paragraph("");
    line.id = "retry";
    line.setAttribute("aria-live", "off");
    element("notice-help").append(line);
  }
  line.textContent = seconds > 0 ? `Try again in ${seconds} s.` : "You can try again now.";
}

/** A line above the controls for what is wrong but not fatal; "" takes it away. */
export function showHint(text) {
  const hint = element("hint");
  if (hint.textContent === text && hint.hidden === !text) return;
  hint.textContent = text;
  hint.hidden = !text;
}

function paragraph(text) {
  const p = document.createElement("p");
  p.textContent = text;
  return p;
}

// --- quality

/** The server's measurements of our sound (an RTVI `quality` message). */
export function showUplink({ mos, loss, jitter_ms, buffer_ms, round_trip_ms }) {
  put("q-mos", mos?.toFixed(1));
  put("q-loss-up", percent(loss));
  put("q-jitter-up", ms(jitter_ms));
  put("q-buffer-up", ms(buffer_ms));
  put("q-rtt", ms(round_trip_ms));
  if (mos === undefined) return;
  const { word, bars } = wordFor(mos);
  element("quality-word").textContent = word;
  element("quality").dataset.bars = bars;
}

/** Who is on the other end (an RTVI `welcome` message). */
export function showEngines({ agent, hears, speaks }) {
  element("engines").textContent = `Agent: ${agent}. Hears with ${hears}, speaks with ${speaks}.`;
  element("engines").hidden = false;
}

/** Our own measurements of the server's sound. */
export function showDownlink({ loss, jitterMs, bufferMs, roundTripMs, path }) {
  put("q-loss-down", percent(loss));
  put("q-jitter-down", ms(jitterMs));
  put("q-buffer-down", ms(bufferMs));
  put("q-rtt", ms(roundTripMs));
  put("q-path", path);
}

export function forgetQuality() {
  for (const cell of document.querySelectorAll("[id^=q-]")) cell.textContent = "–";
  element("quality-word").textContent = "Measuring";
  delete element("quality").dataset.bars;
}

function put(id, text) {
  if (text !== undefined) element(id).textContent = text;
}

function percent(share) {
  return share === undefined ? undefined : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

function ms(value) {
  return value === undefined ? undefined : `${Math.round(value)} ms`;
}
