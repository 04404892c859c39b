// The operator in a call that is in progress: listens, speaks, takes it over from the agent.

import { changeMember, dismiss, join, toAgent } from "./api.js";
import { make, say } from "./dom.js";

const GATHERS_MS = 3000;

/** A row of buttons, and who has raised a hand; the line of this page ends when `signal` does. */
export function supervision(id, signal) {
  const status = make("span", { className: "soft", role: "status" });
  const button = (text, action) => {
    const element = make("button", { type: "button" }, text);
    element.addEventListener("click", async () => {
      element.disabled = true;
      try {
        await action();
      } catch (error) {
        status.textContent = error.message;
      }
      element.disabled = false;
      show();
    });
    return element;
  };
  let line = null, speaks = false, away = false;
  const listen = button("Listen", async () => {
    line = await open(id);
    line.peer.addEventListener("connectionstatechange", () => {
      if (line && ["failed", "closed", "disconnected"].includes(line.peer.connectionState)) leave();
    });
    status.textContent = "You hear the call; nobody hears you.";
  });
  const speak = button("Speak", async () => {
    if (!line.microphone) throw new Error("This page may not use a microphone.");
    await changeMember(id, line.name, { role: speaks ? "listen" : "speak" });
    speaks = !speaks;
    status.textContent = speaks ? "All hear you." : "Nobody hears you.";
  });
  const agent = button("Take over", async () => {
    await toAgent(id, { action: away ? "return" : "leave" });
    away = !away;
    status.textContent = away ? "The agent has left the call." : "The agent is back.";
  });
  const end = button("Leave", async () => leave(await dismiss(id, line.name)));
  const leave = () => {
    line?.close();
    [line, speaks, away] = [null, false, false];
    status.textContent = "You have left.";
    show();
  };
  const show = () => {
    listen.hidden = line !== null;
    speak.hidden = agent.hidden = end.hidden = line === null;
    speak.textContent = speaks ? "Only listen" : "Speak";
    agent.textContent = away ? "Hand back" : "Take over";
    agent.disabled = !speaks && !away;
    say(status.textContent);
  };
  signal.addEventListener("abort", () => line?.close());
  show();
  const hands = make("span", { className: "hands" });
  const showHands = (events) => hands.replaceChildren(...raised(events).map((name) =>
    button(`✋ Let ${name} speak`, () => changeMember(id, name, { role: "speak", muted: false }))));
  const element = make("div", { className: "actions", data: { row: "supervision" } }, listen, speak, agent, end, hands, status);
  return { element, showHands };
}

/** The members whose hands are up after these events. */
function raised(events) {
  const up = new Set();
  for (const { event, member } of events) {
    if (event === "member_raised_hand") up.add(member);
    else if (event === "member_lowered_hand" || event === "member_left") up.delete(member);
  }
  return [...up];
}

/** Joins the call as a listener, by WebRTC. */
async function open(id) {
  const peer = new RTCPeerConnection();
  const microphone = await navigator.mediaDevices?.getUserMedia({ audio: true }).catch(() => null);
  const audio = new Audio();
  audio.autoplay = true;
  peer.addEventListener("track", ({ streams: [stream], track }) => { audio.srcObject = stream ?? new MediaStream([track]); });
  const close = () => {
    peer.close();
    audio.srcObject = null;
    for (const track of microphone?.getTracks() ?? []) track.stop();
  };
  try {
    peer.addTransceiver(microphone?.getAudioTracks()[0] ?? "audio", { direction: microphone ? "sendrecv" : "recvonly" });
    await peer.setLocalDescription();
    await gathered(peer);
    const { member: name, sdp } = await join(id, { role: "listen", sdp: peer.localDescription.sdp });
    await peer.setRemoteDescription({ type: "answer", sdp });
    return { peer, microphone, name, close };
  } catch (error) {
    close();
    throw error;
  }
}

async function gathered(peer) {
  if (peer.iceGatheringState === "complete") return;
  await new Promise((resolve) => {
    setTimeout(resolve, GATHERS_MS);
    peer.addEventListener("icegatheringstatechange", () => peer.iceGatheringState === "complete" && resolve());
  });
}
