// A call that goes on at another server: node page_resume.mjs {chromium, url, microphone, how,
// server}. `server` is the process of the first server; `how` is the signal that it gets.

import { open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const SOON_MS = 300000;

const { browser, page, troubles } = await open(options);
const seen = {};

const words = () =>
  page.locator(".turn.agent").evaluateAll((turns) => turns.map((turn) => turn.textContent.trim()));
async function type(text) {
  await page.fill("#text", text);
  await page.keyboard.press("Enter");
}

await page.click("#call");
await page.waitForSelector("[data-state=talking]", { timeout: SOON_MS });
await page.waitForSelector(".turn.agent .word", { timeout: SOON_MS });
await page.waitForTimeout(2500); // a ping is answered
await type("Can I leave a message?");
await page.waitForFunction(() => /your name/i.test(document.getElementById("log").textContent), null, { timeout: SOON_MS });
await page.waitForTimeout(options.pause);
await page.evaluate(() => {
  window.changes = [];
  new MutationObserver(() => window.changes.push([document.body.dataset.state, Date.now()]))
    .observe(document.body, { attributes: true, attributeFilter: ["data-state"] });
});
const killed = Date.now();
process.kill(options.server, options.how);
await page.waitForFunction(
  () => window.changes.some(([state]) => state === "reconnecting") && document.body.dataset.state === "talking",
  null, { timeout: SOON_MS, polling: 20 });
const changes = await page.evaluate(() => window.changes);
const first = (wanted) => changes.find(([state]) => state === wanted)[1];
seen.brokeOff = first("reconnecting") - killed;
seen.backAfter = first("talking") - killed;
seen.hole = first("talking") - first("reconnecting");
await page.waitForFunction(() => /Please go on/.test(document.getElementById("log").textContent), null, { timeout: SOON_MS });
await page.waitForTimeout(options.pause);
await type("Ada Lovelace");
await page.waitForFunction(() => /number/i.test(document.getElementById("log").textContent), null, { timeout: SOON_MS });
seen.words = await words();
await page.click("#hangup");
await page.waitForSelector("[data-state=ended]");
seen.troubles = troubles;

await browser.close();
console.log(JSON.stringify(seen));
