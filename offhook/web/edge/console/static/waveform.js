// Both sides of a recording as two lanes: the caller above, the agent below.

import { make } from "./dom.js";
import { clock } from "./words.js";

/** Longer recordings are not drawn: decoded, an hour takes more than a gigabyte. */
const MAX_S = 1800;
const COLUMNS = 900;
const LANE_PX = 44;

/**
 * A canvas that shows where the player is, and sets it by a click or the arrow keys. It is as wide as the sound is
 * long on an axis of `length` ms, and stands where the sound begins on it. `gaps` are spans of silence: when each
 * begins and ends in ms, and why.
 */
export async function waveform(audio, seconds, length, { offset, gaps }) {
  if (seconds > MAX_S) return make("p", { className: "soft" }, "The sound is too long to be drawn; the player above plays it.");
  let sound;
  const context = new AudioContext();
  try {
    const response = await fetch(audio.src, { credentials: "same-origin" });
    if (!response.ok) throw new Error(`the server answers ${response.status}`);
    sound = await context.decodeAudioData(await response.arrayBuffer());
  } catch (error) {
    return make("p", { className: "fault" }, `The sound cannot be shown: ${error.message}`);
  } finally {
    context.close();
  }
  const lanes = [peaks(sound, 0), peaks(sound, Math.min(1, sound.numberOfChannels - 1))];
  const spans = gaps.map(([from, to, why]) =>
    [from / 1000 / sound.duration, Math.min(1, to / 1000 / sound.duration), why]);
  const silences = gaps.map(([from, to, why]) => `${why} ${clock(from)} to ${clock(Math.min(to, sound.duration * 1000))}`);
  const canvas = make("canvas", {
    width: COLUMNS, height: 2 * LANE_PX, className: "waveform", tabIndex: 0, role: "slider",
    ariaLabel: ["Position in the recording: the caller above, the agent below", ...silences].join("; "),
    ariaValueMin: "0", ariaValueMax: String(Math.round(sound.duration)), ariaValueNow: "0",
  });
  const begins = Math.min(100, (100 * offset) / length);
  canvas.style.marginInlineStart = `${begins}%`;
  canvas.style.width = `${Math.min(100 - begins, (100000 * sound.duration) / length)}%`;
  const show = () => {
    paint(canvas, lanes, audio.currentTime / sound.duration, spans);
    canvas.ariaValueNow = String(Math.round(audio.currentTime));
  };
  audio.addEventListener("timeupdate", show);
  canvas.addEventListener("click", (event) => {
    audio.currentTime = (event.offsetX / canvas.clientWidth) * sound.duration;
    show();
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -5, ArrowRight: 5 }[event.key];
    if (!step) return;
    event.preventDefault();
    audio.currentTime = Math.max(0, Math.min(sound.duration, audio.currentTime + step));
    show();
  });
  requestAnimationFrame(show);
  return canvas;
}

function peaks(sound, channel) {
  const samples = sound.getChannelData(channel);
  const width = Math.max(1, Math.floor(samples.length / COLUMNS));
  return Float32Array.from({ length: COLUMNS }, (_, column) => {
    let most = 0;
    for (let i = column * width; i < (column + 1) * width; i += 4) most = Math.max(most, Math.abs(samples[i] ?? 0));
    return most;
  });
}

function paint(canvas, lanes, position, spans) {
  const style = getComputedStyle(canvas);
  const paper = canvas.getContext("2d");
  paper.clearRect(0, 0, canvas.width, canvas.height);
  lanes.forEach((lane, number) => {
    paper.fillStyle = style.getPropertyValue(number ? "--agent" : "--you");
    const middle = LANE_PX * (number + 0.5);
    lane.forEach((peak, column) => {
      const height = Math.max(1, peak * LANE_PX);
      paper.globalAlpha = column / COLUMNS <= position ? 1 : 0.45;
      paper.fillRect(column, middle - height / 2, 1, height);
    });
  });
  paper.fillStyle = style.color;
  paper.font = "12px sans-serif";
  paper.textAlign = "center";
  paper.textBaseline = "middle";
  for (const [from, to, why] of spans) {
    const [left, width] = [from * COLUMNS, Math.max(2, (to - from) * COLUMNS)];
    paper.globalAlpha = 0.15;
    paper.fillRect(left, 0, width, canvas.height);
    paper.globalAlpha = 0.8;
    if (width > paper.measureText(why).width) paper.fillText(why, left + width / 2, LANE_PX);
  }
  paper.globalAlpha = 1;
  paper.fillRect(Math.floor(position * COLUMNS), 0, 2, canvas.height);
}
