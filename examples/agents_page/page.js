// A call of OpenAI's agents SDK with an agent of offhook: what the agent is told and may do is here.

import { RealtimeAgent, RealtimeSession, tool } from "@openai/agents-realtime";

const button = document.querySelector("button");
const status = document.querySelector("[role=status]");
const list = document.querySelector("ol");
const STOCK = { bells: 12, lamps: 3 };

const stock = tool({
  name: "stock",
  description: "How many of an article are in stock.",
  parameters: {
    type: "object",
    properties: { article: { type: "string" } },
    required: ["article"],
    additionalProperties: false,
  },
  execute: async ({ article }) => String(STOCK[article] ?? "none"),
});
const agent = new RealtimeAgent({
  name: "shop",
  instructions: "You sell bicycle parts. Greet the caller first, and be brief.",
  tools: [stock],
});

/** Shows what was said; an interrupted answer has the words that were heard. */
function show(history) {
  const said = history.filter(({ type }) => type === "message");
  list.replaceChildren(
    ...said.map(({ role, content }) => {
      const line = document.createElement("li");
      line.textContent = `${role}: ${content.map(({ text, transcript }) => text ?? transcript ?? "…").join("")}`;
      return line;
    }),
  );
}

let session;

async function talk() {
  const response = await fetch("secret", { method: "POST" });
  if (!response.ok) throw new Error(await response.text());
  const { value, url } = await response.json();
  session = new RealtimeSession(agent, { transport: "webrtc" });
  session.on("history_updated", show);
  session.on("error", ({ error }) => (status.textContent = JSON.stringify(error)));
  await session.connect({ apiKey: value, url });
  session.transport.sendEvent({ type: "response.create" });
}

button.addEventListener("click", async () => {
  const talking = button.textContent !== "Talk";
  button.disabled = true;
  try {
    if (talking) session.close();
    else await talk();
    button.textContent = talking ? "Talk" : "Hang up";
    status.textContent = "";
  } catch (error) {
    status.textContent = error.message;
  } finally {
    button.disabled = false;
  }
});
