// How loud each side is, and whether the microphone gives anything at all.

const QUIETEST_DB = -62; // shown as nothing
const LOUDEST_DB = -16; // shown as full; speech with gain control peaks about here
const RELEASE = 0.86; // per reading at 60 Hz: falls by half in 75 ms, so bars do not flicker

/** The level of one stream, read as often as it is drawn. */
export class Meter {
  #analyser;
  #source = null;
  #samples;
  #level = 0;

  constructor(context) {
    this.#analyser = new AnalyserNode(context, { fftSize: 1024 });
    this.#samples = new Float32Array(this.#analyser.fftSize);
  }

  /** What the meter listens to, to be connected on. */
  get output() {
    return this.#analyser;
  }

  listen(stream) {
    this.#source?.disconnect();
    this.#source = stream && this.#analyser.context.createMediaStreamSource(stream);
    this.#source?.connect(this.#analyser);
  }

  /** Root mean square of the last 21 ms in dB of full scale; undefined while the browser lets no
   * sound be looked at. */
  db() {
    if (this.#analyser.context.state !== "running") return undefined;
    if (!this.#source) return -Infinity;
    this.#analyser.getFloatTimeDomainData(this.#samples);
    let sum = 0;
    for (const sample of this.#samples) sum += sample * sample;
    return 10 * Math.log10(sum / this.#samples.length);
  }

  /** 0 (nothing) to 1 (loud): up at once, down softly. */
  level() {
    const now = ((this.db() ?? -Infinity) - QUIETEST_DB) / (LOUDEST_DB - QUIETEST_DB);
    this.#level = Math.max(Math.min(now, 1), this.#level * RELEASE, 0);
    return this.#level;
  }
}

export const DEAD_DB = -70; // below any room a working microphone stands in
const DEAD_AT_FIRST_MS = 10000;
const DEAD_LATER_MS = 60000; // noise suppression makes a listener's room perfectly silent

/** Tells a microphone that gives nothing from a caller who only listens. */
export class SilenceWatch {
  #since;
  #patience = DEAD_AT_FIRST_MS;

  constructor(now) {
    this.#since = now;
  }

  /** Takes a level in dB, undefined if it could not be measured; true while the microphone must be
   * thought dead. */
  update(db, muted, now) {
    if (db > DEAD_DB) this.#patience = DEAD_LATER_MS;
    if (db === undefined || db > DEAD_DB || muted) this.#since = now;
    return now - this.#since > this.#patience;
  }
}
