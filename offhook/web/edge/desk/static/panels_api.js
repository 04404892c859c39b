// Requests to the server for what is beside the phone.

const AGAIN_MS = 3000;

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(`desk/${path}`, { ...options, credentials: "same-origin", cache: "no-store" });
  } catch {
    throw new Error("The server cannot be reached.");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  throw Object.assign(new Error(answer.error ?? `The server answers ${response.status}.`), { status: response.status });
}

export const look = (path) => ask(path);
export const change = (path, body) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

/** Calls `queues` and `calls` with what the server has whenever it changes, and `lost` while nothing comes; returns what ends it. */
export function events({ queues, calls, lost }) {
  let source, again = 0;
  const open = () => {
    source = new EventSource("desk/events");
    source.addEventListener("queues", ({ data }) => queues(JSON.parse(data).queues));
    source.addEventListener("calls", ({ data }) => calls(JSON.parse(data).calls));
    source.addEventListener("reconnect", () => { source.close(); open(); });
    source.addEventListener("error", () => {
      lost();
      // A browser comes back by itself, unless it was refused.
      if (source.readyState === EventSource.CLOSED) again = setTimeout(open, AGAIN_MS);
    });
  };
  open();
  return () => {
    source.close();
    clearTimeout(again);
  };
}
