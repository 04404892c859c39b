// JsSIP as an application uses it; sip_calls.mjs and sip_cut.mjs press its buttons.

import JsSIP from "jssip";
import { hears, takesKeys } from "./ears.js";

const events = [];
let agent, session;

/** Registers nowhere, calls `target`, and resolves when the call is taken. */
window.dial = ({ server, target, user, password }) =>
  new Promise((resolve, reject) => {
    agent = new JsSIP.UA({
      sockets: [new JsSIP.WebSocketInterface(server)],
      uri: `sip:${user}@browser.invalid`,
      authorization_user: user,
      password,
      register: false,
      session_timers: true,
    });
    agent.on("connected", () => events.push("connected")); // again by itself, after it was cut
    agent.once("connected", () => {
      session = agent.call(target, {
        mediaConstraints: {
          // A tone is noise to a browser, and would be taken away.
          audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: false },
          video: false,
        },
        pcConfig: { iceServers: [] },
      });
      session.on("confirmed", () => resolve());
      session.on("failed", ({ cause, message }) => reject(new Error(`${cause} ${message ?? ""}`)));
      session.on("ended", ({ cause }) => events.push(`ended: ${cause}`));
      for (const kind of ["hold", "unhold"]) session.on(kind, () => events.push(kind));
    });
    agent.on("disconnected", ({ reason }) => reject(new Error(`disconnected: ${reason}`)));
    agent.start();
  });

window.press = (key) => session.sendDTMF(key);
window.pressByRtp = (key) => session.sendDTMF(key, { transportType: "RFC2833" });
window.takesKeys = () => takesKeys(session.connection);
window.hears = () => hears(session.connection);
window.hold = () => new Promise((resolve) => session.hold({}, resolve));
window.unhold = () => new Promise((resolve) => session.unhold({}, resolve));
window.inCall = () => !session.isEnded();
window.hangUp = () => session.terminate();
window.events = events;
