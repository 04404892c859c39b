// Puts the page together: the call, the conversation, the line, the keys.

import { Builder } from "./builder.js";
import { Call } from "./call.js";
import { Conversation } from "./conversation.js";
import * as devices from "./devices.js";
import * as engines from "./engines.js";
import { Events } from "./events.js";
import * as keep from "./keep.js";
import { Meter, SilenceWatch } from "./levels.js";
import { Line } from "./line.js";
import { Problem } from "./problems.js";
import { Downlink } from "./quality.js";
import * as rtvi from "./rtvi.js";
import { callWith, status, useKey } from "./signalling.js";
import { Sound } from "./sound.js";
import { face, inCall, onLine } from "./state.js";
import { Transcript } from "./transcript.js";
import * as view from "./view.js";
import { seconds } from "./waterfall.js";

const TIMER_INTERVAL_MS = 250;
const STATS_INTERVAL_MS = 2000;
const LOADING_INTERVAL_MS = 3000; // between looks at a server that loads its engines
const SLOW_MS = 4000; // that an answer takes
const AT_FIRST = { // of a call
  slow: false, you: false, agent: false, thinking: false, muted: false, quality: null, trouble: null, microphone: "",
};
const DIALLING_LEVEL = 0.16; // the pulse that runs down the line while it is being put through

const { element } = view;
const ofCall = { onState, onTrack, onMessage, onSent, onSound };
let call = new Call(ofCall); // the one in progress, the last, or the first to come
const line = new Line(element("line"), levels);
const transcript = new Transcript(element("talk"), element("log"), element("captions"), element("latest"));
const events = new Events(element("events"));
const builder = new Builder(element("builder"));
const sound = new Sound(element("sound"), element("speaker"), {
  onMicrophone: changeMicrophone,
  levelInCall: () => (call.track ? youLevel : null),
});
let conversation = null;
let context = null; // AudioContext, made on the first press of a key or button
let meters = null; // {you, agent}
let recording = null; // of the call in progress
let current = null; // while a line is up: {since, silence, downlink, refused, choice, replies, …}
let kept = { words: null, sound: null, name: "" }; // of the last call, to be saved
let youLevel = 0;
let keypadOpen = false;
let pressed = "";
let retryTimer = 0;
let statusTimer = 0;
const facts = { state: "idle", why: null }; // what state.js makes the page's words of

/** Something that the page tells of has changed. */
function tell(change) {
  Object.assign(facts, change);
  view.showFace(face(facts));
}

// --- life of a call

async function dial(withMicrophone = true) {
  if (inCall(call.state)) return;
  call = new Call(ofCall);
  view.showProblem(null);
  clearInterval(retryTimer);
  context ??= new AudioContext();
  context.resume();
  meters ??= { you: new Meter(context), agent: new Meter(context) };
  conversation = new Conversation((entry) => onEntry(entry));
  transcript.clear();
  events.clear(performance.now());
  callWith(builder.forTheCall); // to its end, whatever is edited meanwhile
  builder.begin(performance.now());
  view.showKeep(false, false);
  element("talk").hidden = true;
  element("try").hidden = false;
  await call.dial(withMicrophone ? openMicrophone : async () => null);
}

async function openMicrophone() {
  if (!devices.allowed()) throw new Problem("insecure-page");
  return devices.open(sound.microphone);
}

function onTrack(track) {
  meters.you.listen(new MediaStream([track]));
  sound.list(track.getSettings().deviceId);
}

function onState(state, why) {
  const hadFocus = document.activeElement;
  const [reason, problem] = why instanceof Problem ? [null, why] : [why, null];
  events.note("", state, reason ?? problem?.code ?? null, performance.now());
  view.showState(state);
  if (state === "connecting") line.start();
  if (state === "talking" && !current) begin();
  const summary = reason && summaryOf(reason);
  if (!inCall(state)) end();
  tell({ state, why: summary });
  if (problem) showProblem(problem);
  moveFocus(hadFocus, state);
}

function begin() {
  current = {
    since: performance.now(),
    began: new Date(),
    silence: new SilenceWatch(performance.now()),
    downlink: new Downlink(),
    refused: false,
    choice: null, // of another microphone, which is being opened
    wakeLock: null,
    replies: [],
    asked: null, // since when an answer is due
    intervals: [
      setInterval(watch, TIMER_INTERVAL_MS),
      setInterval(measure, STATS_INTERVAL_MS),
    ],
  };
  recording = new keep.Recording(context);
  recording.add(meters.you.output);
  recording.add(meters.agent.output);
  recording.start();
  element("talk").hidden = false;
  view.forgetQuality();
  view.showMute(false, call.track !== null);
  tell(AT_FIRST);
  watch();
  keepScreenOn(current).catch(() => {}); // where the browser cannot, the call still works
}

