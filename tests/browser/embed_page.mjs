// Calls by the button that embed.js puts on a page: node embed_page.mjs {chromium, url, line, refusals}
// The first are refused, `refusals` being the responses; one talks and is hung up; one's page is closed.

import { findings, heard, open, say } from "./browser.mjs";

const { line, refusals, ...options } = JSON.parse(process.argv[2]);
const { browser, page, troubles } = await open({ ...options, lines: [line] });
const seen = { troubles, refused: [] };
const button = page.locator("offhook-call [part=button]");
const mute = page.locator("offhook-call [part=mute]");
const status = page.locator("offhook-call [part=status]");
const CALL_MS = 300000;
const until = (state) => page.locator(`offhook-call[state=${state}]`).waitFor({ timeout: CALL_MS });

/** A call that comes to nothing: what the visitor reads. */
async function refused() {
  await button.click();
  await until("idle");
  seen.refused.push(await status.textContent());
}

await page.evaluate(() => {
  window.changes = [];
  document.addEventListener("offhook-call", ({ detail }) => window.changes.push(detail));
  window.RTCPeerConnection = class extends RTCPeerConnection {
    constructor(configuration) {
      super(configuration);
      window.iceServers = configuration.iceServers;
    }
  };
});
try {
  seen.label = await button.textContent();
  for (const answer of refusals) {
    const headers = { "Access-Control-Allow-Origin": "*" };
    await page.route("**/v1/realtime/calls", (route) => route.fulfill({ headers, ...answer }), { times: 1 });
    await refused();
  }
  await page.route("**/v1/realtime/calls", (route) => route.abort(), { times: 1 });
  await refused();
  for (const name of ["NotAllowedError", "NotFoundError"]) {
    await page.evaluate((name) => {
      navigator.mediaDevices.open ??= navigator.mediaDevices.getUserMedia;
      navigator.mediaDevices.getUserMedia = async () => { throw new DOMException("no", name); };
    }, name);
    await refused();
  }
  await page.evaluate(() => { navigator.mediaDevices.getUserMedia = navigator.mediaDevices.open; });
  troubles.splice(0); // of the network, and of those answers

  await button.click();
  await until("talking");
  const speaker = () =>
    document.querySelector("offhook-call").shadowRoot.querySelector("audio").srcObject;
  seen.loudness = await heard(page, speaker); // the greeting
  await page.waitForTimeout(3000); // to its end
  await say(page, line);
  await page.evaluate(() => fetch("/heard"));
  await page.waitForTimeout(1000); // the answer
  seen.talking = [await button.textContent(), await mute.textContent()];
  await mute.click();
  seen.muted = await mute.textContent();
  seen.findings = await findings(page, "the button");
  await button.click();
  seen.ended = [await button.textContent(), await status.textContent(), await mute.isVisible()];
  seen.changes = await page.evaluate(() => window.changes);
  seen.iceServers = await page.evaluate(() => window.iceServers);

  await button.click();
  await until("talking");
  // What the connection says when it is closed is one packet, which may be lost.
  await page.evaluate(() => { RTCPeerConnection.prototype.close = () => {}; });
  const other = await page.context().newPage();
  await other.goto(`${options.url}other`);
  await page.close();
  seen.reason = await other.evaluate(async () => (await fetch("/left")).text());
} catch (error) {
  troubles.push(`${error} ${await status.textContent().catch(() => "")}`);
}
await browser.close();
console.log(JSON.stringify(seen));
