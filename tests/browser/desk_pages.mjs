// Desks in Chromium, each with a microphone that hums one tone, so that it shows who hears whom.

import { open } from "./browser.mjs";

/** In the page: the microphone is a tone. */
function hum(hz) {
  const { mediaDevices } = navigator;
  if (!mediaDevices) return; // of a page that is left
  const ask = mediaDevices.getUserMedia.bind(mediaDevices);
  mediaDevices.getUserMedia = async (constraints) => {
    for (const track of (await ask(constraints)).getTracks()) track.stop(); // its permission was asked
    const context = new AudioContext();
    const microphone = context.createMediaStreamDestination();
    const tone = new OscillatorNode(context, { frequency: hz });
    const gain = new GainNode(context, { gain: 0.3 });
    tone.connect(gain).connect(microphone);
    tone.start();
    return microphone.stream;
  };
}

export class Desk {
  constructor(page, troubles) {
    Object.assign(this, { page, troubles });
  }

  async signIn(number, password) {
    await this.page.getByLabel("Your number").fill(number);
    await this.page.getByLabel("Its password").fill(password);
    await this.page.getByRole("button", { name: "Sign in" }).click();
  }

  /** Until the phone has registered. */
  async ready() {
    await this.page.locator("#line[data-state=up]").waitFor();
  }

  async dial(number) {
    await this.page.getByLabel("Number", { exact: true }).fill(number);
    await this.press("Call");
  }

  press(name) {
    return this.page.locator("#phone").getByRole("button", { name, exact: true }).click();
  }

  /** Until a call is shown in this state, whoever it is with. */
  shows(words, who = "") {
    return this.page.locator(".call", { hasText: words }).filter({ hasText: who }).first().waitFor();
  }

  async alone() {
    await this.page.waitForFunction(() => !document.querySelector(".call"));
  }

  notice() {
    return this.page.locator("#phone .notice").innerText();
  }

  /** The strongest frequency in Hz that is heard now; 0 if there is silence. */
  hears() {
    return this.page.evaluate(async () => {
      const context = new AudioContext();
      const analyser = new AnalyserNode(context, { fftSize: 16384 });
      for (const { srcObject } of document.querySelectorAll("#sounds audio")) {
        if (srcObject) context.createMediaStreamSource(srcObject).connect(analyser);
      }
      await context.resume();
      await new Promise((then) => setTimeout(then, 600));
      const levels = new Float32Array(analyser.frequencyBinCount);
      analyser.getFloatFrequencyData(levels);
      const loudest = Math.max(...levels);
      const hz = (levels.indexOf(loudest) * context.sampleRate) / analyser.fftSize;
      await context.close();
      return loudest > -70 ? hz : 0;
    });
  }

  /** Until it hears this tone, 0 for silence. */
  async until(hz) {
    const end = Date.now() + 120000;
    let heard;
    do heard = await this.hears();
    while (Math.abs(heard - hz) > 12 && Date.now() < end);
    return Math.abs(heard - hz) <= 12 ? hz : heard;
  }
}

/** {browser, desk(hz)}: a browser, and what opens a page of a person of its own in it. */
export async function office(options) {
  const { browser, page, troubles } = await open({ ...options, url: "about:blank" });
  await page.close();
  const desk = async (hz) => {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, permissions: ["microphone"] });
    context.setDefaultTimeout(120000);
    const page = await context.newPage();
    page.on("console", (message) => message.type() === "error" && troubles.push(message.text()));
    page.on("pageerror", (error) => troubles.push(error.stack));
    await page.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (event) => {
        console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI}`);
      });
    });
    await page.addInitScript(hum, hz);
    await page.goto(`${options.url}/desk`);
    return new Desk(page, troubles);
  };
  return { browser, desk, troubles };
}
