// A call by a SIP client in Chromium whose WebSocket is cut, and that reconnects. The far end hangs up.

import { open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const { browser, page } = await open({ ...options, flags: ["--ignore-certificate-errors"] });
const connected = (times) =>
  page.waitForFunction(
    (times) => window.events.filter((event) => event === "connected").length >= times,
    times,
  );

await page.evaluate((call) => window.dial(call), options.call);
const before = await page.evaluate(() => window.hears());
await page.evaluate(() => void window.pressByRtp("1")); // the test cuts the WebSocket
await connected(2);
const between = await page.evaluate(() => window.hears());
for (const way of options.ways) {
  if (way === "re-INVITE") await page.evaluate(() => window.hold().then(() => window.unhold()));
  else await page.evaluate(() => window.press("5"));
}
const after = await page.evaluate(() => window.hears());
const inCall = await page.evaluate(() => window.inCall());
await page.evaluate(() => void window.pressByRtp("2")); // the test hangs up
await page.waitForFunction(() => !window.inCall());
const events = await page.evaluate(() => window.events);
await browser.close();
console.log(JSON.stringify({ before, between, after, inCall, events }));
