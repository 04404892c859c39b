// Calls in Chromium by these ways, one after another: node ice_calls.mjs {chromium, url, ways: [options of ice_call.js]}

import fs from "node:fs";
import { open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const CALL = fs.readFileSync(new URL("ice_call.js", import.meta.url), "utf8");

const { browser, page, troubles } = await open(options);
const results = [];
for (const way of options.ways) results.push(await page.evaluate(`(${CALL})(${JSON.stringify(way)})`));
await browser.close();
console.log(JSON.stringify({ results, troubles }));
