// A call button for the pages of other sites:
//
//     <script src="https://voice.example.org/embed.js" data-agent="sales" data-secret="/secret"></script>
//
// data-agent    the agent to talk with; without it the usual one
// data-secret   a route of the site itself that answers {"value": "ek_…"}, a client secret; needed where
//               the server wants a key
// data-label    what the button says
//
// The button stands where the script stands, or at the end of the page if that is in its head. The
// page's origin must be one of [server] origins.

(() => {
  const script = document.currentScript;
  const { agent = "", secret = "", label = "Talk to us" } = script.dataset;
  const calls = new URL("/v1/realtime/calls", script.src).href;
  const STYLE = `
    :host { display: inline-flex; gap: 0.6em; align-items: center; font: 1rem/1.4 system-ui, sans-serif; }
    button { font: inherit; padding: 0.6em 1.2em; border: 0; border-radius: 2em; cursor: pointer;
             color: #fff; background: #1b6e45; }
    button:hover { background: #155637; }
    button:focus-visible { outline: 3px solid #1b6e45; outline-offset: 2px; }
    button[data-state="talking"], button[data-state="calling"] { background: #a32a2a; }
    [role="status"]:empty { display: none; }`;

  const host = document.createElement("offhook-call");
  const root = host.attachShadow({ mode: "open" });
  const style = document.createElement("style");
  style.textContent = STYLE;
  const button = document.createElement("button");
  button.type = "button";
  const status = document.createElement("span");
  status.setAttribute("role", "status");
  const speaker = document.createElement("audio");
  speaker.autoplay = true;
  root.append(style, button, status, speaker);
  if (!document.head.contains(script)) script.after(host);
  else addEventListener("DOMContentLoaded", () => document.body.append(host));

  let call = null; // the peer connection and the microphone of the call in progress

  function show(state, words = "") {
    button.dataset.state = state;
    button.textContent = state === "idle" ? label : "Hang up";
    status.textContent = words;
  }

  function end(words) {
    call?.microphone?.getTracks().forEach((track) => track.stop());
    call?.peer.close();
    call = null;
    show("idle", words);
  }

  async function headers() {
    if (!secret) return {};
    const response = await fetch(secret, { method: "POST" });
    if (!response.ok) throw new Error("The call is not possible at the moment.");
    return { Authorization: `Bearer ${(await response.json()).value}` };
  }

  async function reasonOf(response) {
    if (response.status === 503) return "All lines are busy. Please try again later.";
    const { error } = await response.json().catch(() => ({}));
    return error?.message ?? `The server answered ${response.status}.`;
  }

  async function begin() {
    const mine = { peer: new RTCPeerConnection() };
    call = mine;
    show("calling", "Connecting …");
    const { peer } = mine;
    peer.onconnectionstatechange = () => {
      if (call !== mine) return;
      if (peer.connectionState === "connected") show("talking");
      if (peer.connectionState === "failed") end("The connection was lost.");
      if (peer.connectionState === "closed") end("The call has ended.");
    };
    peer.ontrack = ({ track }) => (speaker.srcObject = new MediaStream([track]));
    const events = peer.createDataChannel("oai-events");
    events.onmessage = ({ data }) => {
      if (JSON.parse(data).type === "session.created") events.send('{"type": "response.create"}');
    };
    events.onclose = () => call === mine && end("The call has ended.");

    mine.microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
    if (call !== mine) return end(""); // hung up meanwhile
    peer.addTransceiver(mine.microphone.getAudioTracks()[0], { direction: "sendrecv" });
    await peer.setLocalDescription();
    const form = new FormData();
    form.append("sdp", new Blob([peer.localDescription.sdp], { type: "application/sdp" }));
    const session = { type: "realtime", ...(agent && { model: agent }) };
    form.append("session", new Blob([JSON.stringify(session)], { type: "application/json" }));
    const response = await fetch(calls, { method: "POST", headers: await headers(), body: form });
    if (!response.ok) throw new Error(await reasonOf(response));
    if (call !== mine) return;
    await peer.setRemoteDescription({ type: "answer", sdp: await response.text() });
  }

  button.addEventListener("click", () => {
    if (call) return end("");
    begin().catch((error) => {
      const refused = error.name === "NotAllowedError";
      end(refused ? "Please allow the microphone." : error.message);
    });
  });
  show("idle");
})();
