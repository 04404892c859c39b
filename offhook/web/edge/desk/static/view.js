// The phone as it is seen: the line, the calls, the number that is dialled.

import { make, say } from "../console/dom.js";
import * as devices from "../page/devices.js";

const LINES = {
  online: ["up", "Ready"],
  registering: ["waiting", "Connecting…"],
  offline: ["down", "No connection"],
  refused: ["down", "Not admitted"],
};
const STATES = {
  calling: "Calling…", alerting: "Ringing…", leaving: "Hanging up…", ringing: "Calls you", answering: "Answering…",
  up: "Connected", over: "Ended",
};
const KEYS = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "*", "0", "#"];
const NOTED_MS = 8000; // how long it stays on the screen why a call has ended

export class View {
  #root;
  #agent;
  #bell;
  #cards = new Map(); // by the call's id
  #since = new Map(); // when it was answered, by the same
  #clock = 0;
  #line = document.getElementById("line");
  #who = document.getElementById("who");
  #out = document.getElementById("sign-out");
  #list = make("ul", { className: "calls", "aria-label": "Calls" });
  #note = make("p", { className: "notice", role: "alert", hidden: true });
  #waiting = make("p", { className: "soft", id: "messages" });
  #input;
  #selects = {};
  #listening = new AbortController();

