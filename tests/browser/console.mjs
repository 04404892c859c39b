// The console as an operator uses it: node console.mjs {chromium, url, key, call, pictures}

import fs from "node:fs";

import { findings, open } from "./browser.mjs";

const { key, reader, call, pictures, ...options } = JSON.parse(process.argv[2]);
const { browser, page, troubles } = await open(options);
const found = { axe: [], seen: {} };
const refusals = () => troubles.filter((text) => !/401|403|503/.test(text));
/** The text of the file that a click downloads. */
async function downloaded(link) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.click(link)]);
  return [download.suggestedFilename(), fs.readFileSync(await download.path(), "utf8")];
}

async function look(name) {
  found.axe.push(...(await findings(page, name)));
  if (!pictures) return;
  for (const [look, scheme, size] of [["desk", "light", { width: 1280, height: 900 }], ["phone", "dark", { width: 390, height: 844 }]]) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize(size);
    await page.screenshot({ path: `${pictures}/${name}-${look}.png`, fullPage: true });
  }
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize({ width: 1280, height: 800 });
}

const text = (selector) => page.locator(selector).first().innerText();

// Nobody sees anything without a key; a wrong one says so.
await page.waitForSelector(".sign-in");
await look("sign-in");
await page.fill("#key", "wrong");
await page.click(".sign-in button");
await page.waitForFunction(() => document.querySelector(".sign-in .fault").textContent);
found.seen.fault = await text(".sign-in .fault");
await page.fill("#key", key);
await page.keyboard.press("Enter");

// The history: the last calls, and those that a search finds.
await page.waitForSelector("tbody tr");
found.seen.calls = await page.locator("tbody tr").count();
await look("history");
await page.click(".filters summary");
await page.selectOption("[name=analysis]", "failure");
await page.click(".filters [type=submit]");
await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
found.seen.failed = await text("tbody tr");
await page.goBack();
await page.waitForFunction((before) => document.querySelectorAll("tbody tr").length === before, found.seen.calls);
await page.click(".more");
await page.waitForFunction((before) => document.querySelectorAll("tbody tr").length > before, found.seen.calls);
found.seen.more = await page.locator("tbody tr").count();
await page.fill("[name=text]", "lost card");
await page.keyboard.press("Enter");
await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
found.seen.row = await text("tbody tr");
await page.fill("[name=text]", "nobody said this");
await page.keyboard.press("Enter");
await page.waitForSelector(".empty");
await look("nothing-found");
await page.click(".filters a");
await page.waitForFunction(() => document.querySelectorAll("tbody tr").length > 1);

// Further filters are in the link, so that whoever gets it sees the same.
await page.click(".filters summary");
await page.selectOption("[name=state]", "live");
await page.fill("[name=trunk]", "line");
await page.click(".filters [type=submit]");
await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
found.seen.link = new URL(page.url()).hash;
await page.reload();
await page.waitForSelector("tbody tr");
found.seen.again = [await page.locator("tbody tr").count(), await page.inputValue("[name=state]"), await page.inputValue("[name=trunk]")];
found.seen.offered = await page.locator("#known-edge option").count();
await look("filters");
await page.goto(`${options.url}#/history/?text=${encodeURIComponent("lost card")}`);
await page.waitForFunction(() => document.querySelector("tbody a")?.hash.includes("hostile"));

// One call: words, what was done, and the sound, from where one clicks.
await page.click("tbody a");
await page.waitForSelector(".story li.caller");
found.seen.words = await page.locator(".story .words").allInnerTexts();
found.seen.done = await page.locator(".story .other .what").allInnerTexts();
found.seen.unheard = await text(".story s");
found.seen.latency = await text(".story .latency summary");
found.seen.analysis = await text(".analysis");
await page.click(".player-row button");
await page.waitForSelector(".waveform");
found.seen.silences = await page.locator(".waveform").getAttribute("aria-label");
found.seen.painted = await page.evaluate(() => {
  const canvas = document.querySelector(".waveform");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.some((value) => value);
});
await page.locator(".story li.agent button.at").first().click();
await page.waitForFunction(() => document.querySelector("audio").currentTime > 1);
await page.waitForSelector(".story .now");
found.seen.now = await text(".story .now .words");
await page.evaluate(() => document.querySelector("audio").pause());
found.seen.ran = await page.evaluate(() => globalThis.ran ?? "");
found.seen.picture = await page.locator(".axis-picture").getAttribute("aria-label");
found.seen.bars = [await page.locator(".axis-picture .caller").count(), await page.locator(".axis-picture .cut").count()];
await look("call");
found.seen.record = JSON.parse((await downloaded(".actions a[href$=export]"))[1]).timeline.length;
found.seen.scenario = await downloaded(".actions a[href$=scenario]");
await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
await page.click(".actions button");
const link = await page.evaluate(() => navigator.clipboard.readText());
await page.goto("about:blank");
await page.goto(link);
await page.waitForSelector(".story .now");
found.seen.shared = await text(".story .now .words");

