// The server is restarted: desks that have signed in register again by themselves.

import fs from "node:fs";
import { office } from "./desk_pages.mjs";

const options = JSON.parse(process.argv[2]);
const { browser, desk } = await office(options);
const ann = await desk(440);
const bob = await desk(620);
await ann.signIn("101", "pass-101");
await bob.signIn("102", "pass-102");
await Promise.all([ann.ready(), bob.ready()]);
fs.writeFileSync(options.stopped, "");
await ann.page.locator("#line[data-state=down]").waitFor();
const offline = await ann.page.locator("#line").innerText();
while (!fs.existsSync(options.back)) await new Promise((then) => setTimeout(then, 100));
await Promise.all([ann.ready(), bob.ready()]);
await ann.dial("102");
await bob.shows("Calls you", "Ann");
await bob.press("Answer");
const talk = [await ann.until(620), await bob.until(440)];
await browser.close();
console.log(JSON.stringify({ offline, talk }));
