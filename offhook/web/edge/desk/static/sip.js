// A SIP user agent over WebSocket (RFC 3261, RFC 7118): it registers, calls and is called. It knows no page: what it
// needs of a browser (the WebSocket, the media, the time) it is given.

import { ALLOW, Call } from "./call.js";
import { format, messagesOf, parse } from "./message.js";

const EXPIRES_S = 120; // of a registration
const KEEP_ALIVE_MS = 30000; // between our keep-alives (RFC 7118 §6)
const ANSWER_MS = 32000; // RFC 3261 §17.1.2.2: a request without any response has failed
const PONG_MS = 10000; // RFC 5626 §4.4.1
const BACK_OFF_MS = [500, 30000]; // the first wait to connect again, and the longest
const MAX_CALLS = 2; // one that is talked in, one on hold
const MAX_PENDING = 100; // requests without a final response
const KNOWN = ["REGISTER", "SUBSCRIBE", "MESSAGE", "PUBLISH", "REFER", "INFO", "PRACK", ...ALLOW.split(", ")];

/**
 * Events: "line" (detail.state: one of "registering", "online", "offline", "refused"), "messages" (detail: {fresh,
 * heard}), and of a call, detail.call: "ringing" (somebody calls), "dialling", "alerting" (it rings there), "answered",
 * "held", "changed", "fault" (detail.message), "ended".
 */
export class UserAgent extends EventTarget {
  calls = new Map(); // by id
  line = "offline";
  #open;
  #socket = null;
  #waiting = new Map(); // branch → {method, uri, headers, answered, timer}
  #registrationId;
  #registrationTag;
  #registrations = 0;
  #instance;
  #timers = new Map(); // by what they are for
  #failures = 0;
  #leaving = false;

  /**
   * `open({opened, message, closed})` connects, and returns {send(text), close()}; `media({failed})` returns the media
   * of a call (see media.js); `number` is the extension, `host` the server's.
   */
  constructor({ number, host, open, media }) {
    super();
    this.#open = open;
    this.media = media;
    this.number = number;
    this.host = host;
    this.uri = this.uriOf(number);
    this.#registrationId = this.token(16);
    this.#registrationTag = this.token(8);
    this.#instance = uuid();
    this.contact = `<sip:${this.token(8)}@${this.token(8)}.invalid;transport=ws>`;
  }

  uriOf(user) {
    return `sip:${user}@${this.host}`;
  }

