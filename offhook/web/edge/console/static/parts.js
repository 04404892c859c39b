// The events of a call as parts that have a beginning and an end on the recording's clock.

/** Kinds of events that are told by what follows them. */
const UNTOLD = new Set(["call_started", "speech_started", "interrupted", "tokens_used", "playout_paused", "turn_latency"]);

/**
 * Gives parts in the order in which they begin, times in ms: {part: "words", who, from, to, event, cut},
 * {part: "latency", from, to, at, event} and {part: "other", from, to, event}.
 */
export function partsOf(events) {
  const parts = [];
  let spoke = 0, answered = null, cut = null, latency = null, free = true, before = 0;
  for (const event of events) {
    const at = event.at_ms;
    switch (event.event) {
      case "speech_started": if (free) [spoke, free] = [at, false]; break;
      case "turn_latency": [latency, answered] = [event, at]; break;
      case "interrupted": cut = event; break;
      case "caller_typed":
        parts.push({ part: "words", who: "caller", from: at, to: at, event });
        before = at;
        break;
      case "caller_turn":
        parts.push({ part: "words", who: "caller", from: Math.min(spoke || at, at), to: at, event });
        [spoke, free, before] = [0, true, at];
        break;
      case "member_turn":
        parts.push({ part: "words", who: event.member, from: event.began_ms, to: at, event });
        break;
      case "room_turn":
        parts.push({ part: "other", from: at, to: at, event });
        [spoke, free, before] = [0, true, at];
        break;
      case "agent_turn":
        parts.push({ part: "words", who: "agent", from: Math.min(answered ?? before, at), to: at, event, cut });
        if (latency) parts.push({ part: "latency", from: latency.at_ms, to: latency.at_ms, at: latency.at_ms - latency.total_ms, event: latency });
        [answered, cut, latency, before] = [null, null, null, at];
        break;
      default: if (!UNTOLD.has(event.event)) parts.push({ part: "other", from: at, to: at, event });
    }
  }
  // In the order in which they began: an answer that is cut is told when the cut is.
  return parts.sort((one, other) => one.from - other.from);
}

export const SPANS = {
  speech_end: "silence noticed", asr_final: "final words", turn_decided: "turn decided",
  llm_first_token: "agent’s first word", tts_first_audio: "first sound", first_packet: "first packet",
};
