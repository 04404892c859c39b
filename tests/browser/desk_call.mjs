// A desk calls somebody whose telephone answers by itself, listens, and hangs up.

import { office } from "./desk_pages.mjs";

const options = JSON.parse(process.argv[2]);
const { browser, desk } = await office(options);
const ann = await desk(440);
await ann.signIn("101", "pass-101");
await ann.ready();
await ann.dial("102");
await ann.shows("Connected");
const heard = await ann.until(620);
await ann.press("Hang up");
await ann.alone();
await browser.close();
console.log(JSON.stringify({ heard }));
