// OpenAI's own JavaScript client, as it comes from npm, at the speech API.
//
//     node openai_speech.mjs '{"url": "http://localhost:7860/v1", "file": "question.wav"}'
//
// Prints one JSON object of what it was answered; times in ms.

import fs from "node:fs";
import OpenAI from "openai";

const { url, file, text, key = "none" } = JSON.parse(process.argv[2]);
const openai = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
const answers = {};

const hear = (more) =>
  openai.audio.transcriptions.create({
    file: fs.createReadStream(file),
    model: "whisper-1",
    ...more,
  });

answers.models = [];
for await (const model of openai.models.list()) answers.models.push(model.id);

answers.json = (await hear({})).text;
answers.text = await hear({ response_format: "text" });
answers.srt = await hear({ response_format: "srt" });
answers.vtt = await hear({ response_format: "vtt" });
answers.verbose = await hear({
  response_format: "verbose_json",
  timestamp_granularities: ["word", "segment"],
});
answers.translation = (
  await openai.audio.translations.create({ file: fs.createReadStream(file), model: "whisper-1" })
).text;

answers.events = [];
for await (const event of await hear({ model: "gpt-4o-mini-transcribe", stream: true }))
  answers.events.push(event);

answers.speech = {};
for (const format of ["mp3", "opus", "aac", "flac", "wav", "pcm"]) {
  const began = performance.now();
  const response = await openai.audio.speech.create({
    model: "tts-1",
    voice: "alloy",
    input: text,
    response_format: format,
  });
  let bytes = 0;
  let first = 0;
  for await (const chunk of response.body) {
    first ||= performance.now() - began;
    bytes += chunk.length;
  }
  const type = response.headers.get("content-type");
  answers.speech[format] = { bytes, first, total: performance.now() - began, type };
}

const sse = await openai.audio.speech.create({
  model: "gpt-4o-mini-tts",
  voice: "alloy",
  input: text,
  response_format: "pcm",
  stream_format: "sse",
});
answers.sse = (await sse.text())
  .split("\n\n")
  .filter((line) => line.startsWith("data: "))
  .map((line) => JSON.parse(line.slice(6)))
  .map((event) => ({ type: event.type, bytes: Buffer.from(event.audio ?? "", "base64").length }));

answers.errors = [];
for (const wrong of [
  () => openai.audio.speech.create({ model: "tts-1", voice: "nobody-of-that-name", input: "Hi" }),
  () => openai.audio.speech.create({ model: "tts-1", voice: "alloy", input: "" }),
  () => openai.audio.speech.create({ model: "no-such-model", voice: "alloy", input: "Hi" }),
  () => hear({ language: "klingon" }),
])
  try {
    await wrong();
    answers.errors.push(null);
  } catch (error) {
    answers.errors.push({ status: error.status, param: error.param, code: error.code });
  }

console.log(JSON.stringify(answers));
