// The operator builds an agent on the page: node builder_page.mjs {chromium, url, microphone, pictures}. Types
// instead of talking, so that the words are what they are.

import { findings, open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const SOON_MS = 300000;
const { browser, page, troubles } = await open(options);
const seen = { troubles, findings: [] };
const texts = (selector) => page.locator(selector).allTextContents();

async function look(name) {
  seen.findings.push(...(await findings(page, name)));
  for (const [theme, width] of [["light", 1280], ["dark", 390]]) {
    await page.emulateMedia({ colorScheme: theme, reducedMotion: "reduce" });
    await page.setViewportSize({ width, height: 844 });
    await page.screenshot({ path: `${options.pictures}/${name.replaceAll(" ", "-")}-${theme}.png` });
    if (width === 390) {
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      if (wide > width) seen.findings.push(`${name}: ${wide} px wide`);
      seen.panel = await page.evaluate(() => document.querySelector(".parts").scrollWidth);
    }
  }
  await page.emulateMedia({ colorScheme: "light", reducedMotion: "no-preference" });
  await page.setViewportSize({ width: 1280, height: 800 });
}

async function until(selector) {
  await page.waitForSelector(selector, { timeout: SOON_MS, state: "attached" });
}

async function type(text) {
  await page.fill("#text", text);
  await page.press("#text", "Enter");
}

// --- before the call

await until("#builder-button:not([hidden])");
await page.click("#builder-button");
await until("#builder-agent option");
seen.agents = await texts("#builder-agent option");
seen.usual = await texts("#builder-fields .field");
seen.voices = await page.locator("#builder-voices option").evaluateAll((all) => all.map(({ value }) => value));
seen.suggested = await page.getAttribute("#try-voice", "list");
await page.selectOption("#builder-agent", "repairs");
seen.nodes = await texts("#builder-flow .node > text:first-of-type");
seen.listed = await texts("#builder-flow .nodes > li > .name");
await page.fill("#try-greeting", "Ahoy there.");
await page.fill("#try-temperature", "0.5");
seen.status = await page.textContent("#builder-status");
await page.click("#builder-toml");
await until("#builder-written:not([hidden])");
seen.toml = await page.textContent("#builder-lines");
await page.focus("#builder-flow .nodes > li:first-child .to"); // by the keyboard alone
await page.keyboard.press("Enter");
seen.focused = await page.evaluate(() => document.activeElement.querySelector(".name")?.textContent);
await look("the builder");

// --- a setting that cannot be

await page.fill("#try-temperature", "9");
await page.click("#call");
await until("#notice:not([hidden])");
seen.refused = await page.textContent("#notice-help");
await page.fill("#try-temperature", "0.5");

// --- the call

await page.click("#call");
await until("#builder-flow .nodes > li.here");
await until(".turn.agent");
await page.waitForFunction(() => document.getElementById("log").textContent.includes("Ahoy there."));
seen.first = await page.getAttribute("#builder-flow .nodes > li.here", "aria-current");
seen.begins = await texts("#builder-flow .node.here > text:first-of-type");
await type("I want to book a repair.");
await page.waitForFunction(() => document.getElementById("log").textContent.includes("Which day?"));
seen.goesOn = await texts("#builder-flow .node.here > text:first-of-type");
seen.here = await texts("#builder-flow .nodes > li.here > .name");
const happened = (kind) => page.locator(`#builder-happened > li[data-kind="${kind}"]`);
seen.requests = await happened("request").count();
await happened("request").first().locator("summary").click();
await until("#builder-happened pre");
seen.request = await happened("request").first().textContent();
seen.function = await happened("function").first().textContent();
await look("a call of the builder");
await page.click("#hangup");
await page.waitForSelector('body[data-state="ended"]', { state: "attached" });
seen.after = await texts("#builder-flow .node.here");

// --- another page, of somebody with a caller's key

const other = await page.context().newPage();
await other.addInitScript(() => sessionStorage.setItem("api-key", "of a caller"));
await other.goto(options.url);
await other.waitForSelector("#answers:not(:empty)", { state: "attached" });
seen.ofCallers = await other.locator("#builder-button").isVisible();

await browser.close();
console.log(JSON.stringify(seen));
