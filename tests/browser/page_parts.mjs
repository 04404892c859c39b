// The page's modules that need no page, one after the other; test_page.py bundles and runs this.

import assert from "node:assert/strict";
import { Conversation } from "../../offhook/web/edge/page/static/conversation.js";
import { progressOf } from "../../offhook/web/edge/page/static/engines.js";
import { layout, linesOf } from "../../offhook/web/edge/page/static/flow.js";
import { asText, endingOf, fileName } from "../../offhook/web/edge/page/static/keep.js";
import { SilenceWatch } from "../../offhook/web/edge/page/static/levels.js";
import { asProblem, wordsFor } from "../../offhook/web/edge/page/static/problems.js";
import { SignallingError } from "../../offhook/web/edge/page/static/signalling.js";
import { face, inCall, next, onLine } from "../../offhook/web/edge/page/static/state.js";

globalThis.sessionStorage = { getItem: () => null };

// --- state: one table for the call's life, and what the page says follows from it

const walk = (state, ...events) => events.reduce((at, event) => next(at, event) ?? at, state);
assert.equal(walk("idle", "dial", "up", "quiet", "up"), "talking");
assert.equal(walk("idle", "dial", "up", "quiet", "drop", "quiet", "up"), "talking");
assert.equal(walk("idle", "quiet", "up", "drop"), "idle");
assert.equal(walk("idle", "dial", "hangup"), "idle");
for (const state of ["talking", "stalled", "reconnecting"]) {
  assert.ok(onLine(state) && inCall(state));
  assert.equal(next(state, "hangup"), "ended");
}
assert.ok(inCall("connecting") && !onLine("connecting"));

const facts = {
  you: true, agent: true, quality: { word: "Excellent", bars: 4 }, trouble: "silent", microphone: "Desk",
};
const talking = face({ ...facts, state: "talking" });
assert.deepEqual([talking.phase, talking.pill.word], ["You are speaking", "Excellent"]);
assert.match(talking.hint, /Nothing is heard from “Desk”/);
for (const state of ["stalled", "reconnecting"]) {
  // A line in trouble has no quality, nobody speaks on it, and no microphone is to blame.
  const { phase, pill, hint, title } = face({ ...facts, state });
  assert.deepEqual([pill.bars, /speaking/.test(phase), /heard from/.test(hint)], [0, false, false]);
  assert.match(title, / – offhook$/);
}
assert.equal(face({ ...facts, state: "ended", why: "You hung up" }).hint, "");

// --- an answer that takes long is the server's fault, not the line's, unless that is bad too

const slow = { ...facts, state: "talking", you: false, agent: false, thinking: true, trouble: null, slow: true };
assert.deepEqual([face(slow).phase, face(slow).pill.word], ["The server is slow", "Slow answers"]);
assert.match(face(slow).hint, /not your connection/);
assert.equal(face({ ...slow, quality: { word: "Poor", bars: 1 } }).pill.word, "Poor");

// --- a flow: each node below those that lead to it, what leads back beside them

const lead = (name, to, when = "") => ({ function: name, description: "", to, when });
const flow = {
  initial: "a",
  nodes: [
    { name: "far", edges: [], before: [], after: [] },
    { name: "b", edges: [lead("on", "far"), lead("again", "a")], before: [], after: [] },
    { name: "a", edges: [lead("go", "b", "what is x"), lead("go", "c", "what is y"), lead("stay", "b")], before: [], after: [] },
    { name: "c", edges: [lead("loop", "c")], before: [], after: [] },
    { name: "lost", edges: [], before: [], after: [] },
  ],
};
const drawn = layout(flow);
const at = Object.fromEntries(drawn.nodes.map((node) => [node.name, node]));
assert.deepEqual(["a", "b", "c", "far", "lost"].map((name) => at[name].depth), [0, 1, 1, 2, 3]);
assert.notEqual(at.b.x, at.c.x);
assert.ok(at.a.y < at.b.y && at.b.y === at.c.y && at.b.y < at.far.y);
assert.deepEqual(linesOf(flow.nodes[2]), [{ to: "b", labels: ["x", "stay"] }, { to: "c", labels: ["y"] }]);
assert.equal(drawn.lines.length, 5);
for (const { x, y } of drawn.lines) assert.ok(x > 0 && x < drawn.width && y > 0 && y < drawn.height);
assert.deepEqual(layout({ initial: "a", nodes: [{ name: "a", edges: [], before: [], after: [] }] }).lines, []);

// --- an engine that cannot be had

const failed = { title: "Nemotron", state: "failed", retry_s: 9.2 };
assert.equal(
  progressOf("asr", { ...failed, fault: "nvidia/x is not on this machine", offline: true }),
  "Could not download Nemotron (no network); trying again in 10 s.",
);
assert.match(progressOf("asr", { ...failed, fault: "out of memory" }), /could not be loaded; .* out of memory$/);

// --- a microphone that gives nothing, and a browser that lets none be measured

