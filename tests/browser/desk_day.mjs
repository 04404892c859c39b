// A day of a team without a PBX: two at desks in their browsers, two at telephones, which a program works for them.

import { existsSync, writeFileSync } from "node:fs";
import { office } from "./desk_pages.mjs";

const options = JSON.parse(process.argv[2]);
const { browser, desk, troubles } = await office(options);
const said = {};
let asked = 0;
const step = (name, value) => {
  said[name] = value;
  console.error(new Date().toISOString(), name, JSON.stringify(value));
};

/** Has somebody at a telephone do something, and waits until it is done. */
async function telephone(who, ...does) {
  const name = `${options.folder}/${++asked}`;
  writeFileSync(`${name}.new`, JSON.stringify([who, ...does]));
  writeFileSync(`${name}.asked`, "");
  while (!existsSync(`${name}.done`)) await new Promise((then) => setTimeout(then, 50));
}

const [ann, bob] = await Promise.all([440, 620].map(desk));
const offer = (one) => one.page.locator("#panels .caller", { has: one.page.getByRole("button", { name: "Accept" }) });
const queue = (one, words) =>
  one.page.getByRole("group", { name: "Queue support" }).locator(".badge", { hasText: words }).waitFor();
const switched = (one, to) => one.page.getByRole("group", { name: "Queue support" }).getByRole("button", { name: to }).click();

// In the morning: both are there.
await ann.signIn("101", "ann-has-a-desk");
await bob.signIn("102", "bob-has-a-desk");
await Promise.all([ann, bob].map((one) => one.ready()));
await queue(ann, "Ready");
await queue(bob, "Ready");

// A caller of the agent is put through to Ann, who asks Bob, and connects the two.
await telephone("dan", "calls", "500");
step("briefing", await offer(ann).locator(".briefing").innerText());
await offer(ann).getByRole("button", { name: "Accept" }).click();
await ann.shows("Connected");
step("ann hears dan", await ann.until(870));
await ann.press("Hold");
await ann.dial("102");
await bob.shows("Calls you");
await bob.press("Answer");
step("ann asks bob", [await ann.until(620), await bob.until(440)]);
await ann.press("Connect with Dan");
await ann.alone();
step("bob hears dan", await bob.until(870));
await bob.press("Hang up");
await telephone("dan", "is alone");
await queue(ann, "Ready");

// Bob has lunch, so the next is Ann's; she adds a colleague, and leaves the two.
await switched(bob, "Pause");
await queue(bob, "Paused");
await telephone("cleo", "calls", "500");
await offer(ann).getByRole("button", { name: "Accept" }).click();
await ann.shows("Connected");
step("ann hears cleo", await ann.until(740));
const caller = ann.page.locator("#panels .caller").first();
await caller.getByLabel("Add somebody to the call").fill("104");
await caller.getByRole("button", { name: "Add" }).click();
await caller.getByText("In this call: 103, 104").waitFor();
await caller.getByLabel("Note about this call").fill("Dan knows more.");
await caller.getByRole("button", { name: "Save the note" }).click();
await caller.locator(".notes li", { hasText: "Dan knows more." }).waitFor();
await ann.press("Hang up");
await ann.alone();
await telephone("cleo", "hears and hangs up", 870);
await telephone("dan", "is alone");

// In the afternoon: Ann is busy, Bob is back and passes on, and she has the caller then.
await queue(ann, "Ready");
await switched(bob, "Ready");
await queue(bob, "Ready");
await switched(ann, "Pause");
await queue(ann, "Paused");
await telephone("dan", "calls", "500");
await offer(bob).waitFor();
await switched(ann, "Ready");
await offer(bob).getByRole("button", { name: "Pass on" }).click();
await offer(ann).getByRole("button", { name: "Accept" }).click();
await ann.shows("Connected");
step("ann has whom bob passes on", await ann.until(870));
await telephone("dan", "hangs up");
await ann.alone();

// In the evening: Ann calls a telephone; nobody is at another, whose voicemail answers.
await ann.dial("103");
await ann.shows("Connected");
step("ann calls cleo", await ann.until(740));
await ann.press("Hang up");
await ann.alone();
await telephone("dan", "leaves");
await ann.dial("104");
await ann.shows("Connected");
await ann.press("Hang up");
await ann.alone();
await browser.close();
console.log(JSON.stringify({ said, troubles }));
