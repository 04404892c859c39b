// One call of the extension: who is at its other end, what they want and have said, and what is noted about it.

import { make, say } from "../console/dom.js";
import { change, look } from "./panels_api.js";
import { lasted } from "./times.js";

const RINGS = ["dialing", "ringing", "early_media"];
const MAX_NOTE = 2000;
/** How often, and after how long, a note is tried again that the server could not keep yet. */
const TRIES = 5;
const AGAIN_MS = 1000;

export class Beside {
  wasUp = false;
  #path;
  #phone;
  #state = make("span", { className: "badge" });
  #name = make("h2", { dir: "auto" });
  #about = make("div");
  #words = make("ol", { className: "said", tabIndex: 0, "aria-label": "Said so far" });
  #conversation = make("section", { hidden: true }, make("h3", {}, "Said so far"), this.#words);
  #add = make("form", { className: "add", hidden: true });
  #together = make("p", { className: "soft", role: "status" });
  #history = make("section", { hidden: true });
  #note = make("textarea", { rows: 3, maxLength: MAX_NOTE, dir: "auto" });
  #saved = make("p", { className: "soft", role: "status" });
  #notes = make("ul", { className: "notes" });
  #close;
  #shown = {};

  constructor(id, { phone, close }) {
    this.#path = `calls/${encodeURIComponent(id)}`;
    this.#phone = phone;
    this.#close = make("button", { type: "button", hidden: true, onclick: close }, "Done");
    this.#note.id = `note-${id}`;
    const form = make("form", { className: "note" },
      make("label", { htmlFor: this.#note.id }, "Note about this call"), this.#note,
      make("div", { className: "row-actions" }, make("button", { type: "submit" }, "Save the note"), this.#close), this.#saved);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
    this.#fillAdd(id);
    this.element = make("section", { className: "card caller" },
      make("div", { className: "card-head" }, this.#name, this.#state),
      this.#about, this.#together, this.#add, this.#conversation, this.#history, this.#notes, form);
    this.#showHistory();
  }

  show(call) {
    const who = call.name ? `${call.name}, ${call.number}` : call.number || "Somebody";
    this.element.setAttribute("aria-label", `Call with ${who}`);
    this.#name.textContent = who;
    const rings = RINGS.includes(call.state);
    this.wasUp ||= !rings;
    this.#state.dataset.state = rings ? "waiting" : "up";
    this.#state.textContent = rings ? "Rings" : "Connected";
    if (call.briefing && !rings) this.#state.textContent = "Is asked";
    this.#add.hidden = !call.may_add;
    const others = call.others.length > 1 ? `In this call: ${call.others.join(", ")}` : "";
    if (this.#shown.others !== others) this.#together.textContent = this.#shown.others = others;
    const about = JSON.stringify([call.state, call.briefing, call.accepted, call.target]);
    if (this.#shown.about !== about) {
      this.#shown.about = about;
      this.#about.replaceChildren(...this.#briefing(call));
    }
    const words = JSON.stringify(call.words);
    if (this.#shown.words !== words) {
      this.#shown.words = words;
      this.#conversation.hidden = !call.words.length;
      this.#words.replaceChildren(...call.words.map(({ who: by, text }) =>
        make("li", { className: by }, make("span", { className: "who" }, by === "agent" ? "Agent" : "Caller"), " ",
          make("span", { dir: "auto" }, text))));
      this.#words.scrollTop = this.#words.scrollHeight;
    }
  }

  over() {
    if (!this.#close.hidden) return;
    this.#state.dataset.state = "down";
    this.#state.textContent = "Ended";
    this.#about.replaceChildren();
    this.#together.textContent = "";
    this.#add.hidden = true;
    this.#close.hidden = false;
  }

  /** Who calls and why, and what decides about it, while that is to be decided. */
  #briefing({ briefing, accepted, target, since }) {
    if (!briefing) return [];
    const decide = async (decision) => {
      try {
        if (decision === "decline") this.#phone.explain("Passed on.");
        await change(`${this.#path}/decision`, { decision });
        if (decision === "accept") await this.#phone.answer();
      } catch (error) {
        this.#phone.explain("");
        say(error.message);
        this.#saved.textContent = error.message;
      }
    };
    const button = (decision, words, className = "") => make("button", {
      type: "button", className, disabled: accepted, onclick: () => decide(decision),
    }, words);
    return [
      make("p", { className: "briefing", dir: "auto" }, briefing),
      make("p", { className: "soft" }, `For ${target.replace(/^queue:/, "")}, waits for `, make("span", { data: { since } }, lasted(since))),
      make("div", { className: "row-actions" }, button("accept", "Accept", "primary"), button("decline", "Pass on", "danger")),
    ];
  }

  /** Somebody more is called, and all hear each other once they have answered. */
  #fillAdd(id) {
    const number = make("input", { id: `add-${id}`, type: "tel", autocomplete: "off", required: true });
    const button = make("button", { type: "submit" }, "Add");
    this.#add.append(make("label", { htmlFor: number.id }, "Add somebody to the call"),
      make("div", { className: "number" }, number, button));
    this.#add.addEventListener("submit", async (event) => {
      event.preventDefault();
      button.disabled = true;
      this.#together.textContent = `${number.value} is called…`;
      try {
        await change(`${this.#path}/members`, { to: number.value.replace(/[^0-9A-Za-z+*#]/g, "") });
        number.value = "";
        if (!this.#shown.others) this.#together.textContent = "";
      } catch (error) {
        this.#together.textContent = error.message;
      }
      button.disabled = false;
    });
  }

  async #showHistory() {
    const { calls } = await look(`${this.#path}/history`).catch(() => ({ calls: [] }));
    if (!calls.length) return;
    this.#history.hidden = false;
    this.#history.append(make("h3", {}, "Before"), make("ul", { className: "history" }, ...calls.map(lineOf)));
  }

  async #save() {
    const text = this.#note.value.trim();
    if (!text) return;
    for (let left = TRIES; left; left -= 1) {
      try {
        await change(`${this.#path}/notes`, { text });
        this.#note.value = "";
        this.#saved.textContent = "Saved.";
        this.#notes.append(make("li", { dir: "auto" }, text));
        return;
      } catch (error) {
        this.#saved.textContent = error.message;
        if (error.status !== 409 || this.#close.hidden) return; // what is over is in the store a moment later
        await new Promise((then) => setTimeout(then, AGAIN_MS));
      }
    }
  }
}

function lineOf({ started, direction, agent, outcome, summary, notes, link }) {
  const when = make("time", { dateTime: started }, new Date(started).toLocaleString());
  const about = [direction === "outbound" ? "called by us" : "called", agent, outcome].filter(Boolean).join(", ");
  return make("li", {}, link ? make("a", { href: link }, when) : when, make("span", { className: "soft" }, ` ${about}`),
    summary && make("p", { dir: "auto" }, summary),
    ...notes.map(({ by, text }) => make("p", { dir: "auto" }, make("span", { className: "soft" }, `${by}: `), text)));
}
