// One call of the phone: its dialog (RFC 3261 §12), and its media by offer and answer (RFC 3264).

import { asUser, address, holds, statusOfFragment, userOf } from "./message.js";
import { next } from "./states.js";

export const ALLOW = "INVITE, ACK, CANCEL, BYE, OPTIONS, UPDATE, NOTIFY";
const SDP = "application/sdp";
const GLARE_MS = [2100, 4000]; // we wait so long after a 491, as whoever made the Call-ID does (§14.1)
const REASONS = {
  403: "You may not call this number.", 404: "There is no such number.", 408: "Nobody answered.",
  410: "There is no such number any more.", 480: "Nobody is there.", 484: "The number is incomplete.", 486: "Busy.",
  487: "", 488: "The other side cannot take this call.", 500: "The server failed.", 503: "No line is free now.",
  600: "Busy.", 603: "Declined.",
};

/** A final status in words; "" for one that says nothing new. */
export const wordsOf = (status, reason = "") => REASONS[status] ?? `${reason || "Refused"} (${status}).`;

export class Call {
  state;
  held = false;
  heldByFar = false;
  muted = false;
  why = "";
  transfer = ""; // "" or where the far end is being transferred to
  connected = false; // it has been up
  #agent;
  #media = null;
  #invite = null; // theirs, or {branch, cseq} of ours
  #localTag;
  #remoteTag = "";
  #local;
  #remote;
  #target;
  #routes = [];
  #cseq = 0;
  #theirCseq = -1;
  #cancelSent = false;
  #offering = false;
  #answered = false; // the description in force is of this exchange

  constructor(agent, id, number, name, headers = {}) {
    this.#agent = agent;
    this.#localTag = agent.token(8);
    Object.assign(this, { id, number, name, headers });
  }

  // --- how calls begin

  static outgoing(agent, number) {
    const call = new Call(agent, agent.token(16), number, "");
    call.state = "calling";
    call.incoming = false;
    call.#target = agent.uriOf(asUser(number));
    call.#local = `<${agent.uri}>`;
    call.#remote = `<${call.#target}>`;
    return call;
  }

  static incoming(agent, invite) {
    const { uri, name } = invite.from;
    const call = new Call(agent, invite.callId, userOf(uri), name, invite.headers.plain());
    call.state = "ringing";
    call.incoming = true;
    call.#invite = invite;
    call.#theirCseq = invite.cseq.number;
    call.#remoteTag = invite.from.parameters.tag ?? "";
    call.#remote = invite.headers.get("From").replace(/;tag=[^;]*/i, "");
    call.#local = invite.headers.get("To");
    call.#routes = invite.headers.all("Record-Route");
    call.#target = address(invite.headers.get("Contact"))?.uri ?? uri;
    return call;
  }

