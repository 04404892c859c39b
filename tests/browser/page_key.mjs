// A call on the page of a server that wants an API key: node page_key.mjs {chromium, url, microphone,
// pictures, key}. First none is known, then a wrong one is given, then the right one.

import { open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const SOON_MS = 300000;

const { browser, page, troubles } = await open(options);
const notice = () => page.locator("#notice-title").textContent();

async function enter(key) {
  await page.fill("#key", key);
  await page.press("#key", "Enter");
}

await page.click("#call");
await page.waitForSelector("#notice-key", { timeout: SOON_MS });
const asked = await notice();
await page.screenshot({ path: `${options.pictures}/key-asked.png` });
await enter("not this one");
await page.waitForFunction((before) => document.getElementById("notice-title").textContent !== before, asked);
const refused = await notice();
await enter(options.key);
await page.waitForSelector("[data-state=talking]", { timeout: SOON_MS });
await page.waitForSelector(".turn.agent .word", { timeout: SOON_MS });
await page.click("#hangup");
await page.waitForSelector("[data-state=ended]", { timeout: SOON_MS });
// The next call needs no word of it.
await page.reload();
await page.click("#call");
await page.waitForSelector("[data-state=talking]", { timeout: SOON_MS });
await page.click("#hangup");
await page.waitForSelector("[data-state=ended]", { timeout: SOON_MS });
const kept = await page.evaluate(() => Object.keys(localStorage).length);
await browser.close();
console.log(JSON.stringify({ asked, refused, kept, troubles }));
