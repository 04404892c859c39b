// A page with mediamtx's publisher.js and reader.js, which precede this script; whip_page.mjs runs it.

window.peers = {};
const Native = window.RTCPeerConnection;
window.RTCPeerConnection = class extends Native {
  addTrack(...sent) {
    window.peers.publisher = this;
    return super.addTrack(...sent);
  }
};

/** Publishes the microphone and a camera, in the codec that mediamtx's own page chooses first. */
window.mediamtx = async (url, token) => {
  const { MediaMTXWebRTCPublisher, MediaMTXWebRTCReader } = window;
  window.errors = [];
  const onError = (error) => window.errors.push(error);
  const microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
  const canvas = document.createElement("canvas");
  canvas.getContext("2d").fillRect(0, 0, 300, 150);
  const stream = new MediaStream([...microphone.getTracks(), ...canvas.captureStream(10).getTracks()]);
  const publisher = await new Promise((resolve) => {
    const made = new MediaMTXWebRTCPublisher({
      url: url.replace("PROTOCOL", "whip"),
      token,
      stream,
      videoCodec: "av1/90000",
      videoBitrate: "1000",
      audioCodec: "opus/48000",
      audioBitrate: "32",
      audioVoice: true,
      onError,
      onConnected: () => resolve(made),
    });
  });
  const reader = await new Promise((resolve) => {
    const made = new MediaMTXWebRTCReader({
      url: url.replace("PROTOCOL", "whep"),
      token,
      onError,
      onTrack: ({ target, track, streams }) => {
        window.peers.player = target;
        if (track.kind !== "audio") return;
        const audio = document.createElement("audio");
        audio.srcObject = window.played = streams[0] ?? new MediaStream([track]);
        audio.play();
        resolve(made);
      },
    });
  });
  return { stop: () => (publisher.close(), reader.close()) };
};
