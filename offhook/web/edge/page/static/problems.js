// What can go wrong, in words for the person in front of the page.

import { SignallingError, hasKey } from "./signalling.js";

/** Something that ends or prevents a call. `code` is a key of `WORDS`. */
export class Problem extends Error {
  constructor(code, detail = "", retryAfter = null) {
    super(detail);
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

/** title: what happened. help: what to do, one paragraph each. typing: a call can go on mute. key: an
 * API key is asked for. */
const WORDS = {
  "insecure-page": {
    title: "The microphone needs a secure page",
    help: [
      "Browsers give the microphone only to pages opened over https, or on the machine itself at http://localhost.",
      "Open this page at its https address, or put a certificate in front of the server.",
    ],
    typing: true,
  },
  "microphone-denied": {
    title: "The microphone is blocked",
    help: [
      "Allow the microphone for this page: press the icon at the left of the address bar, then call again.",
      "If it is allowed there, look at the privacy settings of your system.",
    ],
    typing: true,
  },
  "microphone-missing": {
    title: "No microphone found",
    help: ["Plug one in or switch your headset on, then call again."],
    typing: true,
  },
  "microphone-busy": {
    title: "The microphone cannot be opened",
    help: ["Another program may be holding it. Close that program or choose another microphone."],
    typing: true,
  },
  full: {
    title: "All lines are busy",
    help: ["Every line of this server is in use right now."],
  },
  connecting: {
    title: "Many are calling at this moment",
    help: ["Too many calls are being connected at once. That takes seconds."],
  },
  overloaded: {
    title: "The server is overloaded",
    help: ["One more call would spoil the sound of those in progress."],
  },
  loading: {
    title: "The server is still starting",
    help: ["Its speech engines are being loaded. That takes from seconds to a few minutes."],
  },
  draining: {
    title: "The server is shutting down",
    help: ["Calls in progress go on, but no new one is taken."],
  },
  busy: {
    title: "No call can be taken now",
    help: [],
  },
  "key-missing": {
    title: "This server wants a key",
    help: ["Whoever runs it has an API key. It is kept until you close this tab."],
    key: true,
  },
  "key-wrong": {
    title: "That key is not the right one",
    help: ["Ask whoever runs this server for its API key."],
    key: true,
  },
  unreachable: {
    title: "The server does not answer",
    help: ["Check your network, and that the server is running, then call again."],
  },
  refused: {
    title: "The server did not take the call",
    help: [],
  },
  "no-path": {
    title: "Sound cannot get through",
    help: [
      "The server answered, but no path for sound was found between you and it. A firewall or VPN that blocks UDP is the usual cause.",
      "Try another network, or set up a TURN server.",
    ],
  },
  lost: {
    title: "The connection was lost",
    help: ["The network went away and did not come back in time. Call again when it has."],
  },
  gone: {
    title: "The server went away",
    help: ["Your network works, but the server does not answer any more. It may have stopped; call again when it is back."],
  },
  forgotten: {
    title: "The server no longer knows this call",
    help: ["It was probably restarted. Call again."],
  },
  agent: {
    title: "The agent stopped",
    help: [],
  },
};

const BUSY = ["full", "connecting", "overloaded", "loading", "draining"]; // the server's reasons of a 503

/** The words for a problem: `{title, help: [paragraph], typing, key}`. */
export function wordsFor(problem) {
  const { title, help, typing = false, key = false } = WORDS[problem.code];
  const detailed = ["refused", "agent", "busy"].includes(problem.code) && problem.message;
  return { title, help: detailed ? [problem.message, ...help] : help, typing, key };
}

/** Any error met while placing a call, as a Problem. */
export function asProblem(error) {
  if (error instanceof Problem) return error;
  if (error instanceof SignallingError) {
    if (error.status === 401) return new Problem(hasKey() ? "key-wrong" : "key-missing");
    if (error.status === 503) {
      const code = BUSY.includes(error.reason) ? error.reason : "busy";
      return new Problem(code, error.message, error.retryAfter ?? 5);
    }
    return new Problem("refused", error.message);
  }
  // fetch: TypeError without a network, TimeoutError without an answer.
  if (error.name === "TypeError" || error.name === "TimeoutError") return new Problem("unreachable");
  return new Problem("refused", error.message);
}
