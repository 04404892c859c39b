// What a caller may keep of a call: its words and its sound. Both stay in this tab.

const SLICE_MS = 5000;
const LONGEST_MS = 2 * 60 * 60 * 1000; // some 60 MB; what comes later is not kept

/** Records streams mixed into one, from `start` to `stop`. */
export class Recording {
  #mix;
  #recorder = null;
  #pieces = [];
  #nodes = [];
  #limit = 0;

  constructor(context) {
    this.#mix = context.createMediaStreamDestination();
  }

  /** Takes the sound of an AudioNode, from now on. */
  add(node) {
    node.connect(this.#mix);
    this.#nodes.push(node);
  }

  start() {
    if (typeof MediaRecorder === "undefined") return;
    const pieces = (this.#pieces = []);
    const recorder = (this.#recorder = new MediaRecorder(this.#mix.stream));
    recorder.ondataavailable = ({ data }) => pieces.push(data);
    recorder.start(SLICE_MS);
    this.#limit = setTimeout(() => recorder.stop(), LONGEST_MS);
  }

  /** Gives the sound as a Blob, or null if there is none. */
  async stop() {
    const [recorder, pieces] = [this.#recorder, this.#pieces];
    this.#recorder = null;
    clearTimeout(this.#limit);
    for (const node of this.#nodes.splice(0)) node.disconnect(this.#mix);
    if (!recorder) return null;
    if (recorder.state === "recording") {
      const stopped = new Promise((resolve) => (recorder.onstop = resolve));
      recorder.stop();
      await stopped;
    }
    const blob = new Blob(pieces, { type: recorder.mimeType });
    return blob.size ? blob : null;
  }
}

/** The words of a call as text, one paragraph a turn, with its time from the call's beginning. */
export function asText(entries, heading) {
  return [heading, ...entries.map(paragraph), ""].join("\n\n");
}

function paragraph(entry) {
  return `[${clock(entry.at)}] ${wordsOf(entry)}`;
}

/** "0:07" */
export function clock(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

function wordsOf(entry) {
  if (entry.kind === "note") return `(${entry.text})`;
  if (entry.kind === "caller") {
    const words = [entry.text, entry.partial].filter(Boolean).join(" ");
    return `You${entry.typed ? " (typed)" : ""}: ${words}`;
  }
  const cut = entry.unheard ? ` [interrupted; not heard: ${entry.unheard}]` : "";
  return `Agent: ${entry.spoken.trim()}${cut}`;
}

/** How a file that holds sound of this type ends. */
export function endingOf(type) {
  if (type.includes("ogg")) return "ogg";
  return type.includes("mp4") ? "m4a" : "webm";
}

/** "offhook-2026-11-22-1504" */
export function fileName(date) {
  const two = (n) => String(n).padStart(2, "0");
  const day = [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join("-");
  return `offhook-${day}-${two(date.getHours())}${two(date.getMinutes())}`;
}

/** Hands a Blob to the browser to save. */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
