// What a page plays that has the code of the documents: node documented_page.mjs {chromium, url,
// code, text}. Reports for each piece of sound when it begins, how long it is and how loud.

import { open } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const { browser, page, troubles } = await open(options);
const pieces = await page.evaluate(`(async () => {
  const pieces = [];
  const start = AudioBufferSourceNode.prototype.start;
  AudioBufferSourceNode.prototype.start = function (at) {
    const loudest = this.buffer.getChannelData(0).reduce((most, s) => Math.max(most, Math.abs(s)), 0);
    pieces.push({ at, seconds: this.buffer.duration, loudest, late: this.context.currentTime > at });
    return start.call(this, at);
  };
  ${options.code}
  await say(${JSON.stringify(options.text)});
  return pieces;
})()`);
await browser.close();
console.log(JSON.stringify({ pieces, troubles }));