  token(bytes) {
    return Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  // --- the line

  connect() {
    clearTimeout(this.#timers.get("back off"));
    if (this.#socket || this.#leaving) return;
    this.#say("registering");
    const socket = this.#open({
      opened: () => socket === this.#socket && this.#register(EXPIRES_S),
      message: (text) => socket === this.#socket && this.receive(text),
      closed: () => socket === this.#socket && this.#disconnected(),
    });
    this.#socket = socket;
  }

  /** Hangs up, unregisters and disconnects. */
  close() {
    this.#leaving = true;
    for (const call of this.calls.values()) call.hangUp();
    if (this.line === "online") this.#register(0);
    for (const timer of this.#timers.values()) clearTimeout(timer);
    this.#socket?.close();
    this.#socket = null;
    this.#say("offline");
  }

  #register(expires) {
    this.#registrations += 1;
    const headers = [
      ["From", `<${this.uri}>;tag=${this.#registrationTag}`], ["To", `<${this.uri}>`],
      ["Call-ID", this.#registrationId], ["CSeq", `${this.#registrations} REGISTER`],
      ["Contact", `${this.contact};+sip.instance="<urn:uuid:${this.#instance}>";reg-id=1`],
      ["Expires", expires], ["Allow", ALLOW], ["Supported", "outbound, path"],
    ];
    const answered = (response) => this.#registered(response);
    this.request("REGISTER", `sip:${this.host}`, headers, "", answered);
  }

  #registered(response) {
    if (response && response.status < 200) return;
    if (!response || response.status >= 300) {
      if ([401, 403, 404].includes(response?.status)) this.#say("refused");
      return this.#drop();
    }
    this.#failures = 0;
    this.#after("register", (EXPIRES_S / 2) * 1000, () => this.#register(EXPIRES_S));
    if (this.line === "online") return;
    this.#say("online");
    this.#keepAlive();
    for (const call of this.calls.values()) call.refresh();
  }

  #keepAlive() {
    this.#after("keep alive", KEEP_ALIVE_MS, () => {
      this.#socket?.send("\r\n\r\n");
      this.#after("pong", PONG_MS, () => this.#drop());
    });
  }

  /** The connection is of no use: another one is made. */
  #drop() {
    this.#socket?.close();
    this.#disconnected();
  }

  #disconnected() {
    if (!this.#socket) return;
    this.#socket = null;
    for (const timer of ["register", "keep alive", "pong"]) clearTimeout(this.#timers.get(timer));
    for (const branch of [...this.#waiting.keys()]) this.#answer(branch, null);
    for (const call of [...this.calls.values()]) call.disconnected();
    if (this.line !== "refused") this.#say("offline");
    if (this.#leaving || this.line === "refused") return;
    const [first, longest] = BACK_OFF_MS;
    const wait = Math.min(first * 2 ** this.#failures, longest) * (0.75 + Math.random() / 2);
    this.#failures += 1;
    this.#after("back off", wait, () => this.connect());
  }

  #say(line) {
    if (this.line === line) return;
    this.line = line;
    this.dispatchEvent(new CustomEvent("line", { detail: { state: line } }));
  }

  #after(what, ms, then) {
    clearTimeout(this.#timers.get(what));
    this.#timers.set(what, setTimeout(then, ms));
  }

  pause(ms) {
    return new Promise((resolve) => setTimeout(resolve, ms));
  }

  // --- calls

  /** Calls a number; null if there is no line, or two calls already. */
  dial(number) {
    if (this.line !== "online" || this.calls.size >= MAX_CALLS) return null;
    const call = Call.outgoing(this, number);
    this.calls.set(call.id, call);
    this.emit("dialling", call);
    call.dial();
    return call;
  }

  forget(call) {
    this.calls.delete(call.id);
  }

  emit(type, call, more = {}) {
    this.dispatchEvent(new CustomEvent(type, { detail: { call, ...more } }));
  }

  // --- messages

  /** Handles what the server sends. */
  receive(text) {
    clearTimeout(this.#timers.get("pong"));
    if (this.line === "online") this.#keepAlive();
    if (!text.trim()) return;
    const message = parse(text);
    if (!message) return;
    if (message.status) this.#answer(branchOf(message), message);
    else this.#requested(message);
  }

  #requested(request) {
    const call = this.calls.get(request.callId);
    const { method } = request;
    if (call && (request.to.parameters.tag || method === "CANCEL")) return call.receive(request);
    if (method === "ACK" || (call && method === "INVITE")) return; // of a refusal, or one that came again
    if (method === "INVITE" && !request.to.parameters.tag) return this.#called(request);
    if (method === "NOTIFY" && !call) return this.#notified(request);
    if (method === "OPTIONS") return this.respond(request, 200, "OK", { headers: [["Allow", ALLOW]] });
    if (["BYE", "CANCEL", "INVITE", "UPDATE", "NOTIFY"].includes(method)) {
      return this.respond(request, 481, "Call/Transaction Does Not Exist");
    }
    this.refuseMethod(request);
  }

  refuseMethod(request) {
    const [status, reason] = KNOWN.includes(request.method) ? [405, "Method Not Allowed"] : [501, "Not Implemented"];
    this.respond(request, status, reason, { headers: [["Allow", ALLOW]] });
  }

  #called(invite) {
    const required = invite.headers.get("Require");
    if (required) return this.respond(invite, 420, "Bad Extension", { headers: [["Unsupported", required]] });
    if (this.calls.size >= MAX_CALLS) return this.respond(invite, 486, "Busy Here");
    if (!invite.body) return this.respond(invite, 488, "Not Acceptable Here");
    const call = Call.incoming(this, invite);
    this.calls.set(call.id, call);
    call.ring();
    this.emit("ringing", call);
  }

  /** How many messages wait (RFC 3842). */
  #notified(request) {
    if (!/^message-summary\b/i.test(request.headers.get("Event"))) {
      return this.respond(request, 489, "Bad Event", { headers: [["Allow-Events", "message-summary"]] });
    }
    this.respond(request, 200, "OK");
    const found = messagesOf(request.body);
    if (found) this.dispatchEvent(new CustomEvent("messages", { detail: found }));
  }

  /** Sends a request; `answered` gets each of its responses, or null if it has failed. */
  request(method, uri, headers, body = "", answered = () => {}) {
    const branch = `z9hG4bK${this.token(12)}`;
    const pending = { method, uri, headers, answered, branch };
    if (this.#waiting.size >= MAX_PENDING || !this.#send(method, uri, headers, branch, body)) {
      queueMicrotask(() => answered(null));
      return pending;
    }
    pending.timer = setTimeout(() => this.#answer(branch, null), ANSWER_MS);
    this.#waiting.set(branch, pending);
    return pending;
  }

  /** Sends an ACK of a 2xx, which has no response. */
  send(method, uri, headers) {
    this.#send(method, uri, headers, `z9hG4bK${this.token(12)}`);
  }

  cancel({ uri, headers, branch, cseq }) {
    this.#sendAgain("CANCEL", { uri, headers, branch, cseq });
  }

  #sendAgain(method, { uri, headers, branch, cseq }, to) {
    const kept = headers.filter(([name]) => ["Route", "From", "Call-ID"].includes(name));
    const target = to ?? headers.find(([name]) => name === "To")[1];
    this.#send(method, uri, [...kept, ["To", target], ["CSeq", `${cseq} ${method}`]], branch);
  }

  #send(method, uri, headers, branch, body = "") {
    const via = ["Via", `SIP/2.0/WS ${this.#instance}.invalid;branch=${branch}`];
    if (!this.#socket) return false;
    const lines = [via, ["Max-Forwards", 70], ...headers, ["User-Agent", "offhook desk"]];
    this.#socket.send(format({ method, uri, headers: lines, body }));
    return true;
  }

  /** Gives a response to whoever sent the request, null if there will be none. */
  #answer(branch, response) {
    const pending = this.#waiting.get(branch);
    if (!pending || (response && response.cseq.method !== pending.method)) return;
    const isInvite = pending.method === "INVITE";
    clearTimeout(pending.timer);
    if (isInvite && response?.status >= 300) {
      this.#sendAgain("ACK", { ...pending, cseq: response.cseq.number }, response.headers.get("To"));
    }
    if (!response || response.status >= (isInvite ? 300 : 200)) this.#waiting.delete(branch);
    else if (response.status >= 200) {
      // one that is repeated must be acknowledged again (RFC 3261 §13.2.2.4)
      pending.accepted = true;
      pending.timer = setTimeout(() => this.#waiting.delete(branch), ANSWER_MS);
    } else if (!isInvite) pending.timer = setTimeout(() => this.#answer(branch, null), ANSWER_MS);
    if (response || !pending.accepted) pending.answered(response);
  }

  respond(request, status, reason, { tag = "", headers = [], body = "" } = {}) {
    const to = request.headers.get("To");
    const tagged = /;\s*tag=/i.test(to) ? to : `${to};tag=${tag || this.token(8)}`;
    const lines = [
      ...request.headers.all("Via").map((via) => ["Via", via]), ["From", request.headers.get("From")], ["To", tagged],
      ["Call-ID", request.callId], ["CSeq", request.headers.get("CSeq")],
      ...request.headers.all("Record-Route").map((route) => ["Record-Route", route]), ...headers,
    ];
    this.#socket?.send(format({ status, reason, headers: lines, body }));
  }
}

function branchOf(message) {
  return /;\s*branch=([^;,\s]+)/i.exec(message.headers.get("Via"))?.[1] ?? "";
}

function uuid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/(.{8})(.{4})(.{4})(.{4})(.{12})/, "$1-$2-$3-$4-$5");
}
