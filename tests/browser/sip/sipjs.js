// SIP.js as an application uses it; sip_calls.mjs and sip_cut.mjs press its buttons.

import { Inviter, SessionState, UserAgent } from "sip.js";
import { hears, takesKeys } from "./ears.js";

const events = [];
let session;

const connection = () => session.sessionDescriptionHandler.peerConnection;

/** Registers nowhere, calls `target`, and resolves when the call is taken. */
window.dial = async ({ server, target, user, password }) => {
  const agent = new UserAgent({
    uri: UserAgent.makeURI(`sip:${user}@browser.invalid`),
    transportOptions: { server },
    authorizationUsername: user,
    authorizationPassword: password,
    sessionDescriptionHandlerFactoryOptions: {
      iceGatheringTimeout: 500,
      peerConnectionConfiguration: { iceServers: [] },
    },
    logLevel: "error",
    delegate: {
      onConnect: () => events.push("connected"),
      onDisconnect: (error) => error && void reconnect(agent),
    },
  });
  await agent.start();
  session = new Inviter(agent, UserAgent.makeURI(target), {
    sessionDescriptionHandlerOptions: {
      // A tone is noise to a browser, and would be taken away.
      constraints: {
        audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: false },
        video: false,
      },
    },
  });
  await new Promise((resolve, reject) => {
    session.stateChange.addListener((state) => {
      if (state === SessionState.Established) resolve();
      if (state === SessionState.Terminated) reject(new Error("terminated"));
    });
    session.invite({
      requestDelegate: { onReject: ({ message }) => reject(new Error(message.reasonPhrase)) },
    });
  });
};

/** By INFO, as SIP.js's own SimpleUser does. */
window.press = (key) =>
  session.info({
    requestOptions: {
      body: {
        contentDisposition: "render",
        contentType: "application/dtmf-relay",
        content: `Signal=${key}\r\nDuration=1000`,
      },
    },
  });
window.pressByRtp = (key) => session.sessionDescriptionHandler.sendDtmf(key);
window.takesKeys = () => takesKeys(connection());
window.hears = () => hears(connection());
window.hold = () => hold(true);
window.unhold = () => hold(false);
window.inCall = () => session.state === SessionState.Established;
window.hangUp = () => session.bye();
window.events = events;

/** As often as it takes: SIP.js leaves this to its application. */
async function reconnect(agent) {
  for (;;) {
    try {
      return await agent.reconnect();
    } catch {
      await new Promise((then) => setTimeout(then, 200));
    }
  }
}

function hold(on) {
  session.sessionDescriptionHandlerOptionsReInvite = { hold: on };
  return new Promise((resolve, reject) =>
    session.invite({
      requestDelegate: {
        onAccept: () => {
          events.push(on ? "hold" : "unhold");
          resolve();
        },
        onReject: ({ message }) => reject(new Error(message.reasonPhrase)),
      },
    }),
  );
}
