// A call by WHIP and WHEP: node whip_page.mjs {chromium, url, server, key, room, client, line, restart}
// Reports how loud greeting and answer are, the connections' states and the server's responses.

import { heard, loudness, open, say } from "./browser.mjs";

const { server, key, room, client, line, restart, ...options } = JSON.parse(process.argv[2]);
const LIMIT_MS = 300000;
const { browser, page, troubles } = await open({ ...options, lines: [line] });
const responses = [];
page.on("response", (response) => {
  if (response.url().startsWith(server)) {
    responses.push([response.request().method(), response.status()]);
  }
});
const url = `${server}/PROTOCOL/${room}`;

/** Until the agent speaks, and then until it is silent. */
async function spoken() {
  const until = Date.now() + LIMIT_MS;
  const loudest = await heard(page, () => window.played);
  let now = loudest;
  while (now > 0.01 && Date.now() < until) now = await loudness(page, () => window.played);
  return loudest;
}

const seen = { troubles, responses };
if (client === "example") {
  await page.fill("[name=server]", server);
  await page.fill("[name=key]", key);
  await page.click('text="Call"');
  await page.waitForSelector('text="connected"', { timeout: LIMIT_MS });
  await page.evaluate(() => (window.played = document.querySelector("audio").srcObject));
  seen.greeting = await spoken();
  await say(page, line);
  seen.answer = await spoken();
  seen.states = [await page.textContent("[role=status]")];
  await page.click("text=Hang up");
  await page.waitForSelector("text=Not connected");
  await browser.close();
  console.log(JSON.stringify(seen));
  process.exit();
}
seen.links = await page.evaluate(
  async ([client, url, key]) => {
    window.call = await window[client](url, key);
    return window.call.links;
  },
  [client, url, key],
);
await page.waitForFunction(
  () => Object.values(window.peers).every(({ connectionState }) => connectionState === "connected"),
  null,
  { timeout: LIMIT_MS },
);
seen.greeting = await spoken();
const selected = () =>
  page.evaluate(async () => {
    const stats = [...(await window.peers.publisher.getStats()).values()];
    const { selectedCandidatePairId } = stats.find(({ type }) => type === "transport");
    return stats.find(({ id }) => id === selectedCandidatePairId)?.id;
  });
if (restart) {
  const before = await selected();
  await page.evaluate(() => window.call.restart());
  const until = Date.now() + LIMIT_MS;
  while ((await selected()) === before && Date.now() < until) await page.waitForTimeout(100);
  seen.restarted = (await selected()) !== before;
}
await say(page, line);
seen.answer = await spoken();
seen.states = await page.evaluate(() => Object.values(window.peers).map((peer) => peer.connectionState));
seen.errors = await page.evaluate(() => window.errors);
await page.evaluate(() => window.call.stop());
await browser.close();
console.log(JSON.stringify(seen));
