// For the operator: an agent's settings for the next call of this page, its flow, and what goes to its model.
// Callers get none of it from the server.

import { FlowView } from "./flow.js";
import { agents, asToml } from "./signalling.js";

const USUAL = "agent"; // the name of [agent]
const KEPT = 200; // entries of what happened in a call; the oldest are forgotten
const NUMBERS = { speed: 0.05, temperature: 0.1, top_p: 0.05, max_tokens: 1 }; // setting → step
const LONG = ["instructions", "greeting", "goodbye"];
const NAMES = {
  instructions: "Prompt", greeting: "Greeting", goodbye: "Goodbye", voice: "Voice", speed: "Speed", language: "Language",
  model: "Model", temperature: "Temperature", top_p: "Top p", max_tokens: "Most tokens", reasoning_effort: "Reasoning effort",
};
const element = (id) => document.getElementById(id);

export class Builder {
  #panel;
  #agents = []; // as the server tells them
  #drafts = new Map(); // name → {setting: value} where that is another
  #chosen = USUAL;
  #flow;
  #inCall = null; // name of the agent that the caller speaks to
  #began = 0;
  #running = new Map(); // id of a function's call → {entry, at}
  #requests = 0;

  constructor(panel) {
    this.#panel = panel;
    this.#flow = new FlowView(element("builder-flow"));
    element("builder-agent").addEventListener("change", (event) => this.#choose(event.target.value));
    element("builder-reset").addEventListener("click", () => this.#reset());
    element("builder-toml").addEventListener("click", () => this.#showToml());
    element("builder-copy").addEventListener("click", () => this.#copy());
    element("builder-settings").addEventListener("submit", (event) => event.preventDefault());
    element("builder-settings").addEventListener("input", ({ target }) => this.#edit(target));
  }

  /** Opens or closes the panel; gives whether it is open. */
  toggle() {
    this.#panel.hidden = !this.#panel.hidden;
    if (!this.#panel.hidden) this.#load();
    this.#tell();
    return !this.#panel.hidden;
  }

  /** Gives whether the server has told its agents. */
  async #ask() {
    try {
      const { agents: there, voices } = await agents();
      this.#agents = there;
      element("builder-voices").replaceChildren(...voices.map((name) => new Option(name, name)));
      return true;
    } catch (error) {
      this.#say(`The agents cannot be shown: ${error.message}`);
      return false;
    }
  }

  async #load() {
    if (!(await this.#ask())) return;
    const choice = element("builder-agent");
    choice.replaceChildren(...this.#agents.map(({ name, kind }) =>
      new Option(`${name === USUAL ? "the usual agent" : name} (${kind})`, name)));
    this.#choose(this.#agents.some(({ name }) => name === this.#chosen) ? this.#chosen : this.#agents[0]?.name);
  }

  #agent(name) {
    return this.#agents.find((agent) => agent.name === name);
  }

  #choose(name) {
    this.#chosen = name ?? USUAL;
    element("builder-agent").value = this.#chosen;
    element("builder-written").hidden = true;
    this.#showSettings();
    if (this.#inCall === null) this.#showFlow(this.#chosen, null);
    this.#tell();
  }

  // --- settings

  #showSettings() {
    const agent = this.#agent(this.#chosen);
    const draft = this.#drafts.get(this.#chosen) ?? {};
    const rows = Object.entries(agent?.settings ?? {}).map(([key, value]) => field(key, draft[key] ?? value));
    element("builder-fields").replaceChildren(...rows);
    if (!agent?.own_voice) element("try-voice")?.setAttribute("list", "builder-voices");
    for (const key of Object.keys(draft)) element(`try-${key}`)?.closest(".field").classList.add("edited");
  }

  #edit(target) {
    const key = target.dataset.key;
    if (!key) return;
    const draft = this.#drafts.get(this.#chosen) ?? {};
    const value = key in NUMBERS ? (target.value === "" ? null : Number(target.value)) : target.value;
    const before = this.#agent(this.#chosen).settings[key];
    const isSame = value === before || (!value && value !== 0 && (before === null || before === ""));
    if (isSame) delete draft[key];
    else draft[key] = value;
    target.closest(".field").classList.toggle("edited", !isSame);
    if (Object.keys(draft).length) this.#drafts.set(this.#chosen, draft);
    else this.#drafts.delete(this.#chosen);
    element("builder-written").hidden = true;
    this.#tell();
  }

  #reset() {
    this.#drafts.delete(this.#chosen);
    this.#choose(this.#chosen);
  }

  /** What the next call brings for the server: nothing, for who builds nothing. */
  get forTheCall() {
    const settings = this.#drafts.get(this.#chosen) ?? {};
    const builds = this.#isOther || !this.#panel.hidden;
    return builds ? { builder: { agent: this.#chosen, settings: { ...settings } } } : {};
  }

  get #isOther() {
    return this.#drafts.has(this.#chosen) || this.#chosen !== USUAL;
  }

  /** Says what the next call has. */
  #tell() {
    const settings = this.#drafts.get(this.#chosen);
    element("builder-button").classList.toggle("edited", this.#isOther);
    element("builder-reset").disabled = settings === undefined;
    element("builder-toml").disabled = settings === undefined;
    const edited = Object.keys(settings ?? {}).map((key) => NAMES[key].toLowerCase());
    this.#say(edited.length
      ? `Your next call here has another ${edited.join(", ")}. Other callers have not.`
      : "What you change here is for your next call on this page alone.");
  }

  #say(words) {
    const status = element("builder-status");
    if (status.textContent !== words) status.textContent = words;
  }

