// The states of a call, and what the page says in each of them. Pure: no DOM, no network.

/** state × event → next state. An event without a cell means nothing in that state. */
const LIFE = {
  idle: { dial: "connecting" },
  connecting: { up: "talking", hangup: "idle", leave: "ended", fail: "failed" },
  talking: { quiet: "stalled", drop: "reconnecting", hangup: "ended", leave: "ended", fail: "failed" },
  // Nothing has come from the server for some seconds; it may heal by itself.
  stalled: { up: "talking", drop: "reconnecting", hangup: "ended", leave: "ended", fail: "failed" },
  reconnecting: { up: "talking", hangup: "ended", leave: "ended", fail: "failed" },
  ended: { dial: "connecting" },
  failed: { dial: "connecting" },
};
const ON_LINE = ["talking", "stalled", "reconnecting"];

/** The state that an event leads to, or undefined where it means nothing. */
export function next(state, event) {
  return LIFE[state][event];
}

/** Whether there is a line between caller and agent, be it in trouble. */
export function onLine(state) {
  return ON_LINE.includes(state);
}

/** Whether a call is under way, from the press of the button on. */
export function inCall(state) {
  return state === "connecting" || onLine(state);
}

// For each part of the page: the first row whose condition holds says what is shown. The facts are
// {state, why, you, agent, thinking, muted, slow, quality: {word, bars} | null, trouble, microphone}.

const ALWAYS = () => true;
const is = (state) => (facts) => facts.state === state;

const STATUS = [
  [is("idle"), "Press to call"],
  [is("connecting"), "Connecting…"],
  [is("talking"), "You are through"],
  [is("stalled"), "No answer from the server"],
  [is("reconnecting"), "Connection lost, reconnecting…"],
  [is("failed"), "Press to call again"],
  [ALWAYS, ({ why }) => why ?? ""],
];

const PHASE = [
  [is("stalled"), "No answer"],
  [is("reconnecting"), "Reconnecting…"],
  [({ muted }) => muted, "You are muted"],
  [({ you }) => you, "You are speaking"],
  [({ agent }) => agent, "Agent is speaking"],
  [({ thinking, slow }) => thinking && slow, "The server is slow"],
  [({ thinking }) => thinking, "Thinking"],
  [ALWAYS, "Listening"],
];

const PILL = [
  [is("stalled"), { word: "No answer", bars: 0 }],
  [is("reconnecting"), { word: "Reconnecting", bars: 0 }],
  [({ slow, quality }) => slow && !(quality?.bars < 3), { word: "Slow answers", bars: 2 }],
  [({ quality }) => quality, ({ quality }) => quality],
  [ALWAYS, { word: "Measuring", bars: 0 }],
];

const HINT = [
  [({ state }) => !onLine(state), ""],
  [is("stalled"), "Nothing has come from the server for some seconds. The call goes on if it comes back."],
  [is("reconnecting"), "The connection broke. Looking for another way to the server…"],
  [({ trouble }) => trouble === "blocked", "Press anywhere to hear the agent."],
  [({ trouble }) => trouble === "refused",
    "That microphone cannot be opened; the call goes on with the one before."],
  [({ trouble }) => trouble === "unplugged", "The microphone went away. Choose another one."],
  [({ trouble }) => trouble === "silent",
    ({ microphone }) => `Nothing is heard from “${microphone}”. Is it switched off, or the wrong one?`],
  [({ slow }) => slow, "The server is slow: answers take long. It is not your connection."],
  [ALWAYS, ""],
];

const TITLE = [
  [is("connecting"), "Calling…"],
  [is("talking"), "In a call"],
  [is("stalled"), "No answer from the server"],
  [is("reconnecting"), "Reconnecting…"],
  [is("ended"), "Call ended"],
  [is("failed"), "No call"],
  [ALWAYS, ""],
];

/** What the page says: `{status, phase, pill: {word, bars}, hint, title}`. */
export function face(facts) {
  const title = first(TITLE, facts);
  return {
    status: first(STATUS, facts),
    phase: first(PHASE, facts),
    pill: first(PILL, facts),
    hint: first(HINT, facts),
    title: title ? `${title} – offhook` : "offhook: call the voice agent",
  };
}

function first(rows, facts) {
  const [, shown] = rows.find(([holds]) => holds(facts));
  return typeof shown === "function" ? shown(facts) : shown;
}
