// The dialog for sound: which microphone, which speaker, how loud, and a try of them before a call.

import * as devices from "./devices.js";
import { DEAD_DB, Meter } from "./levels.js";
import { Problem, wordsFor } from "./problems.js";

const TRY_MS = 3000; // of speech, played back afterwards
const METER_INTERVAL_MS = 50;
const SAID = {
  listening: "Say something…",
  playing: "This is how you sound.",
  done: "The microphone works.",
  silent: "Nothing was heard. Is the microphone switched off, or the wrong one?",
};

/**
 * `speaker` is the element that plays the agent. `onMicrophone()` is called when another microphone
 * is chosen; `levelInCall()` gives the level of the call's own, 0 to 1, or null outside of a call.
 */
export class Sound {
  #dialog;
  #speaker;
  #events;
  #attempt = null; // {track, meter, recorder, player, loudest}: a try that goes on
  #interval = 0;

  constructor(dialog, speaker, events) {
    this.#dialog = dialog;
    this.#speaker = speaker;
    this.#events = events;
    this.#on("#microphone", "change", () => this.#chooseMicrophone());
    this.#on("#speaker-choice", "change", ({ target }) => this.#useSpeaker(target.value));
    this.#on("#speaker-prompt", "click", () => this.#askForSpeaker());
    this.#on("#volume", "input", ({ target }) => (speaker.volume = target.valueAsNumber));
    this.#on("#test", "click", () => (this.#attempt ? this.stop() : this.#try()));
    dialog.addEventListener("close", () => this.#closed());
    if (!devices.allowed()) return;
    this.list();
    devices.onChange(() => this.list());
  }

  /** The microphone that is chosen; "" is the browser's default. */
  get microphone() {
    return this.#find("#microphone").value;
  }

  get open() {
    return this.#dialog.open;
  }

  show() {
    this.list();
    this.#say("");
    this.#dialog.showModal();
    this.#interval = setInterval(() => this.#measure(), METER_INTERVAL_MS);
  }

  /** Reads anew which devices there are; `microphone` is the one in use, if it is known. */
  async list(microphone) {
    if (!devices.allowed()) return;
    const [microphones, speakers] = await Promise.all(
      ["audioinput", "audiooutput"].map((kind) => devices.list(kind)));
    fill(this.#find("#microphone"), "microphone", microphones, microphone ?? this.microphone);
    fill(this.#find("#speaker-choice"), "speaker", speakers, this.#find("#speaker-choice").value);
    this.#find("#speaker-row").hidden = !devices.speakersCanBeChosen();
    this.#find("#speaker-prompt").hidden = !devices.speakerPrompt();
  }

  // --- speaker

  async #useSpeaker(id) {
    await this.#speaker.setSinkId(id).catch(() => this.#say("That speaker cannot be used."));
  }

  async #askForSpeaker() {
    const chosen = await devices.speakerPrompt()().catch(() => null);
    if (!chosen) return;
    await this.list();
    this.#find("#speaker-choice").value = chosen.deviceId;
    await this.#useSpeaker(chosen.deviceId);
  }

  // --- microphone

  #chooseMicrophone() {
    this.stop();
    this.#events.onMicrophone();
  }

  async #try() {
    if (!devices.allowed()) return this.#say(wordsFor(new Problem("insecure-page")).title);
    const context = new AudioContext();
    const attempt = (this.#attempt = { context, meter: new Meter(context), loudest: -Infinity });
    this.#showTry(true);
    try {
      attempt.track = await devices.open(this.microphone);
    } catch (problem) {
      return this.#end(attempt, wordsFor(problem).title);
    }
    if (attempt !== this.#attempt) return attempt.track.stop();
    this.list(attempt.track.getSettings().deviceId);
    const stream = new MediaStream([attempt.track]);
    attempt.meter.listen(stream);
    this.#say(SAID.listening);
    const recorder = new MediaRecorder(stream);
    recorder.ondataavailable = ({ data }) => this.#playBack(attempt, data);
    recorder.start();
    setTimeout(() => recorder.state === "recording" && recorder.stop(), TRY_MS);
  }

  #playBack(attempt, data) {
    if (attempt !== this.#attempt) return;
    attempt.track.stop();
    attempt.meter.listen(null);
    if (attempt.loudest < DEAD_DB) return this.#end(attempt, SAID.silent);
    this.#say(SAID.playing);
    const player = (attempt.player = new Audio(URL.createObjectURL(data)));
    player.volume = this.#speaker.volume;
    player.onended = player.onerror = () => this.#end(attempt, SAID.done);
    const ready = player.setSinkId?.(this.#speaker.sinkId) ?? Promise.resolve();
    ready.then(() => player.play()).catch(() => this.#end(attempt, SAID.done));
  }

  /** Ends the try that goes on, if one does. */
  stop() {
    this.#say("");
    this.#end(this.#attempt, "");
  }

  /** A try is over, and this is what came of it. */
  #end(attempt, word) {
    if (!attempt || attempt !== this.#attempt) return;
    this.#say(word);
    this.#attempt = null;
    attempt.track?.stop();
    attempt.player?.pause();
    if (attempt.player) URL.revokeObjectURL(attempt.player.src);
    attempt.context.close();
    this.#showTry(false);
  }

  #closed() {
    this.stop();
    clearInterval(this.#interval);
  }

  #measure() {
    const { meter } = this.#attempt ?? {};
    const level = meter ? meter.level() : this.#events.levelInCall();
    if (meter) this.#attempt.loudest = Math.max(this.#attempt.loudest, meter.db() ?? -Infinity);
    const bar = this.#find("#level");
    bar.style.setProperty("--level", (level ?? 0).toFixed(2));
    this.#find("#test").hidden = level !== null && !meter; // in a call the bar is enough
  }

  // --- the dialog

  #showTry(on) {
    this.#find("#test").textContent = on ? "Stop" : "Try the microphone";
  }

  #say(word) {
    this.#find("#test-word").textContent = word;
  }

  #find(selector) {
    return this.#dialog.querySelector(selector);
  }

  #on(selector, event, listener) {
    this.#find(selector).addEventListener(event, listener);
  }
}

function fill(select, kind, there, chosen) {
  const name = kind[0].toUpperCase() + kind.slice(1);
  const options = there.map(({ id, label }, at) => new Option(label || `${name} ${at + 1}`, id));
  select.replaceChildren(new Option(`Default ${kind}`, ""), ...options);
  select.value = options.some(({ value }) => value === chosen) ? chosen : "";
}
