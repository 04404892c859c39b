// A call with Pipecat's client that goes on at another server by itself: node client_resume.mjs
// {chromium, url, microphone, front, server, how, pause}. `server` is the process of the first
// server; `how` is the signal that it gets; `front` is the address of both.

import { open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const SOON_MS = 300000;

const { browser, page } = await open(options);
const heard = (words) =>
  page.waitForFunction(
    (words) => {
      const said = window.told.filter(([name]) => name === "botTtsText").map(([, data]) => data.text);
      return said.join(" ").replace(/\s+/g, " ").includes(words);
    },
    words, { timeout: SOON_MS });

await page.evaluate(() => window.newClient(false));
await page.evaluate(
  ({ front }) => window.client.connect({ webrtcRequestParams: { endpoint: `${front}/api/offer` } }),
  options);
await heard("front desk");
await page.evaluate(() => window.client.sendText("Can I leave a message?"));
await heard("your name?");
await page.waitForTimeout(options.pause);
const killed = Date.now();
process.kill(options.server, options.how);
await heard("Please go on.");
const back = Date.now() - killed;
await page.waitForTimeout(options.pause);
await page.evaluate(() => window.client.sendText("Ada Lovelace"));
await heard("number");
await page.evaluate(() => window.client.disconnect());

await browser.close();
console.log(JSON.stringify({ back }));
