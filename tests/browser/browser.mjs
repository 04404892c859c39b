// Chromium with a microphone that plays a sound file, and a page watched for anything wrong.

import { chromium } from "playwright-core";

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
export async function open({ chromium: executablePath, microphone, url }) {
  const sound = microphone ? [`--use-file-for-fake-audio-capture=${microphone}%noloop`] : [];
  const browser = await chromium.launch({ executablePath, args: [...FLAGS, ...sound] });
  process.on("SIGTERM", () => browser.close().finally(() => process.exit(1)));
  const context = await browser.newContext({
    viewport: { width: 1280, height: 800 },
    permissions: ["microphone", "camera"],
  });
  const page = await context.newPage();
  const troubles = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) troubles.push(message.text());
  });
  page.on("pageerror", (error) => troubles.push(error.stack));
  page.on("requestfailed", (request) => {
    troubles.push(`${request.url()}: ${request.failure()?.errorText}`);
  });
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI}`);
    });
  });
  await page.goto(url);
  return { browser, page, troubles };
}
