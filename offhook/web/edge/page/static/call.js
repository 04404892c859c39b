// One call: the peer connection, the data channel, the keys.

import { Problem, asProblem } from "./problems.js";
import * as rtvi from "./rtvi.js";
import { SignallingError, cancel, offer, start, trickle } from "./signalling.js";
import { inCall, next } from "./state.js";

const CONNECT_TIMEOUT_MS = 15000;
const DISCONNECTED_GRACE_MS = 2000; // ICE often heals itself within this
const RECONNECT_TIMEOUT_MS = 5000;
const RECONNECT_LIMIT_MS = 20000; // from the break on
const RECONNECT_DELAY_MS = 250; // after the second attempt; doubled after each further one
const RECONNECT_DELAY_MAX_MS = 3000;
const PING_INTERVAL_MS = 1000; // stock servers give a caller up after 3 s without
const SILENCE_LIMIT_MS = 2000; // looked at with each ping: an outage is noticed within 3 s
const ANSWER_MS = 500; // a ping older than this and the one before it: both were missed
const TRICKLE_INTERVAL_MS = 200;
const GOODBYE_TIMEOUT_MS = 3000; // between the agent's goodbye and the line going dead
const KEY_MS = 120;
const KEY_PAUSE_MS = 80;

/**
 * One call, to be dialled once; the next one is another object. It owns all that it opens, and whatever
 * comes late (a permission, an answer, a timer) finds it over and does nothing.
 *
 * Events, none after the last `onState`:
 * `onState(state, why)`: why is a reason in words (ended) or a Problem (failed);
 * `onTrack(track)`: the caller's microphone, once the call has it;
 * `onMessage(message)`: what came from the server; `onSent(message)`: what went there;
 * `onSound(stream)`: the agent's sound.
 */
export class Call {
  state = "idle";
  track = null; // the caller's microphone, or null when typing only
  #events;
  #life = new AbortController(); // of the call,
  #attempt = null; // and of the peer connection it has now
  #session = null; // {offerUrl, iceServers}
  #pcId = null;
  #upId = null; // the id of the connection that was up last, with which the call goes on
  #pc = null;
  #channel = null;
  #greeted = false;
  #pinged = 0; // times in ms: when we last asked whether somebody is there,
  #heard = 0; // and when anything came from there
  #answers = false; // the server answers pings; a stock one does not
  #resumable = false; // another server can go on with the call
  #isUnanswered = false; // the last attempt to go on found no server
  #goodbye = null;
  #timers = new Set();

  constructor(events) {
    this.#events = events;
  }

