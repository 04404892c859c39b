// The caller's microphones: which there are, and opening one.

import { Problem } from "./problems.js";

// getUserMedia's errors (W3C Media Capture and Streams, section 10.2.6) and ours.
const PROBLEMS = {
  NotAllowedError: "microphone-denied",
  SecurityError: "microphone-denied",
  NotFoundError: "microphone-missing",
  OverconstrainedError: "microphone-missing",
  NotReadableError: "microphone-busy",
  AbortError: "microphone-busy",
};

/** Browsers hand out microphones only to https pages and to localhost. */
export function allowed() {
  return window.isSecureContext && navigator.mediaDevices !== undefined;
}

/** Opens the microphone with this id ("" is the browser's default). Gives a live audio track. */
export async function open(deviceId) {
  const audio = {
    echoCancellation: true,
    noiseSuppression: true,
    autoGainControl: true,
    channelCount: 1,
    ...(deviceId && { deviceId: { exact: deviceId } }),
  };
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ audio });
    return stream.getAudioTracks()[0];
  } catch (error) {
    // The chosen one was unplugged since the list was made.
    if (error.name === "OverconstrainedError" && deviceId) return open("");
    throw new Problem(PROBLEMS[error.name] ?? "microphone-busy", error.message);
  }
}

/** The microphones there are, as `{id, label}`; labels are empty before permission. */
export async function list() {
  const devices = await navigator.mediaDevices.enumerateDevices();
  return devices
    .filter((device) => device.kind === "audioinput" && device.deviceId)
    .map((device) => ({ id: device.deviceId, label: device.label }));
}

export function onChange(callback) {
  navigator.mediaDevices.addEventListener("devicechange", callback);
}
