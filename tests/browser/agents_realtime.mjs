// OpenAI's agents SDK, as it comes from npm, in a Realtime session by WebSocket.
//
//     node agents_realtime.mjs '{"url": "ws://localhost:7860/v1/realtime?model=gpt-realtime", "question": "question.wav"}'
//
// Types a question that a tool answers, speaks another, hands the conversation to a second agent,
// and prints one JSON object of what it was told.

import fs from "node:fs";
import { RealtimeAgent, RealtimeSession, tool } from "@openai/agents-realtime";
import { z } from "zod";

const { url, question } = JSON.parse(process.argv[2]);
const seen = { events: [], generic: [], errors: [], audio: 0, tools: [], interrupted: 0 };

const stock = tool({
  name: "stock",
  description: "How many are in stock.",
  parameters: z.object({ what: z.string() }),
  execute: async ({ what }) => {
    seen.tools.push(what);
    return "12";
  },
});
const workshop = new RealtimeAgent({ name: "workshop", instructions: "You repair." });
const desk = new RealtimeAgent({
  name: "desk",
  instructions: "You are the desk.",
  tools: [stock],
  handoffs: [workshop],
});

const session = new RealtimeSession(desk, { transport: "websocket" });
session.on("audio", ({ data }) => (seen.audio += data.byteLength));
session.on("error", ({ error }) => seen.errors.push(JSON.stringify(error)));
session.on("audio_interrupted", () => (seen.interrupted += 1));
session.on("agent_handoff", (_, from, to) => (seen.handoff = [from.name, to.name]));
session.transport.on("*", (event) => seen.events.push(event.type));

function until(kind, count = 1) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no ${kind}: ${seen.events.join(" ")}`)), 40000);
    const look = setInterval(() => {
      if (seen.events.filter((type) => type === kind).length < count) return;
      clearTimeout(timer);
      clearInterval(look);
      resolve();
    }, 20);
  });
}

// To its end, by the SDK's clock: what the caller interrupts is truncated.
function played() {
  return new Promise((resolve) => setTimeout(resolve, seen.audio / 48));
}

await session.connect({ apiKey: "none", url });
session.sendMessage("How many bells have you got?");
await until("response.done", 2); // the tool's call, and the answer to its output
await played();
const wav = fs.readFileSync(question);
const pcm = wav.subarray(wav.indexOf("data") + 8);
for (let at = 0; at < pcm.length; at += 9600) {
  session.sendAudio(pcm.buffer.slice(pcm.byteOffset + at, pcm.byteOffset + Math.min(at + 9600, pcm.length)));
}
await until("response.done", 3);
session.sendMessage("My tyre is flat.");
await until("response.done", 5); // the hand-off, and the other agent's answer
await new Promise((resolve) => setTimeout(resolve, 500));
seen.history = session.history
  .filter(({ type }) => type === "message")
  .map(({ role, content }) => [role, content.map(({ text, transcript }) => text ?? transcript).join("")]);
session.close();
console.log(JSON.stringify(seen));
process.exit(0);
