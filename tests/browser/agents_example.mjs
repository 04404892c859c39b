// examples/agents_page: node agents_example.mjs {chromium, url, line}
// The agent greets, the line is answered by a tool, and the page hangs up.

import { open, say } from "./browser.mjs";

const { line, ...options } = JSON.parse(process.argv[2]);
const { browser, page, troubles } = await open({ ...options, lines: [line] });
const WAIT = { timeout: 300000 };
let said = [];

try {
  await page.getByRole("button", { name: "Talk" }).click();
  await page.getByText("Good morning.").waitFor(WAIT);
  await page.waitForTimeout(2000); // until it is heard
  await say(page, line);
  await page.getByText("There are twelve bells.").waitFor(WAIT);
  said = await page.locator("li").allTextContents();
  await page.getByRole("button", { name: "Hang up" }).click();
  await page.getByRole("button", { name: "Talk" }).waitFor(WAIT);
  troubles.push(...(await page.getByRole("status").allTextContents()).filter(Boolean));
} catch (error) {
  troubles.push(`${error}`);
} finally {
  await browser.close();
  console.log(JSON.stringify({ said, troubles }));
}
