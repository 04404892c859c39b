// OpenAI's agents SDK in a WebRTC call from a page of another site; agents_page.mjs runs it.

import { RealtimeAgent, RealtimeSession, tool } from "@openai/agents-realtime";
import { z } from "zod";

const seen = { events: [], errors: [], tools: [], interrupted: 0 };

/** Calls the server whose route is `calls`; what is seen of the call is in `window.seen`. */
window.call = async ({ calls, secret }) => {
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
  const agent = new RealtimeAgent({
    name: "desk",
    instructions: "You are the desk.",
    tools: [stock],
    handoffs: [workshop],
  });
  const session = new RealtimeSession(agent, { transport: "webrtc" });
  session.on("error", ({ error }) => seen.errors.push(JSON.stringify(error)));
  session.on("audio_interrupted", () => (seen.interrupted += 1));
  session.on("agent_handoff", (_, from, to) => (seen.handoff = [from.name, to.name]));
  session.transport.on("*", (event) => seen.events.push(event.type));
  window.session = session;
  await session.connect({ apiKey: secret, url: calls });
};
window.seen = () => ({
  ...seen,
  history: window.session.history
    .filter(({ type }) => type === "message")
    .map(({ role, status, content }) => [role, status, content.map(({ text, transcript }) => text ?? transcript).join("")]),
});
