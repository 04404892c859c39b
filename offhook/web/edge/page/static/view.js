// Everything on the page around the words: buttons, clock, notices, the quality panel.

import { clock } from "./keep.js";
import { wordFor } from "./quality.js";
import { wordsFor } from "./problems.js";
import { inCall, onLine } from "./state.js";

/** Element id → whether it is there in a state of the call. */
const SHOWN_IN = {
  call: (state) => !onLine(state),
  clock: onLine,
  quality: onLine,
  type: onLine,
  mute: onLine,
  hangup: onLine,
  answers: (state) => !inCall(state),
};

export function element(id) {
  return document.getElementById(id);
}

/** Shows what a state of the call has on the page. */
export function showState(state) {
  document.body.dataset.state = state;
  document.body.dataset.line = onLine(state) ? "up" : "down";
  for (const [id, holds] of Object.entries(SHOWN_IN)) element(id).hidden = !holds(state);
  if (!onLine(state)) element("quality").open = false;
  showCallButton(state);
  for (const button of suggestions()) button.disabled = state !== "talking";
}

/** Shows what the page says (see state.js). */
export function showFace({ status, phase, pill, hint, title }) {
  put("status", status);
  put("phase", phase);
  put("quality-word", pill.word);
  element("quality").dataset.bars = pill.bars;
  put("hint", hint);
  element("hint").hidden = !hint;
  if (document.title !== title) document.title = title;
}

function showCallButton(state) {
  const again = state === "ended" || state === "failed";
  put("call-label", state === "connecting" ? "Cancel the call" : again ? "Call again" : "Call");
}

/** Who will answer (see signalling.js). */
export function showAnswers(answers) {
  if (answers === undefined) return;
  if (answers === null) return put("answers", "This server is still loading its speech engines.");
  const { agent, title, hears, speaks } = answers;
  for (const own of document.querySelectorAll("[data-agent]")) own.hidden = own.dataset.agent !== agent;
  const engines = hears ? ` It hears with ${hears} and speaks with ${speaks}.` : "";
  put("answers", `${title}.${engines}`);
}

/** The links that only the operator may follow. */
export function showOperator(is) {
  element("operator").hidden = !is;
  element("builder-button").hidden = !is;
}

export function suggestions() {
  return element("try").querySelectorAll("button");
}

export function showTimer(seconds) {
  put("timer", clock(seconds));
}

export function showMute(muted, possible) {
  const button = element("mute");
  button.setAttribute("aria-pressed", String(muted));
  button.title = muted ? "Unmute (M)" : "Mute (M)";
  button.disabled = !possible;
  document.body.classList.toggle("muted", muted);
}

/** Whether there is a keypad, and whether it is open. */
export function showKeypad(possible, open) {
  element("keypad-button").hidden = !possible;
  element("keypad-button").setAttribute("aria-expanded", String(possible && open));
  element("keypad").hidden = !possible || !open;
}

export function showPressed(keys) {
  put("pressed", keys);
}

/** What can be saved of the call that is over. */
export function showKeep(words, sound) {
  element("keep").hidden = !words && !sound;
  element("keep-words").hidden = !words;
  element("keep-sound").hidden = !sound;
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

function paragraph(text) {
  const p = document.createElement("p");
  p.textContent = text;
  return p;
}

// --- quality

/** The server's measurements of our sound (an RTVI `quality` message). Gives it in a word. */
export function showUplink({ mos, loss, jitter_ms, buffer_ms, round_trip_ms }) {
  put("q-mos", mos?.toFixed(1));
  put("q-loss-up", percent(loss));
  put("q-jitter-up", ms(jitter_ms));
  put("q-buffer-up", ms(buffer_ms));
  put("q-rtt", ms(round_trip_ms));
  return mos === undefined ? null : wordFor(mos);
}

/** Our own measurements of the server's sound. */
export function showDownlink({ loss, jitterMs, bufferMs, roundTripMs, path }) {
  put("q-loss-down", percent(loss));
  put("q-jitter-down", ms(jitterMs));
  put("q-buffer-down", ms(bufferMs));
  put("q-rtt", ms(roundTripMs));
  put("q-path", path);
}

/** How long the caller waited for the last answer. */
export function showAnswerTime(milliseconds) {
  put("q-answer", ms(milliseconds));
}

export function forgetQuality() {
  for (const cell of document.querySelectorAll("[id^=q-]")) cell.textContent = "–";
}

/** Leaves alone what says it already: a change is read out. */
function put(id, text) {
  if (text !== undefined && element(id).textContent !== text) element(id).textContent = text;
}

function percent(share) {
  return share === undefined ? undefined : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

function ms(value) {
  return value === undefined ? undefined : `${Math.round(value)} ms`;
}