// Numbers and live calls.
await page.click("nav a[href='#/numbers']");
await page.waitForSelector(".cards");
found.seen.cards = await page.locator(".cards dt").allInnerTexts();
await page.click(".ranges a[href='#/numbers/52w']");
await page.waitForFunction(() => document.querySelectorAll(".chart rect").length > 1);
await look("numbers");
const requests = [];
page.on("request", (request) => requests.push(request.url()));
await page.click("nav a[href='#/live']");
const isLonger = (before) => document.querySelector(".last-turns li:last-child .last")?.textContent !== before;
await page.waitForSelector(".last");
found.seen.last = await text(".last");
await page.locator(".hang-up").focus();
await page.waitForFunction(isLonger, await text(".last-turns li:last-child .last"));
found.seen.asked = [requests.some((url) => url.endsWith("calls/events")), requests.some((url) => url.includes("state=live"))];
found.seen.focused = await page.evaluate(() => document.activeElement.className); // what has the focus keeps it
await look("live");

// Where events do not come, the calls are asked for.
await page.route("**/calls/events", (route) => route.fulfill({ status: 503, body: "{}" }));
await page.click("nav a[href='#/history']");
await page.waitForSelector("tbody tr");
await page.click("nav a[href='#/live']");
await page.waitForSelector(".last");
await page.waitForFunction(isLonger, await text(".last-turns li:last-child .last"));
await page.unroute("**/calls/events");

// Trunks, engines and agents.
await page.click("nav a[href='#/trunks']");
await page.waitForSelector(".badge[data-state=down]");
found.seen.trunks = await page.locator("tbody tr").allInnerTexts();
await look("trunks");
await page.click("nav a[href='#/engines']");
await page.waitForSelector(".badge[data-state=up]");
found.seen.engines = await page.locator("tbody tr").allInnerTexts();
await look("engines");
await page.click("nav a[href='#/agents']");
await page.waitForSelector("tbody code");
found.seen.agents = await page.locator("tbody tr").allInnerTexts();
await look("agents");

// Campaigns: one is resumed, whose button keeps the focus, and another is paused and cancelled.
page.on("dialog", (dialog) => dialog.accept());
await page.click("nav a[href='#/campaigns']");
await page.locator("tbody tr", { hasText: "winter" }).waitFor();
found.seen.campaigns = await page.locator("tbody tr").allInnerTexts();
await look("campaigns");
await page.click("[aria-label='Resume winter']");
await page.waitForSelector("[aria-label='Pause winter']");
await page.focus("[aria-label='Pause winter']");
await page.click("tbody tr:first-child button");
await page.waitForFunction(() => document.querySelector("tbody tr button")?.textContent === "Resume");
found.seen.paused = await text("tbody tr");
await page.focus("[aria-label='Pause winter']");
await page.click("tbody tr:first-child .danger");
await page.waitForFunction(() => !document.querySelector("tbody tr").querySelector("button"));
found.seen.cancelled = await text("tbody tr");
found.seen.actions = await page.locator("tbody tr:first-child .row-actions > *").allInnerTexts();
found.seen.report = await downloaded("tbody tr:first-child a");
await page.focus("[aria-label='Pause winter']");
found.seen.focusedAction = await page.evaluate(() => document.activeElement.ariaLabel);

// A call that is forgotten.
await page.goto(`${options.url}#/call/${call}`);
await page.waitForSelector(".danger");
await page.click(".danger");
await page.waitForFunction(() => document.querySelector(".story .soft") && !document.querySelector(".danger"));
found.seen.forgotten = await text(".story");

// The cookie is no script's, and signing out ends it.
found.seen.cookie = await page.evaluate(() => document.cookie);
const [cookie] = await page.context().cookies();
found.seen.session = [cookie.httpOnly, cookie.sameSite, cookie.path];
await page.click("#sign-out");
await page.waitForSelector(".sign-in");
found.seen.after = await page.evaluate(async () => (await fetch("calls?limit=1")).status);

// A reader looks, and listens to nothing.
await page.fill("#key", reader);
await page.keyboard.press("Enter");
await page.goto(`${options.url}#/history`);
await page.waitForSelector("tbody a");
found.seen.reader = await page.evaluate(async () => {
  const status = async (path, options) => (await fetch(path, options)).status;
  const [{ call_id: id }] = (await (await fetch("calls?text=lost")).json()).calls;
  const json = { "Content-Type": "application/json" };
  return {
    look: await status(`calls/${id}/timeline`),
    trunks: await status("trunks"),
    listen: await status(`calls/${id}/recording`),
    forget: await status("calls/forget", { method: "POST", headers: json, body: JSON.stringify({ call_id: id }) }),
    end: await status(`calls/${id}`, { method: "DELETE", headers: json }),
    campaigns: await status("campaigns"),
    resume: await status("campaigns/winter", { method: "POST", headers: json, body: JSON.stringify({ action: "resume" }) }),
  };
});
await page.click("nav a[href='#/campaigns']");
await page.locator("tbody tr", { hasText: "winter" }).waitFor();
found.seen.reader.buttons = await page.locator("tbody button").count();
found.ran = await page.evaluate(() => globalThis.ran ?? "");
await browser.close();
console.log(JSON.stringify({ ...found, troubles: refusals() }));
