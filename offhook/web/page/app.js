// Puts the page together: the call, the conversation, the line, the keys.

import { Call } from "./call.js";
import { Conversation } from "./conversation.js";
import { Meter, SilenceWatch } from "./levels.js";
import { Line } from "./line.js";
import * as microphones from "./microphone.js";
import { Problem } from "./problems.js";
import { Downlink } from "./quality.js";
import * as rtvi from "./rtvi.js";
import { useKey } from "./signalling.js";
import { Transcript } from "./transcript.js";
import * as view from "./view.js";

const TIMER_INTERVAL_MS = 250;
const STATS_INTERVAL_MS = 2000;
const DIALLING_LEVEL = 0.16; // the pulse that runs down the line while it is being put through

const { element } = view;
const call = new Call({ onState, onMessage, onSound });
const line = new Line(element("line"), levels);
const transcript = new Transcript(element("talk"), element("log"), element("captions"));
let conversation = null;
let context = null; // AudioContext, made on the first press of a key or button
let meters = null; // {you, agent}
let current = null; // of the call in progress: {since, silence, downlink, refused, replies, intervals}
const speaking = { you: false, agent: false, thinking: false };
let retryTimer = 0;
let wakeLock = null;

// --- life of a call

async function dial(withMicrophone = true) {
  view.showProblem(null);
  clearInterval(retryTimer);
  context ??= new AudioContext();
  context.resume();
  meters ??= { you: new Meter(context), agent: new Meter(context) };
  conversation = new Conversation((entry) => onEntry(entry));
  transcript.clear();
  element("talk").hidden = true;
  element("try").hidden = false;
  await call.dial(withMicrophone ? openMicrophone : async () => null);
}

async function openMicrophone() {
  if (!microphones.allowed()) throw new Problem("insecure-page");
  const track = await microphones.open(element("microphone").value);
  useMicrophone(track);
  return track;
}

function useMicrophone(track) {
  meters.you.listen(new MediaStream([track]));
  listMicrophones(track.getSettings().deviceId);
}

function onState(state, why) {
  const hadFocus = document.activeElement;
  const [reason, problem] = why instanceof Problem ? [null, why] : [why, null];
  const seconds = current && (performance.now() - current.since) / 1000;
  view.showState(state, reason && summary(reason, seconds));
  if (state === "connecting") line.start();
  if (state === "talking" && !current) begin();
  if (["idle", "ended", "failed"].includes(state)) end();
  if (problem) showProblem(problem);
  moveFocus(hadFocus, state);
}

function begin() {
  current = {
    since: performance.now(),
    silence: new SilenceWatch(performance.now()),
    downlink: new Downlink(),
    refused: false,
    replies: [],
    intervals: [
      setInterval(watch, TIMER_INTERVAL_MS),
      setInterval(measure, STATS_INTERVAL_MS),
    ],
  };
  phase({ you: false, agent: false, thinking: false });
  element("talk").hidden = false;
  view.forgetQuality();
  view.showMute(false, call.track !== null);
  watch();
  // A telephone keeps a screen on; where the browser cannot, the call still works.
  navigator.wakeLock?.request("screen").then((lock) => (wakeLock = lock), () => {});
}

function end() {
  current?.intervals.forEach(clearInterval);
  current = null;
  wakeLock?.release();
  wakeLock = null;
  line.stop();
  context?.suspend();
  meters?.you.listen(null);
  meters?.agent.listen(null);
  element("speaker").srcObject = null;
  view.showHint("");
  view.showMute(false, true);
  const silent = !conversation?.entries.length;
  element("talk").hidden = silent;
  element("try").hidden = !silent;
}

/** "The agent hung up · 2:14 · typical answer 380 ms" */
function summary(reason, seconds) {
  const parts = [reason[0].toUpperCase() + reason.slice(1)];
  if (seconds) parts.push(view.clock(seconds));
  const sorted = current?.replies.toSorted((a, b) => a - b) ?? [];
  if (sorted.length) parts.push(`typical answer ${Math.round(sorted[sorted.length >> 1])}\u00a0ms`);
  return parts.join("\u00a0· ");
}

function showProblem(problem) {
  view.showProblem(problem);
  if (problem.retryAfter === null) return;
  let left = problem.retryAfter;
  view.showRetry(left);
  retryTimer = setInterval(() => {
    view.showRetry(--left);
    if (left <= 0) clearInterval(retryTimer);
  }, 1000);
}

/** The button that had the focus may be gone now. */
function moveFocus(from, state) {
  if (!from?.closest("[hidden]")) return;
  const next = state !== "talking" ? "call" : call.track ? "mute" : "text";
  element(next).focus({ preventScroll: true });
}

// --- sound

function onSound(stream) {
  meters.agent.listen(stream);
  const speaker = element("speaker");
  speaker.srcObject = stream;
  speaker.play().catch(() => {}); // `hint` tells, and the next press plays
}

function levels() {
  if (call.state === "connecting") {
    return { you: DIALLING_LEVEL * (1 + Math.sin(performance.now() / 160)), agent: 0 };
  }
  const you = call.muted ? 0 : meters.you.level();
  element("mute").style.setProperty("--level", you.toFixed(2));
  return { you, agent: meters.agent.level() };
}

/** Four times a second: the clock, and whether sound goes both ways. */
function watch() {
  const now = performance.now();
  view.showTimer((now - current.since) / 1000);
  view.showHint(hint(now));
}

function hint(now) {
  if (element("speaker").paused) return "Press anywhere to hear the agent.";
  if (current.refused) return "That microphone cannot be opened; the call goes on with the one before.";
  const { track } = call;
  if (call.unsteady) return "The network is unsteady.";
  if (!track) return "";
  if (track.readyState === "ended") return "The microphone went away. Choose another one.";
  if (!current.silence.update(meters.you.db(), call.muted, now)) return "";
  return `Nothing is heard from “${track.label}”. Is it switched off, or the wrong one?`;
}

