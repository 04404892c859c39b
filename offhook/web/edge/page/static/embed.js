// A call button for the pages of other sites:
//
//     <script src="https://voice.example.org/embed.js" data-agent="sales" data-secret="/secret"></script>
//
// data-agent    the agent to talk with; without it the usual one
// data-secret   a route of the site itself that answers {"value": "ek_…"}, a client secret; needed where
//               the server wants a key
// data-lang     the language of its texts; without it that of the page
// data-label, data-hang-up, … any text of TEXTS, in words of the site's own
//
// The button stands where the script stands, or at the end of the page if that is in its head. The
// page's origin must be one of [server] origins. A call ends with its page, and with its button.
//
// It is an <offhook-call> with the parts button, mute and status for ::part(), and an attribute `state`:
// idle, calling or talking. Each change is an event "offhook-call", which bubbles, with {state, reason,
// muted}; `reason` is why a call is over, a key of TEXTS or "hung-up".

(() => {
  const script = document.currentScript;
  const { agent = "", secret = "" } = script.dataset;
  const server = (path) => new URL(path, script.src).href;
  const CONNECT_TIMEOUT_MS = 20000; // from the caller's permission to the first sound
  const STYLE = `
    :host { display: inline-flex; flex-wrap: wrap; gap: 0.6em; align-items: center; font: 1rem/1.4 system-ui, sans-serif; }
    button { font: inherit; padding: 0.6em 1.2em; border: 0; border-radius: 2em; cursor: pointer;
             color: #fff; background: #1b6e45; }
    button:hover { background: #155637; }
    button:focus-visible { outline: 3px solid #1b6e45; outline-offset: 2px; }
    button:is([data-state="talking"], [data-state="calling"]) { background: #a32a2a; }
    [part="mute"] { color: inherit; background: none; box-shadow: inset 0 0 0 1px currentColor; }
    [part="mute"]:hover { background: rgb(128 128 128 / 20%); }
    [hidden], [role="status"]:empty { display: none; }`;

  /** What a visitor reads. Nothing of the server's own words is for them. */
  const TEXTS = {
    en: {
      label: "Talk to us",
      "hang-up": "Hang up",
      mute: "Mute",
      unmute: "Unmute",
      connecting: "Connecting …",
      ended: "The call has ended.",
      busy: "All lines are busy. Please try again in a moment.",
      "microphone-denied": "Please allow this page to use the microphone, then call again.",
      "microphone-missing": "No microphone was found, or another program is using it.",
      insecure: "Calls are not possible on this page.",
      refused: "The call is not possible at the moment. Please try again later.",
      unreachable: "The call could not be connected. Please check your network.",
      lost: "The connection was lost. Please call again.",
    },
    de: {
      label: "Mit uns sprechen",
      "hang-up": "Auflegen",
      mute: "Stummschalten",
      unmute: "Ton an",
      connecting: "Verbindung wird aufgebaut …",
      ended: "Das Gespräch ist beendet.",
      busy: "Alle Leitungen sind besetzt. Bitte versuchen Sie es gleich noch einmal.",
      "microphone-denied": "Bitte erlauben Sie dieser Seite das Mikrofon und rufen Sie noch einmal an.",
      "microphone-missing": "Es wurde kein Mikrofon gefunden, oder ein anderes Programm benutzt es.",
      insecure: "Auf dieser Seite sind keine Anrufe möglich.",
      refused: "Anrufe sind zurzeit nicht möglich. Bitte versuchen Sie es später noch einmal.",
      unreachable: "Der Anruf kam nicht zustande. Bitte prüfen Sie Ihre Internetverbindung.",
      lost: "Die Verbindung ist abgebrochen. Bitte rufen Sie noch einmal an.",
    },
    fr: {
      label: "Parlez-nous",
      "hang-up": "Raccrocher",
      mute: "Couper le micro",
      unmute: "Rétablir le micro",
      connecting: "Connexion en cours…",
      ended: "L’appel est terminé.",
      busy: "Toutes les lignes sont occupées. Veuillez réessayer dans un instant.",
      "microphone-denied": "Veuillez autoriser cette page à utiliser le microphone, puis rappelez.",
      "microphone-missing": "Aucun microphone n’a été trouvé, ou un autre programme l’utilise.",
      insecure: "Les appels ne sont pas possibles sur cette page.",
      refused: "L’appel n’est pas possible pour le moment. Veuillez réessayer plus tard.",
      unreachable: "L’appel n’a pas pu aboutir. Veuillez vérifier votre connexion.",
      lost: "La connexion a été coupée. Veuillez rappeler.",
    },
    es: {
      label: "Hable con nosotros",
      "hang-up": "Colgar",
      mute: "Silenciar",
      unmute: "Activar el micrófono",
      connecting: "Conectando…",
      ended: "La llamada ha terminado.",
      busy: "Todas las líneas están ocupadas. Inténtelo de nuevo en un momento.",
      "microphone-denied": "Permita que esta página use el micrófono y vuelva a llamar.",
      "microphone-missing": "No se encontró ningún micrófono, o lo está usando otro programa.",
      insecure: "En esta página no se puede llamar.",
      refused: "En este momento no es posible llamar. Inténtelo más tarde.",
      unreachable: "No se pudo establecer la llamada. Compruebe su conexión.",
      lost: "Se perdió la conexión. Vuelva a llamar.",
    },
  };
  const page = script.closest("[lang]")?.lang || navigator.language;
  const wanted = (script.dataset.lang ?? page).toLowerCase().split("-")[0];
  const lang = Object.hasOwn(TEXTS, wanted) ? wanted : "en";
  const text = (key) => script.getAttribute(`data-${key}`) ?? TEXTS[lang][key];

  /** Why a call is over; `message` is a key of TEXTS. */
  class Fault extends Error {}

  /** One call. It owns what it opens, and `end` takes all of it back, however early. */
  class Call {
    #changed; // (state, reason)
    #speaker;
    #life = new AbortController();
    #microphone = null;
    #peer = null;
    #url = ""; // of the call at the server
    #talking = false;
    #timer = 0;

    constructor(changed, speaker) {
      this.#changed = changed;
      this.#speaker = speaker;
    }

    /** Calls; a failure ends the call. */
    async begin() {
      this.#changed("calling");
      try {
        await this.#connect(this.#life.signal);
      } catch (error) {
        this.end(error instanceof Fault ? error.message : "unreachable");
      }
    }

    /** The first time ends it for this reason; after that nothing changes any more. */
    end(reason) {
      if (this.#life.signal.aborted) return;
      this.#life.abort();
      clearTimeout(this.#timer);
      this.#microphone?.getTracks().forEach((track) => track.stop());
      this.#peer?.close();
      this.#speaker.srcObject = null;
      this.#changed("idle", reason);
    }

    /** The page is being left: what the browser would tell the server itself may not get there. */
    leave() {
      if (this.#url) fetch(`${this.#url}/leave`, { method: "POST", keepalive: true }).catch(() => {});
      this.end("hung-up");
    }

    get muted() {
      return this.#microphone?.getAudioTracks().some(({ enabled }) => !enabled) ?? false;
    }

    mute(muted) {
      for (const track of this.#microphone?.getAudioTracks() ?? []) track.enabled = !muted;
    }

    async #connect(signal) {
      const microphone = await openMicrophone();
      if (signal.aborted) return microphone.getTracks().forEach((track) => track.stop());
      this.#microphone = microphone;
      this.#timer = setTimeout(() => this.end("unreachable"), CONNECT_TIMEOUT_MS);
      const headers = await authorization(signal);
      const iceServers = await iceServersFor(headers, signal);
      signal.throwIfAborted();
      const peer = (this.#peer = this.#open(microphone, iceServers));
      await peer.setLocalDescription();
      const form = new FormData();
      form.append("sdp", new Blob([peer.localDescription.sdp], { type: "application/sdp" }));
      const session = { type: "realtime", ...(agent && { model: agent }) };
      form.append("session", new Blob([JSON.stringify(session)], { type: "application/json" }));
      const response = await fetch(
        server("/v1/realtime/calls"), { method: "POST", headers, body: form, signal });
      if (response.status === 503 || response.status === 429) throw new Fault("busy");
      if (!response.ok) throw new Fault("refused");
      const at = response.headers.get("Location");
      if (at) this.#url = server(at);
      const sdp = await response.text();
      signal.throwIfAborted();
      await peer.setRemoteDescription({ type: "answer", sdp });
    }

    /** A peer connection that sends the microphone and is heard, with its data channel. */
    #open(microphone, iceServers) {
      const peer = new RTCPeerConnection({ iceServers });
      peer.onconnectionstatechange = () => {
        const { connectionState: state } = peer;
        if (state === "failed") this.end(this.#talking ? "lost" : "unreachable");
        if (state === "closed") this.end("ended");
        if (state !== "connected" || this.#life.signal.aborted) return;
        clearTimeout(this.#timer);
        this.#talking = true;
        this.#changed("talking");
      };
      peer.ontrack = ({ track }) => {
        if (!this.#life.signal.aborted) this.#speaker.srcObject = new MediaStream([track]);
      };
      const events = peer.createDataChannel("oai-events");
      events.onmessage = ({ data }) => {
        if (events.readyState !== "open") return;
        if (JSON.parse(data).type === "session.created") events.send('{"type": "response.create"}');
      };
      events.onclose = () => this.end("ended");
      peer.addTransceiver(microphone.getAudioTracks()[0], { direction: "sendrecv" });
      return peer;
    }
  }

  async function openMicrophone() {
    if (!navigator.mediaDevices) throw new Fault("insecure");
    try {
      return await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch ({ name }) {
      const denied = name === "NotAllowedError" || name === "SecurityError";
      throw new Fault(denied ? "microphone-denied" : "microphone-missing");
    }
  }

  async function authorization(signal) {
    if (!secret) return {};
    const response = await fetch(secret, { method: "POST", signal });
    if (!response.ok) throw new Fault("refused");
    return { Authorization: `Bearer ${(await response.json()).value}` };
  }

  async function iceServersFor(headers, signal) {
    const response = await fetch(server("/v1/realtime/ice_servers"), { headers, signal });
    if (!response.ok) throw new Fault("refused");
    return (await response.json()).ice_servers;
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
  host.lang = lang;
  const root = host.attachShadow({ mode: "open" });
  const style = new CSSStyleSheet(); // allowed by any policy of the page, unlike a style element
  style.replaceSync(STYLE);
  root.adoptedStyleSheets = [style];

  function part(name, tag) {
    const element = document.createElement(tag);
    element.setAttribute("part", name);
    element.dir = "auto";
    root.append(element);
    return element;
  }
  const button = part("button", "button");
  const mute = part("mute", "button");
  button.type = mute.type = "button";
  const status = part("status", "span");
  status.setAttribute("role", "status");
  const speaker = document.createElement("audio");
  speaker.autoplay = true;
  root.append(speaker);
  if (!document.head.contains(script)) script.after(host);
  else if (document.body) document.body.append(host);
  else addEventListener("DOMContentLoaded", () => document.body.append(host));

  let call = null; // the one in progress

  function show(state, reason = "") {
    if (state === "idle") call = null;
    host.setAttribute("state", state);
    button.dataset.state = state;
    button.textContent = text(state === "idle" ? "label" : "hang-up");
    showMute(state === "talking");
    const words = state === "calling" ? "connecting" : reason;
    status.textContent = words && words !== "hung-up" ? text(words) : "";
    tell(state, reason);
  }

  function showMute(shown) {
    const muted = call?.muted ?? false;
    mute.hidden = !shown;
    mute.textContent = text(muted ? "unmute" : "mute");
  }

  function tell(state, reason) {
    const detail = { state, reason, muted: call?.muted ?? false };
    host.dispatchEvent(new CustomEvent("offhook-call", { bubbles: true, detail }));
  }

  button.addEventListener("click", () => {
    if (call) return call.end("hung-up");
    call = new Call(show, speaker);
    call.begin();
  });
  mute.addEventListener("click", () => {
    call.mute(!call.muted);
    showMute(true);
    tell("talking", "");
  });
  host.addEventListener("removed", () => call?.end("hung-up"));
  addEventListener("pagehide", () => call?.leave());
  show("idle");
})();
