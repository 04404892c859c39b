// A WebRTC call of the agents SDK: node agents_page.mjs {chromium, url, calls, secret, lines}
// Greeted on request; the first line is answered by a tool, the second interrupts a long answer; a
// second agent takes over, and is asked the second line again for `seconds`. The page hangs up.

import { open, say } from "./browser.mjs";

const { calls, secret, lines, seconds = 0, ...options } = JSON.parse(process.argv[2]);
const { browser, page, troubles } = await open({ ...options, lines });
const seen = () => page.evaluate(() => window.seen());
const EVENT_MS = 300000;
let turns = 0;

/** Until so many events of the type have come. */
function until(type, count = 1) {
  const enough = ([type, count]) => window.seen().events.filter((one) => one === type).length >= count;
  return page.waitForFunction(enough, [type, count], { timeout: EVENT_MS });
}

try {
  await page.evaluate((asked) => window.call(asked), { calls, secret });
  await page.evaluate(() => window.session.sendMessage("Hello."));
  await until("output_audio_buffer.stopped", 1);
  await say(page, lines[0]);
  await until("output_audio_buffer.stopped", 2);
  await page.evaluate(() => window.session.sendMessage("Count to twenty."));
  await until("output_audio_buffer.started", 3);
  await page.waitForTimeout(1500); // a few words are heard
  await say(page, lines[1]);
  await until("output_audio_buffer.cleared", 1);
  await until("output_audio_buffer.stopped", 3);
  await page.evaluate(() => window.session.sendMessage("My tyre is flat."));
  await until("output_audio_buffer.stopped", 4);
  for (const end = Date.now() + 1000 * seconds; Date.now() < end; turns += 1) {
    await say(page, lines[1]);
    await until("output_audio_buffer.stopped", 5 + turns);
  }
  await page.waitForTimeout(500); // for what the session then retrieves
  await page.evaluate(() => window.session.close());
} catch (error) {
  troubles.push(`${error}`);
} finally {
  const report = { ...(await seen()), turns, troubles };
  await browser.close();
  console.log(JSON.stringify(report));
}
