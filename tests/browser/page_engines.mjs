// The engines of `auto` on the page, from the offer to the calls that use them:
// node page_engines.mjs {chromium, url, pictures, becomes}; `becomes` is what the page says in the end.

import { findings, open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const SOON_MS = 300000;
const { browser, page, troubles } = await open(options);
const seen = { troubles, findings: [] };
const text = (id) => page.locator(`#${id}`).innerText();

async function look(name) {
  seen.findings.push(...(await findings(page, name)));
  await page.screenshot({ path: `${options.pictures}/${name}.png` });
}

function says(id, words) {
  const holds = ([id, words]) => document.getElementById(id).innerText.includes(words);
  return page.waitForFunction(holds, [id, words], { timeout: SOON_MS, polling: 50 });
}

await page.waitForSelector("#engines-offer:not([hidden])");
seen.offer = await text("engines-words");
seen.details = await page.locator("#engines-details").textContent();
await look("offer");
await page.click("#engines-accept");
await says("engines-coming", "downloading");
await page.waitForFunction(
  () => document.querySelector("#engines-coming progress")?.value > 0.1, null, { timeout: SOON_MS });
seen.downloading = await text("engines-coming");
seen.hears = await text("answers");
await look("downloading");
await says("answers", options.becomes);
await page.waitForSelector("#engines", { state: "hidden" });
await look("ready");
await browser.close();
process.stdout.write(JSON.stringify(seen));
