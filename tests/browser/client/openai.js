// OpenAI's own client as a page of another site uses it; openai_page.mjs runs it.

import OpenAI, { toFile } from "openai";

/** What the server at `url` answers it: names of models, sound, and the words in that sound. */
window.ask = async ({ url, key, text }) => {
  const openai = new OpenAI({
    baseURL: url,
    apiKey: key,
    maxRetries: 0,
    dangerouslyAllowBrowser: true,
  });
  const { data, response } = await openai.models.list().withResponse();
  const speech = await openai.audio.speech.create({ model: "tts-1", voice: "alloy", input: text });
  const sound = await speech.arrayBuffer();
  const file = await toFile(sound, "speech.mp3");
  const heard = await openai.audio.transcriptions.create({ model: "whisper-1", file });
  let refused = null;
  try {
    await openai.audio.speech.create({ model: "tts-1", voice: "nobody", input: text });
  } catch (error) {
    refused = { status: error.status, param: error.param };
  }
  const socket = new WebSocket(`${url.replace("http", "ws")}/realtime?intent=transcription`, [
    "realtime",
    `openai-insecure-api-key.${key}`,
  ]);
  const first = await new Promise((resolve, reject) => {
    socket.onmessage = (message) => resolve(JSON.parse(message.data).type);
    socket.onerror = () => reject(new Error("the socket does not open"));
  });
  socket.close();
  return {
    models: data.data.map((model) => model.id),
    id: response.headers.get("x-request-id"),
    bytes: sound.byteLength,
    heard: heard.text,
    refused,
    first,
  };
};
