// OpenAI's agents SDK, as it comes from npm, in a Realtime session by WebSocket.
//
//     node agents_realtime.mjs '{"url": "ws://localhost:7860/v1/realtime?model=gpt-realtime", "question": "question.wav"}'
//
// Is greeted, types a question that a tool answers, interrupts a long answer by another question,
// and hands the conversation to a second agent; then asks that question again for `seconds`.
// Prints one JSON object of what it was told.

import fs from "node:fs";
import { RealtimeAgent, RealtimeSession, tool } from "@openai/agents-realtime";
import { z } from "zod";

const { url, question, seconds = 0 } = JSON.parse(process.argv[2]);
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
    const timer = setTimeout(() => reject(new Error(`no ${kind}: ${seen.events.join(" ")}`)), 300000);
    const look = setInterval(() => {
      if (seen.events.filter((type) => type === kind).length < count) return;
      clearTimeout(timer);
      clearInterval(look);
      resolve();
    }, 20);
  });
}

// To its end, by the SDK's clock: what the caller interrupts is truncated.
async function played() {
  await new Promise((resolve) => setTimeout(resolve, seen.audio / 48));
  seen.audio = 0;
}

// As a microphone does, a piece every 100 ms.
async function speak() {
  const wav = fs.readFileSync(question);
  const pcm = wav.subarray(wav.indexOf("data") + 8);
  for (let at = 0; at < pcm.length; at += 4800) {
    session.sendAudio(pcm.buffer.slice(pcm.byteOffset + at, pcm.byteOffset + Math.min(at + 4800, pcm.length)));
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

await session.connect({ apiKey: "none", url });
session.transport.sendEvent({ type: "response.create" });
await until("response.done", 1); // a greeting
await played();
session.sendMessage("How many bells have you got?");
await until("response.done", 3); // the tool's call, and the answer to its output
await played();
session.sendMessage("Count to fifteen.");
await until("response.output_audio.done", 3);
await new Promise((resolve) => setTimeout(resolve, 1000)); // a few words are played
await speak();
await until("conversation.item.truncated");
await until("response.done", 5);
seen.audio = 0;
session.sendMessage("My tyre is flat.");
await until("response.done", 7); // the hand-off, and the other agent's answer
await played();
seen.turns = 0;
for (const end = Date.now() + 1000 * seconds; Date.now() < end; seen.turns += 1) {
  await speak();
  await until("response.done", 8 + seen.turns);
  await played();
}
await new Promise((resolve) => setTimeout(resolve, 500));
seen.history = session.history
  .filter(({ type }) => type === "message")
  .map(({ role, content }) => [role, content.map(({ text, transcript }) => text ?? transcript).join("")]);
session.close();
process.stdout.write(JSON.stringify(seen), () => process.exit(0)); // not before all is written
