// What a phone sounds like: that it rings here, or there, made from tones so that nothing has to be loaded.

/** Hz, seconds on and off of one ring, and how loud. Here: a bell of two tones; there: Europe's ringing tone. */
const RINGS = {
  here: { hz: [523.25, 659.25], on: [0.35, 0.35], off: [0.12, 2.2], loud: 0.18 },
  there: { hz: [425], on: [1], off: [4], loud: 0.06 },
  waiting: { hz: [425], on: [0.2], off: [8], loud: 0.05 }, // somebody calls while we talk
};
const RAMP_S = 0.02;

/** Plays one of RINGS, or nothing. */
export class Bell {
  #context = null;
  #name = "";
  #gain = null;
  #timer = 0;

  /** "here", "there", "waiting" or "". */
  play(name) {
    if (name === this.#name) return;
    this.#stop();
    this.#name = name;
    if (name) this.#ring(RINGS[name]);
  }

  /** Browsers let a page make sound only after it was touched. */
  async unlock() {
    this.#context ??= new AudioContext();
    if (this.#context.state === "suspended") await this.#context.resume().catch(() => {});
  }

  #ring({ hz, on, off, loud }) {
    const context = (this.#context ??= new AudioContext());
    const gain = (this.#gain = new GainNode(context, { gain: 0 }));
    gain.connect(context.destination);
    const tones = hz.map((frequency) => new OscillatorNode(context, { frequency }));
    for (const tone of tones) tone.connect(gain);
    for (const tone of tones) tone.start();
    const once = () => {
      let at = context.currentTime + RAMP_S;
      on.forEach((seconds, part) => {
        gain.gain.setTargetAtTime(loud, at, RAMP_S);
        gain.gain.setTargetAtTime(0, at + seconds, RAMP_S);
        at += seconds + off[part];
      });
      this.#timer = setTimeout(once, (at - context.currentTime) * 1000);
    };
    once();
    gain.stopTones = () => tones.forEach((tone) => tone.stop());
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#gain?.stopTones();
    this.#gain?.disconnect();
    this.#gain = null;
  }
}
