// OpenAI's client in a page: node openai_page.mjs {chromium, url, server, key, text}

import { open } from "./browser.mjs";

const { server, key, text, ...options } = JSON.parse(process.argv[2]);
const { browser, page, troubles } = await open(options);
const answers = await page.evaluate(
  (asked) => window.ask(asked).catch((error) => ({ error: `${error}` })),
  { url: `${server}/v1`, key, text },
);
await browser.close();
console.log(JSON.stringify({ answers, troubles }));
