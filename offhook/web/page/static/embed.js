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
// page's origin must be one of [server] origins. A call ends with its page, and with its button.

(() => {
  const script = document.currentScript;
  const { agent = "", secret = "", label = "Talk to us" } = script.dataset;
  const calls = new URL("/v1/realtime/calls", script.src).href;
  const CONNECT_TIMEOUT_MS = 20000; // from the caller's permission to the first sound
  const MAX_REASON_CHARS = 300; // of a refusal
  const STYLE = `
    :host { display: inline-flex; gap: 0.6em; align-items: center; font: 1rem/1.4 system-ui, sans-serif; }
    button { font: inherit; padding: 0.6em 1.2em; border: 0; border-radius: 2em; cursor: pointer;
             color: #fff; background: #1b6e45; }
    button:hover { background: #155637; }
    button:focus-visible { outline: 3px solid #1b6e45; outline-offset: 2px; }
    button[data-state="talking"], button[data-state="calling"] { background: #a32a2a; }
    [role="status"]:empty { display: none; }`;

  /** One call. It owns what it opens, and `end` takes all of it back, however early. */
  class Call {
    #told; // (state, words)
    #speaker;
    #life = new AbortController();
    #microphone = null;
    #peer = null;
    #timer = 0;

    constructor(told, speaker) {
      this.#told = told;
      this.#speaker = speaker;
    }

    /** Calls; a failure ends the call and is told. */
    async begin() {
      this.#told("calling", "Connecting …");
      try {
        await this.#connect(this.#life.signal);
      } catch (error) {
        this.end(error.name === "NotAllowedError" ? "Please allow the microphone." : error.message);
      }
    }

    /** The first time ends it with these words; after that nothing is told any more. */
    end(words) {
      if (this.#life.signal.aborted) return;
      this.#life.abort();
      clearTimeout(this.#timer);
      this.#microphone?.getTracks().forEach((track) => track.stop());
      this.#peer?.close();
      this.#speaker.srcObject = null;
      this.#told("idle", words);
    }

    async #connect(signal) {
      if (!navigator.mediaDevices) throw new Error("Calls need a page that was opened by https.");
      const microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
      if (signal.aborted) return microphone.getTracks().forEach((track) => track.stop());
      this.#microphone = microphone;
      this.#timer = setTimeout(() => this.end("The server cannot be reached."), CONNECT_TIMEOUT_MS);
      const peer = (this.#peer = this.#open(microphone));
      await peer.setLocalDescription();
      const form = new FormData();
      form.append("sdp", new Blob([peer.localDescription.sdp], { type: "application/sdp" }));
      const session = { type: "realtime", ...(agent && { model: agent }) };
      form.append("session", new Blob([JSON.stringify(session)], { type: "application/json" }));
      const headers = await authorization(signal);
      signal.throwIfAborted();
      const response = await fetch(calls, { method: "POST", headers, body: form, signal });
      if (!response.ok) throw new Error(await reasonOf(response));
      const sdp = await response.text();
      signal.throwIfAborted();
      await peer.setRemoteDescription({ type: "answer", sdp });
    }

    /** A peer connection that sends the microphone and is heard, with its data channel. */
    #open(microphone) {
      const peer = new RTCPeerConnection();
      peer.onconnectionstatechange = () => {
        const { connectionState: state } = peer;
        if (state === "failed") this.end("The connection was lost.");
        if (state === "closed") this.end("The call has ended.");
        if (state !== "connected" || this.#life.signal.aborted) return;
        clearTimeout(this.#timer);
        this.#told("talking", "");
      };
      peer.ontrack = ({ track }) => {
        if (!this.#life.signal.aborted) this.#speaker.srcObject = new MediaStream([track]);
      };
      const events = peer.createDataChannel("oai-events");
      events.onmessage = ({ data }) => {
        if (events.readyState !== "open") return;
        if (JSON.parse(data).type === "session.created") events.send('{"type": "response.create"}');
      };
      events.onclose = () => this.end("The call has ended.");
      peer.addTransceiver(microphone.getAudioTracks()[0], { direction: "sendrecv" });
      return peer;
    }
  }

  async function authorization(signal) {
    if (!secret) return {};
    const response = await fetch(secret, { method: "POST", signal });
    if (!response.ok) throw new Error("The call is not possible at the moment.");
    return { Authorization: `Bearer ${(await response.json()).value}` };
  }

  async function reasonOf(response) {
    if (response.status === 503) return "All lines are busy. Please try again later.";
    const { error } = await response.json().catch(() => ({}));
    return String(error?.message ?? `The server answered ${response.status}.`).slice(0, MAX_REASON_CHARS);
  }

  if (!customElements.get("offhook-call")) {
    customElements.define("offhook-call", class extends HTMLElement {
      disconnectedCallback() {
        // Not when it is only moved to another place of the page.
        queueMicrotask(() => this.isConnected || this.dispatchEvent(new Event("removed")));
      }
    });
  }
  const host = document.createElement("offhook-call");
  const root = host.attachShadow({ mode: "open" });
  const style = new CSSStyleSheet(); // allowed by any policy of the page, unlike a style element
  style.replaceSync(STYLE);
  root.adoptedStyleSheets = [style];
  const button = document.createElement("button");
  button.type = "button";
  const status = document.createElement("span");
  status.setAttribute("role", "status");
  const speaker = document.createElement("audio");
  speaker.autoplay = true;
  root.append(button, status, speaker);
  if (!document.head.contains(script)) script.after(host);
  else if (document.body) document.body.append(host);
  else addEventListener("DOMContentLoaded", () => document.body.append(host));

  let call = null; // the one in progress

  function show(state, words = "") {
    if (state === "idle") call = null;
    button.dataset.state = state;
    button.textContent = state === "idle" ? label : "Hang up";
    status.textContent = words;
  }

  button.addEventListener("click", () => {
    if (call) return call.end("");
    call = new Call(show, speaker);
    call.begin();
  });
  host.addEventListener("removed", () => call?.end(""));
  addEventListener("pagehide", () => call?.end(""));
  show("idle");
})();
