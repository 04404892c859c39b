// How the parts of the server are: trunks and extensions, engines and agents.

import { agents, engines, extensions, trunks } from "./api.js";
import { empty, make, table } from "./dom.js";
import { count, milliseconds, shortTime } from "./words.js";

const EVERY_MS = 5000;

/** Asks again and again, and draws when something has changed. */
export async function keepShowing(main, title, signal, ask, draw) {
  const place = make("div");
  main.replaceChildren(make("h1", {}, title), place);
  let shown = "";
  while (!signal.aborted) {
    const found = await ask();
    if (signal.aborted) return;
    const text = JSON.stringify(found);
    if (text !== shown) {
      const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
      place.replaceChildren(...draw(found));
      if (focused) place.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
      shown = text;
    }
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, EVERY_MS);
      signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
    });
  }
}

export const badge = (state, text) => make("span", { className: "badge", data: { state } }, text);
const calls = (query, text) =>
  make("a", { href: `#/history/?${new URLSearchParams(query)}`, data: { key: JSON.stringify(query) } }, text);

// --- trunks and extensions ---

const REACHED = { up: "up", down: "down", unknown: "not known yet" };

function stateOf(trunk) {
  if (trunk.registration === "failed" || trunk.state === "down") return badge("down", trunk.registration === "failed" ? "not registered" : "down");
  if (trunk.registration === "registering") return badge("waiting", "registering");
  if (trunk.registration) return badge("up", trunk.registration);
  if (trunk.state) return badge(trunk.state === "unknown" ? "waiting" : trunk.state, REACHED[trunk.state]);
  return badge("none", trunk.kind === "strangers" ? "calls of strangers" : "calls us");
}

const EXTENSION_STATES = {
  in_call: ["up", "in a call"], ringing: ["waiting", "rings"], idle: ["up", "free"], away: ["none", "no phone registered"],
};

function extensionTable(found) {
  const rows = found.map(({ number, name, state, messages, phones }) => [
    calls({ trunk: `ext:${number}` }, number), make("span", { dir: "auto" }, name),
    badge(...EXTENSION_STATES[state]),
    messages && (messages.new || messages.heard) ? `${count(messages.new)} new, ${count(messages.heard)} heard` : "",
    make("span", {}, ...phones.map((phone) => make("div", {},
      phone.user_agent || "phone", make("span", { className: "soft" }, ` ${phone.address} · ${phone.transport} · since `, shortTime(phone.since))))),
  ]);
  return table("Extensions", ["Extension", "Name", "State", "Messages", "Phones"], rows);
}

const trunksAndExtensions = async () => ({ ...(await trunks()), ...(await extensions()) });

export function showTrunks(main, rest, signal) {
  return keepShowing(main, "Trunks", signal, trunksAndExtensions, ({ trunks: found, extensions: people }) => {
    const own = people.length ? [make("h2", {}, "Extensions"), extensionTable(people)] : [];
    if (!found.length) {
      return own.length ? own : [empty("No trunks", "Phones reach this server by a table [[sip.trunks]], or a carrier by [[carriers]], in offhook.toml.",
        "Browsers need none.")];
    }
    const down = found.filter((trunk) => trunk.state === "down");
    const rows = found.map((trunk) => [
      trunk.name ? calls({ trunk: trunk.name }, trunk.name) : "(no trunk)",
      stateOf(trunk),
      trunk.since ? shortTime(trunk.since) : "",
      trunk.max_lines ? `${count(trunk.lines)} of ${count(trunk.max_lines)}` : count(trunk.lines),
      trunk.fault && make("span", {}, trunk.fault, trunk.state === "down" ? "" : make("span", { className: "soft" }, " (", shortTime(trunk.fault_at), ")")),
      [trunk.kind === "strangers" ? "" : trunk.kind, trunk.server, trunk.transport].filter(Boolean).join(" · "),
    ]);
    return [
      ...(down.length ? [make("p", { className: "notice bad" }, `Calls through ${down.map((t) => t.name).join(", ")} fail until this is mended. offhook doctor tries a trunk, and GET /sip/trace shows what it was asked and what it answered.`)] : []),
      table("Trunks", ["Trunk", "State", "Since", "Lines in use", "Last reason", "Where"], rows),
      ...own,
    ];
  });
}

// --- engines ---

