// Two calls with Pipecat's client: node client_calls.mjs {chromium, url, microphone, server, key}.
// The page at `url` is of another site than the server.

import { heard, open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const SOON_MS = 300000;

const { browser, page, troubles } = await open(options);

/** Until the client has told of `event` so often, with this in its data. */
function told(event, times = 1, has = {}) {
  const enough = ([event, times, has]) => {
    const match = ([name, data]) =>
      name === event && Object.entries(has).every(([key, value]) => data?.[key] === value);
    return window.told.filter(match).length >= times;
  };
  return page.waitForFunction(enough, [event, times, has], { timeout: SOON_MS });
}

/** Until the bot has said this and fallen silent; what it says in between does not count. */
function said(words) {
  const over = (words) => {
    const from = window.told.findIndex(
      ([name, data]) => name === "botTtsText" && data.text.includes(words),
    );
    return (
      from >= 0 && window.told.slice(from).some(([name]) => name === "botStoppedSpeaking")
    );
  };
  return page.waitForFunction(over, words, { timeout: SOON_MS });
}

/** A call from `connect`, run in the page with the options, to the client's goodbye. */
async function call(withCamera, connect, converse) {
  await page.evaluate((camera) => window.newClient(camera), withCamera);
  const seen = { ready: await page.evaluate(connect, options) };
  seen.states = [await page.evaluate(() => window.client.state)];
  await told("botStartedSpeaking");
  seen.loudness = await heard(page, () => window.speaker.srcObject);
  await converse(seen);
  await page.evaluate(() => window.client.disconnect());
  seen.states.push(await page.evaluate(() => window.client.state));
  seen.told = await page.evaluate(() => window.told);
  return seen;
}

const startBotAndConnect = ({ server, key }) =>
  window.client.startBotAndConnect({
    endpoint: `${server}/start`,
    headers: new Headers({ Authorization: `Bearer ${key}` }),
    requestData: { transport: "webrtc", enableDefaultIceServers: true },
  });
const connect = ({ server, key }) =>
  window.client.connect({
    webrtcRequestParams: {
      endpoint: `${server}/api/offer`,
      headers: new Headers({ Authorization: `Bearer ${key}` }),
      requestData: { caller: "a test" },
    },
  });

const request = (type) =>
  page.evaluate((type) => window.client.sendClientRequest(type).catch((error) => error.data), type);

const talk = await call(false, startBotAndConnect, async (seen) => {
  seen.about = await request("call");
  seen.unknown = await request("what is this");
  await told("userTranscript", 1, { final: true });
  await said("hours");
  await page.evaluate(() => window.client.enableMic(false));
  seen.microphone = await page.evaluate(() => window.client.isMicEnabled);
  await page.evaluate(() => window.client.sendText("Where are you?"));
  await said("Harbour");
});
const camera = await call(true, connect, () => told("botTtsText"));

await browser.close();
console.log(JSON.stringify({ troubles, talk, camera }));
