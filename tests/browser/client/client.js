// Pipecat's own JavaScript client as an application uses it; client_calls.mjs presses its buttons.
// Its default media manager loads a script from a host of Daily's, so the other one is used.

import { PipecatClient, RTVIEvent } from "@pipecat-ai/client-js";
import { SmallWebRTCTransport, WavMediaManager } from "@pipecat-ai/small-webrtc-transport";

/** A camera beside the microphone, and room for a shared screen: three m-lines, as by default. */
class CameraMediaManager extends WavMediaManager {
  #camera = null;

  async initialize() {
    await super.initialize();
    const stream = await navigator.mediaDevices.getUserMedia({ video: true });
    this.#camera = stream.getVideoTracks()[0];
  }

  async disconnect() {
    this.#camera?.stop();
    await super.disconnect();
  }

  tracks() {
    const { local } = super.tracks();
    return { local: { ...local, video: this.#camera } };
  }

  get isCamEnabled() {
    return true;
  }

  get supportsScreenShare() {
    return true;
  }
}

/** A client, and everything it tells: `[event, data]` in order. */
window.newClient = (withCamera) => {
  const mediaManager = withCamera ? new CameraMediaManager() : new WavMediaManager();
  const client = new PipecatClient({
    transport: new SmallWebRTCTransport({ mediaManager }),
    enableMic: true,
  });
  Object.assign(window, { client, told: [], speaker: new Audio() });
  for (const event of Object.values(RTVIEvent)) {
    client.on(event, (data) => {
      window.told.push([event, data instanceof MediaStreamTrack ? data.kind : (data ?? null)]);
    });
  }
  client.on(RTVIEvent.TrackStarted, (track, participant) => {
    if (participant?.local || track.kind !== "audio") return;
    window.speaker.srcObject = new MediaStream([track]);
    window.speaker.play();
  });
};
