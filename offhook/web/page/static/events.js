// For builders: every message of the call, both ways, as it comes.

const KEPT = 1000; // of a call; the oldest are forgotten
const GIST_CHARS = 300; // more than the widest screen shows of it

/** Notes messages and shows them in `panel` while it is open. */
export class Events {
  #panel;
  #list;
  #noted = []; // {at, way, type, message}
  #began = 0;

  constructor(panel) {
    this.#panel = panel;
    this.#list = panel.querySelector("ol");
  }

  /** A new call begins: what was noted of the one before goes. */
  clear(now) {
    this.#began = now;
    this.#noted = [];
    this.#list.replaceChildren();
  }

  /** `way` is "in", "out", or "" for what is of the page itself; `message` its JSON. */
  note(way, type, message, now) {
    const event = { at: (now - this.#began) / 1000, way, type, message };
    this.#noted.push(event);
    if (this.#noted.length > KEPT) {
      this.#noted.shift();
      this.#list.firstElementChild?.remove();
    }
    if (!this.#panel.hidden) this.#show([event]);
  }

  /** Opens or closes the panel; gives whether it is open. */
  toggle() {
    this.#panel.hidden = !this.#panel.hidden;
    this.#list.replaceChildren();
    if (!this.#panel.hidden) this.#show(this.#noted);
    return !this.#panel.hidden;
  }

  /** All that was noted, one JSON object a line. */
  asText() {
    return this.#noted.map((event) => JSON.stringify(event)).join("\n") + "\n";
  }

  #show(events) {
    const { scrollHeight, scrollTop, clientHeight } = this.#list;
    const atEnd = scrollHeight - scrollTop - clientHeight < 40;
    this.#list.append(...events.map(row));
    if (atEnd) this.#list.scrollTop = this.#list.scrollHeight;
  }
}

const ARROWS = { in: "←", out: "→", "": "·" };
const WAYS = { in: "from the server", out: "to the server", "": "on the page" };

function row({ at, way, type, message }) {
  const row = document.createElement("li");
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
    json.textContent = JSON.stringify(message, null, 2);
    details.append(json);
  });
  row.append(details);
  return row;
}

/** What is worth reading of a message without opening it. */
function gist(message) {
  const { data = message } = message ?? {};
  if (typeof data !== "object" || data === null) return String(data ?? "").slice(0, GIST_CHARS);
  const { text, content, error, reason, total_ms: total, mos } = data;
  const shown = text ?? content ?? error ?? reason ?? (total && `${total} ms`) ?? mos ?? "";
  return String(shown).slice(0, GIST_CHARS);
}

function part(name, text) {
  const part = document.createElement("span");
  part.className = name;
  part.textContent = text;
  return part;
}
