// The page in a call, as a picture: node screenshot.mjs {chromium, url, microphone, picture}

import { open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const SIZE = { width: 1120, height: 760 };
const REPLY_MS = 300000;

const { browser, page, troubles } = await open(options);
await page.setViewportSize(SIZE);
await page.click("#call");
// The second answer of the agent after its greeting, said to its end.
await page.waitForFunction(
  () => {
    const replies = [...document.querySelectorAll("#log > .turn.agent:not(.speaking)")];
    const total = replies.filter((turn) => turn.querySelector(".waterfall .total"));
    return total.length >= 2 && /[.?!]$/.test(replies.at(-1).querySelector("p").innerText.trim());
  },
  null,
  { timeout: REPLY_MS },
);
await page.locator(".waterfall summary").last().click();
await page.waitForTimeout(300);
await page.screenshot({ path: options.picture });
await page.keyboard.press("Escape");
await browser.close();
if (troubles.length) throw new Error(troubles.join("\n"));