/** As a telephone does. */
async function keepScreenOn(mine) {
  const lock = await navigator.wakeLock?.request("screen");
  if (mine === current) mine.wakeLock = lock;
  else await lock?.release(); // that call is over
}

function end() {
  builder.end();
  if (current) keepCall();
  else context?.suspend();
  current?.intervals.forEach(clearInterval);
  current?.wakeLock?.release();
  current = null;
  line.stop();
  meters?.you.listen(null);
  meters?.agent.listen(null);
  element("speaker").srcObject = null;
  view.showMute(false, true);
  openKeypad(false);
  const silent = !conversation?.entries.length;
  element("talk").hidden = silent;
  element("try").hidden = !silent;
}

/** Words and sound of the call that ends, until the next one begins. */
async function keepCall() {
  const { began } = current;
  const { entries } = conversation;
  const heading = `A call from ${location.host}, ${began.toLocaleString()}`;
  const mine = (kept = {
    words: entries.length ? new Blob([keep.asText(entries, heading)], { type: "text/plain" }) : null,
    sound: null,
    name: keep.fileName(began),
  });
  view.showKeep(mine.words !== null, false);
  mine.sound = await recording.stop();
  if (mine !== kept || inCall(call.state)) return;
  context.suspend();
  view.showKeep(mine.words !== null, mine.sound !== null);
}

/** "The agent hung up · 2:14 · typical answer 0.4 s" */
function summaryOf(reason) {
  const parts = [reason[0].toUpperCase() + reason.slice(1)];
  if (current) parts.push(keep.clock((performance.now() - current.since) / 1000));
  const sorted = current?.replies.toSorted((a, b) => a - b) ?? [];
  if (sorted.length) parts.push(`typical answer ${seconds(sorted[sorted.length >> 1])}`);
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
  const next = !onLine(state) ? "call" : call.track ? "mute" : "text";
  element(next).focus({ preventScroll: true });
}

// --- sound

function onSound(stream) {
  meters.agent.listen(stream);
  const speaker = element("speaker");
  speaker.srcObject = stream;
  speaker.play().catch(() => {}); // `trouble` tells, and the next press plays
}

function levels() {
  if (call.state === "connecting") {
    return { you: DIALLING_LEVEL * (1 + Math.sin(performance.now() / 160)), agent: 0 };
  }
  youLevel = call.muted ? 0 : meters.you.level();
  element("mute").style.setProperty("--level", youLevel.toFixed(2));
  return { you: youLevel, agent: meters.agent.level() };
}

/** Four times a second: the clock, whether sound goes both ways, whether keys can be pressed. */
function watch() {
  const now = performance.now();
  view.showTimer((now - current.since) / 1000);
  // Some browsers put it to sleep with the page; nothing can be measured until it is awake.
  if (context.state !== "running") context.resume();
  tell({ trouble: trouble(now), microphone: call.track?.label ?? "", slow: isSlow(now) });
  view.showKeypad(call.takesKeys, keypadOpen);
}

/** Whether the answer that is due takes long, or the last one did. */
function isSlow(now) {
  const { asked, replies } = current;
  return (asked !== null && now - asked > SLOW_MS) || replies.at(-1) > SLOW_MS;
}

function trouble(now) {
  const { track } = call;
  const silent = track && current.silence.update(meters.you.db(), call.muted, now);
  if (element("speaker").paused) return "blocked";
  if (current.refused) return "refused";
  if (track?.readyState === "ended") return "unplugged";
  return silent ? "silent" : null;
}

async function measure() {
  const { downlink } = current;
  const report = await call.stats();
  if (report && downlink === current?.downlink) view.showDownlink(downlink.update(report));
}

async function changeMicrophone() {
  if (!current) return; // it is opened when the call is placed
  const mine = current;
  const choice = (mine.choice = {});
  const isStale = () => mine !== current || choice !== mine.choice;
  try {
    const track = await devices.open(sound.microphone);
    if (isStale()) return track.stop();
    await call.useTrack(track);
    mine.silence = new SilenceWatch(performance.now());
    mine.refused = false;
    if (!isStale()) view.showMute(call.muted, true);
  } catch {
    if (isStale()) return;
    mine.refused = true;
    sound.list(call.track?.getSettings().deviceId);
  }
}

