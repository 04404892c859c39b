// The console: which view is shown, and who may see it.

import { Refused, session, signIn, signOut } from "./api.js";
import { empty, make, say } from "./dom.js";
import { showCall } from "./call.js";
import { showCampaigns } from "./campaigns.js";
import { showHistory } from "./history.js";
import { showLive } from "./live.js";
import { showNumbers } from "./numbers.js";
import { showAgents, showEngines, showTrunks } from "./states.js";

const main = document.getElementById("main");
const out = document.getElementById("sign-out");
/** The beginning of a hash → its view, called with (main, rest of the hash, signal, who). */
const VIEWS = {
  live: showLive, history: showHistory, call: showCall, numbers: showNumbers,
  campaigns: showCampaigns, trunks: showTrunks, engines: showEngines, agents: showAgents,
};
const TITLES = {
  live: "Live calls", history: "History", call: "Call", numbers: "Numbers",
  campaigns: "Campaigns", trunks: "Trunks", engines: "Engines", agents: "Agents",
};
let leaving = new AbortController();

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [, name, rest = ""] = /^#\/(\w+)\/?(.*)$/.exec(location.hash) ?? [null, "history"];
  const view = VIEWS[name] ? name : name === "calls" ? "call" : "history";
  for (const link of document.querySelectorAll("nav a")) {
    link.ariaCurrent = link.hash === `#/${view}` ? "page" : null;
    if (link.ariaCurrent) link.scrollIntoView({ block: "nearest", inline: "center" }); // on a phone
  }
  document.title = `${TITLES[view]} · offhook`;
  try {
    const { who, tenant, signed_in: signedIn } = await session();
    if (signal.aborted) return;
    if (!who) return askForKey();
    out.hidden = !signedIn;
    document.body.dataset.who = who;
    document.querySelector('nav a[href="#/engines"]').hidden = Boolean(tenant); // they are the server's
    await VIEWS[view](main, rest, signal, who);
    if (!signal.aborted) say(TITLES[view]);
  } catch (error) {
    if (!signal.aborted) fail(error);
  }
}

function fail(error) {
  if (!(error instanceof Refused)) throw error;
  if (error.status === 401) return askForKey();
  const again = make("button", { type: "button", onclick: show }, "Try again");
  const notKept = error.status === 409;
  main.replaceChildren(notKept
    ? empty("Calls are not kept here", "Set url in the section [records] of offhook.toml, for example to sqlite:///calls.db, and start the server again.")
    : empty("That did not work", error.message));
  main.firstChild.append(again);
}

function askForKey() {
  const key = make("input", { type: "password", name: "key", required: true, autocomplete: "current-password", id: "key" });
  const fault = make("p", { className: "fault", role: "alert" });
  const form = make("form", { className: "sign-in" },
    make("h1", {}, "Sign in"),
    make("label", { htmlFor: "key" }, "The operator’s key, or a reader’s"), key,
    make("button", { type: "submit", className: "primary" }, "Sign in"), fault,
    make("p", { className: "soft" }, "It is admin_key in the section [server] of offhook.toml, or key of one of the [tenants]; reader_key lets somebody look, but not listen."));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await signIn(key.value);
      await show();
    } catch (error) {
      fault.textContent = error.message;
      key.select();
    }
  });
  out.hidden = true;
  main.replaceChildren(form);
  key.focus();
}

out.addEventListener("click", async () => {
  await signOut();
  askForKey();
});

addEventListener("hashchange", async () => {
  await show();
  main.focus();
});
show();
