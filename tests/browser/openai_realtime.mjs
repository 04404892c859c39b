// OpenAI's own client in Realtime conversations over TLS, by each of its classes:
//
//     node --experimental-websocket openai_realtime.mjs '{"url": "https://localhost/v1", "key": "…"}'
//
// Each has a turn of speech and one of text; those of the beta are refused. Prints what they saw.

import OpenAI from "openai";
import { OpenAIRealtimeWS as BetaWS } from "openai/beta/realtime/ws";
import { OpenAIRealtimeWebSocket as BetaWebSocket } from "openai/beta/realtime/websocket";
import { OpenAIRealtimeWebSocket } from "openai/realtime/websocket";
import { OpenAIRealtimeWS } from "openai/realtime/ws";

const { url, key } = JSON.parse(process.argv[2]);
const EVENT_MS = 300000;

async function session(Class, apiKey, model = "gpt-realtime") {
  const realtime = new Class({ model }, new OpenAI({ baseURL: url, apiKey }));
  const seen = { types: [], errors: [], bytes: 0, said: [] };
  const closed = new Promise((resolve) => realtime.socket.addEventListener("close", ({ code }) => resolve(code)));
  realtime.on("error", ({ message, error }) => seen.errors.push(error?.code ?? message));
  realtime.on("event", ({ type }) => seen.types.push(type));
  realtime.on("response.output_audio.delta", ({ delta }) => (seen.bytes += Buffer.from(delta, "base64").length));
  const next = (type) =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no ${type} after ${seen.types.join(" ")}`)), EVENT_MS);
      realtime.on(type, (event) => (clearTimeout(timer), resolve(event)));
    });
  return { realtime, seen, closed, next };
}

async function converse(Class, apiKey) {
  const { realtime, seen, closed, next } = await session(Class, apiKey);
  await next("session.created");
  for (const modality of ["audio", "text"]) {
    const done = next("response.done");
    realtime.send({ type: "session.update", session: { type: "realtime", output_modalities: [modality] } });
    const content = [{ type: "input_text", text: "Hello." }];
    realtime.send({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
    realtime.send({ type: "response.create" });
    const [part] = (await done).response.output[0].content;
    seen.said.push(part.transcript ?? part.text);
  }
  realtime.close();
  return { ...seen, types: [...new Set(seen.types)], code: await closed };
}

async function refused(Class) {
  const { seen, closed } = await session(Class, key);
  return { code: await closed, ...seen };
}

const { value: secret } = await new OpenAI({ baseURL: url, apiKey: key }).realtime.clientSecrets.create();
const report = {
  ws: await converse(OpenAIRealtimeWS, key),
  websocket: await converse(OpenAIRealtimeWebSocket, secret),
  beta: [await refused(BetaWS), await refused(BetaWebSocket)],
};
process.stdout.write(JSON.stringify(report), () => process.exit(0)); // not before all is written