  async #showToml() {
    const box = element("builder-written");
    try {
      const toml = await asToml({ agent: this.#chosen, settings: this.#drafts.get(this.#chosen) ?? {} });
      element("builder-lines").textContent = toml;
      box.hidden = false;
      box.scrollIntoView({ block: "nearest" });
    } catch (error) {
      box.hidden = true;
      this.#say(error.message);
    }
  }

  async #copy() {
    const lines = element("builder-lines");
    try {
      await navigator.clipboard.writeText(lines.textContent);
      this.#say("Copied. The server's configuration is unchanged until you write it there.");
    } catch { // not allowed, or no secure page: select it
      getSelection().selectAllChildren(lines);
      this.#say("Selected: press Ctrl+C to copy.");
    }
  }

  // --- the call

  #showFlow(name, node) {
    const flow = this.#agent(name)?.flow ?? null;
    element("builder-flow-part").hidden = flow === null;
    this.#flow.show(flow);
    if (flow !== null && node !== null) this.#flow.move(node);
  }

  /** A call begins: what happened in the one before goes. */
  begin(now) {
    this.#began = now;
    this.#requests = 0;
    this.#running.clear();
    element("builder-happened").replaceChildren();
    element("builder-nothing").hidden = false;
    this.#beginsWith(this.#chosen);
    if (!this.#panel.hidden) this.#askAgain();
  }

  /** The configuration may have been changed since the panel was opened. */
  async #askAgain() {
    const before = JSON.stringify(this.#agent(this.#inCall)?.flow);
    const asked = this.#inCall;
    const told = await this.#ask();
    if (told && asked === this.#inCall && JSON.stringify(this.#agent(asked)?.flow) !== before) this.#beginsWith(asked);
  }

  #beginsWith(name) {
    this.#inCall = name;
    this.#showFlow(name, this.#agent(name)?.flow?.initial ?? null);
  }

  end() {
    this.#inCall = null;
    this.#flow.move(null);
  }

  agentChanged(name) {
    this.#beginsWith(name);
  }

  nodeEntered(node) {
    this.#flow.move(node);
  }

  request({ model, server, messages, left_out: leftOut, tools, parameters }, now) {
    const gist = `${messages.length + leftOut} messages to ${model} at ${server}`;
    const entry = this.#entry("request", `Request ${++this.#requests}`, gist, now);
    whenOpened(entry, () => [
      ...messages.flatMap((message, at) => [
        ...(at === 1 && leftOut ? [make("p", "left-out", `${leftOut} messages are left out here`)] : []),
        ...shownMessage(message),
      ]),
      make("h4", "", "Functions"), make("p", "", tools.join(", ") || "none"),
      make("h4", "", "Parameters"), make("pre", "", JSON.stringify(parameters, null, 2)),
    ]);
  }

  functionBegan({ tool_call_id: id, function_name: name, arguments: given }, now) {
    if (!name) return;
    const entry = this.#entry("function", name, "running…", now);
    this.#running.set(id, { entry, at: now });
    entry.querySelector("details").append(make("h4", "", "Arguments"), make("pre", "", JSON.stringify(given, null, 2)));
  }

  functionEnded({ tool_call_id: id, cancelled, result }, now) {
    const running = this.#running.get(id);
    if (!running) return;
    this.#running.delete(id);
    const failed = typeof result === "object" && result !== null && "error" in result;
    const took = `${Math.round(now - running.at)} ms`;
    const gist = cancelled ? `cancelled after ${took}` : `${took}${failed ? `: ${result.error}` : ""}`;
    running.entry.querySelector(".gist").textContent = gist;
    running.entry.classList.toggle("fault", cancelled === true || failed);
    running.entry.querySelector("details").append(make("h4", "", "Result"), make("pre", "", JSON.stringify(result, null, 2)));
  }

  fault({ fault, action, reason }, now) {
    const entry = this.#entry("fault", fault, reason ?? action, now);
    entry.classList.add("fault");
    entry.querySelector("details").append(make("p", "", reason ?? ""), make("p", "", `What was done: ${action}`));
  }

  #entry(kind, title, gist, now) {
    const list = element("builder-happened");
    element("builder-nothing").hidden = true;
    const entry = document.createElement("li");
    entry.dataset.kind = kind;
    const details = document.createElement("details");
    const summary = document.createElement("summary");
    summary.append(
      make("span", "time", `${((now - this.#began) / 1000).toFixed(2)} s`), make("span", "type", title), make("span", "gist", gist));
    details.append(summary);
    entry.append(details);
    list.append(entry);
    if (list.childElementCount > KEPT) list.firstChild.remove();
    return entry;
  }
}