  /** Places a call. `openTrack` gives the microphone's track, or null. */
  async dial(openTrack) {
    if (!this.#step("dial")) return;
    const { signal } = this.#life;
    try {
      const track = await openTrack();
      if (signal.aborted) return void track?.stop(); // hung up while the caller was asked
      this.track = track;
      if (track) this.#events.onTrack(track);
      const session = await start(signal);
      signal.throwIfAborted();
      this.#session = session;
      await this.#connect(false);
      this.#after(CONNECT_TIMEOUT_MS, () => {
        if (this.state === "connecting") this.#step("fail", new Problem("no-path"));
      });
    } catch (error) {
      if (!signal.aborted) this.#step("fail", asProblem(error));
    }
  }

  hangUp() {
    this.#step("hangup", "You hung up");
  }

  /** The page is being left: what the browser would tell the server itself may not get there. */
  leave() {
    if (this.#pcId) cancel(this.#session.offerUrl, this.#pcId);
    this.hangUp();
  }

  /** Sends an RTVI message. */
  send(message) {
    if (this.#channel?.readyState !== "open") return;
    this.#channel.send(JSON.stringify(message));
    this.#events.onSent(message);
  }

  /** Whether keys can be pressed (RFC 4733). */
  get takesKeys() {
    return this.#sender()?.dtmf?.canInsertDTMF ?? false;
  }

  /** Presses a key, after those still to be sent. */
  press(key) {
    if (!this.takesKeys) return;
    const { dtmf } = this.#sender();
    dtmf.insertDTMF(dtmf.toneBuffer + key, KEY_MS, KEY_PAUSE_MS);
  }

  get muted() {
    return this.track !== null && !this.track.enabled;
  }

  mute(muted) {
    if (!this.track) return;
    this.track.enabled = !muted;
    this.#sendTrackStatus();
  }

  /** Goes on with another microphone, which is stopped with the call; the peer connection does not
   * notice. */
  async useTrack(track) {
    const before = this.track;
    if (before) track.enabled = before.enabled;
    this.track = track;
    this.#events.onTrack(track);
    try {
      await this.#sender()?.replaceTrack(track);
    } finally {
      before?.stop();
    }
    this.#sendTrackStatus();
  }

  /** The peer connection's RTCStatsReport, or null. */
  async stats() {
    return this.#pc ? this.#pc.getStats() : null;
  }

  // --- life

  #step(event, why) {
    const state = next(this.state, event);
    if (!state) return false;
    this.state = state;
    if (!inCall(state)) this.#release();
    this.#events.onState(state, why);
    return true;
  }

  #release() {
    this.#life.abort();
    this.#attempt?.abort();
    this.#timers.forEach(clearTimeout);
    this.#timers.clear();
    this.track?.stop();
    // The server hears of it at once, by DTLS; of a connection that is not up, by signalling.
    const up = this.#pc?.connectionState === "connected";
    this.#pc?.close();
    if (this.#pcId && !up) cancel(this.#session.offerUrl, this.#pcId);
    this.track = this.#session = this.#pcId = this.#upId = this.#pc = this.#channel = this.#goodbye = null;
    this.#greeted = this.#answers = this.#resumable = false;
  }

  #after(ms, callback) {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      callback();
    }, ms);
    this.#timers.add(timer);
  }

  // --- peer connection

  /** A new peer connection in place of the one before; with `restart` the server knows that one.
   * Rejects when another one has taken its place, or the call is over. */
  async #connect(restart) {
    this.#attempt?.abort();
    const { signal } = (this.#attempt = new AbortController());
    const session = this.#session;
    const pc = (this.#pc = new RTCPeerConnection({ iceServers: this.#session.iceServers }));
    this.#greeted = this.#answers = false;
    pc.addTransceiver(this.track ?? "audio", { direction: "sendrecv" });
    this.#openChannel(pc);
    pc.ontrack = ({ track, streams }) => {
      if (pc === this.#pc) this.#events.onSound(streams[0] ?? new MediaStream([track]));
    };
    pc.onconnectionstatechange = () => this.#follow(pc);

    const found = [];
    pc.onicecandidate = ({ candidate }) => {
      if (candidate?.candidate) found.push(candidate);
    };
    await pc.setLocalDescription();
    signal.throwIfAborted();
    const before = restart ? this.#upId : this.#pcId;
    const answer = await offer(session.offerUrl, pc.localDescription, before, restart, signal);
    if (this.#life.signal.aborted) cancel(session.offerUrl, answer.pc_id); // nobody else would
    signal.throwIfAborted();
    this.#pcId = answer.pc_id;
    this.#resumable = answer.resumable === true;
    this.#trickleFrom(pc, found);
    await pc.setRemoteDescription({ type: answer.type, sdp: answer.sdp });
  }

  #trickleFrom(pc, found) {
    if (pc !== this.#pc) return;
    // A candidate the server does not get is one path fewer, not a failed call.
    if (found.length) {
      const { signal } = this.#attempt;
      trickle(this.#session.offerUrl, this.#pcId, found.splice(0), signal).catch(() => {});
    }
    if (pc.iceGatheringState !== "complete" || found.length) {
      this.#after(TRICKLE_INTERVAL_MS, () => this.#trickleFrom(pc, found));
    }
  }

  #follow(pc) {
    if (pc !== this.#pc) return;
    if (pc.connectionState === "connected") this.#comeUp();
    if (pc.connectionState === "closed") this.#lineDead();
    if (pc.connectionState === "failed") this.#fallOut(pc);
    if (pc.connectionState === "disconnected") {
      this.#step("quiet");
      this.#after(DISCONNECTED_GRACE_MS, () => {
        if (pc.connectionState === "disconnected") this.#fallOut(pc);
      });
    }
  }

  #fallOut(pc) {
    if (pc !== this.#pc) return;
    if (this.#goodbye) this.#lineDead();
    else if (this.state === "connecting") this.#step("fail", new Problem("no-path"));
    else this.reconnect();
  }

  /** Goes on with a new peer connection, at whatever server answers: this one ends or is gone. */
  reconnect() {
    if (this.#step("drop")) this.#reconnect(0, performance.now());
  }

  #reconnect(attempt, since) {
    if (this.state !== "reconnecting") return;
    if (performance.now() - since > RECONNECT_LIMIT_MS) {
      this.#step("fail", new Problem(this.#isUnanswered ? "gone" : "lost"));
      return;
    }
    const delay = attempt && Math.min(RECONNECT_DELAY_MS * 2 ** (attempt - 1), RECONNECT_DELAY_MAX_MS);
    this.#after(delay, () => {
      if (this.state !== "reconnecting") return;
      this.#pc?.close();
      const connecting = this.#connect(true);
      const pc = this.#pc;
      let over = false;
      const again = () => {
        if (over || pc !== this.#pc) return;
        over = true;
        this.#reconnect(attempt + 1, since);
      };
      connecting.catch((error) => {
        if (pc === this.#pc) this.#judge(error);
        again();
      });
      this.#after(RECONNECT_TIMEOUT_MS, again);
    });
  }

  /** A server that answers and refuses no longer knows the call; any other failure may pass. A
   * request that fails at once, in a browser with a network, was refused: no server is there. */
  #judge(error) {
    this.#isUnanswered = error.name === "TypeError" && navigator.onLine;
    if (error instanceof SignallingError && error.status < 500) {
      this.#step("fail", new Problem("forgotten"));
    }
  }

  #comeUp() {
    if (this.#pc?.connectionState !== "connected") return;
    if (this.#channel?.readyState !== "open") return;
    this.#upId = this.#pcId;
    this.#step("up");
    this.#sendTrackStatus();
    if (!this.#greeted) this.send(rtvi.clientReady());
    this.#greeted = true;
  }

  #lineDead() {
    this.#step("leave", this.#goodbye ?? "The server ended the call");
  }

  async #renegotiate() {
    const pc = this.#pc;
    const { signal } = this.#attempt;
    await pc.setLocalDescription();
    signal.throwIfAborted();
    const { offerUrl } = this.#session;
    const answer = await offer(offerUrl, pc.localDescription, this.#pcId, false, signal);
    signal.throwIfAborted();
    await pc.setRemoteDescription({ type: answer.type, sdp: answer.sdp });
  }

  #sender() {
    return this.#pc?.getTransceivers()[0]?.sender;
  }

  // --- data channel

  #openChannel(pc) {
    const channel = (this.#channel = pc.createDataChannel("chat", { ordered: true }));
    channel.onopen = () => {
      if (channel !== this.#channel) return;
      this.#comeUp();
      this.#pinged = this.#heard = performance.now();
      this.#ping(channel);
    };
    channel.onmessage = ({ data }) => {
      if (channel === this.#channel) this.#receive(data);
    };
    channel.onclose = () => {
      if (channel === this.#channel && pc.connectionState === "connected") this.#lineDead();
    };
  }

  #ping(channel) {
    if (channel !== this.#channel || channel.readyState !== "open") return;
    const now = performance.now();
    // A page that was asleep has heard nothing either, and gives the server its time anew.
    if (now - this.#pinged > 2 * PING_INTERVAL_MS) this.#heard = now;
    const before = this.#pinged;
    this.#pinged = now;
    if (this.#resumable) this.#after(ANSWER_MS, () => this.#expectAnswer(channel, before));
    if (this.#answers && now - this.#heard > SILENCE_LIMIT_MS) this.#step("quiet");
    channel.send(`ping: ${Date.now()}`);
    this.#after(PING_INTERVAL_MS, () => this.#ping(channel));
  }

  /** Nothing has come since a ping that has been followed by another: the server is gone. */
  #expectAnswer(channel, since) {
    if (channel !== this.#channel || !this.#answers || this.#goodbye) return;
    if (this.#heard < since) this.reconnect();
  }

  #receive(data) {
    this.#heard = performance.now();
    if (this.state === "stalled" && this.#pc.connectionState === "connected") this.#step("up");
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      return; // not for us: everything this page knows is JSON
    }
    if (message.type === "pong") this.#answers = true;
    else if (message.type === "signalling") this.#receiveSignalling(message.message ?? {});
    else this.#events.onMessage(message);
  }

  #receiveSignalling({ type }) {
    if (type === "peerLeft") this.#lineDead();
    if (type === "renegotiate") this.#renegotiate().catch(() => {});
  }

  #sendTrackStatus() {
    const enabled = this.track?.enabled ?? false;
    this.send({
      type: "signalling",
      message: { type: "trackStatus", receiver_index: 0, enabled },
    });
  }

  /** The agent said goodbye: the line goes dead in a moment, and this is why. */
  goodbye(reason) {
    this.#goodbye = reason;
    this.#after(GOODBYE_TIMEOUT_MS, () => this.#lineDead());
  }

  /** The agent cannot go on. */
  breakDown(reason) {
    this.#step("fail", new Problem("agent", reason));
  }
}
