// SmallWebRTC signalling over HTTP: session, offer and answer, trickled candidates.

const OFFER_TIMEOUT_MS = 15000;
const MAX_DETAIL_CHARS = 300; // of a refusal

/**
 * The server answered, but not with a call. `reason` is its word for why, or undefined;
 * `retryAfter` is in seconds, or null.
 */
export class SignallingError extends Error {
  constructor(status, detail, reason, retryAfter) {
    super(detail || `HTTP ${status}`);
    this.status = status;
    this.reason = reason;
    this.retryAfter = retryAfter;
  }
}

const KEY = "api-key"; // in the tab's own storage, gone when it is closed

/** The API key to send from now on, in this tab. */
export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** Whether there is one. */
export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

/**
 * Who answers here: `{answers: {agent, title, hears, speaks}, engines}`. `answers` is null while the server
 * loads, undefined if unknown; `engines` is for the operator only, see engines.js.
 */
export async function status() {
  const response = await fetch("status", { headers: authorization() });
  return response.ok ? response.json() : {};
}

let requestData = {}; // of the offers to come

/** What a call brings for the server: see builder.js. */
export function callWith(data) {
  requestData = data;
}

/** The agents with their settings and flows, for the operator, and voices: `{agents, voices}`. */
export async function agents() {
  return jsonOf(await fetch("builder", { headers: authorization() }));
}

/** What is tried, as lines of the configuration. */
export async function asToml(draft) {
  return (await jsonOf(await fetch("builder/toml", request("POST", draft)))).toml;
}

/** Wants the engines that are on offer. Gives their states. */
export async function acceptEngines() {
  return (await jsonOf(await fetch("engines", request("POST", {})))).engines;
}

/** Opens a session: where to send offers, and the ICE servers to use. */
export async function start(signal) {
  const body = { transport: "webrtc", enableDefaultIceServers: true };
  const response = await fetch("start", request("POST", body, signal));
  // A plain SmallWebRTC server has no /start: it takes offers directly.
  if (response.status === 404 || response.status === 405) {
    return { offerUrl: "api/offer", iceServers: [] };
  }
  const { sessionId, iceConfig } = await jsonOf(response);
  return {
    offerUrl: `sessions/${encodeURIComponent(sessionId)}/api/offer`,
    iceServers: iceConfig?.iceServers ?? [],
  };
}

/** Sends an offer; `pcId` and `restart` renew a call that exists. Gives `{sdp, type, pc_id}`. */
export async function offer(url, { sdp, type }, pcId, restart, signal) {
  const body = { sdp, type, pc_id: pcId, restart_pc: restart, requestData };
  return jsonOf(await fetch(url, request("POST", body, signal)));
}

/** Sends candidates found since the offer. */
export async function trickle(url, pcId, candidates, signal) {
  const body = {
    pc_id: pcId,
    candidates: candidates.map((c) => ({
      candidate: c.candidate,
      sdp_mid: c.sdpMid,
      sdp_mline_index: c.sdpMLineIndex,
    })),
  };
  await fetch(url, request("PATCH", body, signal));
}

/** Hangs up a call whose connection is not up. Goes out even while the page is being left. */
export function cancel(url, pcId) {
  const path = `${url}/${encodeURIComponent(pcId)}`;
  fetch(path, { method: "DELETE", headers: authorization(), keepalive: true }).catch(() => {});
}

function request(method, body, signal) {
  const timeout = AbortSignal.timeout(OFFER_TIMEOUT_MS);
  return {
    method,
    headers: { "Content-Type": "application/json", ...authorization() },
    body: JSON.stringify(body),
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
  };
}

function authorization() {
  return hasKey() ? { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` } : {};
}

async function jsonOf(response) {
  if (response.ok) return response.json();
  const body = await response.json().catch(() => ({}));
  const detail = [body.detail, body.error?.message, body.error, body.message].find(
    (text) => typeof text === "string",
  );
  throw new SignallingError(
    response.status, detail?.slice(0, MAX_DETAIL_CHARS), body.reason, secondsOf(response.headers.get("Retry-After")));
}

/** Retry-After is a number of seconds or a date (RFC 9110 section 10.2.3). */
function secondsOf(retryAfter) {
  if (!retryAfter) return null;
  const seconds = Number(retryAfter);
  if (Number.isFinite(seconds)) return Math.max(0, Math.ceil(seconds));
  const date = Date.parse(retryAfter);
  return Number.isNaN(date) ? null : Math.max(0, Math.ceil((date - Date.now()) / 1000));
}
