// A team of three at their desks: they call each other, hold, press keys and transfer.

import { findings } from "./browser.mjs";
import { office } from "./desk_pages.mjs";

const options = JSON.parse(process.argv[2]);
const TONES = { 101: 440, 102: 620, 103: 740 };
const { browser, desk, troubles } = await office(options);
const said = {};
const step = (name, value) => {
  said[name] = value;
  console.error(new Date().toISOString(), name, JSON.stringify(value));
};

const [ann, bob, cleo] = await Promise.all(Object.values(TONES).map(desk));
step("axe at the door", await findings(ann.page, "sign in"));
await ann.signIn("101", "wrong");
await ann.page.getByRole("alert").filter({ hasText: "no extension" }).waitFor();
await ann.signIn("101", "pass-101");
await bob.signIn("102", "pass-102");
await cleo.signIn("103", "pass-103");
await Promise.all([ann, bob, cleo].map((one) => one.ready()));
step("axe at rest", await findings(ann.page, "at rest"));

// --- a call, and hold

await ann.dial("102");
await bob.shows("Calls you", "Ann");
await ann.shows("Ringing");
step("axe while it rings", await findings(bob.page, "ringing"));
await bob.press("Answer");
await Promise.all([ann.shows("Connected"), bob.shows("Connected")]);
step("talk", [await ann.until(620), await bob.until(440)]);
step("axe in a call", await findings(ann.page, "in a call"));
await ann.press("Mute");
step("muted", await bob.until(0));
await ann.press("Unmute");
await bob.press("Hold");
await bob.shows("On hold");
step("held", await ann.until(0));
await bob.press("Resume");
step("again", [await ann.until(620), await bob.until(440)]);

// --- at once to somebody else

const transfer = async (one, to) => {
  await one.page.getByLabel("Transfer to").first().fill(to);
  await one.press("Transfer");
};
await transfer(bob, "103");
await cleo.shows("Calls you", "Ann");
await cleo.press("Answer");
await bob.alone();
step("transferred", [await ann.until(740), await cleo.until(440)]);
await cleo.press("Hang up");
await Promise.all([ann.alone(), cleo.alone()]);

// --- after asking

await ann.dial("102");
await bob.shows("Calls you");
await bob.press("Answer");
await bob.shows("Connected");
await bob.dial("103");
await cleo.shows("Calls you", "Bob");
await cleo.press("Answer");
step("asked", [await bob.until(740), await ann.until(0)]);
await bob.page.getByRole("button", { name: "Connect with" }).first().click();
await bob.alone();
step("consulted", [await ann.until(740), await cleo.until(440)]);
await ann.press("Hang up");
await Promise.all([ann.alone(), cleo.alone()]);

// --- nobody, no number, declined

await ann.dial("102");
await bob.shows("Calls you");
await bob.press("Decline");
await ann.alone();
step("declined", await ann.notice());
await ann.dial("102");
await bob.shows("Calls you");
await ann.press("Hang up");
await bob.alone();
step("missed", await bob.notice());
await ann.dial("999");
await ann.alone();
step("unknown", await ann.notice());

await ann.dial("101");
step("own", await ann.notice());

// --- keys to an agent

await ann.dial("500");
await ann.shows("Connected");
await ann.until(options.agent ?? 0);
for (const key of ["4", "2", "hash"]) await ann.press(key);
await new Promise((then) => setTimeout(then, 1500));
await ann.press("Hang up");
await ann.alone();

// --- at once to an agent

await ann.dial("102");
await bob.shows("Calls you");
await bob.press("Answer");
await ann.shows("Connected");
await transfer(bob, "500");
await bob.alone();
for (const key of ["7", "hash"]) await ann.press(key);
await new Promise((then) => setTimeout(then, 1500));
await ann.press("Hang up");
await ann.alone();

// --- who closes the page hangs up

await ann.dial("102");
await bob.shows("Calls you");
await bob.press("Answer");
await ann.shows("Connected");
ann.page.on("dialog", (dialog) => dialog.accept());
await ann.page.goto("about:blank");
await bob.alone();
step("left", await bob.notice());

await browser.close();
console.log(JSON.stringify({ said, troubles }));
