// The connection to the server is cut in a call: the sound goes on, the phone registers again, and the call obeys.

import fs from "node:fs";
import { office } from "./desk_pages.mjs";

const options = JSON.parse(process.argv[2]);
const { browser, desk } = await office(options);
const ann = await desk(440);
const bob = await desk(620);
await ann.signIn("101", "pass-101");
await bob.signIn("102", "pass-102");
await Promise.all([ann.ready(), bob.ready()]);
await ann.dial("102");
await bob.shows("Calls you", "Ann");
await bob.press("Answer");
const before = [await ann.until(620), await bob.until(440)];
fs.writeFileSync(options.cut, "");
while (!fs.existsSync(options.healed)) await new Promise((then) => setTimeout(then, 100));
await Promise.all([ann.ready(), bob.ready()]);
const meanwhile = [await ann.until(620), await bob.until(440)];
await bob.press("Hold");
await bob.shows("On hold");
const held = await ann.until(0);
await ann.press("Hang up");
await Promise.all([ann.alone(), bob.alone()]);
await browser.close();
console.log(JSON.stringify({ before, meanwhile, held, over: true }));