const WORK = { asr: "hears", tts: "speaks" };
const ENGINE_STATES = {
  ready: ["up", "ready"], loading: ["waiting", "loading"], downloading: ["waiting", "downloading"],
  starting: ["waiting", "starting"], offered: ["none", "not asked for"], failed: ["down", "failed"],
};

function progress({ state, fraction, doing }) {
  if (state !== "downloading" && state !== "loading") return "";
  return make("span", { className: "loading" },
    make("progress", { max: 1, value: fraction, ariaLabel: doing || state }), ` ${Math.round(100 * fraction)} %`);
}

function reason(engine) {
  if (engine.state === "failed" && engine.retry_s) return `${engine.why}; tried again in ${Math.round(engine.retry_s)} s`;
  return engine.why || engine.doing || "";
}

export function showEngines(main, rest, signal) {
  return keepShowing(main, "Engines", signal, engines, ({ engines: found }) => {
    if (!found.length) return [empty("A bot of your own answers", "It brings its own engines, which are not known here.")];
    const failed = found.filter((engine) => engine.state === "failed");
    const rows = found.map((engine) => [
      make("strong", { title: engine.title }, engine.engine), WORK[engine.kind], engine.model,
      make("span", {}, badge(...ENGINE_STATES[engine.state]), progress(engine)),
      engine.in_use ? "yes" : "",
      engine.max_streams ? `${count(engine.streams)} of ${count(engine.max_streams)}` : count(engine.streams),
      engine.answers ? milliseconds(engine.latency_ms) : "",
      [reason(engine), ...Object.entries(engine.workers ?? {}).map(([state, number]) => `${number} ${state}`)].filter(Boolean).join(" · "),
    ]);
    return [
      ...(failed.length ? [make("p", { className: "notice bad" }, "New calls use what is ready meanwhile. offhook doctor says what this machine can run, and what is missing.")] : []),
      table("Engines", ["Engine", "Work", "Model", "State", "New calls use it", "Streams", "Answer (median)", "Why"], rows),
      make("p", { className: "soft" }, "The median is that of all answers since the server started: until the words are final, and until the first sound."),
    ];
  });
}

// --- agents ---

export function showAgents(main, rest, signal) {
  const midnight = new Date();
  midnight.setHours(0, 0, 0, 0);
  const from = midnight.toISOString();
  return keepShowing(main, "Agents", signal, () => agents({ from }), (found) => {
    if (found.is_bot) return [empty("A bot of your own answers", "The agents of offhook.toml answer no calls.")];
    const faults = [...found.faults, ...found.agents.filter((a) => a.fault).map((a) => `${a.name}: ${a.fault}`)];
    const numbers = (agent) => (found.kept ? [
      count(agent.in_progress),
      agent.calls ? calls({ agent: agent.name, from }, count(agent.calls)) : "0",
      milliseconds(agent.latency_p50_ms),
      agent.failures ? make("span", { className: "bad" }, count(agent.failures)) : "",
    ] : []);
    const rows = found.agents.map((agent) => [
      make("span", {}, make("strong", { dir: "auto" }, agent.name), agent.is_default ? make("span", { className: "soft" }, " usual") : ""),
      agent.fault ? badge("down", "fails") : badge("up", "answers"),
      make("span", {}, agent.kind, agent.model ? make("span", { className: "soft" }, ` ${agent.model}`) : ""),
      agent.tools.length ? make("span", { title: `and of every call: ${agent.built_in_tools.join(", ")}` }, agent.tools.join(", ")) : "",
      ...numbers(agent),
      make("code", { title: "changes with every setting but keys" }, agent.version),
    ]);
    const gone = found.others.filter((agent) => agent.calls || agent.in_progress).map((agent) => [
      make("span", { className: "soft", dir: "auto" }, agent.name), badge("none", "not in offhook.toml"), "", "", ...numbers(agent), ""]);
    const columns = ["Agent", "State", "Kind", "Tools", ...(found.kept ? ["Now", "Calls today", "Answered in (median)", "Failures"] : []), "Version"];
    return [
      ...faults.map((fault) => make("p", { className: "notice bad" }, fault)),
      table("Agents", columns, [...rows, ...gone]),
      make("p", { className: "soft" }, found.kept ? "Today begins at midnight where you are." : "Calls are not kept here, so they are not counted: see url in the section [records]."),
    ];
  });
}
