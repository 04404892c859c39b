// The sound of one call, by WebRTC: descriptions with all candidates in them, as SIP wants them (RFC 8839).

const GATHERING_MS = 2000; // for candidates; those that come later are left out
const KEY_MS = 160;
const GAP_MS = 70;

export class Media {
  #pc;
  #microphone; // opens one: () → Promise of a track
  #track = null;
  #sender = null;
  #held = false;
  #muted = false;
  #closed = false;
  #onClose;

  /** `heard(stream)` gets what the far end says, `failed()` is called when no sound can pass any more. */
  constructor({ iceServers, microphone, heard, failed, closed }) {
    this.#microphone = microphone;
    this.#onClose = closed;
    this.#pc = new RTCPeerConnection({ iceServers });
    this.#pc.addEventListener("track", ({ track }) => heard(new MediaStream([track])));
    this.#pc.addEventListener("connectionstatechange", () => {
      if (this.#pc.connectionState === "failed") failed();
    });
  }

  /** Our offer, the first or another; it holds the far end if `hold` said so. */
  async offer() {
    await this.#speak();
    this.#transceiver().direction = this.#held ? "sendonly" : "sendrecv";
    return this.#describe(await this.#pc.createOffer());
  }

  /** The answer to an offer of the far end. Its holding us is mirrored by the browser. */
  async answer(sdp) {
    await this.#pc.setRemoteDescription({ type: "offer", sdp });
    await this.#speak();
    this.#transceiver().direction = this.#held ? "sendonly" : "sendrecv";
    return this.#describe(await this.#pc.createAnswer());
  }

  async accept(sdp) {
    await this.#pc.setRemoteDescription({ type: "answer", sdp });
  }

  async rollback() {
    if (this.#pc.signalingState === "have-local-offer") await this.#pc.setLocalDescription({ type: "rollback" });
  }

  hold(on) {
    this.#held = on;
    this.#enable();
  }

  mute(on) {
    this.#muted = on;
    this.#enable();
  }

  /** Presses keys (RFC 4733). */
  press(keys) {
    const { dtmf } = this.#sender ?? {};
    if (dtmf?.canInsertDTMF) dtmf.insertDTMF(dtmf.toneBuffer + keys, KEY_MS, GAP_MS);
  }

  /** Speaks into another microphone from now on. */
  async changeMicrophone() {
    if (!this.#sender) return;
    const track = await this.#microphone();
    if (this.#closed) return track.stop();
    await this.#sender.replaceTrack(track);
    this.#track.stop();
    this.#track = track;
    this.#enable();
  }

  close() {
    this.#closed = true;
    this.#track?.stop();
    this.#pc.close();
    this.#onClose();
  }

  async #speak() {
    if (this.#sender) return;
    const track = await this.#microphone();
    if (this.#closed) {
      track.stop();
      throw new Error("The call is over.");
    }
    this.#track = track;
    this.#enable();
    this.#sender = this.#pc.addTrack(track, new MediaStream([track]));
  }

  #transceiver() {
    return this.#pc.getTransceivers().find(({ sender }) => sender === this.#sender);
  }

  #enable() {
    if (this.#track) this.#track.enabled = !this.#muted && !this.#held;
  }

  async #describe(description) {
    await this.#pc.setLocalDescription(description);
    const pc = this.#pc;
    if (pc.iceGatheringState !== "complete") {
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, GATHERING_MS);
        pc.addEventListener("icegatheringstatechange", () => {
          if (pc.iceGatheringState !== "complete") return;
          clearTimeout(timer);
          resolve();
        });
      });
    }
    return pc.localDescription.sdp;
  }
}
