// Numbers and times as people read them, in the reader's own language and time zone.

const DAY = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const SHORT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

export function time(iso, format = DAY) {
  const element = document.createElement("time");
  element.dateTime = iso;
  element.textContent = format.format(new Date(iso));
  element.title = `${iso} (UTC); shown in ${ZONE}`;
  return element;
}

/** The same for lists, without seconds. */
export const shortTime = (iso) => time(iso, SHORT);

/** 75.2 → "1:15" */
export function lasted(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const whole = Math.max(0, Math.floor(seconds));
  const [minutes, rest] = [Math.floor(whole / 60) % 60, String(whole % 60).padStart(2, "0")];
  const hours = Math.floor(whole / 3600);
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/** 61234 → "1:01.2" */
export function clock(ms) {
  const minutes = Math.floor(ms / 60000);
  return `${minutes}:${((ms % 60000) / 1000).toFixed(1).padStart(4, "0")}`;
}

export function milliseconds(ms) {
  return ms === null || ms === undefined ? "" : `${Math.round(ms)}\u00a0ms`;
}

export function money(cost) {
  return cost === null || cost === undefined ? "" : cost.toFixed(4);
}

export function count(number) {
  return Number(number).toLocaleString();
}

const EDGES = { webrtc: "browser", sip: "phone", realtime: "Realtime", whip: "WHIP" };

/** By which way somebody has called; carriers have names of their own. */
export function edgeName(edge) {
  return EDGES[edge] ?? edge;
}

/** The way, and the trunk or carrier if that has another name. */
export function wayIn({ edge, trunk }) {
  return [...new Set([edgeName(edge), trunk])].filter(Boolean).join(", ");
}

/** Who has said something: the caller, the agent, or a member of a room by his name. */
export const speaker = (who) => (who === "caller" ? "Caller" : who === "agent" ? "Agent" : who);
export const sideOf = (who) => (who === "agent" ? "agent" : "caller");

/** Who has called whom, as one line. */
export function parties(call) {
  const [far, near] = call.direction === "outbound" ? [call.called, "we called"] : [call.caller, ""];
  const name = call.caller_name && call.direction !== "outbound" ? `${call.caller_name} ` : "";
  if (near) return `${near} ${far || "somebody"}`;
  return `${name}${far || (call.edge === "webrtc" ? "a browser" : "somebody")}${call.called ? ` → ${call.called}` : ""}`;
}
