// The telephone line: a string from the caller to the agent that carries both voices.

const TRAVEL_MS = 620; // a voice from its end to the middle
const FRAME_MS = 1000 / 60;
const HISTORY = Math.ceil((2 * TRAVEL_MS) / FRAME_MS) + 1;
const SOFTNESS = 0.16; // of a change taken up in a frame: a voice swells, it does not step
const STRANDS = [
  { reach: 1, waves: 5.2, speed: 5.1, alpha: 1 },
  { reach: -0.72, waves: 3.7, speed: 4.3, alpha: 0.5 },
  { reach: 0.46, waves: 8.1, speed: 6.7, alpha: 0.35 },
];
const STEP_PX = 3;
const STOPS = 32; // of the colour, which is there only where the voice is

/** Draws the line; `levels()` gives `{you, agent}`, each 0 to 1, once a frame. */
export class Line {
  #canvas;
  #context;
  #levels;
  #still = matchMedia("(prefers-reduced-motion: reduce)");
  #history = { you: [], agent: [] }; // newest first, one value a frame
  #colours;
  #frame = 0;
  #last = 0;

  constructor(canvas, levels) {
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d");
    this.#levels = levels;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#restyle());
    new ResizeObserver(() => this.#resize()).observe(canvas);
    this.#restyle();
  }

  start() {
    if (!this.#frame) this.#frame = requestAnimationFrame((now) => this.#tick(now));
  }

  /** The line falls still. */
  stop() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#history = { you: [], agent: [] };
    this.#draw(0);
  }

  #restyle() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.#colours = { you: colour("--you"), agent: colour("--agent"), rest: colour("--line") };
    this.#draw(0);
  }

  #resize() {
    const scale = devicePixelRatio;
    this.#canvas.width = this.#canvas.clientWidth * scale;
    this.#canvas.height = this.#canvas.clientHeight * scale;
    this.#context.setTransform(scale, 0, 0, scale, 0, 0);
    this.#draw(this.#last);
  }

  #tick(now) {
    this.#frame = requestAnimationFrame((next) => this.#tick(next));
    if (now - this.#last < FRAME_MS * 0.7) return; // faster screens: the history stays in time
    this.#last = now;
    const levels = this.#levels();
    for (const side of ["you", "agent"]) {
      const history = this.#history[side];
      const before = history[0] ?? 0;
      history.unshift(before + (levels[side] - before) * SOFTNESS);
      if (history.length > HISTORY) history.pop();
    }
    this.#draw(now);
  }

  #draw(now) {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    this.#context.clearRect(0, 0, width, height);
    this.#rest(width, height / 2);
    for (const side of ["you", "agent"]) {
      if (this.#still.matches) this.#bar(side, width, height / 2);
      else this.#wave(side, width, height / 2, now / 1000);
    }
  }

  #rest(width, middle) {
    const context = this.#context;
    context.globalAlpha = 1;
    context.strokeStyle = this.#colours.rest;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(0, middle);
    context.lineTo(width, middle);
    context.stroke();
  }

  /** What this end said a moment ago is now some way down the line, and fading. */
  #wave(side, width, middle, seconds) {
    const history = this.#history[side];
    if (!history.some((level) => level > 0.01)) return;
    const context = this.#context;
    context.strokeStyle = this.#gradient(side, width);
    context.lineWidth = 1.75;
    for (const strand of STRANDS) {
      context.globalAlpha = strand.alpha;
      context.beginPath();
      for (let x = 0; x <= width; x += STEP_PX) {
        const way = x / width; // from this voice's own end
        const level = levelAt(history, way);
        const hold = Math.sin(Math.PI * Math.min(way * 4, 0.5)) * (1 - way) ** 1.5; // both ends
        const swing = Math.sin(strand.waves * 2 * Math.PI * way - strand.speed * seconds * 2);
        const y = middle + swing * strand.reach * hold * level * (middle - 3);
        context.lineTo(side === "you" ? x : width - x, y);
      }
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  /** Without motion: one bar an end, as long as the voice is loud. */
  #bar(side, width, middle) {
    const length = (this.#history[side][0] ?? 0) * width * 0.35;
    if (length < 1) return;
    const context = this.#context;
    context.strokeStyle = this.#colours[side];
    context.lineWidth = 4;
    context.beginPath();
    context.moveTo(side === "you" ? 0 : width, middle);
    context.lineTo(side === "you" ? length : width - length, middle);
    context.stroke();
  }

  #gradient(side, width) {
    const [from, to] = side === "you" ? [0, width] : [width, 0];
    const gradient = this.#context.createLinearGradient(from, 0, to, 0);
    for (let stop = 0; stop <= STOPS; stop++) {
      const way = stop / STOPS;
      const alpha = Math.min(1, levelAt(this.#history[side], way) * 5) * (1 - way);
      gradient.addColorStop(way, this.#colours[side] + hexByte(alpha));
    }
    return gradient;
  }
}

/** The level of a voice that has come this part of the way (0 to 1) down the line. */
function levelAt(history, way) {
  const age = (2 * way * TRAVEL_MS) / FRAME_MS;
  const [newer, older] = [history[Math.floor(age)] ?? 0, history[Math.ceil(age)] ?? 0];
  return newer + (older - newer) * (age % 1);
}

/** 0 to 1 as the last two digits of a #rrggbbaa colour. */
function hexByte(share) {
  return Math.round(share * 255).toString(16).padStart(2, "0");
}
