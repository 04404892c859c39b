// Chromium with a microphone that plays sound files, and a page watched for anything wrong.

import fs from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const AXE = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core"), "utf8");

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--use-fake-device-for-media-stream",
  "--use-fake-ui-for-media-stream",
  "--allow-loopback-in-peer-connection",
  "--autoplay-policy=no-user-gesture-required",
];

/** In the page: its microphone is silent but for what `window.say` plays, a sound file in base64. */
function speak_by_script() {
  const { mediaDevices } = navigator;
  const open = mediaDevices.getUserMedia.bind(mediaDevices);
  let context, microphone;
  mediaDevices.getUserMedia = async (constraints) => {
    for (const track of (await open(constraints)).getTracks()) track.stop(); // its permission was asked
    context ??= new AudioContext();
    microphone = context.createMediaStreamDestination();
    const noise = new ConstantSourceNode(context, { offset: 1e-5 }); // without a source nothing is sent, not even keys
    noise.connect(microphone);
    noise.start();
    return microphone.stream;
  };
  window.say = async (sound) => {
    const bytes = Uint8Array.from(atob(sound), (char) => char.charCodeAt(0));
    const source = new AudioBufferSourceNode(context, { buffer: await context.decodeAudioData(bytes.buffer) });
    source.connect(microphone);
    source.start();
    await new Promise((resolve) => source.addEventListener("ended", resolve));
  };
}

/** Has the page's microphone play a sound file, to its end. Needs a page opened with `lines`. */
export function say(page, file) {
  return page.evaluate((sound) => window.say(sound), fs.readFileSync(file, "base64"));
}

/**
 * Gives `{browser, page, troubles}`; `troubles` fills with console errors and the like. The microphone plays
 * the file `microphone` once from when it is first opened, or with `lines` what `say` has it play.
 */
export async function open({ chromium: executablePath, microphone, lines, url, flags = [] }) {
  const sound = microphone ? [`--use-file-for-fake-audio-capture=${microphone}%noloop`] : [];
  const browser = await chromium.launch({ executablePath, args: [...FLAGS, ...flags, ...sound] });
  process.on("SIGTERM", () => browser.close().finally(() => process.exit(1)));
  const context = await browser.newContext({
    viewport: { width: 1280, height: 800 },
    permissions: ["microphone", "camera"],
  });
  context.setDefaultTimeout(300000); // ms; a busy machine takes minutes where a quiet one takes seconds
  const page = await context.newPage();
  const troubles = [];
  page.on("console", (message) => {
    if (message.type() === "error") troubles.push(message.text());
  });
  page.on("pageerror", (error) => troubles.push(error.stack));
  page.on("requestfailed", (request) => {
    const error = request.failure()?.errorText;
    if (error !== "net::ERR_ABORTED") troubles.push(`${request.url()}: ${error}`); // else by the page itself
  });
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI}`);
    });
  });
  if (lines) await page.addInitScript(speak_by_script);
  await page.goto(url);
  return { browser, page, troubles };
}

/** The loudest sample in half a second of a stream that the page plays; `stream` finds it there. */
export async function loudness(page, stream) {
  const handle = await page.evaluateHandle(stream);
  return handle.evaluate(async (stream) => {
    const context = new AudioContext();
    const analyser = new AnalyserNode(context, { fftSize: 32768 });
    context.createMediaStreamSource(stream).connect(analyser);
    await context.resume(); // on a busy machine it takes longer than that to begin
    await new Promise((resolve) => setTimeout(resolve, 500));
    const samples = new Float32Array(analyser.fftSize);
    analyser.getFloatTimeDomainData(samples);
    await context.close();
    return samples.reduce((loudest, sample) => Math.max(loudest, Math.abs(sample)), 0);
  });
}

/** Listens to such a stream until it is as loud as speech, for some minutes at most; gives how loud it was. */
export async function heard(page, stream) {
  const until = Date.now() + 300000;
  let loudest = 0;
  while (loudest < 0.05 && Date.now() < until) loudest = Math.max(loudest, await loudness(page, stream));
  return loudest;
}

/** A page on a desk by day and on a phone by night. */
export const LOOKS = [["light", { width: 1280, height: 800 }], ["dark", { width: 390, height: 844 }]];

/** What axe finds wrong with the page as it is now, in each of these looks. */
export async function findings(page, where, looks = LOOKS) {
  const found = [];
  for (const [colorScheme, viewport] of looks) {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" }); // words fade in otherwise
    await page.setViewportSize(viewport);
    if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => window.axe.run());
    for (const { id, nodes } of violations) {
      for (const { target, failureSummary } of nodes) {
        found.push(`${where}, ${colorScheme}: ${id} at ${target}: ${failureSummary}`);
      }
    }
  }
  await page.emulateMedia({ colorScheme: "light", reducedMotion: "no-preference" });
  await page.setViewportSize({ width: 1280, height: 800 });
  return found;
}
