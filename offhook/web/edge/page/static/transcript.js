// The conversation on the screen, and in the captions that screen readers speak.

import { waterfall } from "./waterfall.js";

const LEAST_SCALE_MS = 1000; // as wide as the bar of an answer's parts
const NEAR_END_PX = 80; // closer than this, the view follows the words

/**
 * Shows the entries of a Conversation in `list`; whole utterances go to `captions` as well. `view` follows
 * the words, unless its reader has gone back to earlier ones: `latest` then leads to the new ones.
 */
export class Transcript {
  #view;
  #list;
  #captions;
  #latest;
  #turns = new Map();
  #following = true;
  #scale = LEAST_SCALE_MS;

  constructor(view, list, captions, latest) {
    this.#view = view;
    this.#list = list;
    this.#captions = captions;
    this.#latest = latest;
    latest.addEventListener("click", () => {
      this.#following = true;
      this.#follow();
    });
    view.addEventListener("scroll", () => {
      this.#following = this.#atEnd();
      latest.hidden = this.#following;
    });
    new ResizeObserver(() => this.#follow()).observe(view);
  }

  clear() {
    this.#turns.clear();
    this.#list.replaceChildren();
    this.#captions.replaceChildren();
    this.#following = true;
    this.#rescale(LEAST_SCALE_MS);
  }

  #rescale(ms) {
    this.#scale = ms;
    this.#list.style.setProperty("--scale", ms);
  }

  /** Draws a new, changed or withdrawn entry. */
  update(entry) {
    this.#following = this.#atEnd() || (entry.typed && !this.#turns.has(entry));
    let turn = this.#turns.get(entry);
    if (entry.gone) {
      turn?.element.remove();
      this.#turns.delete(entry);
      return;
    }
    if (!turn) {
      turn = new TURNS[entry.kind](entry);
      this.#turns.set(entry, turn);
      this.#list.append(turn.element);
    }
    turn.update(entry);
    if (entry.latency?.total_ms > this.#scale) this.#rescale(entry.latency.total_ms);
    this.#caption();
    this.#follow();
  }

  #atEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.#view;
    return scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  }

  #follow() {
    if (this.#following) this.#view.scrollTop = this.#view.scrollHeight;
    this.#latest.hidden = this.#atEnd();
  }

  // Words that still grow would be read out again and again: only whole utterances are captions, each
  // after those before it.
  #caption() {
    const turns = [...this.#turns];
    for (const [at, [entry, turn]] of turns.entries()) {
      const isLast = !turns.slice(at + 1).some(([later]) => later.kind === entry.kind);
      if (!isWhole(entry) && isLast) return;
      const text = captionOf(entry);
      if (text === turn.caption) continue;
      const goesOn = turn.caption && text.startsWith(turn.caption);
      this.#read(goesOn ? text.slice(turn.caption.length).trim() : text);
      turn.caption = text;
    }
  }

  #read(text) {
    const line = paragraph();
    line.textContent = text;
    this.#captions.append(line);
  }
}

/** Whether all of it has been said, or will be told as it is. */
function isWhole(entry) {
  return entry.kind === "note" || !(entry.kind === "caller" ? entry.partial : entry.speaking);
}

function captionOf(entry) {
  if (entry.kind === "note") return entry.text;
  if (entry.kind === "caller") return `You: ${[entry.text, entry.partial].filter(Boolean).join(" ")}`;
  return `Agent: ${entry.spoken}${entry.unheard ? " (interrupted)" : ""}`;
}

class CallerTurn {
  #final = document.createElement("span");
  #partial = document.createElement("span");

  constructor({ typed }) {
    this.element = turnElement("caller", typed ? "You typed" : "You");
    this.#partial.className = "partial";
    const words = paragraph();
    words.append(this.#final, this.#partial);
    this.element.append(words);
  }

  update({ text, partial }) {
    this.#final.textContent = text;
    this.#partial.textContent = text && partial ? ` ${partial}` : partial;
  }
}

class AgentTurn {
  #said = document.createElement("span");
  #unheard = document.createElement("del");
  #cut = document.createElement("details"); // one line of what was not heard; opened, all of it
  #text = "";
  #latency = null;

  constructor() {
    this.element = turnElement("agent", "Agent");
    const words = paragraph();
    words.append(this.#said);
    const line = document.createElement("summary");
    const name = document.createElement("span");
    name.className = "unseen";
    name.textContent = "Not heard: ";
    line.dir = "auto";
    line.append(name, this.#unheard);
    this.#cut.className = "unheard";
    this.#cut.append(line);
    this.element.append(words);
  }

  update({ spoken, unheard, speaking, latency }) {
    this.#say(spoken);
    this.element.classList.toggle("speaking", speaking);
    this.element.classList.toggle("cut", unheard !== "");
    this.#unheard.textContent = unheard;
    if (unheard) this.element.querySelector("p").after(this.#cut);
    else this.#cut.remove();
    if (latency && !this.#latency) {
      this.#latency = latency;
      this.element.append(waterfall(latency));
    }
  }

  /** New words are elements of their own, so that each can fade in. */
  #say(spoken) {
    if (spoken === this.#text) return;
    if (!spoken.startsWith(this.#text)) this.#said.replaceChildren();
    const word = document.createElement("span");
    word.className = "word";
    word.textContent = spoken.slice(this.#said.textContent.length);
    this.#said.append(word);
    this.#text = spoken;
  }
}

class Note {
  constructor() {
    this.element = document.createElement("li");
    this.element.className = "note";
    this.element.dir = "auto";
  }

  update({ text }) {
    this.element.textContent = text;
  }
}

const TURNS = { caller: CallerTurn, agent: AgentTurn, note: Note };

/** For words of people, whatever way their script runs. */
function paragraph() {
  const p = document.createElement("p");
  p.dir = "auto";
  return p;
}

function turnElement(kind, who) {
  const element = document.createElement("li");
  element.className = `turn ${kind}`;
  const name = document.createElement("span");
  name.className = "who";
  name.textContent = who;
  element.append(name);
  return element;
}
