// Markup and script in everything that a page shows: node hostile.mjs {chromium, own, button, said}.
// `own` is the URL of offhook's page, `button` that of a site with embed.js, `said` what the agent says.
// Gives what ran, was loaded or was made an element of, and how often the words were seen as words.

import { open } from "./browser.mjs";

const { own, button, ...options } = JSON.parse(process.argv[2]);
const SOON_MS = 300000;
const FAR = "https://attacker.example";
const PAYLOADS = [
  "<script>ran('script')</script>",
  "<img src=x onerror=ran('image')>",
  `<img src="${FAR}/image">`,
  "<svg/onload=ran('svg')><animate onbegin=ran('animate') attributeName=x dur=1s>",
  "\"'></span></p><iframe srcdoc=\"<script>parent.ran('frame')</script>\"></iframe>",
  "javascript:ran('address')",
  "<a href=\"javascript:ran('link')\" autofocus onfocus=ran('focus')>press</a>",
  "<details open ontoggle=ran('details')><summary>x</summary></details>",
  "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=ran('mutated')&gt;\">",
  `<style>*{background:url(${FAR}/style)}</style><link rel=stylesheet href=${FAR}/sheet>`,
  `<base href=${FAR}/><form action=${FAR}><button autofocus>x</button></form>`,
  "<template><script>ran('template')</script></template>",
  "{{constructor.constructor(\"ran('expression')\")()}} ${ran('literal')} <%= ran('erb') %>",
  "&lt;script&gt;ran('entities')&lt;/script&gt;",
  "\u0000<scr\u0000ipt>ran('nul')</script>\u0000",
  "\u202e<tpircs>\u2066\u2069\u200b\ufeff turned round",
  "<!--", "-->", "]]>", "__proto__", "constructor", "\ud800 half a pair",
];
const LONG = ["word ".repeat(1 << 13), "x".repeat(1 << 16)]; // as a message of a data channel may be
const TOGETHER = [PAYLOADS.join(" "), PAYLOADS.toReversed().join(" "), ...PAYLOADS.slice(-3), "x".repeat(1 << 20)];
const MADE = "script, img, iframe, object, embed, link, style, base, form, a, template, animate, math, [onload], [onerror], [autofocus]";

const { browser, page, troubles } = await open({ ...options, url: "about:blank" });
const seen = { troubles, ran: [], loaded: [], made: [], shown: 0 };
await page.exposeFunction("ran", (what) => void seen.ran.push(what));
page.on("dialog", (dialog) => {
  seen.ran.push(`a dialog: ${dialog.type()}`);
  dialog.dismiss();
});
page.on("request", (request) => {
  if (request.url().startsWith(FAR)) seen.loaded.push(request.url());
});
await page.addInitScript(() => {
  const create = RTCPeerConnection.prototype.createDataChannel;
  RTCPeerConnection.prototype.createDataChannel = function (...about) {
    return (window.channel = create.apply(this, about));
  };
});

const made = () => page.locator(MADE).count();
async function compare(where, before) {
  const now = await made();
  if (now !== before) seen.made.push(`${where}: ${now} elements, not ${before}`);
}

/** All messages of the server with the words wherever there are words. */
function messages(words) {
  const rtvi = (type, data) => ({ label: "rtvi-ai", type, id: words.slice(0, 99), data });
  const own = (type, data) => rtvi("server-message", { type, ...data });
  return [
    rtvi("user-started-speaking", {}),
    rtvi("user-transcription", { text: words, final: false, user_id: words }),
    rtvi("user-transcription", { text: words, final: true }),
    rtvi("bot-llm-started", {}),
    rtvi("bot-llm-text", { text: words }),
    rtvi("bot-started-speaking", {}),
    own("turn-latency", { turn: 1, spans: [{ name: words, ms: 300 }, { name: "asr_final", ms: 9 }], total_ms: 309 }),
    rtvi("bot-tts-text", { text: words }),
    own("interrupted", { heard: words, unheard: words }),
    rtvi("bot-output", { text: words, will_be_spoken: false }),
    rtvi("error", { error: words, fatal: false }),
    own("backchannel", { text: words }),
    own("false-interruption", { text: words }),
    own("welcome", { agent: words, hears: words, speaks: words }),
    own("quality", { mos: 4.2, loss: 0, jitter_ms: 1, buffer_ms: 1, round_trip_ms: 1, path: words }),
    rtvi(words, { [words.slice(0, 99)]: words }),
    own(words, { text: words }),
    { type: words, message: words },
    rtvi("bot-stopped-speaking", {}),
  ];
}

