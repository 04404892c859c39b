// A call by JsSIP in Chromium: keys pressed, put on hold and taken back, hung up.

import { open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const { browser, page, troubles } = await open({
  ...options,
  flags: ["--ignore-certificate-errors"],
});
const pause = (ms) => new Promise((then) => setTimeout(then, ms));

await page.evaluate((call) => window.dial(call), options.call);
await pause(1500);
const hz = await page.evaluate(() => window.hears());
for (const key of "7#") {
  await page.evaluate((key) => window.press(key), key);
  await pause(400);
}
await page.evaluate(() => window.hold());
await pause(700);
await page.evaluate(() => window.unhold());
await pause(1500);
const again = await page.evaluate(() => window.hears());
await page.evaluate(() => window.hangUp());
await pause(300);
const events = await page.evaluate(() => window.events);
await browser.close();
console.log(JSON.stringify({ hz, again, events, troubles }));
