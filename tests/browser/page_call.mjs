// Two calls on offhook's own page: node page_call.mjs {chromium, url, lines, folder}
// The first says the lines, the last of them into the answer before it, presses keys, is saved and ends with a typed goodbye; the
// second is hung up.

import fs from "node:fs";
import { findings, heard, open, say } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const SOON_MS = 300000;
const REPLY_MS = 300000;

const { browser, page, troubles } = await open(options);

/** What a reader of the page sees of each turn. */
function turnsOnPage() {
  return page.$$eval("#log > .turn", (turns) =>
    turns.map((turn) => ({
      who: turn.classList.contains("agent") ? "agent" : "caller",
      text: turn.querySelector("p > span").textContent.trim(),
      unheard: turn.querySelector("del")?.textContent ?? "",
      lines: [turn.querySelector(".unheard summary")].map(
        (cut) => cut && cut.clientHeight / parseFloat(getComputedStyle(cut).lineHeight))[0],
      struck: [turn.querySelector("del")].map((cut) => cut && getComputedStyle(cut))[0]?.textDecorationLine,
      total: turn.querySelector(".waterfall .total")?.textContent ?? null,
      spans: [...turn.querySelectorAll(".waterfall tr:has(th)")].map((row) => [
        row.querySelector("th").firstChild.textContent,
        row.querySelector(".ms").textContent,
        getComputedStyle(row.querySelector("i")).backgroundColor,
      ]),
      width: turn.querySelector(".strip")?.lastElementChild.getBoundingClientRect().right -
        turn.querySelector(".strip")?.getBoundingClientRect().left,
    })),
  );
}

/** Until so many replies have begun, and the last was said to its end; what asks to wait is none. */
function answered(replies) {
  const done = (replies) => {
    const last = [...document.querySelectorAll("#log > .turn")].at(-1);
    const ended = last.matches(".agent:not(.cut, .speaking)") && /[.?!]$/.test(last.querySelector("p").innerText.trim());
    return ended && document.querySelectorAll("#log .waterfall").length >= replies;
  };
  return page.waitForFunction(done, replies, { timeout: REPLY_MS });
}

/** The file that a button gives to be saved. */
async function saved(button) {
  const downloading = page.waitForEvent("download");
  await page.click(button);
  const download = await downloading;
  const path = `${options.folder}/${download.suggestedFilename()}`;
  await download.saveAs(path);
  return path;
}

/** How many of the agent's replies the page shows the times of. */
const replies = () => page.locator("#log .waterfall").count();

const status = () => page.locator("#status").textContent();
const seen = { troubles };

await page.waitForSelector("#operator:not([hidden])");
const links = await page.$$eval("footer a", (all) => all.map(({ href }) => href));
seen.links = await Promise.all(links.map(async (href) => (await page.request.get(href)).status()));

await page.click("#call");
await page.waitForSelector("[data-state=talking]", { timeout: SOON_MS });
await page.waitForSelector(".turn.agent .word", { timeout: SOON_MS });
seen.loudness = await heard(page, () => document.getElementById("speaker").srcObject);
await answered(0);
seen.hidden = [];
for (const [width, height] of [[390, 844], [1024, 768]]) {
  await page.setViewportSize({ width, height });
  seen.hidden.push(...await page.$$eval("#try button, #log > .turn", (all) => all
    .filter((one) => one.checkVisibility() && one.getBoundingClientRect().bottom > innerHeight)
    .map((one) => `${innerWidth}: ${one.textContent}`)));
}
await page.setViewportSize({ width: 1280, height: 800 });
const partial = page.waitForFunction(
  () => document.querySelector(".turn.caller .partial:not(:empty)")?.textContent, null, { timeout: REPLY_MS });
await say(page, options.lines[0]);
seen.partial = await (await partial).jsonValue();
await answered(1);
const CUT = ".turn.cut del:not(:empty)";
let before;
do { // again where a busy machine was too slow to notice
  before = await replies();
  await say(page, options.lines[1]);
  await page.waitForFunction(
    (before) => document.querySelectorAll("#log .waterfall").length > before, before, { timeout: REPLY_MS });
  await page.waitForFunction(
    () => document.querySelectorAll(".turn.agent.speaking .word").length > 5, null, { timeout: REPLY_MS });
  await say(page, options.lines[2]);
  await page.waitForFunction(
    (cut) => document.querySelector(cut) || !document.querySelector(".turn.agent.speaking"), CUT, { timeout: REPLY_MS });
} while (!(await page.$(CUT)));
await answered(before + 2);
await page.setViewportSize({ width: 390, height: 600 });
await page.evaluate(() => (document.getElementById("talk").scrollTop = 0)); // a reader who has gone back
await page.click("#latest");
await page.waitForSelector("#latest", { state: "hidden" });
await page.setViewportSize({ width: 1280, height: 800 });
await page.keyboard.press("m");
seen.muted = await page.locator("#phase").textContent();
await page.keyboard.press("m");
await page.locator(".waterfall summary").last().click();
await page.click("#quality summary");
seen.findings = await findings(page, "in the call");
seen.quality = await page.locator("#quality-word").textContent();
await page.keyboard.press("Escape"); // closes the panel, not the call
seen.title = await page.title();
const told = await replies();
await page.click("#keypad-button");
for (const key of ["4", "2", "2"]) await page.click(`#keypad button:text-is("${key}")`);
await page.keyboard.press("#");
seen.pressed = await page.locator("#pressed").textContent();
seen.findings.push(...(await findings(page, "the keypad")));
await page.keyboard.press("Escape"); // closes the keypad, not the call
await page.click("#events-button");
seen.findings.push(...(await findings(page, "the events")));
seen.events = await page.$$eval("#events .type", (all) => [...new Set(all.map((one) => one.textContent))]);
seen.folds = await page.$$eval("#events > ol > li > details > summary .type", (all) => all.map((one) => one.textContent));
await page.fill("#events-filter", "total_ms");
seen.filtered = await page.$$eval("#events ol ol .type", (all) => all.map((one) => one.textContent));
await page.fill("#events-filter", "");
await page.check("#events-faults");
seen.faultsOnly = await page.locator("#events > ol > li").count();
await page.click("#events-close");
const warned = page.waitForEvent("dialog").then(async (dialog) => {
  await dialog.dismiss();
  return dialog.type();
});
await page.evaluate(() => void setTimeout(() => location.reload()));
seen.warned = await warned;
await answered(told + 1);
await page.fill("#text", "Goodbye");
await page.keyboard.press("Enter");
await page.waitForSelector("[data-state=ended]", { timeout: REPLY_MS });
seen.turns = await turnsOnPage();
seen.notes = await page.locator("#log > .note").allInnerTexts();
seen.end = await status();
seen.captions = await page.locator("#captions p").allInnerTexts();
seen.findings.push(...(await findings(page, "after the call")));
seen.words = fs.readFileSync(await saved("#keep-words"), "utf8");
seen.sound = await saved("#keep-sound");

await page.focus("#call");
await page.keyboard.press("Enter");
await page.waitForSelector(".turn.agent .word", { timeout: SOON_MS });
await page.keyboard.press("Escape");
await page.waitForSelector("[data-state=ended]", { timeout: SOON_MS });
seen.secondEnd = await status();

await browser.close();
console.log(JSON.stringify(seen));
