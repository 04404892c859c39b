// In a page, before its own scripts: what it asks for comes late, and what it opens is counted.
//
// `late.hold(kind)` holds back all of a kind from now on: "permission" (getUserMedia), "description"
// (setLocalDescription), "track" (replaceTrack), "screen" (wakeLock), or a part of a URL that is
// fetched. `late.next(kind)` gives the oldest held `{go(), fail(error), answer(response)}` once there
// is one; `go` resolves when it has happened. What is held back ignores signals, as an answer does that is on its way already.

window.late = (() => {
  const held = {}; // kind → those that wait
  const seen = { tracks: [], peers: [], locks: [], offers: 0, cancelled: [], sources: [] };

  function kindOf(name) {
    return Object.keys(held).find((kind) => name.includes(kind));
  }

  /** Does it, once it is let go. */
  function wait(name, act) {
    const kind = kindOf(name);
    if (kind === undefined) return act();
    return new Promise((resolve, reject) => {
      const go = () => Promise.resolve(act()).then(resolve, reject);
      held[kind].push({ go, fail: reject, answer: resolve });
    });
  }

  function replace(object, name, make) {
    if (object?.[name]) object[name] = make(object[name]);
  }

  replace(MediaDevices.prototype, "getUserMedia", (open) => function (constraints) {
    return wait("permission", async () => {
      const stream = await open.call(this, constraints);
      seen.tracks.push(...stream.getTracks());
      return stream;
    });
  });
  replace(RTCPeerConnection.prototype, "setLocalDescription", (set) => function (...description) {
    return wait("description", () => set.apply(this, description));
  });
  replace(RTCRtpSender.prototype, "replaceTrack", (set) => function (track) {
    return wait("track", () => set.call(this, track));
  });
  replace(window.WakeLock?.prototype, "request", () => () =>
    wait("screen", async () => {
      const lock = { released: false, release: async () => (lock.released = true) };
      seen.locks.push(lock);
      return lock;
    }));
  replace(AudioContext.prototype, "createMediaStreamSource", (create) => function (stream) {
    seen.sources.push(...stream.getAudioTracks());
    return create.call(this, stream);
  });
  const Native = window.RTCPeerConnection;
  window.RTCPeerConnection = class extends Native {
    constructor(settings) {
      super(settings);
      seen.peers.push(this);
    }
  };
  replace(window, "fetch", (send) => function (url, init = {}) {
    if (/offer$|calls$/.test(url) && init.method === "POST") seen.offers++;
    if (init.method === "DELETE") seen.cancelled.push(url);
    if (kindOf(url) === undefined) return send(url, init);
    return wait(url, () => send(url, { ...init, signal: undefined }));
  });

  return {
    hold(kind) {
      held[kind] = [];
    },
    async next(kind) {
      while (!held[kind].length) await new Promise((resolve) => setTimeout(resolve, 20));
      return held[kind].shift();
    },
    /** Lets everything of this kind through from now on; what is held stays so. */
    release(kind) {
      delete held[kind];
    },
    /** Makes a peer connection look as if it had failed. */
    breakOff(peer) {
      Object.defineProperty(peer, "connectionState", { get: () => "failed" });
      peer.dispatchEvent(new Event("connectionstatechange"));
    },
    /** How many microphones are on, peer connections are open, and the like. */
    open() {
      return {
        microphones: seen.tracks.filter(({ readyState }) => readyState === "live").length,
        peers: seen.peers.filter(({ signalingState }) => signalingState !== "closed").length,
        screens: seen.locks.filter(({ released }) => !released).length,
        offers: seen.offers,
      };
    },
    seen,
  };
})();
