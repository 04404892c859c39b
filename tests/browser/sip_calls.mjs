// A call by a SIP client in Chromium: keys pressed, put on hold and taken back, hung up.

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
const takesKeys = await page.evaluate(() => window.takesKeys());
for (const [how, keys] of [["press", "7#"], ["pressByRtp", "42*"]]) {
  for (const key of keys) {
    await page.evaluate(([how, key]) => void window[how](key), [how, key]);
    await pause(400);
  }
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
console.log(JSON.stringify({ hz, takesKeys, again, events, troubles }));
