// Prints the types of those events that @openai/agents-realtime would pass over: of the events on
// standard input, one per line, which its schemas refuse.
import { createInterface } from 'node:readline';
import { realtimeServerEventSchema as schema } from './node_modules/@openai/agents-realtime/dist/openaiRealtimeEvents.mjs';

const known = new Set(schema.options.map((option) => option.shape.type.value));
const wrong = [];
const seen = new Set();
for await (const line of createInterface({ input: process.stdin })) {
  const event = JSON.parse(line);
  seen.add(event.type);
  const { success, error } = schema.safeParse(event);
  if (!success && known.has(event.type)) wrong.push([event.type, error.issues]);
}
const unknown = [...seen].filter((type) => !known.has(type)).sort();
const missed = [...known].filter((type) => !seen.has(type)).sort();
console.log(JSON.stringify({ wrong, unknown, missed }));