  constructor({ root, agent, bell, who }) {
    this.#root = root;
    this.#agent = agent;
    this.#bell = bell;
    this.#who.textContent = who.name ? `${who.name} · ${who.number}` : who.number;
    this.#out.hidden = false;
    root.replaceChildren(make("h1", { className: "unseen" }, "Phone"), this.#note, this.#list, this.#dialler(), this.#waiting, this.#devices());
    const { signal } = this.#listening;
    const on = (type, listener) => agent.addEventListener(type, listener, { signal });
    on("line", () => this.#showLine());
    on("messages", ({ detail }) => this.#showMessages(detail));
    for (const type of ["ringing", "dialling", "alerting", "answered", "held", "changed"]) {
      on(type, ({ detail: { call } }) => this.#show(call, type));
    }
    on("fault", ({ detail }) => this.#tell(detail.message));
    on("ended", ({ detail: { call } }) => this.#ended(call));
    document.addEventListener("keydown", (event) => this.#typed(event), { signal });
    if (devices.allowed()) devices.onChange(() => !signal.aborted && this.#listDevices());
    this.#clock = setInterval(() => this.#tick(), 1000);
    this.#showLine();
    this.#listDevices();
  }

  close() {
    this.#listening.abort();
    clearInterval(this.#clock);
    this.#out.hidden = true;
    this.#line.hidden = true;
    this.#who.textContent = "";
    this.#root.replaceChildren();
    document.title = "Desk · offhook";
  }

  // --- the line

  #showLine() {
    const [state, words] = LINES[this.#agent.line];
    this.#line.hidden = false;
    this.#line.dataset.state = state;
    this.#line.textContent = words;
    this.#enable();
  }

  #showMessages({ fresh }) {
    this.#waiting.textContent = fresh ? `${fresh} new ${fresh === 1 ? "message" : "messages"} in your voicemail.` : "";
  }

  #tell(message) {
    this.#note.textContent = message;
    this.#note.hidden = !message;
    clearTimeout(this.#note.timer);
    this.#note.timer = setTimeout(() => (this.#note.hidden = true), NOTED_MS);
  }

  // --- dialling

  #dialler() {
    this.#input = make("input", { id: "dial", type: "tel", autocomplete: "off", required: true });
    const keys = KEYS.map((key) =>
      make("button", { type: "button", className: "key", "aria-label": NAMES[key] ?? key, onclick: () => this.#key(key) }, key));
    const form = make("form", { className: "dialler", "aria-label": "Dial" },
      make("label", { htmlFor: "dial" }, "Number"),
      make("div", { className: "number" }, this.#input, make("button", { type: "submit", className: "primary", id: "call" }, "Call")),
      make("div", { className: "keys", role: "group", "aria-label": "Keys" }, ...keys));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#dial(numberOf(this.#input.value));
    });
    return form;
  }

  async #dial(number) {
    if (number === this.#agent.number) return this.#tell("That is your own number: dial another one.");
    this.#tell("");
    const talking = this.#talking();
    if (talking) await talking.hold(true);
    if (this.#agent.dial(number)) this.#input.value = "";
    else this.#tell(this.#agent.line === "online" ? "Two calls are as many as you can have." : "There is no connection to the server.");
  }

  /** A key of the pad: in a call it is heard there, else it is of the number. */
  #key(key) {
    const call = this.#talking();
    if (call) call.press(key);
    else this.#input.value += key;
  }

  #typed(event) {
    const { target, key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest?.("input, select, textarea")) return;
    if (KEYS.includes(key) && this.#talking()) this.#key(key);
  }

  /** The call in which we talk, which is not on hold. */
  #talking() {
    return [...this.#agent.calls.values()].find(({ state, held }) => state === "up" && !held);
  }

  // --- calls

  #show(call, type) {
    const { id } = call;
    if (type === "answered") this.#since.set(id, Date.now());
    if (!this.#cards.has(id)) {
      this.#cards.set(id, make("li", { className: "card call", data: { call: id } }));
      this.#list.append(this.#cards.get(id));
    }
    const before = document.activeElement?.dataset?.does;
    const had = this.#cards.get(id).contains(document.activeElement);
    this.#cards.get(id).replaceChildren(...this.#parts(call));
    if (type === "ringing") this.#cards.get(id).querySelector("[data-does=answer]").focus();
    else if (had) (this.#cards.get(id).querySelector(`[data-does="${before}"]`) ?? this.#cards.get(id).querySelector("button")).focus();
    const words = type === "ringing" ? `${whose(call)} calls` : `${whose(call)}: ${stateOf(call)}`;
    say(words);
    this.#update();
  }

  #ended(call) {
    const had = this.#cards.get(call.id)?.contains(document.activeElement);
    this.#cards.get(call.id)?.remove();
    this.#cards.delete(call.id);
    this.#since.delete(call.id);
    if (call.why) this.#tell(`${whose(call)}: ${call.why}`);
    say(`${whose(call)}: call ended`);
    setTimeout(() => this.#update()); // once the agent has forgotten it
    if (had) this.#input.focus();
  }

  #parts(call) {
    const others = [...this.#agent.calls.values()].filter((other) => other !== call && other.state === "up");
    const button = (does, words, act, more = {}) =>
      make("button", { type: "button", data: { does }, onclick: act, ...more }, words);
    const head = [
      make("h2", {}, whose(call)),
      make("p", { className: "soft facts-line" },
        call.name ? make("span", {}, call.number) : "", make("span", { className: "state" }, stateOf(call)),
        this.#since.has(call.id) ? make("span", { className: "time" }, this.#time(call)) : ""),
    ];
    if (call.state === "ringing" || call.state === "answering") {
      return [...head, make("div", { className: "row-actions" },
        button("answer", "Answer", () => this.#answer(call), { className: "primary", disabled: call.state === "answering" }),
        button("decline", "Decline", () => call.hangUp(), { className: "danger" }))];
    }
    if (call.state !== "up") {
      return [...head, make("div", { className: "row-actions" }, button("hang-up", "Hang up", () => call.hangUp(), { className: "danger" }))];
    }
    return [...head, make("div", { className: "row-actions" },
      button("mute", call.muted ? "Unmute" : "Mute", () => call.mute(!call.muted), { ariaPressed: String(call.muted) }),
      button("hold", call.held ? "Resume" : "Hold", () => this.#hold(call), { ariaPressed: String(call.held) }),
      ...others.map((other) => button("join", `Connect with ${whose(other)}`, () => call.refer(other), { disabled: Boolean(call.transfer) })),
      button("hang-up", "Hang up", () => call.hangUp(), { className: "danger" })),
    this.#transferForm(call)];
  }

  /** Transfers to a number at once; to ask there before, one calls it, and connects the two then. */
  #transferForm(call) {
    const id = `to-${call.id}`;
    const to = make("input", { id, type: "tel", autocomplete: "off", required: true, disabled: Boolean(call.transfer) });
    const form = make("form", { className: "transfer" },
      make("label", { htmlFor: id }, "Transfer to"),
      make("div", { className: "number" }, to, make("button", { type: "submit", data: { does: "transfer" }, disabled: Boolean(call.transfer) }, "Transfer")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      call.refer(numberOf(to.value));
    });
    return form;
  }

  async #answer(call) {
    const talking = this.#talking();
    if (talking) await talking.hold(true);
    await call.answer();
  }

  async #hold(call) {
    const other = this.#talking();
    if (call.held && other) await other.hold(true);
    await call.hold(!call.held);
  }

  #time(call) {
    const since = this.#since.get(call.id);
    if (!since) return "";
    const seconds = Math.floor((Date.now() - since) / 1000);
    return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
  }

  #tick() {
    for (const call of this.#agent.calls.values()) {
      const time = this.#cards.get(call.id)?.querySelector(".time");
      if (time) time.textContent = this.#time(call);
    }
  }

  /** What depends on all calls: the ring, the title, and which buttons there are in the others. */
  #update() {
    const calls = [...this.#agent.calls.values()];
    const rings = calls.find(({ state }) => state === "ringing");
    const talks = calls.some(({ state }) => state === "up");
    if (rings) this.#bell.play(talks ? "waiting" : "here");
    else this.#bell.play(calls.some(({ state }) => state === "alerting") ? "there" : "");
    document.title = rings ? `${whose(rings)} calls · offhook` : "Desk · offhook";
    for (const call of calls) {
      const card = this.#cards.get(call.id);
      const joins = card?.querySelectorAll("[data-does=join]").length;
      const partners = calls.filter((other) => other !== call && other.state === "up").length;
      if (card && call.state === "up" && joins !== partners && !card.contains(document.activeElement)) {
        card.replaceChildren(...this.#parts(call));
      } else if (card && call.state === "up" && joins !== partners) this.#show(call, "changed");
    }
    this.#enable();
  }

  #enable() {
    this.#input.form.querySelector("#call").disabled = this.#agent.line !== "online" || this.#agent.calls.size >= 2;
  }

  // --- microphone and speaker

  get microphone() {
    return this.#selects.audioinput?.value ?? "";
  }

  /** Has an element play through the chosen speaker. */
  useSpeaker(element) {
    const id = this.#selects.audiooutput?.value;
    if (id) element.setSinkId?.(id).catch(() => this.#tell("That speaker cannot be used."));
  }

  #devices() {
    const choose = (kind, words, changed) => {
      const select = make("select", { id: kind, onchange: changed }, new Option("Default", ""));
      this.#selects[kind] = select;
      return make("label", { htmlFor: kind }, words, select);
    };
    const speakers = devices.speakersCanBeChosen();
    return make("details", { className: "devices" }, make("summary", {}, "Microphone and speaker"),
      make("div", { className: "fields" },
        choose("audioinput", "Microphone", () => this.#changeMicrophone()),
        speakers ? choose("audiooutput", "Speaker", () => document.querySelectorAll("#sounds audio").forEach((far) => this.useSpeaker(far))) : ""));
  }

  async #changeMicrophone() {
    try {
      for (const call of this.#agent.calls.values()) await call.media?.changeMicrophone();
    } catch (error) {
      this.#tell(error.message);
    }
  }

  async #listDevices() {
    if (!devices.allowed()) return;
    for (const [kind, select] of Object.entries(this.#selects)) {
      const there = await devices.list(kind);
      const { value } = select;
      select.replaceChildren(new Option("Default", ""), ...there.map(({ id, label }, at) => new Option(label || `Device ${at + 1}`, id)));
      select.value = there.some(({ id }) => id === value) ? value : "";
    }
  }
}

const NAMES = { "*": "star", "#": "hash" };

const whose = (call) => call.name || call.number || "Unknown";

/** What somebody typed, without what only makes it readable. */
const numberOf = (text) => text.replace(/[\s().-]/g, "");

function stateOf({ state, held, heldByFar, transfer }) {
  if (transfer) return `Being transferred to ${transfer}…`;
  if (held) return "On hold";
  return heldByFar ? "The other side holds the call" : STATES[state];
}
