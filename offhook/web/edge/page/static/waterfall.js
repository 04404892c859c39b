// Where the time between the caller's last sound and the agent's first one went.

/** The name of each span, and what happened in it. */
const SPANS = {
  speech_end: ["Silence noticed", "From your last sound until the server noticed that you had stopped."],
  asr_final: ["Final words", "Until the speech recognition had made your last words final."],
  turn_decided: ["Turn decided", "Until the server was sure that you had finished, not only paused."],
  llm_first_token: ["Agent’s first word", "Until the agent, often a language model, had its first word."],
  tts_first_audio: ["First sound", "Until the voice had made the first sound of that."],
  first_packet: ["First packet", "Until that sound was sent to you."],
};

/**
 * A closed `<details>`: the spans as one bar and the total; opened, one row a span. All of a call
 * are drawn to one scale, the list's --scale: the time in ms that is as wide as the bar.
 */
export function waterfall({ spans, total_ms: total }) {
  const details = make("details", "waterfall");
  const summary = make("summary");
  const bar = make("span", "strip");
  bar.ariaHidden = "true";
  bar.append(...spans.map(piece));
  summary.append(bar, make("span", "total", `answered in ${seconds(total)}`));
  details.append(summary, table(spans));
  details.addEventListener("toggle", () => details.scrollIntoView({ block: "nearest" }));
  return details;
}

/** "0.6 s" */
export function seconds(ms) {
  return `${(ms / 1000).toFixed(1)}\u00a0s`;
}

function table(spans) {
  const body = make("tbody");
  let start = 0;
  for (const span of spans) {
    body.append(row(span, start), explanation(span));
    start += span.ms;
  }
  const table = make("table");
  const caption = make("caption", "unseen", "Where the time went, from your last sound on");
  table.append(caption, body);
  return table;
}

function row(span, start) {
  const row = make("tr");
  const name = make("th", "", titleOf(span));
  name.scope = "row";
  const track = make("td", "track");
  track.ariaHidden = "true";
  const bar = piece(span);
  bar.style.setProperty("--start", start);
  track.append(bar);
  row.append(name, track, make("td", "ms", milliseconds(span.ms)));
  return row;
}

function explanation({ name }) {
  const row = make("tr", "why");
  const cell = make("td", "", SPANS[name]?.[1] ?? "");
  cell.colSpan = 3;
  row.append(cell);
  return row;
}

function titleOf({ name }) {
  return SPANS[name]?.[0] ?? name.replaceAll("_", " ");
}

function piece(span) {
  const piece = make("i");
  piece.title = `${titleOf(span)}, ${milliseconds(span.ms)}. ${SPANS[span.name]?.[1] ?? ""}`;
  piece.dataset.span = span.name;
  piece.style.setProperty("--ms", span.ms);
  return piece;
}

function milliseconds(ms) {
  return `${Math.round(ms)} ms`;
}

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}
