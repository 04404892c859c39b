// A caller waits in a queue; somebody at a desk accepts with a click, notes what it was about, and is ready again.

import { findings } from "./browser.mjs";
import { office } from "./desk_pages.mjs";

const options = JSON.parse(process.argv[2]);
const { browser, desk, troubles } = await office(options);
const said = {};
const step = (name, value) => {
  said[name] = value;
  console.error(new Date().toISOString(), name, JSON.stringify(value));
};

const [ann, bob, cleo] = await Promise.all([440, 620, 740].map(desk));
await ann.signIn("101", "pass-101");
await bob.signIn("102", "pass-102");
await cleo.signIn("103", "pass-103");
await Promise.all([ann, bob, cleo].map((one) => one.ready()));
const panels = ann.page.locator("#panels");
const queue = panels.getByRole("group", { name: "Queue support" });
const is = (words) => queue.locator(".badge", { hasText: words }).waitFor();
const caller = panels.locator(".caller").first();
const note = async (text) => {
  await caller.getByLabel("Note about this call").fill(text);
  await caller.getByRole("button", { name: "Save the note" }).click();
  await caller.locator(".notes li", { hasText: text }).waitFor();
};

await is("Ready");
await queue.getByRole("button", { name: "Pause" }).click();
await is("Paused");
await bob.dial("500");
await queue.getByText("1 caller waits").waitFor();
step("with an agent", await bob.page.locator(".caller .add").isVisible());
await queue.getByRole("button", { name: "Ready" }).click();
await caller.getByRole("button", { name: "Accept" }).waitFor();
step("briefing", await caller.locator(".briefing").innerText());
step("who", await caller.locator("h2").innerText());
await caller.locator(".said li").first().waitFor();
step("words", await caller.locator(".said").innerText());
step("axe while it rings", await findings(ann.page, "an offer"));
await caller.getByRole("button", { name: "Accept" }).click();
await ann.shows("Connected");
step("talk", [await ann.until(620), await bob.until(440)]);
await is("In a call");
await note(options.hostile);
step("axe in a call", await findings(ann.page, "beside a call"));
await caller.getByLabel("Add somebody to the call").fill("103");
await caller.getByRole("button", { name: "Add" }).click();
await cleo.shows("Calls you");
await cleo.press("Answer");
await caller.getByText("In this call: 102, 103").waitFor();
await ann.press("Hang up");
await ann.alone();
step("without ann", [await bob.until(740), await cleo.until(620)]);
await bob.press("Hang up");
await cleo.alone();
await is("Wrap-up");
await note("Wants to be called back");
await queue.getByRole("button", { name: "Ready" }).click();
await is("Ready");

await bob.dial("500");
await panels.locator(".caller .history").waitFor();
const again = panels.locator(".caller", { has: ann.page.getByRole("button", { name: "Pass on" }) });
step("history", (await again.locator(".history p").allInnerTexts()).map((text) => text.trim()));
await again.getByRole("button", { name: "Pass on" }).click();
await ann.alone();
step("passed on", await ann.notice());
await bob.press("Hang up");
step("ran", await ann.page.evaluate(() => [document.title, document.querySelectorAll("#panels img").length]));
await browser.close();
console.log(JSON.stringify({ said, troubles }));
