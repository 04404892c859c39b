// How good the line is: the server's view of what we send, and ours of what it sends.

// ITU-T G.107 annex B, user satisfaction, as MOS.
const WORDS = [
  { from: 4.03, word: "Excellent", bars: 4 },
  { from: 3.6, word: "Good", bars: 3 },
  { from: 3.1, word: "Fair", bars: 2 },
  { from: 0, word: "Poor", bars: 1 },
];

/** A MOS as `{word, bars}`. */
export function wordFor(mos) {
  return WORDS.find(({ from }) => mos >= from);
}

/** Turns RTCStatsReports, taken one after the other, into what happened between them. */
export class Downlink {
  #before = {};

  /** Gives `{loss 0..1, jitterMs, bufferMs, roundTripMs, path}`; unknown ones are undefined. */
  update(report) {
    const all = [...report.values()];
    const audio = all.find(({ type, kind }) => type === "inbound-rtp" && kind === "audio") ?? {};
    const transport = all.find(({ type }) => type === "transport");
    const pair = report.get(transport?.selectedCandidatePairId) ??
      all.find(({ type, nominated, state }) =>
        type === "candidate-pair" && nominated && state === "succeeded");
    const before = this.#before;
    this.#before = audio;

    const lost = since(audio, before, "packetsLost");
    const received = since(audio, before, "packetsReceived");
    const waited = since(audio, before, "jitterBufferDelay");
    const emitted = since(audio, before, "jitterBufferEmittedCount");
    return {
      loss: received > 0 ? Math.max(0, lost) / (Math.max(0, lost) + received) : undefined,
      jitterMs: ms(audio.jitter),
      bufferMs: emitted > 0 ? ms(waited / emitted) : undefined,
      roundTripMs: ms(pair?.currentRoundTripTime),
      path: pair && pathOf(report.get(pair.localCandidateId)),
    };
  }
}

function since(now, before, field) {
  return (now[field] ?? 0) - (before[field] ?? 0);
}

function ms(seconds) {
  return seconds === undefined ? undefined : seconds * 1000;
}

function pathOf(candidate) {
  if (!candidate) return undefined;
  const how = candidate.candidateType === "relay" ? "relayed" : "direct";
  return `${how}, ${(candidate.relayProtocol ?? candidate.protocol ?? "").toUpperCase()}`;
}