/** What the panel says of a message that went to the model. */
function shownMessage({ role, content, tool_calls: called = [], tool_call_id: answered }) {
  const text = typeof content === "string" ? content : content ? JSON.stringify(content, null, 2) : "";
  const about = answered ? `${role}, ${answered}` : role;
  const functions = called.map(({ function: { name, arguments: given } }) => `→ ${name} ${given}`);
  return [make("h4", "", about), make("pre", "", [text, ...functions].filter(Boolean).join("\n"))];
}

/** Long ones are made when they are looked at. */
function whenOpened(entry, parts) {
  const details = entry.querySelector("details");
  details.addEventListener("toggle", () => details.append(...parts()), { once: true });
}

function field(key, value) {
  const label = make("label", "field", NAMES[key] ?? key);
  const long = LONG.includes(key);
  const input = document.createElement(long ? "textarea" : "input");
  if (long) input.rows = key === "instructions" ? 9 : 2;
  else input.type = key in NUMBERS ? "number" : "text";
  if (key in NUMBERS) Object.assign(input, { step: NUMBERS[key], min: 0, inputMode: "decimal" });
  input.id = `try-${key}`;
  input.dataset.key = key;
  input.dir = "auto";
  input.spellcheck = long;
  input.value = value ?? "";
  if (value === null || value === "") input.placeholder = "as configured";
  label.htmlFor = input.id;
  label.append(input);
  return label;
}

function make(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = text;
  if (text) made.dir = "auto";
  return made;
}
