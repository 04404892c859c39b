// A call by the button that embed.js puts on a page: node embed_page.mjs {chromium, url, line}

import { heard, open, say } from "./browser.mjs";

const { line, ...options } = JSON.parse(process.argv[2]);
const { browser, page, troubles } = await open({ ...options, lines: [line] });
const seen = { troubles };
const button = page.locator("offhook-call button");
const status = page.locator("offhook-call [role=status]");
const CALL_MS = 300000;

try {
  seen.label = await button.textContent();
  await button.click();
  await page.locator("offhook-call button[data-state=talking]").waitFor({ timeout: CALL_MS });
  const speaker = () =>
    document.querySelector("offhook-call").shadowRoot.querySelector("audio").srcObject;
  seen.loudness = await heard(page, speaker); // the greeting
  await page.waitForTimeout(3000); // to its end
  await say(page, line);
  await page.evaluate(() => fetch("/heard"));
  await page.waitForTimeout(1000); // the answer
  seen.talking = await button.textContent();
  await button.click();
  seen.ended = [await button.textContent(), await status.textContent()];
} catch (error) {
  troubles.push(`${error} ${await status.textContent()}`);
}
await browser.close();
console.log(JSON.stringify(seen));
