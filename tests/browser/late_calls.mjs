// Calls by a caller who does not wait: node late_calls.mjs {chromium, own, button}. `own` is the URL of
// offhook's page, `button` that of a site with embed.js; gives what was open during and after each call.

import { open } from "./browser.mjs";

const { own, button, ...options } = JSON.parse(process.argv[2]);
const LONGEST_MS = 30000; // of a call; one that hangs is told of
const { browser, page, troubles } = await open({ ...options, url: "about:blank" });
for (const path of ["late.js", "late_calls.js"]) await page.addInitScript({ path });

const seen = { troubles, own: {}, button: {} };
for (const [where, url] of Object.entries({ own, button })) {
  await page.goto(url);
  const names = await page.evaluate((where) => Object.keys(window.scenarios(where)), where);
  for (const name of names) {
    const told = await page.evaluate(([where, name, ms]) => Promise.race([
      window.scenarios(where)[name](),
      new Promise((resolve) => setTimeout(resolve, ms, ["it hangs"])),
    ]), [where, name, LONGEST_MS]);
    seen[where][name] = told;
    if (told.at(-1) !== "idle, 0 microphones, 0 connections, 0 screens") await page.goto(url);
  }
}

await browser.close();
console.log(JSON.stringify(seen));
