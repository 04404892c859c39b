// A server that stops answering in a call, and comes back: node page_outage.mjs {chromium, url,
// microphone, server}. `server` is its process.

import { LOOKS, findings, open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const SOON_MS = 300000;

const { browser, page, troubles } = await open(options);
const text = (id) => page.locator(`#${id}`).textContent();
const seen = { troubles };

await page.click("#call");
await page.waitForSelector(".turn.agent .word", { timeout: SOON_MS });
await page.waitForTimeout(1500); // a ping is answered
await page.evaluate(() => {
  new MutationObserver(() => {
    window.changes = [...(window.changes ?? []), [document.body.dataset.state, Date.now()]];
  }).observe(document.body, { attributes: true, attributeFilter: ["data-state"] });
});
const stopped = Date.now();
process.kill(options.server, "SIGSTOP");
try {
  await page.waitForSelector("[data-state=stalled]", { timeout: SOON_MS });
  seen.stalled = Object.fromEntries(
    await Promise.all(["status", "phase", "quality-word", "hint"].map(async (id) => [id, await text(id)])));
  seen.stalledTitle = await page.title();
  // In one look only: the browser takes the path for dead in a few seconds.
  seen.findings = await findings(page, "no answer", LOOKS.slice(0, 1));
} finally {
  process.kill(options.server, "SIGCONT");
}
await page.waitForSelector("[data-state=talking]", { timeout: SOON_MS });
seen.back = { hint: await text("hint"), word: await text("quality-word") };
const changes = await page.evaluate(() => window.changes);
seen.noticedAfter = changes.find(([state]) => state === "stalled")[1] - stopped;

// Then it is killed.
troubles.splice(0);
process.kill(options.server, "SIGKILL");
await page.waitForSelector("[data-state=failed]", { timeout: SOON_MS });
seen.killed = await text("notice-title");
seen.words = await text("notice-help");
seen.killedTroubles = troubles.splice(0).filter((trouble) => !trouble.includes("ERR_CONNECTION_REFUSED"));

await browser.close();
console.log(JSON.stringify(seen));
