// In a page of the server: a call with the offer sent before any candidate is known, and what its ICE does.
// An expression whose value is a function: `transport` "udp" and "tcp" leave only those of our candidates, "any" all, `through` gives them
// another port, `microphone` has it speak, and for `watch_ms` it looks for the longest time without a packet.

(async ({ transport, restart, through, microphone, watch_ms: watchMs }) => {
  const LIMIT_MS = 20000;
  const pc = new RTCPeerConnection();
  const sound = microphone ? (await navigator.mediaDevices.getUserMedia({ audio: true })).getTracks()[0] : "audio";
  pc.addTransceiver(sound, { direction: "sendrecv" });
  pc.createDataChannel("chat");
  const states = [];
  pc.addEventListener("connectionstatechange", () => states.push(pc.connectionState));
  let pcId = null;

  async function until(condition) {
    for (const end = Date.now() + LIMIT_MS; Date.now() < end; ) {
      const found = await condition();
      if (found) return found;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error(`not in time: ${condition}, ${pc.connectionState}, ${pc.iceConnectionState}`);
  }

  async function negotiate() {
    await pc.setLocalDescription();
    const { type, sdp } = pc.localDescription;
    const body = JSON.stringify({ type, sdp, pc_id: pcId });
    const answer = await until(async () => {
      const response = await fetch("/api/offer", { method: "POST", body, headers: { "Content-Type": "application/json" } });
      return response.status !== 503 && response.json(); // a server whose machine is busy takes the call later
    });
    pcId = answer.pc_id;
    const lines = answer.sdp.split("\r\n");
    const kept = lines.filter((line) => !line.startsWith("a=candidate:") || transport === "any" || line.split(" ")[2] === transport);
    const moved = kept.map((line) => (through && line.startsWith("a=candidate:") ? line.replace(/ \d+ typ/, ` ${through} typ`) : line));
    await pc.setRemoteDescription({ type: "answer", sdp: moved.join("\r\n") });
    return { candidates: (sdp.match(/^a=candidate:/gm) ?? []).length, ufrag: answer.sdp.match(/a=ice-ufrag:(\S+)/)[1] };
  }

  async function stats() {
    const all = [...(await pc.getStats()).values()];
    const of = (id) => all.find((report) => report.id === id);
    const pair = all.find((report) => report.type === "candidate-pair" && (report.selected || of(all.find((r) => r.type === "transport")?.selectedCandidatePairId) === report));
    const heard = all.find((report) => report.type === "inbound-rtp")?.packetsReceived ?? 0;
    const sent = all.find((report) => report.type === "outbound-rtp")?.packetsSent ?? 0;
    const remote = pair && of(pair.remoteCandidateId);
    return { heard, sent, pair: pair?.id, protocol: remote?.protocol, port: remote?.port, dtls: all.find((r) => r.type === "transport")?.dtlsState };
  }

  const first = await negotiate();
  await until(() => pc.connectionState === "connected");
  const connected = await until(async () => { const s = await stats(); return s.heard > 20 && s.pair && s; });
  const result = { first, connected, states };
  if (restart) {
    pc.restartIce();
    result.second = await negotiate();
    result.restarted = await until(async () => { const s = await stats(); return s.pair !== connected.pair && s.heard > connected.heard + 50 && s; });
  }
  if (watchMs) {
    let [heard, since, longest] = [0, Date.now(), 0];
    for (const end = Date.now() + watchMs; Date.now() < end; ) {
      const now = await stats();
      if (now.heard > heard) [heard, since] = [now.heard, Date.now()];
      longest = Math.max(longest, Date.now() - since);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    result.longest_ms = longest;
    await new Promise((resolve) => setTimeout(resolve, 1000));
    result.heard_last_s = (await stats()).heard - heard;
  }
  result.end = pc.connectionState;
  pc.close();
  return result;
})