// --- messages

const HANDLERS = {
  "user-started-speaking": () => {
    tell({ you: true });
    conversation.callerBegan();
  },
  "user-stopped-speaking": () => {
    tell({ you: false, thinking: true });
    if (current) current.asked = performance.now();
  },
  "user-transcription": ({ text, final }) => conversation.callerSaid(text, final),
  "bot-llm-started": () => conversation.agentThinks(),
  "bot-llm-text": ({ text }) => conversation.agentWrote(text),
  "bot-started-speaking": () => {
    tell({ agent: true, thinking: false });
    if (current) current.asked = null;
    conversation.agentStarted();
  },
  "bot-tts-text": ({ text }) => conversation.agentSaid(text),
  "bot-stopped-speaking": () => {
    tell({ agent: false });
    conversation.agentStopped();
  },
  "bot-interrupted": () => {
    tell({ agent: false, thinking: false });
    conversation.interrupted();
  },
  // What is spoken comes word by word as bot-tts-text; this is for what is only to be read.
  "bot-output": ({ text, will_be_spoken: spoken }) => {
    if (spoken === false) conversation.note(text);
  },
  "llm-function-call-in-progress": (called) => builder.functionBegan(called, performance.now()),
  "llm-function-call-stopped": (called) => builder.functionEnded(called, performance.now()),
  error: ({ error, fatal }) => (fatal ? call.breakDown(error) : conversation.note(error)),
};

const OWN_HANDLERS = {
  welcome: (answers) => view.showAnswers(answers),
  "node-entered": ({ node }) => {
    builder.nodeEntered(node);
    conversation.note(`The flow goes on at “${node}”`);
  },
  "agent-changed": ({ agent }) => {
    builder.agentChanged(agent);
    conversation.note(`Now you speak with “${agent}”`);
  },
  "model-request": (request) => builder.request(request, performance.now()),
  "agent-failed": (failure) => builder.fault(failure, performance.now()),
  "turn-latency": (breakdown) => {
    current?.replies.push(breakdown.total_ms);
    view.showAnswerTime(breakdown.total_ms);
    conversation.latency(breakdown);
  },
  interrupted: ({ heard, unheard }) => conversation.interrupted(heard, unheard),
  backchannel: ({ text }) => conversation.wentOn(`You said “${text}”, the agent went on`),
  "false-interruption": () => conversation.wentOn("The agent paused, then went on"),
  quality: (measured) => tell({ quality: view.showUplink(measured) ?? facts.quality }),
  goodbye: ({ reason }) => call.goodbye(reason),
  reconnect: () => call.reconnect(),
};

function onMessage(message) {
  events.note("in", rtvi.nameOf(message), message, performance.now());
  rtvi.dispatch(message, HANDLERS, OWN_HANDLERS);
}

function onSent(message) {
  events.note("out", rtvi.nameOf(message), message, performance.now());
}

function onEntry(entry) {
  entry.at ??= current ? (performance.now() - current.since) / 1000 : 0;
  if (entry.kind === "caller") element("try").hidden = true;
  transcript.update(entry);
}

/** Sends typed words; gives whether they went. */
function type(text) {
  const content = text.trim();
  if (!content || call.state !== "talking") return false;
  conversation.callerTyped(content);
  current.asked = performance.now();
  tell({ thinking: true });
  call.send(rtvi.sendText(content));
  return true;
}

// --- controls

/** Browsers may refuse to play sound until the page is pressed. */
function hearIfBlocked() {
  if (!current) return;
  context.resume();
  if (element("speaker").paused) element("speaker").play().catch(() => {});
}

function toggleMute() {
  call.mute(!call.muted);
  view.showMute(call.muted, call.track !== null);
  tell({ muted: call.muted });
}

function pressCall() {
  if (call.state === "connecting") call.hangUp();
  else dial();
}

function openKeypad(open) {
  keypadOpen = open;
  pressed = "";
  view.showPressed(pressed);
  view.showKeypad(onLine(call.state) && call.takesKeys, open);
}

function pressKey(key) {
  if (!call.takesKeys) return;
  if (!keypadOpen) openKeypad(true);
  call.press(key);
  events.note("out", `key ${key}`, null, performance.now());
  view.showPressed((pressed += key));
}

