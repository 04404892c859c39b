// A caller who does not stop: node page_long.mjs {chromium, url, microphone, seconds}. Reports once a
// second how long the caller's words on the page are, and whether their end can be seen.

import { open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const { browser, page, troubles } = await open(options);
await page.click("#call");
await page.waitForSelector("#log > .caller .partial:not(:empty)", { timeout: 300000 });
const lengths = [];
for (let second = 0; second < options.seconds; second++) {
  lengths.push(await page.evaluate(() => {
    const turns = [...document.querySelectorAll("#log > .caller")];
    const view = document.getElementById("talk").getBoundingClientRect();
    const { bottom } = turns.at(-1).getBoundingClientRect();
    const words = turns.map((turn) => turn.innerText.length).reduce((a, b) => a + b);
    return { words, seen: bottom <= view.bottom };
  }));
  await page.waitForTimeout(1000);
}
await browser.close();
console.log(JSON.stringify({ lengths, troubles }));
