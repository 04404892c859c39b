// What the page shows in each of its states, and what axe finds wrong with them: node page_states.mjs
// {chromium, url, microphone, pictures}. The microphone makes a sound for two seconds, then none.

import { findings, open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const SOON_MS = 300000;
const REFUSALS = ["full", "connecting", "overloaded", "loading", "draining"];

const { browser, page, troubles } = await open({ ...options, url: "about:blank" });
await page.addInitScript(() => {
  window.ahead = 0; // ms that the page's clock is put forward
  const now = performance.now.bind(performance);
  performance.now = () => now() + window.ahead;
  window.contexts = [];
  window.AudioContext = class extends AudioContext {
    constructor(...settings) {
      super(...settings);
      window.contexts.push(this);
    }
  };
});
await page.goto(options.url);

const seen = { troubles, findings: [] };
const text = (id) => page.locator(`#${id}`).textContent();

async function look(name) {
  seen.findings.push(...(await findings(page, name)));
  await page.screenshot({ path: `${options.pictures}/${name.replaceAll(" ", "-")}.png` });
}

function says(id, words) {
  const holds = ([id, words]) => document.getElementById(id).textContent.includes(words);
  return page.waitForFunction(holds, [id, words], { timeout: SOON_MS, polling: 50 });
}

// --- before the call

await page.waitForSelector("#answers:not(:empty)");
seen.answers = await text("answers");
await look("before the call");

await page.click("#sound-button");
await page.click("#test");
await says("test-word", "Say something");
await look("the sound dialog");
await says("test-word", "This is how you sound");
await says("test-word", "The microphone works");
await page.fill("#volume", "0.5");
seen.volume = await page.evaluate(() => document.getElementById("speaker").volume);
seen.speakers = await page.locator("#speaker-choice option").count();
await page.click("#sound .done");

// --- calls that are not taken

seen.refusals = {};
for (const reason of REFUSALS) {
  const answer = { status: 503, json: { error: "not now", reason }, headers: { "Retry-After": "7" } };
  await page.route("**/start", (route) => route.fulfill(answer), { times: 1 });
  await page.click("#call");
  await page.waitForSelector("#notice:not([hidden])");
  seen.refusals[reason] = await text("notice-title");
  seen.retry = await text("retry");
  if (reason === "full") await look("a refusal");
}

// --- a call

let put;
const held = new Promise((resolve) => (put = resolve));
await page.route("**/start", (route) => held.then(() => route.continue()), { times: 1 });
await page.click("#call");
await look("connecting");
put();
await page.waitForSelector("[data-state=talking]", { timeout: SOON_MS });
await page.waitForSelector(".turn.agent .word", { timeout: SOON_MS });
await look("in the call");

// Nobody says anything, and the clock moves on; then the browser puts its sound to sleep.
const SILENCE = "Nothing is heard";
await page.waitForTimeout(2500); // of the microphone's sound
await page.evaluate(() => (window.ahead += 70000));
await says("hint", SILENCE);
await look("a hint");
await page.evaluate(() => {
  AudioContext.prototype.resume = async () => {};
  return window.contexts.at(-1).suspend();
});
await page.waitForFunction(() => document.getElementById("hint").hidden, null, { timeout: SOON_MS });
await page.evaluate(() => (window.ahead += 70000));
await page.waitForTimeout(600); // two looks at it
seen.asleep = await text("hint");
await page.evaluate(() => {
  delete AudioContext.prototype.resume;
  return window.contexts.at(-1).resume();
});

await page.click("#hangup");
await page.waitForSelector("[data-state=ended]");
seen.title = await page.title();
await look("after the call");

await browser.close();
console.log(JSON.stringify(seen));
