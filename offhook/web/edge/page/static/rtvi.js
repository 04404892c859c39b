// RTVI messages: JSON with a label, a type and data, on the call's data channel.

const LABEL = "rtvi-ai";
const VERSION = "2.1.0";

let sent = 0;

function message(type, data) {
  return { label: LABEL, type, id: `page-${++sent}`, data };
}

export function clientReady() {
  return message("client-ready", {
    version: VERSION,
    about: { library: "offhook-page", library_version: "1.0.0", platform: "web" },
  });
}

export function sendText(content) {
  return message("send-text", {
    content,
    options: { run_immediately: true, audio_response: true },
  });
}

/** What a message is, in a word: offhook's own information travels inside `server-message`. */
export function nameOf({ type, data, message }) {
  const of = { "server-message": data?.type, signalling: message?.type }[type];
  return of ? `${type} ${of}` : String(type);
}

/**
 * Calls the handler of an RTVI message with its data; what has no handler is ignored.
 * offhook's own information travels inside `server-message` and has its own handlers.
 */
export function dispatch(received, handlers, ownHandlers) {
  if (received.label !== LABEL) return;
  const data = received.data ?? {};
  const own = received.type === "server-message";
  const [table, name] = own ? [ownHandlers, data.type] : [handlers, received.type];
  if (Object.hasOwn(table, name)) table[name](data);
}
