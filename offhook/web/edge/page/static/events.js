// For builders: every message of the call, both ways, as it comes, folded into a line a turn.

const KEPT = 1000; // of a call; the oldest are forgotten
const GIST_CHARS = 300; // more than the widest screen shows of it
const BEGINS_TURN = ["user-started-speaking", "send-text"];
const FAULTS = ["error", "error-response", "server-message agent-failed", "failed"];

/** Notes messages and shows them in `panel` while it is open. */
export class Events {
  #panel;
  #list;
  #noted = []; // {at, way, type, message, turn}
  #began = 0;
  #turn = 0;
  #wanted = () => true;
  #opened = new Set(); // turns whose messages are shown

  constructor(panel) {
    this.#panel = panel;
    this.#list = panel.querySelector("ol");
  }

  /** A new call begins: what was noted of the one before goes. */
  clear(now) {
    this.#began = now;
    this.#noted = [];
    this.#turn = 0;
    this.#opened.clear();
    this.#list.replaceChildren();
  }

  /** `way` is "in", "out", or "" for what is of the page itself; `message` its JSON. */
  note(way, type, message, now) {
    if (BEGINS_TURN.includes(type)) this.#turn++;
    const event = { at: (now - this.#began) / 1000, way, type, message, turn: this.#turn };
    this.#noted.push(event);
    if (this.#noted.length > KEPT) {
      const { turn } = this.#noted.shift();
      if (turn !== this.#noted[0].turn) this.#fold(turn)?.remove();
    }
    if (!this.#panel.hidden && this.#wanted(event)) this.#show([event]);
  }

  /** Opens or closes the panel; gives whether it is open. */
  toggle() {
    this.#panel.hidden = !this.#panel.hidden;
    this.#redraw();
    return !this.#panel.hidden;
  }

  /** Shows only events that have these words in them, and only faults if that is wanted. */
  filter(words, onlyFaults) {
    const wanted = words.trim().toLowerCase();
    const has = (event) => JSON.stringify([event.type, event.message]).toLowerCase().includes(wanted);
    this.#wanted = (event) => (!onlyFaults || isFault(event)) && (!wanted || has(event));
    this.#redraw();
  }

  /** All that was noted, one JSON object a line. */
  asText() {
    return this.#noted.map((event) => JSON.stringify(event)).join("\n") + "\n";
  }

  #redraw() {
    this.#list.replaceChildren();
    if (!this.#panel.hidden) this.#show(this.#noted.filter(this.#wanted));
  }

  #fold(turn) {
    return this.#list.querySelector(`[data-turn="${turn}"]`);
  }

  #show(events) {
    const { scrollHeight, scrollTop, clientHeight } = this.#list;
    const atEnd = scrollHeight - scrollTop - clientHeight < 40;
    for (const event of events) this.#add(event);
    if (atEnd) this.#list.scrollTop = this.#list.scrollHeight;
  }

  #add(event) {
    let fold = this.#fold(event.turn);
    if (!fold) this.#list.append((fold = this.#newFold(event)));
    const details = fold.firstElementChild;
    const messages = details.lastElementChild;
    messages.append(row(event));
    const count = messages.childElementCount;
    details.querySelector(".type").textContent =
      `${event.turn ? `Turn ${event.turn}` : "Beginning"}, ${count} ${count === 1 ? "event" : "events"}`;
    fold.classList.toggle("fault", fold.classList.contains("fault") || isFault(event));
    const words = gistOfTurn(event);
    if (words) details.querySelector(".gist").textContent = words;
  }

  #newFold({ at, turn }) {
    const fold = document.createElement("li");
    fold.dataset.turn = turn;
    const details = document.createElement("details");
    details.open = this.#opened.has(turn);
    details.addEventListener("toggle", () => this.#opened[details.open ? "add" : "delete"](turn));
    const summary = document.createElement("summary");
    summary.append(part("time", `${at.toFixed(2)} s`), part("type", ""), part("gist", ""));
    details.append(summary, document.createElement("ol"));
    fold.append(details);
    return fold;
  }
}

const ARROWS = { in: "←", out: "→", "": "·" };
const WAYS = { in: "from the server", out: "to the server", "": "on the page" };

function isFault({ type }) {
  return FAULTS.includes(type);
}

function row(event) {
  const { at, way, type, message } = event;
  const row = document.createElement("li");
  row.classList.toggle("fault", isFault(event));
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  const time = part("time", `${at.toFixed(2)} s`);
  const arrow = part("way", ARROWS[way]);
  arrow.title = WAYS[way];
  arrow.dataset.way = way;
  summary.append(time, arrow, part("type", type), part("gist", gist(message)));
  details.append(summary);
  details.addEventListener("toggle", () => {
    if (details.childElementCount > 1) return;
    const json = document.createElement("pre");
    json.dir = "auto";
    json.textContent = JSON.stringify(message, null, 2);
    details.append(json);
  });
  row.append(details);
  return row;
}

/** What a turn was about, as far as this event says it: the caller's words, or a fault. */
function gistOfTurn(event) {
  const { type, message } = event;
  if (isFault(event)) return gist(message);
  return ["user-transcription", "send-text"].includes(type) ? gist(message) : "";
}

/** What is worth reading of a message without opening it. */
function gist(message) {
  const { data = message } = message ?? {};
  if (typeof data !== "object" || data === null) return String(data ?? "").slice(0, GIST_CHARS);
  const { text, content, error, reason, fault, total_ms: total, mos } = data;
  const shown = text ?? content ?? error ?? reason ?? fault ?? (total && `${total} ms`) ?? mos ?? "";
  return String(shown).slice(0, GIST_CHARS);
}

function part(name, text) {
  const part = document.createElement("span");
  part.className = name;
  part.textContent = text;
  if (name === "gist") part.dir = "auto";
  return part;
}
