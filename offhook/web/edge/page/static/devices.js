// The caller's microphones and speakers: which there are, and opening one.

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

/**
 * The devices of a kind ("audioinput", "audiooutput") as `{id, label}`; labels are empty before
 * permission. The one that the browser calls the default is left out.
 */
export async function list(kind) {
  const devices = await navigator.mediaDevices.enumerateDevices();
  return devices
    .filter(({ kind: of, deviceId: id }) => of === kind && id && !ROLES.includes(id))
    .map(({ deviceId, label }) => ({ id: deviceId, label }));
}

const ROLES = ["default", "communications"]; // Chromium's names for what the system has chosen

/** Whether the browser lets a page choose where sound comes out. */
export function speakersCanBeChosen() {
  return "setSinkId" in HTMLMediaElement.prototype;
}

/** Asks for a speaker where the browser has a list of its own (Firefox); null where it has not. */
export function speakerPrompt() {
  const { mediaDevices } = navigator;
  return mediaDevices?.selectAudioOutput?.bind(mediaDevices) ?? null;
}

export function onChange(callback) {
  navigator.mediaDevices.addEventListener("devicechange", callback);
}
