// The life of one call: a table of state × event → next state, and what is done (RFC 3261 §13 to §15).

/** state: {event: [next state, action]}; an event that a state does not list changes nothing. */
export const STATES = {
  // we call
  calling: {
    progress: ["alerting"],
    answered: ["up", "ack"],
    refused: ["over"],
    hangUp: ["leaving"], // a CANCEL has to wait for the first response (§9.1)
    failed: ["over"],
  },
  alerting: {
    answered: ["up", "ack"],
    refused: ["over"],
    hangUp: ["leaving", "cancel"],
    failed: ["over"],
  },
  leaving: {
    progress: ["leaving", "cancel"],
    answered: ["over", "ackAndBye"], // it has crossed our CANCEL
    refused: ["over"],
    failed: ["over"],
  },
  // we are called
  ringing: {
    answer: ["answering", "prepare"],
    hangUp: ["over", "decline"],
    cancelled: ["over", "refuseCancelled"],
    failed: ["over"],
  },
  answering: {
    prepared: ["up", "accept"],
    unprepared: ["ringing"], // the microphone is blocked, say: it rings on
    hangUp: ["over", "decline"],
    cancelled: ["over", "refuseCancelled"],
    failed: ["over"],
  },
  // we talk
  up: {
    answered: ["up", "ack"], // a 200 that is repeated
    hangUp: ["over", "bye"],
    ended: ["over"],
    failed: ["over"],
  },
  over: {},
};

/** {state, action} after an event; null if it changes nothing. */
export function next(state, event) {
  const [to, action = ""] = STATES[state]?.[event] ?? [];
  return to ? { state: to, action } : null;
}
