// The console with the key of one of several customers: node tenant_console.mjs {chromium, url, key}

import { findings, open } from "./browser.mjs";

const { key, ...options } = JSON.parse(process.argv[2]);
const { browser, page, troubles } = await open(options);
const seen = {};
await page.waitForSelector(".sign-in");
await page.fill("#key", key);
await page.keyboard.press("Enter");
await page.waitForSelector("tbody tr");
seen.calls = await page.locator("tbody tr").allInnerTexts();
seen.views = await page.locator("nav a:visible").allInnerTexts();
const axe = await findings(page, "history");
await page.click("tbody tr a");
await page.waitForSelector(".story");
seen.facts = await page.locator("#main").innerText();
await page.click("nav a[href='#/agents']");
await page.waitForSelector("tbody tr");
seen.agents = await page.locator("tbody tr").allInnerTexts();
await page.evaluate(() => { location.hash = "#/call/of-beta"; });
await page.waitForFunction(() => document.getElementById("main").innerText.includes("There is no such call"));
await browser.close();
console.log(JSON.stringify({ axe, seen, troubles: troubles.filter((text) => !/401|404/.test(text)) }));