function toggleEvents() {
  const open = events.toggle();
  element("events-button").setAttribute("aria-expanded", String(open));
  document.body.classList.toggle("with-events", open);
  element(open ? "events" : "events-button").focus({ preventScroll: true });
}

function toggleBuilder() {
  const open = builder.toggle();
  element("builder-button").setAttribute("aria-expanded", String(open));
  document.body.classList.toggle("with-builder", open);
  element(open ? "builder" : "builder-button").focus({ preventScroll: true });
}

const INTERACTIVE = "a, button, input, select, textarea, summary, [contenteditable]";

/** Keys that work anywhere but inside a control that has its own use for them. */
function onKey(event) {
  hearIfBlocked();
  if (sound.open || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.key === "Escape") return escape(event);
  const field = event.target.closest("input, select, textarea");
  const control = event.target.closest(INTERACTIVE);
  const talking = onLine(call.state);
  if (event.key.toLowerCase() === "m" && talking && !field) toggleMute();
  else if (/^[0-9*#]$/.test(event.key) && talking && !field) pressKey(event.key);
  else if (control) return;
  else if (event.key === "Enter" && talking) element("text").focus();
  else if ((event.key === "Enter" || event.key === " ") && !current) pressCall();
  else return;
  event.preventDefault();
}

/** Escape closes what is nearest first: a panel, the text being typed, then the call. */
function escape(event) {
  const quality = element("quality");
  if (quality.open) {
    quality.open = false;
    quality.querySelector("summary").focus();
  } else if (event.target.closest("#events")) {
    toggleEvents();
  } else if (event.target.closest("#builder")) {
    toggleBuilder();
  } else if (keypadOpen) {
    openKeypad(false);
    element("keypad-button").focus();
  } else if (event.target.id === "text") {
    element("hangup").focus();
  } else if (inCall(call.state)) {
    call.hangUp();
  }
}

element("call").addEventListener("click", pressCall);
element("hangup").addEventListener("click", () => call.hangUp());
element("mute").addEventListener("click", toggleMute);
element("sound-button").addEventListener("click", () => sound.show());
element("keypad-button").addEventListener("click", () => openKeypad(!keypadOpen));
for (const button of element("keypad").querySelectorAll("button")) {
  button.addEventListener("click", () => pressKey(button.textContent));
}
for (const id of ["events-button", "events-close"]) element(id).addEventListener("click", toggleEvents);
element("keep-words").addEventListener("click", () => keep.save(kept.words, `${kept.name}.txt`));
element("keep-sound").addEventListener("click", () =>
  keep.save(kept.sound, `${kept.name}.${keep.endingOf(kept.sound.type)}`));
element("keep-events").addEventListener("click", () =>
  keep.save(new Blob([events.asText()], { type: "application/x-ndjson" }), "offhook-events.jsonl"));
for (const id of ["events-filter", "events-faults"]) {
  element(id).addEventListener("input", () =>
    events.filter(element("events-filter").value, element("events-faults").checked));
}
for (const id of ["builder-button", "builder-close"]) element(id).addEventListener("click", toggleBuilder);
element("events-filter").form.addEventListener("submit", (event) => event.preventDefault());
element("engines-accept").addEventListener("click", () =>
  engines.accept().catch(() => {}).finally(askStatus));
element("no-microphone").addEventListener("click", () => dial(false));
element("notice-key").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(element("key").value);
  askStatus();
  dial();
});
element("type").addEventListener("submit", (event) => {
  event.preventDefault();
  if (type(element("text").value)) element("text").value = "";
});
for (const button of view.suggestions()) {
  button.addEventListener("click", () => type(button.textContent));
}
document.addEventListener("keydown", onKey);
document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest("#quality")) element("quality").open = false;
  hearIfBlocked();
});
window.addEventListener("beforeunload", (event) => {
  if (onLine(call.state)) event.preventDefault(); // the browser asks whether to leave the call
});
window.addEventListener("pagehide", () => {
  call.leave();
  sound.stop();
});

async function askStatus() {
  const { answers, operator, engines: onOffer } = await status().catch(() => ({}));
  view.showAnswers(answers);
  view.showOperator(operator === true);
  engines.showEngines(onOffer);
  clearTimeout(statusTimer);
  if (answers === null || engines.areComing(onOffer)) {
    statusTimer = setTimeout(askStatus, LOADING_INTERVAL_MS);
  }
}

view.showState(call.state);
tell({});
askStatus();
if (!devices.allowed()) view.showProblem(new Problem("insecure-page"));
