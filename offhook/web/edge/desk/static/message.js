// SIP messages as text (RFC 3261 §7): read, and written. Only what a phone needs to know of them.

const COMPACT = {
  b: "referred-by", c: "content-type", d: "request-disposition", e: "content-encoding", f: "from", i: "call-id",
  k: "supported", l: "content-length", m: "contact", o: "event", r: "refer-to", s: "subject", t: "to", u: "allow-events",
  v: "via", x: "session-expires",
};
const VERSION = "SIP/2.0";

/** The headers of a message, in order; names are compared without case, and short ones are known. */
export class Headers {
  #lines = [];

  constructor(lines = []) {
    for (const [name, value] of lines) this.add(name, value);
  }

  add(name, value) {
    this.#lines.push([name, String(value).replace(/[\r\n]+/g, " ")]);
    return this;
  }

  all(name) {
    const wanted = name.toLowerCase();
    return this.#lines.filter(([given]) => full(given) === wanted).map(([, value]) => value);
  }

  get(name) {
    return this.all(name)[0] ?? "";
  }

  /** Those that a program may show or use, as an object by name. */
  plain() {
    return Object.fromEntries(this.#lines.toReversed());
  }

  toString() {
    return this.#lines.map(([name, value]) => `${name}: ${value}\r\n`).join("");
  }
}

const full = (name) => COMPACT[name.toLowerCase()] ?? name.toLowerCase();

/**
 * A message: {method, uri} of a request or {status, reason} of a response, `headers`, `body`, and what is read of the
 * headers: callId, cseq {number, method}, from, to. null if this is none.
 */
export function parse(text) {
  const end = text.indexOf("\r\n\r\n");
  const head = (end < 0 ? text : text.slice(0, end)).replace(/\r\n[ \t]+/g, " ").split("\r\n");
  const body = end < 0 ? "" : text.slice(end + 4);
  const headers = new Headers();
  for (const line of head.slice(1)) {
    const colon = line.indexOf(":");
    if (colon > 0) headers.add(line.slice(0, colon).trim(), line.slice(colon + 1).trim());
  }
  const cseq = /^(\d{1,10})\s+(\S+)$/.exec(headers.get("CSeq"));
  const from = address(headers.get("From"));
  const to = address(headers.get("To"));
  const callId = headers.get("Call-ID");
  if (!cseq || !from || !to || !callId || !headers.get("Via")) return null;
  const read = { headers, body, from, to, callId, cseq: { number: Number(cseq[1]), method: cseq[2] } };
  const response = /^SIP\/2\.0 (\d{3})(?: (.*))?$/.exec(head[0]);
  if (response) return { ...read, status: Number(response[1]), reason: response[2] ?? "" };
  const request = /^([A-Za-z.!%*_+`'~-]+) (\S+) SIP\/2\.0$/.exec(head[0]);
  if (!request || request[1] !== read.cseq.method) return null;
  return { ...read, method: request[1], uri: request[2] };
}

/** A message's text. `headers` are pairs, or Headers. */
export function format({ method, uri, status, reason, headers, body = "" }) {
  const first = method ? `${method} ${uri} ${VERSION}` : `${VERSION} ${status} ${reason}`;
  const length = new TextEncoder().encode(body).length;
  const lines = headers instanceof Headers ? headers : new Headers(headers);
  return `${first}\r\n${lines}Content-Length: ${length}\r\n\r\n${body}`;
}

/** {name, uri, parameters} of From, To, Contact and the like (RFC 3261 §20.10); null if it is none. */
export function address(value) {
  const named = /^\s*(?:"((?:[^"\\]|\\.)*)"|([^<"]*))\s*<([^>]*)>(.*)$/s.exec(value);
  const [uri, rest] = named ? [named[3], named[4]] : split(value);
  if (!/^(sips?|tel):/i.test(uri.trim())) return null;
  const name = named ? (named[1] ?? named[2]).replace(/\\(.)/g, "$1").trim() : "";
  return { name, uri: uri.trim(), parameters: parametersOf(rest) };
}

function split(value) {
  const semicolon = value.indexOf(";");
  return semicolon < 0 ? [value, ""] : [value.slice(0, semicolon), value.slice(semicolon)];
}

function parametersOf(text) {
  const found = {};
  for (const part of text.split(";")) {
    const [name, value = ""] = part.split("=");
    if (name.trim()) found[name.trim().toLowerCase()] = value.trim().replace(/^"(.*)"$/, "$1");
  }
  return found;
}

/** The user of a URI, which for phones is the number. */
export function userOf(uri) {
  const user = /^(?:sips?:([^@;?]*)@|tel:([^;]*))/i.exec(uri);
  const raw = user ? (user[1] ?? user[2]) : "";
  try {
    return decodeURIComponent(raw);
  } catch {
    return raw;
  }
}

/** A number as the user of a URI (RFC 3261 §25.1): "#" is none of its characters. */
export function asUser(number) {
  return encodeURIComponent(number).replace(/%2B/gi, "+").replace(/%26/gi, "&").replace(/%24/g, "$");
}

/** The status that a message/sipfrag body reports (RFC 3515 §2.4.5); 0 if it has none. */
export function statusOfFragment(body) {
  return Number(/^SIP\/2\.0 (\d{3})/.exec(body)?.[1] ?? 0);
}

/** New and heard messages of a message summary (RFC 3842); null if it has none. */
export function messagesOf(body) {
  const found = /^voice-message:\s*(\d{1,6})\/(\d{1,6})/im.exec(body);
  return found && { fresh: Number(found[1]), heard: Number(found[2]) };
}

/** "sendrecv", "sendonly", "recvonly" or "inactive": what the audio of a description says of its sender. */
export function directionOf(sdp) {
  return /^a=(sendrecv|sendonly|recvonly|inactive)\s*$/m.exec(sdp)?.[1] ?? "sendrecv";
}

/** Whether the sender of this description wants to hear nothing: it holds the call (RFC 3264 §8.4). */
export const holds = (sdp) => ["sendonly", "inactive"].includes(directionOf(sdp));
