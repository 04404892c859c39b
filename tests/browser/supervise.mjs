// An operator who listens to a call in the console, speaks and takes it over: node supervise.mjs {chromium, url, key}

import { findings, open } from "./browser.mjs";

const { key, ...options } = JSON.parse(process.argv[2]);
const { browser, page, troubles } = await open(options);
await page.addInitScript(() => {
  const Real = RTCPeerConnection;
  window.RTCPeerConnection = function (...given) {
    return (window.peer = new Real(...given));
  };
});
await page.reload();
await page.waitForSelector(".sign-in");
await page.fill("#key", key);
await page.keyboard.press("Enter");
const row = '[data-row="supervision"]';
const press = (name) => page.click(`${row} button:text-is("${name}")`);
const says = (words) => page.waitForFunction(([of, text]) => document.querySelector(of)?.textContent.includes(text), [`${row} [role=status]`, words]);

await page.waitForSelector(row);
const axe = await findings(page, "call");
await press("Listen");
await says("You hear the call");
await page.waitForFunction(async () => {
  for (const report of (await window.peer.getStats()).values()) if (report.type === "inbound-rtp" && report.audioLevel > 0.05) return true;
});
await press("Speak");
await says("All hear you");
await press("✋ Let desk speak");
await page.waitForSelector(`${row} .hands:empty`, { state: "attached" });
await press("Take over");
await says("The agent has left");
await press("Hand back");
await says("The agent is back");
await press("Leave");
await says("You have left");
console.log(JSON.stringify({ axe, troubles }));
await browser.close();
