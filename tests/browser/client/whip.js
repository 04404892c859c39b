// WHIP and WHEP clients as a page of another site uses them; whip_page.mjs runs them.

import { WHIPClient } from "whip-whep/whip.js";
import { WHEPClient } from "whip-whep/whep.js";

const publisher = new RTCPeerConnection();
const player = new RTCPeerConnection();
window.peers = { publisher, player };

async function microphone() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  return stream.getAudioTracks()[0];
}

function play({ streams, track }) {
  const audio = document.createElement("audio");
  audio.srcObject = window.played = streams[0] ?? new MediaStream([track]);
  audio.play();
}
player.ontrack = play;

/** The package whip-whep: it posts before it has candidates, and trickles them with the ETag. */
window.stock = async (url, key) => {
  publisher.addTransceiver(await microphone(), { direction: "sendonly" });
  const whip = new WHIPClient();
  await whip.publish(publisher, url.replace("PROTOCOL", "whip"), key);
  player.addTransceiver("audio", { direction: "recvonly" });
  const whep = new WHEPClient();
  await whep.view(player, url.replace("PROTOCOL", "whep"), key);
  return { restart: () => whip.restart(), stop: () => Promise.all([whip.stop(), whep.stop()]) };
};

/** A page written out: ICE servers by OPTIONS, and a PATCH with "If-Match: *" for each candidate. */
async function open(peer, url, key) {
  const headers = { Authorization: `Bearer ${key}` };
  const asked = await fetch(url, { method: "OPTIONS", headers });
  const links = asked.headers.get("Link");
  const waiting = [];
  let session = null;
  let description = "";
  const trickle = ({ candidate, sdpMid }) =>
    fetch(session, {
      method: "PATCH",
      headers: { ...headers, "Content-Type": "application/trickle-ice-sdpfrag", "If-Match": "*" },
      body: `${description}m=audio 9 UDP/TLS/RTP/SAVPF 0\r\na=mid:${sdpMid}\r\na=${candidate}\r\n`,
    });
  peer.onicecandidate = ({ candidate }) => {
    if (candidate?.candidate && session) trickle(candidate);
    else if (candidate?.candidate) waiting.push(candidate);
  };
  await peer.setLocalDescription();
  const { sdp } = peer.localDescription;
  description = sdp.match(/a=ice-(ufrag|pwd):.*\r\n/g).slice(0, 2).join("");
  const type = { "Content-Type": "application/sdp" };
  const posted = await fetch(url, { method: "POST", headers: { ...headers, ...type }, body: sdp });
  if (posted.status !== 201) throw new Error(`${posted.status} ${await posted.text()}`);
  session = new URL(posted.headers.get("Location"), url).href;
  await peer.setRemoteDescription({ type: "answer", sdp: await posted.text() });
  await Promise.all(waiting.map(trickle));
  return { links, stop: () => fetch(session, { method: "DELETE", headers }) };
}

window.plain = async (url, key) => {
  publisher.addTransceiver(await microphone(), { direction: "sendonly" });
  publisher.addTransceiver("video", { direction: "sendonly" });
  const whip = await open(publisher, url.replace("PROTOCOL", "whip"), key);
  player.addTransceiver("audio", { direction: "recvonly" });
  player.addTransceiver("video", { direction: "recvonly" });
  const whep = await open(player, url.replace("PROTOCOL", "whep"), key);
  return { links: whip.links, stop: () => Promise.all([whip.stop(), whep.stop()]) };
};
