// The desk: who signs in, and the phone that they have then.

import { make } from "../console/dom.js";
import { start as startPanels } from "./panels.js";

const phone = document.getElementById("phone");

async function ask(method, body) {
  const response = await fetch("desk/session", {
    method, credentials: "same-origin", cache: "no-store",
    ...(body && { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }),
  });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `The server answers ${response.status}.`);
  return answer;
}

function signIn() {
  phone.replaceChildren(make("h1", {}, "Sign in"));
}

async function show() {
  const { number } = await ask("GET");
  if (!number) return signIn();
  startPanels({ number, phone: new EventTarget() });
}

show();
