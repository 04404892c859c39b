// The desk's SIP without a page: messages, the table of a call's life, and a user agent whose server is this script.

import assert from "node:assert/strict";
import { address, asUser, format, holds, messagesOf, parse, statusOfFragment, userOf } from "../../offhook/web/edge/desk/static/message.js";
import { UserAgent } from "../../offhook/web/edge/desk/static/sip.js";
import { STATES, next } from "../../offhook/web/edge/desk/static/states.js";

// --- messages

const INVITE = [
  "INVITE sip:101@desk.invalid SIP/2.0", "v: SIP/2.0/WS a;branch=z9hG4bK1", "f: \"Ann \\\"A\\\" <B>\" <sip:102@host>;tag=x",
  "To: <sip:101@host>", "i: call", "CSeq: 7 INVITE", "Subject: two", "  lines", "m: <sip:102@there;transport=ws>", "", "v=0",
].join("\r\n");
const invite = parse(INVITE);
assert.deepEqual([invite.method, invite.callId, invite.cseq], ["INVITE", "call", { number: 7, method: "INVITE" }]);
assert.deepEqual([invite.from.name, invite.from.uri, invite.from.parameters.tag], ['Ann "A" <B>', "sip:102@host", "x"]);
assert.deepEqual([invite.headers.get("subject"), invite.body], ["two lines", "v=0"]);
assert.equal(parse(INVITE.replace("CSeq: 7 INVITE", "CSeq: 7 BYE")), null);
for (let end = 0; end < INVITE.length; end += 1) parse(INVITE.slice(0, end)); // never throws
for (const broken of ["", "\r\n\r\n", "SIP/2.0 200 OK", "GET / HTTP/1.1\r\n\r\n", "INVITE sip:1 SIP/2.0\r\nFrom: x\r\n\r\n"]) {
  assert.equal(parse(broken), null);
}
const again = parse(format({ status: 200, reason: "OK", headers: [["Via", "SIP/2.0/WS a;branch=z"], ["From", "<sip:1@h>"], ["To", "<sip:2@h>"], ["Call-ID", "c"], ["CSeq", "1 BYE"], ["X", "a\r\nBYE: injected"]], body: "ü" }));
assert.deepEqual([again.status, again.body, again.headers.get("Content-Length"), again.headers.get("BYE")], [200, "ü", "2", ""]);
assert.equal(address("sip:101@host;tag=a").parameters.tag, "a");
assert.equal(address("<javascript:alert(1)>"), null);
assert.deepEqual([userOf("sip:%2B49@h;x"), userOf("tel:+49;phone-context=x"), userOf("sip:host"), userOf("sip:%zz@h")], ["+49", "+49", "", "%zz"]);
assert.deepEqual([asUser("*97#"), asUser("+49"), asUser("a@b;c")], ["*97%23", "+49", "a%40b%3Bc"]);
assert.deepEqual(messagesOf("Messages-Waiting: yes\r\nVoice-Message: 2/8\r\n"), { fresh: 2, heard: 8 });
assert.equal(messagesOf("Messages-Waiting: yes"), null);
assert.deepEqual([statusOfFragment("SIP/2.0 486 Busy Here\r\n"), statusOfFragment("x")], [486, 0]);
assert.deepEqual([holds("a=sendonly\r\n"), holds("a=inactive\r\n"), holds("a=sendrecv\r\n"), holds("")], [true, true, false, false]);

// --- the table: whatever comes, a call ends, and says goodbye if it was up

for (const [state, row] of Object.entries(STATES)) {
  assert.ok(state === "over" || "hangUp" in row || state === "leaving", state);
  for (const [event, [to]] of Object.entries(row)) assert.ok(to in STATES, `${state} ${event}`);
}
assert.deepEqual(next("up", "hangUp"), { state: "over", action: "bye" });
assert.deepEqual(next("leaving", "answered"), { state: "over", action: "ackAndBye" });
assert.equal(next("over", "hangUp"), null);

// --- a user agent at this script's server

class Server {
  sent = [];
  log = [];
  #handlers;
  connections = 0;