async function measure() {
  const { downlink } = current;
  const report = await call.stats();
  if (report && downlink === current?.downlink) view.showDownlink(downlink.update(report));
}

async function changeMicrophone() {
  if (!current) return; // it is opened when the call is placed
  try {
    const track = await microphones.open(element("microphone").value);
    if (!current) return track.stop();
    useMicrophone(track);
    await call.useTrack(track);
    current.silence = new SilenceWatch(performance.now());
    current.refused = false;
    view.showMute(call.muted, true);
  } catch {
    current.refused = true;
    listMicrophones(call.track?.getSettings().deviceId);
  }
}

async function listMicrophones(chosen = element("microphone").value) {
  if (microphones.allowed()) view.showMicrophones(await microphones.list(), chosen);
}

// --- messages

const HANDLERS = {
  "user-started-speaking": () => phase({ you: true }),
  "user-stopped-speaking": () => phase({ you: false, thinking: true }),
  "user-transcription": ({ text, final }) => conversation.callerSaid(text, final),
  "bot-llm-started": () => conversation.agentThinks(),
  "bot-llm-text": ({ text }) => conversation.agentWrote(text),
  "bot-started-speaking": () => {
    phase({ agent: true, thinking: false });
    conversation.agentStarted();
  },
  "bot-tts-text": ({ text }) => conversation.agentSaid(text),
  "bot-stopped-speaking": () => {
    phase({ agent: false });
    conversation.agentStopped();
  },
  "bot-interrupted": () => {
    phase({ agent: false, thinking: false });
    conversation.interrupted();
  },
  // What is spoken comes word by word as bot-tts-text; this is for what is only to be read.
  "bot-output": ({ text, will_be_spoken: spoken }) => {
    if (spoken === false) conversation.note(text);
  },
  error: ({ error, fatal }) => (fatal ? call.breakDown(error) : conversation.note(error)),
};

const OWN_HANDLERS = {
  welcome: (engines) => view.showEngines(engines),
  "turn-latency": (breakdown) => {
    current?.replies.push(breakdown.total_ms);
    conversation.latency(breakdown);
  },
  interrupted: ({ heard, unheard }) => conversation.interrupted(heard, unheard),
  backchannel: ({ text }) => conversation.wentOn(`You said “${text}”, the agent went on`),
  "false-interruption": () => conversation.wentOn("The agent paused, then went on"),
  quality: (measured) => view.showUplink(measured),
  goodbye: ({ reason }) => call.goodbye(reason),
};

function onMessage(message) {
  rtvi.dispatch(message, HANDLERS, OWN_HANDLERS);
}

function onEntry(entry) {
  if (entry.kind === "caller") element("try").hidden = true;
  transcript.update(entry);
}

function phase(change) {
  Object.assign(speaking, change);
  const { you, agent, thinking } = speaking;
  const own = call.muted ? "You are muted" : you ? "You are speaking" : "";
  view.showPhase(own || (agent ? "Agent is speaking" : thinking ? "Thinking" : "Listening"));
}

function type(text) {
  const content = text.trim();
  if (!content || call.state !== "talking") return;
  conversation.callerTyped(content);
  call.send(rtvi.sendText(content));
}

// --- controls

/** Browsers may refuse to play sound until the page is pressed. */
function hearIfBlocked() {
  if (current && element("speaker").paused) element("speaker").play().catch(() => {});
}

function toggleMute() {
  call.mute(!call.muted);
  phase({});
  view.showMute(call.muted, call.track !== null);
}

function pressCall() {
  if (call.state === "connecting") call.hangUp();
  else dial();
}

const INTERACTIVE = "a, button, input, select, textarea, summary, [contenteditable]";

/** Keys that work anywhere but inside a control that has its own use for them. */
function onKey(event) {
  hearIfBlocked();
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.key === "Escape") return escape(event);
  const field = event.target.closest("input, select, textarea");
  const control = event.target.closest(INTERACTIVE);
  const talking = call.state === "talking";
  if (event.key.toLowerCase() === "m" && talking && !field) toggleMute();
  else if (control) return;
  else if (event.key === "Enter" && talking) element("text").focus();
  else if ((event.key === "Enter" || event.key === " ") && !current) pressCall();
  else return;
  event.preventDefault();
}

/** Escape closes what is nearest first: the panel, the text being typed, then the call. */
function escape(event) {
  const quality = element("quality");
  if (quality.open) {
    quality.open = false;
    quality.querySelector("summary").focus();
  } else if (event.target.id === "text") {
    element("hangup").focus();
  } else if (current || call.state === "connecting") {
    call.hangUp();
  }
}

element("call").addEventListener("click", pressCall);
element("hangup").addEventListener("click", () => call.hangUp());
element("mute").addEventListener("click", toggleMute);
element("no-microphone").addEventListener("click", () => dial(false));
element("notice-key").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(element("key").value);
  dial();
});
element("microphone").addEventListener("change", changeMicrophone);
element("type").addEventListener("submit", (event) => {
  event.preventDefault();
  type(element("text").value);
  element("text").value = "";
});
for (const button of view.suggestions()) {
  button.addEventListener("click", () => type(button.textContent));
}
document.addEventListener("keydown", onKey);
document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest("#quality")) element("quality").open = false;
  hearIfBlocked();
});
window.addEventListener("pagehide", () => call.hangUp());

if (microphones.allowed()) {
  listMicrophones();
  microphones.onChange(() => listMicrophones());
} else {
  view.showProblem(new Problem("insecure-page"));
}
