// Publishes as OBS does, whose WebRTC is libdatachannel: an offer without candidates, and no PATCH.
// node libdatachannel.mjs {url, key, packets, codec}: Opus packets of 20 ms, each behind two bytes of its length, and the codec
// of a video line, AV1 e.g. Until SIGINT, then DELETE; the peer connection's states and the last response go to stdout.

import fs from "node:fs";
import rtc from "node-datachannel";

const { url, key, packets: file, codec } = JSON.parse(process.argv[2]);
const FRAME_MS = 20;
const SSRC = 1646;
const CNAME = "obs";

const packets = [];
const bytes = fs.readFileSync(file);
for (let at = 0; at < bytes.length; at += 2 + bytes.readUInt16BE(at)) {
  packets.push(bytes.subarray(at + 2, at + 2 + bytes.readUInt16BE(at)));
}

const states = [];
const peer = new rtc.PeerConnection("obs", { iceServers: [], disableAutoNegotiation: true });
peer.onStateChange((state) => states.push(state));
const audio = new rtc.Audio("0", "SendOnly");
audio.addOpusCodec(111, "minptime=10;maxaveragebitrate=96000;stereo=1;sprop-stereo=1;useinbandfec=1");
audio.addSSRC(SSRC, CNAME, "stream", "audio");
const sound = peer.addTrack(audio);
const format = new rtc.RtpPacketizationConfig(SSRC, CNAME, 111, 48000);
const packetizer = new rtc.RtpPacketizer(format);
packetizer.addToChain(new rtc.RtcpSrReporter(format));
packetizer.addToChain(new rtc.RtcpNackResponder());
sound.setMediaHandler(packetizer);
const video = new rtc.Video("1", "SendOnly");
video[`add${codec}Codec`](96);
video.addSSRC(SSRC + 1, CNAME, "stream", "video");
peer.addTrack(video);

const described = new Promise((resolve) => peer.onLocalDescription(resolve));
peer.setLocalDescription("offer");
const offer = (await described).replaceAll(/a=(candidate:.*|end-of-candidates)\r\n/g, "");
const headers = { Authorization: `Bearer ${key}`, "User-Agent": "Mozilla/5.0 (OBS-Studio/32.0.0; Linux; en-US)" };
const posted = await fetch(url, { method: "POST", headers: { ...headers, "Content-Type": "application/sdp" }, body: offer });
if (posted.status !== 201) throw new Error(`${posted.status} ${await posted.text()}`);
const session = new URL(posted.headers.get("Location"), url);
peer.setRemoteDescription(await posted.text(), "answer");

sound.onOpen(() => {
  const started = performance.now();
  let sent = 0;
  setInterval(() => {
    while (sent * FRAME_MS < performance.now() - started) {
      format.timestamp = (sent * FRAME_MS * format.clockRate) / 1000;
      sound.sendMessageBinary(packets[sent % packets.length]);
      sent += 1;
    }
  }, FRAME_MS);
});

process.on("SIGINT", async () => {
  const gone = await fetch(session, { method: "DELETE", headers });
  console.log(JSON.stringify({ states, gone: gone.status }));
  peer.close();
  rtc.cleanup();
  process.exit();
});