  constructor() {
    const media = () => this.medium();
    this.agent = new UserAgent({ number: "101", host: "host", media, open: (handlers) => this.#open(handlers) });
    for (const type of ["line", "messages", "ringing", "dialling", "alerting", "answered", "held", "changed", "fault", "ended"]) {
      this.agent.addEventListener(type, ({ detail }) => this.log.push([type, detail.state ?? detail.message ?? detail.call?.why ?? detail]));
    }
  }

  medium() {
    this.heldLocally = false;
    return {
      offer: async () => `v=0\r\na=${this.heldLocally ? "sendonly" : "sendrecv"}\r\n`,
      answer: async () => { if (this.blocked) throw new Error("blocked"); return "answer"; },
      accept: async (sdp) => (this.accepted = sdp), rollback: async () => (this.rolledBack = true),
      hold: (on) => (this.heldLocally = on), mute: (on) => (this.muted = on), press: (keys) => (this.keys = keys),
      close: () => (this.mediaClosed = true),
    };
  }

  #open(handlers) {
    this.#handlers = handlers;
    this.connections += 1;
    setTimeout(handlers.opened);
    return { send: (text) => text.trim() && this.sent.push(parse(text)), close: () => {} };
  }

  /** The next message that the agent sends. */
  async next(what) {
    for (let tries = 0; !this.sent.length && tries < 200; tries += 1) await new Promise((then) => setTimeout(then, 5));
    const message = this.sent.shift();
    assert.equal(message?.method ?? message?.status, what);
    return message;
  }

  say(first, headers, body = "") {
    this.#handlers.message(format({ ...first, headers, body }));
  }

  answer(request, status, body = "", more = []) {
    const to = request.headers.get("To");
    const tagged = /tag=/.test(to) || status === 100 ? to : `${to};tag=far`;
    this.say({ status, reason: "Because" }, [
      ["Via", request.headers.get("Via")], ["From", request.headers.get("From")], ["To", tagged],
      ["Call-ID", request.callId], ["CSeq", request.headers.get("CSeq")], ["Contact", "<sip:there@host;transport=ws>"], ...more,
    ], body);
  }

  /** A request of the server; `of` is a message of the dialog that the agent has sent. */
  ask(method, { callId = "in", to = "<sip:101@host>", cseq = 1, more = [], body = "", branch = `z9hG4bK${method}${cseq}` } = {}) {
    this.say({ method, uri: "sip:101@desk.invalid" }, [
      ["Via", `SIP/2.0/WS host;branch=${branch}`], ["From", '"Ann" <sip:102@host>;tag=far'], ["To", to],
      ["Call-ID", callId], ["CSeq", `${cseq} ${method}`], ["Contact", "<sip:102@host;transport=ws>"], ...more,
    ], body);
  }

  break() {
    this.#handlers.closed();
  }

  async online() {
    this.agent.connect();
    this.answer(await this.next("REGISTER"), 200);
    assert.equal(this.agent.line, "online");
    return this;
  }

  /** A call of the agent that is up. */
  async up() {
    const call = this.agent.dial("102");
    const invite = await this.next("INVITE");
    this.answer(invite, 200, "v=0");
    await this.next("ACK");
    return { call, invite };
  }

  over() {
    this.agent.close();
  }
}

const settled = () => new Promise((then) => setTimeout(then, 20));

{ // it registers, with what RFC 5626 asks for, and again after the connection broke
  const server = await new Server().online();
  server.break();
  assert.equal(server.agent.line, "offline");
  const register = await server.next("REGISTER");
  assert.match(register.headers.get("Contact"), /\+sip\.instance="<urn:uuid:[\da-f-]{36}>";reg-id=1/);
  assert.equal(register.cseq.number, 2);
  assert.equal(server.connections, 2);
  server.answer(register, 403);
  assert.equal(server.agent.line, "refused");
  await settled();
  assert.equal(server.connections, 2); // it has been told no
  server.over();
}

{ // we call: it rings, is answered, and is hung up there
  const server = await new Server().online();
  const call = server.agent.dial("102");
  const invite = await server.next("INVITE");
  assert.equal(invite.uri, "sip:102@host");
  server.answer(invite, 100);
  server.answer(invite, 180);
  assert.equal(call.state, "alerting");
  server.answer(invite, 200, "theirs", [["Record-Route", "<sip:b;lr>"], ["Record-Route", "<sip:a;lr>"]]);
  const ack = await server.next("ACK");
  assert.deepEqual([ack.uri, ack.cseq.number, ack.headers.all("Route")], ["sip:there@host;transport=ws", 1, ["<sip:a;lr>", "<sip:b;lr>"]]);
  server.answer(invite, 200, "theirs"); // repeated: as our ACK was lost
  await server.next("ACK");
  await settled();
  assert.equal(server.accepted, "theirs");
  call.press("5");
  assert.equal(server.keys, "5");
  const own = invite.headers.get("From");
  server.ask("BYE", { callId: call.id, to: own });
  await server.next(200);
  assert.deepEqual([call.state, call.why, server.agent.calls.size, server.mediaClosed], ["over", "The other side has hung up.", 0, true]);
  server.ask("BYE", { callId: call.id, to: own, cseq: 2 });
  await server.next(481);
  server.over();
}

{ // hung up before the first response: the CANCEL waits for it (RFC 3261 §9.1), and a 200 may cross it
  const server = await new Server().online();
  const call = server.agent.dial("102");
  const invite = await server.next("INVITE");
  call.hangUp();
  await settled();
  assert.equal(server.sent.length, 0);
  server.answer(invite, 180);
  const cancel = await server.next("CANCEL");
  assert.deepEqual([cancel.headers.get("Via"), cancel.cseq.number], [invite.headers.get("Via"), 1]);
  server.answer(invite, 200, "late");
  await server.next("ACK");
  await server.next("BYE");
  assert.equal(server.agent.calls.size, 0);
  server.over();
}

{ // refused: acknowledged in the same transaction, and said in words
  const server = await new Server().online();
  const call = server.agent.dial("102");
  const invite = await server.next("INVITE");
  server.answer(invite, 486);
  const ack = await server.next("ACK");
  assert.deepEqual([ack.headers.get("Via"), ack.uri, ack.to.parameters.tag], [invite.headers.get("Via"), invite.uri, "far"]);
  assert.deepEqual([call.state, call.why], ["over", "Busy."]);
  server.over();
}

{ // we are called: who, by which of the server's calls; a blocked microphone lets it ring on
  const server = await new Server().online();
  server.ask("INVITE", { more: [["X-Offhook-Call", "c1"]], body: "v=0" });
  const ringing = await server.next(180);
  const [call] = server.agent.calls.values();
  assert.deepEqual([call.number, call.name, call.headers["X-Offhook-Call"]], ["102", "Ann", "c1"]);
  server.blocked = true;
  await call.answer();
  assert.deepEqual([call.state, server.log.at(-1)], ["ringing", ["fault", "blocked"]]);
  server.blocked = false;
  await call.answer();
  const answer = await server.next(200);
  assert.deepEqual([answer.body, answer.to.parameters.tag], ["answer", ringing.to.parameters.tag]);
  const to = answer.headers.get("To");
  server.ask("INVITE", { to, cseq: 2, body: "a=sendonly" });
  await server.next(200);
  assert.ok(call.heldByFar);
  server.ask("UPDATE", { to, cseq: 3 }); // a refresh (RFC 4028)
  await server.next(200);
  server.ask("INFO", { to, cseq: 4 });
  await server.next(405);
  server.ask("BREW", { to, cseq: 5 });
  await server.next(501);
  server.ask("BYE", { to, cseq: 1 });
  await server.next(500); // it is older than what has come
  server.ask("BYE", { to: "<sip:101@host>;tag=forged", cseq: 6 });
  await server.next(481);
  call.hangUp();
  await server.next("BYE");
  server.over();
}

{ // they give up, somebody else answers, we decline, there are two calls already
  const server = await new Server().online();
  for (const [reason, words] of [["", "Missed."], ['SIP;cause=200;text="Call completed elsewhere"', "Answered elsewhere."]]) {
    server.ask("INVITE", { body: "v=0", branch: "z9hG4bKsame" });
    await server.next(180);
    const [call] = server.agent.calls.values();
    server.ask("CANCEL", { more: reason ? [["Reason", reason]] : [], branch: "z9hG4bKsame" });
    await server.next(200);
    await server.next(487);
    assert.deepEqual([call.why, server.agent.calls.size], [words, 0]);
  }
  for (const callId of ["one", "two", "three"]) server.ask("INVITE", { callId, body: "v=0" });
  await server.next(180);
  await server.next(180);
  await server.next(486);
  server.agent.calls.get("one").hangUp();
  await server.next(603);
  server.ask("INVITE", { callId: "four", more: [["Require", "precondition"]], body: "v=0" });
  assert.equal((await server.next(420)).headers.get("Unsupported"), "precondition");
  server.ask("INVITE", { callId: "five" });
  await server.next(488);
  server.over();
}

{ // hold; refused, the call goes on as it was; glare is tried again
  const server = await new Server().online();
  const { call } = await server.up();
  const holding = call.hold(true);
  const offer = await server.next("INVITE");
  assert.deepEqual([offer.body.includes("sendonly"), offer.cseq.number, offer.to.parameters.tag], [true, 2, "far"]);
  server.ask("INVITE", { callId: call.id, to: offer.headers.get("From"), body: "v=0" });
  await server.next(491); // ours is not answered yet (RFC 3261 §14.2)
  server.answer(offer, 200, "ok");
  await server.next("ACK");
  await holding;
  assert.ok(call.held);
  const resuming = call.hold(false);
  server.answer(await server.next("INVITE"), 488);
  await server.next("ACK");
  await resuming;
  assert.deepEqual([call.held, server.rolledBack, server.heldLocally], [true, true, true]);
  server.over();
}

{ // transfer at once: refused, failed, done
  const server = await new Server().online();
  const { call, invite } = await server.up();
  const to = invite.headers.get("From");
  call.refer("103");
  const refer = await server.next("REFER");
  assert.equal(refer.headers.get("Refer-To"), "<sip:103@host>");
  server.answer(refer, 603);
  assert.deepEqual([call.transfer, server.log.at(-2)], ["", ["fault", "Not transferred to 103: Declined."]]);
  const report = (status, cseq) => server.ask("NOTIFY", { callId: call.id, to, cseq, more: [["Event", "refer;id=3"]], body: `SIP/2.0 ${status} x\r\n` });
  for (const [status, cseq] of [[486, 1], [200, 3]]) {
    call.refer("103");
    server.answer(await server.next("REFER"), 202);
    report(100, cseq);
    await server.next(200);
    assert.equal(call.transfer, "103");
    report(status, cseq + 1);
    await server.next(200);
  }
  await server.next("BYE");
  assert.equal(call.state, "over");
  server.over();
}

{ // transfer after asking: the REFER names the other call (RFC 3891)
  const server = await new Server().online();
  const first = await server.up();
  const second = await server.up();
  first.call.refer(second.call);
  const refer = await server.next("REFER");
  const own = second.invite.from.parameters.tag;
  assert.equal(refer.headers.get("Refer-To"), `<sip:102@host?Replaces=${encodeURIComponent(`${second.call.id};to-tag=far;from-tag=${own}`)}>`);
  assert.equal(server.agent.dial("104"), null); // two are as many as there can be
  server.over();
}

{ // the connection breaks: what rings is over, what is up goes on and is refreshed; a server that forgot it ends it
  const server = await new Server().online();
  const { call } = await server.up();
  server.ask("INVITE", { body: "v=0" });
  await server.next(180);
  server.break();
  assert.deepEqual([...server.agent.calls.values()], [call]);
  server.answer(await server.next("REGISTER"), 200);
  server.answer(await server.next("INVITE"), 481);
  await server.next("ACK");
  await settled();
  assert.deepEqual([call.state, call.why], ["over", "The server no longer knows this call."]);
  server.over();
}

{ // messages that wait, and what is of no dialog
  const server = await new Server().online();
  server.ask("NOTIFY", { more: [["Event", "message-summary"]], body: "Messages-Waiting: yes\r\nVoice-Message: 1/2\r\n" });
  await server.next(200);
  assert.deepEqual(server.log.at(-1), ["messages", { fresh: 1, heard: 2 }]);
  for (const [method, status] of [["OPTIONS", 200], ["BYE", 481], ["REFER", 405], ["MESSAGE", 405], ["BREW", 501]]) {
    server.ask(method, { callId: method });
    await server.next(status);
  }
  server.ask("NOTIFY", { callId: "other", more: [["Event", "presence"]] });
  await server.next(489);
  server.over();
}

console.log(JSON.stringify("done"));
process.exit(0);
