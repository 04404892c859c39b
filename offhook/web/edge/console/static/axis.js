// What happened in a call, along the clock of its recording: who spoke, how long answers took, what was done.

import { draw, make } from "./dom.js";
import { partsOf, SPANS } from "./parts.js";
import { clock, milliseconds, sideOf, speaker } from "./words.js";

/** Of a long call a part is seen at a time, so that an answer's spans can be told apart. */
const PX_A_SECOND = 9;
const MAX_PX = 12000;
const [CALLER, AGENT, LATENCY, MARKS, TICKS] = [4, 22, 44, 64, 92];
const HEIGHT = 100;
const LABEL_PX = 64;
/** Steps of the axis in s, of which the first is used that leaves room for its times. */
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600];
const MARKED = {
  tool_used: ["tool", (e) => `Tool ${e.name}, ${milliseconds(e.took_ms)}`],
  agent_failed: ["failure", (e) => `${e.place}: ${e.fault}`.replaceAll("_", " ")],
  agent_changed: ["change", (e) => `${e.agent} takes over from ${e.before}`],
  call_transferred: ["change", (e) => `Transferred to ${e.target}`],
  transfer_failed: ["failure", (e) => `Transfer to ${e.target} failed`],
  dtmf: ["key", () => "A key was pressed"],
};

/** The time in ms that a picture of a call spans. */
export function lengthOf(call, events) {
  return Math.max(1000, (call.seconds ?? 0) * 1000, ...events.map((event) => event.at_ms));
}

/** A figure {element, sound, show(events, length), at(ms)}; a click on it calls `seek` with a time in ms, if there is one. */
export function axis(seek) {
  const picture = draw("svg", { class: "axis-picture", height: HEIGHT, width: "100%", role: "img" });
  const head = make("div", { className: "playhead", hidden: true });
  const sound = make("div", { className: "axis-sound" });
  const inner = make("div", { className: "axis-inner" }, sound, picture, head);
  const scroll = make("div", { className: "axis-scroll", tabIndex: 0, role: "region", ariaLabel: "The call along its time" }, inner);
  const element = make("figure", { className: "axis" }, scroll, legend());
  let whole = 1000;
  if (seek) {
    picture.classList.add("seeks");
    picture.addEventListener("click", (event) => {
      const box = picture.getBoundingClientRect();
      seek(((event.clientX - box.left) / box.width) * whole);
    });
  }
  return {
    element, sound,
    show: (events, length) => {
      whole = length;
      const width = Math.min(MAX_PX, (length / 1000) * PX_A_SECOND);
      inner.style.minWidth = `${width}px`;
      fill(picture, partsOf(events), length, Math.max(width, scroll.clientWidth));
    },
    at: (ms) => {
      head.hidden = false;
      head.style.left = `${(100 * ms) / whole}%`;
      const x = (ms / whole) * inner.clientWidth;
      if (x < scroll.scrollLeft || x > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = x - scroll.clientWidth / 4;
    },
  };
}

function fill(picture, parts, length, width) {
  const x = (ms) => `${(100 * ms) / length}%`;
  const bar = (from, to, y, height, more) => draw("rect", { x: x(from), width: x(Math.max(to - from, length / width)), y, height, ...more });
  const titled = (shape, text) => {
    const title = draw("title");
    title.textContent = text;
    shape.append(title);
    return shape;
  };
  const shapes = [];
  const step = STEPS.find((each) => (each * 1000 * width) / length >= LABEL_PX) ?? STEPS.at(-1);
  for (let ms = 0; ms <= length; ms += step * 1000) {
    shapes.push(draw("line", { x1: x(ms), x2: x(ms), y1: 0, y2: HEIGHT - 16, class: "tick" }));
    if (ms + (length / width) * 40 <= length) shapes.push(label(x(ms), TICKS, clock(ms).replace(/\.\d$/, ""), 3));
  }
  let free = -1, answers = 0, slowest = 0;
  for (const { part, who, from, to, at, event, cut } of parts) {
    if (part === "words") {
      shapes.push(titled(bar(from, to, who === "agent" ? AGENT : CALLER, 14, { rx: 3, class: sideOf(who) }), `${speaker(who)}, ${clock(from)}: ${event.text ?? ""}`));
      if (cut) shapes.push(titled(bar(to, to + (2 * length) / width, AGENT - 3, 20, { class: "cut" }), `Interrupted at ${clock(to)}`));
    } else if (part === "latency") {
      let begin = at;
      answers += 1;
      slowest = Math.max(slowest, event.total_ms);
      for (const [name, ms] of event.spans) {
        shapes.push(titled(bar(begin, begin + ms, LATENCY, 12, { "data-span": name }), `${SPANS[name] ?? name}: ${milliseconds(ms)}`));
        begin += ms;
      }
      if (at > free) {
        shapes.push(label(x(at), LATENCY + 23, milliseconds(event.total_ms), 0));
        free = at + (LABEL_PX * length) / width;
      }
    } else if (MARKED[event.event]) {
      const [kind, text] = MARKED[event.event];
      const failed = kind === "tool" && event.failed;
      shapes.push(titled(draw("circle", { cx: x(from), cy: MARKS + 10, r: 4, class: `mark-${failed ? "failure" : kind}` }), `${clock(from)}: ${text(event)}`));
    }
  }
  picture.replaceChildren(...shapes);
  picture.setAttribute("aria-label", `The call of ${clock(length)}: ${answers} answers, the slowest after ${milliseconds(slowest)}; all of it is in the list below`);
}

function label(x, y, text, dx) {
  const element = draw("text", { x, y, dx });
  element.textContent = text;
  return element;
}

function legend() {
  const entry = (data, text) => make("li", {}, make("i", { data, ariaHidden: "true" }), text);
  return make("figcaption", {}, make("ul", { className: "legend" },
    entry({ part: "caller" }, "caller"), entry({ part: "agent" }, "agent"), entry({ part: "cut" }, "interrupted"),
    ...Object.entries(SPANS).map(([name, text]) => entry({ span: name }, text)),
    entry({ part: "tool" }, "tool, agent or key"), entry({ part: "failure" }, "failure")));
}
