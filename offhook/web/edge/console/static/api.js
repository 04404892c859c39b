// Requests to the server that the console came from.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin", cache: "no-store" });
  } catch {
    throw new Refused(0, "The server cannot be reached.");
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, body.error ?? `The server answers ${response.status}.`);
  return body;
}

const JSON_TYPE = { "Content-Type": "application/json" };
const send = (method, path, body) => ask(path, { method, headers: JSON_TYPE, body: JSON.stringify(body) });

export const session = () => ask("console/session");
export const signIn = (key) => send("POST", "console/session", { key });
export const signOut = () => send("DELETE", "console/session", {});
export const search = (query) => ask(`calls?${new URLSearchParams(query)}`);
export const call = (id) => ask(`calls/${encodeURIComponent(id)}/record`);
export const timeline = (id) => ask(`calls/${encodeURIComponent(id)}/timeline`);
export const trunks = () => ask("trunks");
export const extensions = () => ask("extensions");
export const engines = () => ask("engines");
export const agents = (query) => ask(`agents?${new URLSearchParams(query)}`);
export const campaigns = () => ask("campaigns");
const ofCampaign = (id) => `campaigns/${encodeURIComponent(id)}`;
export const changeCampaign = (id, action) => send("POST", ofCampaign(id), { action });
export const campaignReport = (id) => `${ofCampaign(id)}/report.csv`;
export const numbers = (query) => ask(`calls/numbers?${new URLSearchParams(query)}`);
export const hangUp = (id) => send("DELETE", `calls/${encodeURIComponent(id)}`, {});
export const forget = (id) => send("POST", "calls/forget", { call_id: id });
const ofCall = (id, what) => `calls/${encodeURIComponent(id)}/${what}`;
export const members = (id) => ask(ofCall(id, "members"));
export const join = (id, fields) => send("POST", ofCall(id, "members"), fields);
export const changeMember = (id, name, fields) => send("PATCH", ofCall(id, `members/${encodeURIComponent(name)}`), fields);
export const dismiss = (id, name) => send("DELETE", ofCall(id, `members/${encodeURIComponent(name)}`), {});
export const toAgent = (id, fields) => send("POST", ofCall(id, "agent"), fields);
export const recording = (id) => ofCall(id, "recording");

/** What is wrong with the recording of a call that is over; "" if nothing is. */
export async function soundFault(id) {
  const options = { headers: { Range: "bytes=0-0" }, credentials: "same-origin", cache: "no-store" };
  const response = await fetch(recording(id), options);
  if (!response.ok) return (await response.json().catch(() => ({}))).error ?? `The server answers ${response.status}.`;
  return response.headers.get("Offhook-Recording") === "incomplete" ? "The end of this recording is missing: it was cut off." : "";
}
export const exported = (id) => ofCall(id, "export");
export const scenario = (id) => ofCall(id, "scenario");