// --- offhook's page: who answers, the engines, a call, its end

const engine = (state) => (words) => ({ engine: words, model: words, licence: words, state, fault: words, fraction: 0.5 });
await page.goto(own);
await page.waitForSelector("#answers:not(:empty)");
const atRest = await made();
let words;
await page.route("**/status", (route) => route.fulfill({
  json: {
    answers: { agent: words, title: words, hears: words, speaks: words },
    engines: { asr: engine("offered")(words), tts: engine("failed")(words), [words.slice(0, 99)]: engine("loading")(words) },
  },
}));
for (words of TOGETHER) {
  const asked = encodeURIComponent(words.slice(0, 999).toWellFormed());
  await page.goto(`${own}?key=${asked}#${asked}`);
  await page.waitForSelector("#answers:not(:empty)");
  await page.waitForFunction(() => document.getElementById("engines-coming").children.length);
  await compare("before a call", atRest);
}
await page.unroute("**/status");
await page.goto(own);
await page.click("#call");
await page.waitForSelector("[data-state=talking]", { timeout: SOON_MS });
await page.waitForSelector(".turn.agent .word", { timeout: SOON_MS }); // what the agent says
await page.click("#events-button");
await page.fill("#text", PAYLOADS.join(" ").slice(0, 1500));
await page.press("#text", "Enter");
for (const all of [PAYLOADS, ...LONG.map((words) => [words])]) {
  await page.evaluate((messages) => {
    for (const message of messages) {
      window.channel.dispatchEvent(new MessageEvent("message", { data: JSON.stringify(message) }));
    }
    for (const details of document.querySelectorAll("details")) details.open = true;
  }, all.flatMap(messages));
  await compare("in a call", atRest);
  seen.shown += await page.evaluate((all) => {
    const text = document.getElementById("log").textContent;
    return all.filter((words) => text.includes(words)).length;
  }, all);
}
for (const of of ["goodbye", "error"]) {
  if (of === "error") {
    await page.click("#call");
    await page.waitForSelector("[data-state=talking]", { timeout: SOON_MS });
  }
  await page.evaluate(([of, words]) => {
    const data = of === "error" ? { error: words, fatal: true } : { type: "goodbye", reason: words };
    const type = of === "error" ? "error" : "server-message";
    const message = { label: "rtvi-ai", type, data };
    window.channel.dispatchEvent(new MessageEvent("message", { data: JSON.stringify(message) }));
  }, [of, PAYLOADS.join(" ").slice(0, 9999)]);
  await page.waitForSelector(`[data-state=${of === "error" ? "failed" : "ended"}]`);
  await compare(of, atRest);
}

// --- refusals, on both pages

for (const [where, url, calls, call] of [
  ["own", own, "**/start", "#call"],
  ["button", button, "**/v1/realtime/calls", "offhook-call [part=button]"],
]) {
  await page.goto(url);
  const before = await made();
  for (const words of TOGETHER) {
    for (const status of [400, 500]) {
      const headers = { "Access-Control-Allow-Origin": "*" };
      await page.route(calls, (route) => route.fulfill({
        status, headers, json: { error: { message: words }, detail: words, reason: words } }), { times: 1 });
      await page.click(call);
      await page.waitForFunction((where) => where === "own"
        ? document.body.dataset.state === "failed"
        : document.querySelector("offhook-call").shadowRoot.querySelector("[role=status]").textContent !== "" &&
          document.querySelector("offhook-call").shadowRoot.querySelector("button").dataset.state === "idle", where);
      await compare(`a refusal, ${where}`, before);
    }
  }
  if (where === "button") {
    const look = page.locator(call);
    seen.button = {
      label: await look.textContent(),
      colour: await look.evaluate((element) => getComputedStyle(element).backgroundColor),
    };
  }
}
seen.troubles = troubles.splice(0).filter((trouble) => !/status of (400|500)/.test(trouble));

// --- in frames of another site

await page.goto(`${button}/frames`);
const [, framed, inFrame] = page.frames();
seen.framed = framed.url();
await inFrame.click("offhook-call [part=button]");
await inFrame.waitForFunction(() =>
  document.querySelector("offhook-call").shadowRoot.querySelector("[role=status]").textContent.startsWith("Please"));
seen.inFrame = await inFrame.locator("offhook-call [part=button]").getAttribute("data-state");

await browser.close();
console.log(JSON.stringify(seen));
