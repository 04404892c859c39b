// The desk: who signs in, and the phone that they have then.

import { make } from "../console/dom.js";
import * as devices from "../page/devices.js";
import { Problem, wordsFor } from "../page/problems.js";
import { Media } from "./media.js";
import { start as startPanels } from "./panels.js";
import { Bell } from "./ring.js";
import { UserAgent } from "./sip.js";
import { View } from "./view.js";

const phone = document.getElementById("phone");
const panels = document.getElementById("panels");
const sounds = document.getElementById("sounds");
const out = document.getElementById("sign-out");
const bell = new Bell();
let leave = () => {};

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function session(method, body) {
  let response;
  try {
    response = await fetch("desk/session", {
      method, credentials: "same-origin", cache: "no-store",
      ...(body && { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }),
    });
  } catch {
    throw new Refused(0, "The server cannot be reached.");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, answer.error ?? `The server answers ${response.status}.`);
  return answer;
}

// --- signing in and out

function askWho(fault = "") {
  leave();
  leave = () => {};
  const number = make("input", { id: "number", name: "number", required: true, autocomplete: "username", inputMode: "tel" });
  const password = make("input", {
    id: "password", name: "password", type: "password", required: true, autocomplete: "current-password",
  });
  const wrong = make("p", { className: "fault", role: "alert" }, fault);
  const form = make("form", { className: "sign-in" },
    make("h1", {}, "Sign in to your phone"),
    make("label", { htmlFor: "number" }, "Your number"), number,
    make("label", { htmlFor: "password" }, "Its password"), password,
    make("button", { type: "submit", className: "primary" }, "Sign in"), wrong,
    make("p", { className: "soft" }, "The number and password with which your telephone registers. Whoever runs the server has them, in [sip.extensions]."));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      work(await session("POST", { number: number.value.trim(), password: password.value }));
    } catch (error) {
      wrong.textContent = error.message;
      password.select();
    }
  });
  document.body.dataset.signedIn = "no";
  phone.replaceChildren(form);
  number.focus();
}

out.addEventListener("click", async () => {
  leave();
  await session("DELETE").catch(() => {});
  askWho();
});

async function show() {
  try {
    const who = await session("GET");
    if (who.number) work(who);
    else askWho();
  } catch (error) {
    const again = make("button", { type: "button", onclick: show }, "Try again");
    phone.replaceChildren(make("div", { className: "empty" },
      make("h2", {}, "There is no phone here"), make("p", {}, error.message), again));
  }
}

// --- at work

/** Connects to the server as an agent needs it (see sip.js). */
function open({ opened, message, closed }) {
  const url = new URL("desk/sip", document.baseURI);
  url.protocol = url.protocol.replace("http", "ws");
  const socket = new WebSocket(url, "sip");
  socket.addEventListener("open", opened);
  socket.addEventListener("message", ({ data }) => message(data));
  socket.addEventListener("close", closed);
  return { send: (text) => socket.readyState === WebSocket.OPEN && socket.send(text), close: () => socket.close() };
}

async function openMicrophone(id) {
  try {
    if (!devices.allowed()) throw new Problem("insecure-page");
    return await devices.open(id);
  } catch (problem) {
    const { title, help } = wordsFor(problem);
    throw new Error([title, ...help].join(". ").replaceAll("..", "."));
  }
}

function work({ number, name, ice_servers: iceServers }) {
  document.body.dataset.signedIn = "yes";
  const agent = new UserAgent({
    number, host: location.hostname, open,
    media: ({ failed }) => {
      const far = make("audio", { autoplay: true });
      sounds.append(far);
      view.useSpeaker(far);
      return new Media({
        iceServers, failed,
        microphone: () => openMicrophone(view.microphone),
        heard: (stream) => (far.srcObject = stream),
        closed: () => far.remove(),
      });
    },
  });
  const view = new View({ root: phone, agent, bell, who: { number, name } });
  const stop = startPanels(contextOf(agent, panels)) ?? (() => {});
  const online = () => agent.connect();
  const closing = (event) => agent.calls.size && event.preventDefault();
  const left = () => agent.close();
  agent.addEventListener("line", async ({ detail }) => {
    if (detail.state !== "offline" && detail.state !== "refused") return;
    const still = await session("GET").catch(() => ({ number }));
    if (still.number !== number && agent.line !== "online") askWho("Your session is over: sign in again.");
  });
  addEventListener("online", online);
  addEventListener("beforeunload", closing);
  addEventListener("pagehide", left);
  leave = () => {
    removeEventListener("online", online);
    removeEventListener("beforeunload", closing);
    removeEventListener("pagehide", left);
    agent.close();
    bell.play("");
    stop();
    view.close();
    panels.replaceChildren();
  };
  agent.connect();
}

/** What the panels beside the phone get; see panels.js. */
function contextOf(agent, root) {
  const events = new EventTarget();
  for (const type of ["ringing", "dialling", "answered", "held", "ended"]) {
    agent.addEventListener(type, ({ detail: { call } }) => {
      const { id, number: caller, name, headers, incoming, held, heldByFar, why } = call;
      const detail = { id, caller, name, headers, incoming, held, heldByFar, why };
      events.dispatchEvent(new CustomEvent(type, { detail }));
    });
  }
  const of = (id) => agent.calls.get(id);
  return {
    root, number: agent.number, phone: events,
    answer: (id) => of(id)?.answer(),
    explain: (id, why) => of(id)?.explain(why),
  };
}

for (const touched of ["pointerdown", "keydown"]) addEventListener(touched, () => bell.unlock());
addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
show();