  /** Sends the INVITE. */
  async dial() {
    let offer;
    try {
      offer = await this.#open().offer();
    } catch (error) {
      return this.#over(error.message, "failed");
    }
    if (this.state !== "calling") return this.#over("", "failed"); // hung up meanwhile
    this.#invite = this.#request("INVITE", {
      body: offer,
      answered: (response) => this.#inviteAnswered(response),
    });
  }

  ring() {
    this.#agent.respond(this.#invite, 180, "Ringing", { tag: this.#localTag });
  }

  /** The header of a Replaces that names this call (RFC 3891 §6.1). */
  get replaces() {
    return `${this.id};to-tag=${this.#remoteTag};from-tag=${this.#localTag}`;
  }

  // --- what the person does

  async answer() {
    if (!this.#step("answer")) return;
    try {
      const answer = await this.#open().answer(this.#invite.body);
      if (this.#step("prepared")) this.#accept(answer);
    } catch (error) {
      this.#closeMedia();
      this.#step("unprepared");
      this.#agent.emit("fault", this, { message: error.message });
    }
  }

  hangUp() {
    this.#over("", "hangUp");
  }

  /** Says why the call will have ended, which the server's messages do not say. */
  explain(why) {
    if (this.state !== "over") this.why = why;
  }

  async hold(on) {
    if (this.state !== "up" || this.held === on) return;
    this.#media.hold(on);
    if (await this.#reoffer()) {
      this.held = on;
      this.#agent.emit("held", this);
    } else if (this.state === "up") {
      this.#media.hold(this.held);
      this.#agent.emit("fault", this, { message: "The call could not be put on hold." });
    }
  }

  mute(on) {
    this.muted = on;
    this.#media?.mute(on);
    this.#agent.emit("changed", this);
  }

  press(keys) {
    this.#media?.press(keys);
  }

  /** Transfers the far end to a number, or to the far end of another call of ours (RFC 5589 §6, §7). */
  refer(to) {
    if (this.state !== "up" || this.transfer) return;
    const isCall = to instanceof Call;
    const uri = this.#agent.uriOf(asUser(isCall ? to.number : to));
    const target = isCall ? `${uri}?Replaces=${encodeURIComponent(to.replaces)}` : uri;
    this.transfer = isCall ? to.number : to;
    this.#agent.emit("changed", this);
    this.#request("REFER", {
      headers: [["Refer-To", `<${target}>`], ["Referred-By", `<${this.#agent.uri}>`]],
      answered: (response) => {
        if (!response || response.status >= 300) this.#transferFailed(response?.status ?? 408, response?.reason);
      },
    });
  }

  /** The connection is back: has the server follow us there (RFC 5626 §4.2.1 needs it of a phone). */
  async refresh() {
    if (this.state === "up") await this.#reoffer();
  }

  // --- what arrives

  /** A request within the dialog, or the CANCEL of its INVITE. */
  receive(request) {
    const { method } = request;
    if (method === "ACK") return;
    if (method === "CANCEL") return this.#cancelled(request);
    if (request.to.parameters.tag !== this.#localTag || request.from.parameters.tag !== this.#remoteTag) {
      return this.#agent.respond(request, 481, "Call/Transaction Does Not Exist");
    }
    if (request.cseq.number < this.#theirCseq) return this.#respond(request, 500, "Out of Order");
    this.#theirCseq = request.cseq.number;
    const known = { BYE: this.#bye, INVITE: this.#offered, UPDATE: this.#offered, NOTIFY: this.#notified };
    if (known[method]) known[method].call(this, request);
    else if (method === "OPTIONS") this.#respond(request, 200, "OK");
    else this.#agent.refuseMethod(request);
  }

  /** The connection is gone: what was not up yet is over. */
  disconnected() {
    if (this.state !== "up") this.#over("The connection to the server was lost.", "failed");
  }

  #bye(request) {
    this.#respond(request, 200, "OK");
    const elsewhere = this.transfer ? "Transferred." : "The other side has hung up.";
    this.#over(elsewhere, "ended");
  }

  #cancelled(request) {
    this.#agent.respond(request, 200, "OK", { tag: this.#localTag });
    const why = /cause=200\b/.test(request.headers.get("Reason")) ? "Answered elsewhere." : "Missed.";
    this.#over(why, "cancelled");
  }

  /** A re-INVITE, or an UPDATE, which may be one without a description (RFC 3311, RFC 4028). */
  async #offered(request) {
    if (this.state !== "up") return this.#respond(request, 491, "Request Pending");
    const contact = address(request.headers.get("Contact"));
    if (contact) this.#target = contact.uri;
    if (!request.body && request.method === "UPDATE") return this.#respond(request, 200, "OK");
    if (this.#offering) return this.#respond(request, 491, "Request Pending");
    if (!request.body) return this.#respond(request, 488, "Not Acceptable Here");
    this.#offering = true;
    try {
      this.#respond(request, 200, "OK", await this.#media.answer(request.body));
      this.#heldByFar(holds(request.body));
    } catch {
      this.#respond(request, 488, "Not Acceptable Here");
    } finally {
      this.#offering = false;
    }
  }

  #heldByFar(on) {
    if (this.heldByFar === on) return;
    this.heldByFar = on;
    this.#agent.emit("held", this);
  }

  /** How a transfer goes on (RFC 3515 §2.4.4). */
  #notified(request) {
    if (!/^refer\b/i.test(request.headers.get("Event"))) return this.#respond(request, 489, "Bad Event");
    this.#respond(request, 200, "OK");
    const status = statusOfFragment(request.body);
    if (status >= 300 && this.transfer) this.#transferFailed(status);
    else if (status >= 200) this.hangUp();
  }

  #transferFailed(status, reason) {
    const to = this.transfer;
    this.transfer = "";
    if (this.state !== "up") return;
    this.#agent.emit("fault", this, { message: `Not transferred to ${to}: ${wordsOf(status, reason)}` });
    this.#agent.emit("changed", this);
  }

  async #inviteAnswered(response) {
    if (!response) return this.#over("The server does not answer.", "failed");
    const { status } = response;
    if (status >= 300) return this.#over(wordsOf(status, response.reason), "refused");
    if (response.to.parameters.tag) this.#learn(response);
    if (status < 200) {
      this.#step("progress");
      if (response.body && this.state === "alerting") await this.#use(response.body);
      return;
    }
    const { connected } = this;
    if (!this.#step("answered") || this.state !== "up" || connected) return;
    if (response.body) await this.#use(response.body);
  }

  #learn({ to, headers }) {
    this.#remoteTag = to.parameters.tag;
    this.#routes = headers.all("Record-Route").toReversed();
    this.#target = address(headers.get("Contact"))?.uri ?? this.#target;
  }

  /** The answer to our INVITE, also one that comes before the call is answered: what the far end plays till then. */
  async #use(sdp) {
    if (this.#answered) return;
    this.#answered = true;
    try {
      await this.#media.accept(sdp);
    } catch {
      this.#over("The sound of the other side cannot be used.", "hangUp");
    }
  }

  // --- the table's actions

  /** Takes a step of the table; false if the event changes nothing. */
  #step(event) {
    const step = next(this.state, event);
    if (!step) return false;
    const before = this.state;
    this.state = step.state;
    this.connected ||= step.state === "up";
    this.#do(step.action);
    if (before !== this.state) this.#report();
    return true;
  }

  #report() {
    if (this.state === "over") this.#closeMedia();
    const event = { alerting: "alerting", up: "answered", over: "ended" }[this.state] ?? "changed";
    this.#agent.emit(event, this);
    if (this.state === "over") this.#agent.forget(this);
  }

  #over(why, event) {
    if (this.state !== "over") this.why ||= why;
    this.#step(event);
  }

  #do(action) {
    switch (action) {
      case "ack":
        return this.#ack();
      case "ackAndBye":
        this.#ack();
        return this.#request("BYE");
      case "bye":
        return this.#request("BYE");
      case "cancel":
        if (!this.#cancelSent) this.#agent.cancel(this.#invite);
        this.#cancelSent = true;
        return;
      case "decline":
        return this.#agent.respond(this.#invite, 603, "Decline", { tag: this.#localTag });
      case "refuseCancelled":
        return this.#agent.respond(this.#invite, 487, "Request Terminated", { tag: this.#localTag });
    }
  }

  #accept(answer) {
    this.#respond(this.#invite, 200, "OK", answer);
  }

  #ack(cseq = this.#invite.cseq) {
    this.#agent.send("ACK", this.#target, [...this.#dialogHeaders(), ["CSeq", `${cseq} ACK`]]);
  }

  // --- requests within the dialog

  /** Offers our media anew; whether that was accepted. */
  async #reoffer(again = true) {
    if (this.#offering) return false;
    this.#offering = true;
    try {
      const body = await this.#media.offer();
      const response = await new Promise((answered) => {
        this.#request("INVITE", { body, answered: (one) => (!one || one.status >= 200) && answered(one) });
      });
      if (response?.status >= 200 && response.status < 300) {
        this.#ack(response.cseq.number);
        await this.#media.accept(response.body);
        return true;
      }
      await this.#media.rollback();
      if (response?.status === 481 || response?.status === 408) this.#over("The server no longer knows this call.", "failed");
      if (response?.status !== 491 || !again) return false;
    } catch {
      return false;
    } finally {
      this.#offering = false;
    }
    await this.#agent.pause(GLARE_MS[0] + Math.random() * (GLARE_MS[1] - GLARE_MS[0]));
    return this.state === "up" && this.#reoffer(false);
  }

  #request(method, { headers = [], body = "", answered } = {}) {
    this.#cseq += 1;
    const lines = [...this.#dialogHeaders(), ["CSeq", `${this.#cseq} ${method}`], ...headers];
    if (method === "INVITE") lines.push(["Allow", ALLOW]);
    if (body) lines.push(["Content-Type", SDP]);
    return { ...this.#agent.request(method, this.#target, lines, body, answered), cseq: this.#cseq };
  }

  #dialogHeaders() {
    const to = this.#remoteTag ? `${this.#remote};tag=${this.#remoteTag}` : this.#remote;
    return [
      ...this.#routes.map((route) => ["Route", route]),
      ["From", `${this.#local};tag=${this.#localTag}`], ["To", to], ["Call-ID", this.id],
      ["Contact", this.#agent.contact],
    ];
  }

  #respond(request, status, reason, body = "") {
    const headers = [["Contact", this.#agent.contact], ["Allow", ALLOW]];
    if (body) headers.push(["Content-Type", SDP]);
    this.#agent.respond(request, status, reason, { tag: this.#localTag, headers, body });
  }

  // --- media

  #open() {
    this.#media ??= this.#agent.media({
      failed: () => this.#over("The sound was lost: the network between you and the server broke.", "hangUp"),
    });
    return this.#media;
  }

  #closeMedia() {
    this.#media?.close();
    this.#media = null;
  }

  /** For tests and meters. */
  get media() {
    return this.#media;
  }
}
