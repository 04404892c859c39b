// Chromium with a microphone that plays a sound file, and a page watched for anything wrong.

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

/** Gives `{browser, page, troubles}`; `troubles` fills with console errors and the like. */
export async function open({ chromium: executablePath, microphone, url, flags = [] }) {
  const sound = microphone ? [`--use-file-for-fake-audio-capture=${microphone}%noloop`] : [];
  const browser = await chromium.launch({ executablePath, args: [...FLAGS, ...flags, ...sound] });
  process.on("SIGTERM", () => browser.close().finally(() => process.exit(1)));
  const context = await browser.newContext({
    viewport: { width: 1280, height: 800 },
    permissions: ["microphone", "camera"],
  });
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
    await new Promise((resolve) => setTimeout(resolve, 500));
    const samples = new Float32Array(analyser.fftSize);
    analyser.getFloatTimeDomainData(samples);
    await context.close();
    return samples.reduce((loudest, sample) => Math.max(loudest, Math.abs(sample)), 0);
  });
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