const watch = new SilenceWatch(0);
assert.equal(watch.update(-90, false, 9000), false);
assert.equal(watch.update(-90, false, 10001), true);
assert.equal(watch.update(undefined, false, 10002), false); // asleep: nothing is known
assert.equal(watch.update(undefined, false, 99000), false);
assert.equal(watch.update(-90, false, 99001), false);
assert.equal(watch.update(-90, false, 109001), true);
assert.equal(watch.update(-20, false, 109002), false);

// --- refusals

const TITLES = { loading: /still starting/, overloaded: /overloaded/, full: /busy/, connecting: /Many/ };
for (const [reason, title] of Object.entries(TITLES)) {
  const problem = asProblem(new SignallingError(503, "why", reason, 7));
  assert.match(wordsFor(problem).title, title);
  assert.equal(problem.retryAfter, 7);
}
const other = wordsFor(asProblem(new SignallingError(503, "why it is", undefined, null)));
assert.deepEqual(other.help, ["why it is"]);

// --- a minute and more of speech in one turn: its words are there all the time, and once

const seen = [];
const conversation = new Conversation((entry) => seen.push([entry.text, entry.partial]));
let words = "";
for (let n = 1; n <= 300; n++) {
  words += ` word${n}`;
  conversation.callerSaid(words, false);
  assert.deepEqual(seen.at(-1), ["", words.trim()]);
}
conversation.callerSaid(words, true);
assert.deepEqual(conversation.entries.map(({ text, partial }) => [text, partial]), [[words.trim(), ""]]);

// --- the agent says something before the caller's words are final: they are told once, in their order

function told(script) {
  const conversation = new Conversation(() => {});
  script(conversation);
  return conversation.entries.map(({ kind, text, partial, spoken }) => [kind, spoken ?? (text || partial)]);
}
const asks = (conversation) => {
  conversation.callerBegan();
  conversation.callerSaid("what are you", false);
  conversation.agentSaid("One moment, please.");
};
assert.deepEqual(
  told((conversation) => {
    asks(conversation);
    conversation.callerSaid("what are your opening", false);
    conversation.callerSaid("what are your opening hours", true);
  }),
  [["agent", "One moment, please."], ["caller", "what are your opening hours"]],
);
assert.deepEqual(
  told((conversation) => {
    asks(conversation);
    conversation.callerSaid("what are your opening hours", true);
  }),
  [["caller", "what are your opening hours"], ["agent", "One moment, please."]],
);
assert.deepEqual(
  told((conversation) => {
    asks(conversation);
    conversation.callerBegan();
    conversation.callerSaid("hello", false);
  }),
  [["caller", "what are you"], ["agent", "One moment, please."], ["caller", "hello"]],
);

// --- a reply is written while a sentence before it is still spoken: both are told whole

assert.deepEqual(
  told((conversation) => {
    conversation.agentSaid("One");
    conversation.agentThinks();
    conversation.agentWrote("We are open.");
    conversation.agentSaid("moment, please.");
    conversation.agentSaid("We");
    conversation.agentSaid("are open.");
    conversation.agentStopped();
    conversation.agentSaid("Bye.");
  }),
  [["agent", "One moment, please."], ["agent", "We are open."], ["agent", "Bye."]],
);

// --- a word that comes late, as from a stock server, is of the reply that was cut, not a new one

assert.deepEqual(
  told((conversation) => {
    conversation.agentThinks();
    conversation.agentWrote("Once upon a time.");
    conversation.agentStarted();
    conversation.agentSaid("Once");
    conversation.interrupted();
    conversation.agentStopped();
    conversation.agentSaid("upon");
    conversation.agentWrote(" There was");
    conversation.interrupted("Once upon", "a time.");
    conversation.callerTyped("Stop");
    conversation.agentThinks();
    conversation.agentWrote("Yes?");
    conversation.agentStarted();
    conversation.agentSaid("Yes?");
  }),
  [["agent", "Once upon"], ["caller", "Stop"], ["agent", "Yes?"]],
);
// The server's own word of it may come when the next reply has begun.
assert.deepEqual(
  told((conversation) => {
    conversation.agentStarted();
    conversation.agentSaid("Once");
    conversation.interrupted();
    conversation.agentThinks();
    conversation.agentWrote("Yes?");
    conversation.interrupted("Once upon", "a time.");
    conversation.agentStarted();
    conversation.agentSaid("Yes?");
  }),
  [["agent", "Once upon"], ["agent", "Yes?"]],
);

// --- what is saved

conversation.agentWrote("We are open. On Sundays we are not.");
conversation.agentSaid("We are open.");
conversation.interrupted("We are open.", "On Sundays we are not.");
conversation.callerTyped("Bye");
conversation.entries.slice(1).forEach((entry, n) => (entry.at = 59.5 + n));
assert.equal(
  asText(conversation.entries.slice(1), "A call"),
  "A call\n\n[0:59] Agent: We are open. [interrupted; not heard: On Sundays we are not.]\n\n[1:00] You (typed): Bye\n\n",
);
assert.equal(fileName(new Date(2026, 10, 2, 9, 5)), "offhook-2026-11-02-0905");
assert.deepEqual(["audio/webm;codecs=opus", "audio/ogg", "audio/mp4"].map(endingOf), ["webm", "ogg", "m4a"]);
