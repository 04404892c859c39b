// One call: who it was, what was said and done, how long answers took, and its sound.

import { analysisOf } from "./analysis.js";
import { call as get, exported, forget, recording, scenario, soundFault, timeline } from "./api.js";
import { axis, lengthOf } from "./axis.js";
import { empty, make, say } from "./dom.js";
import { lastSearch } from "./history.js";
import { soundOf, storyOf } from "./story.js";
import { supervision } from "./supervise.js";
import { waveform } from "./waveform.js";
import { clock, count, lasted, milliseconds, money, parties, time, wayIn } from "./words.js";

const EVERY_MS = 2000;

export async function showCall(main, rest, signal, who) {
  const [name, query = ""] = rest.split("?");
  const id = decodeURIComponent(name), at = Number(new URLSearchParams(query).get("at"));
  let known = await get(id).catch((error) => {
    if (error.status !== 404) throw error;
    return null;
  });
  if (signal.aborted) return;
  const back = make("p", {}, make("a", { href: lastSearch() }, "← History"));
  if (known === null) {
    main.replaceChildren(back, empty("There is no such call", "It may be older than this server keeps calls ([records] days)."));
    return;
  }
  const story = make("ol", { className: "story" });
  const player = playerOf(known, who);
  const supervises = known.state === "live" && who === "admin" ? supervision(id, signal) : null;
  main.replaceChildren(
    back, make("h1", { dir: "auto" }, parties(known)), supervises?.element ?? "",
    facts(known), notes(known), ...analysisOf(known, player.seek), player.row, player.element, quality(known), ...details(known),
    make("h2", {}, "What was said and done"), story, actions(known, who, player));
  let shown = -1;
  for (;;) {
    const { timeline: events } = await timeline(id);
    if (signal.aborted) return;
    if (events.length !== shown) {
      shown = events.length;
      player.show(events, lengthOf(known, events));
      supervises?.showHands(events);
      story.replaceChildren(...storyOf(events, player.seek));
      if (!shown) story.append(make("li", { className: "soft" }, known.forgotten ? "The words of this call have been deleted." : "Nothing was said."));
    }
    if (known.state !== "live") {
      supervises?.element.remove();
      break;
    }
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    if (signal.aborted) return;
    known = await get(id);
  }
  player.follow(story);
  if (at > 0) player.goTo(at, story);
  document.title = `${parties(known)} · offhook`;
}

function facts(call) {
  const list = [
    ["When", time(call.started)],
    ["Lasted", call.state === "live" ? "on the line" : lasted(call.seconds)],
    ["Ended", call.end_reason && `${call.end_reason}${ENDED_BY[call.ended_by] ?? ""}`],
    ["Agents", call.agents.join(", ")],
    ["Way in", wayIn(call)],
    ["Tenant", call.tenant],
    ["Turns", call.state === "live" ? "" : `${count(call.turns)}${call.interruptions ? `, ${count(call.interruptions)} of the agent’s interrupted` : ""}`],
    ["Answered in", call.latency_ms === null ? "" : `${milliseconds(call.latency_ms)} (median), ${milliseconds(call.latency_max_ms)} (slowest)`],
    ["Transferred to", call.transferred_to],
    ["Tokens", call.input_tokens ? `${count(call.input_tokens)} in, ${count(call.output_tokens)} out` : ""],
    ["Cost", money(call.cost)],
    ["Server", call.server],
    ["Listened to by", call.looks.map(({ who, at }) => `${who}, ${new Date(at).toLocaleString()}`).join("; ")],
    ["Call", make("code", {}, call.call_id)],
  ];
  return make("dl", { className: "facts" }, ...list.filter(([, value]) => value).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

/** What people of a team have noted at their desks. */
function notes({ notes: found = [] }) {
  if (!found.length) return "";
  return make("section", { className: "line" }, make("h2", {}, "Notes"), make("dl", { className: "facts" }, ...found.map(({ at, by, text }) =>
    make("div", {}, make("dt", {}, `${by}, ${new Date(at).toLocaleString()}`), make("dd", { dir: "auto" }, text)))));
}

const ENDED_BY = { remote: " (at the far end)", local: " (here)" };

/** How the line was, beneath what was heard on it. */
function quality(call) {
  const { mos, packets_received: received, packets_lost: lost, ...found } = call.statistics ?? {};
  const list = [
    ["Quality", mos ? make("span", {}, `${mos.toFixed(1)} of 5 (MOS), `, make("span", { className: mos < 3.6 ? "bad" : "" }, mos >= 4 ? "good" : mos >= 3.6 ? "fair" : "poor")) : ""],
    ["Lost", received ? `${count(lost)} of ${count(received + lost)} packets` : ""],
    ["Replaced", found.concealed_ms ? `${milliseconds(found.concealed_ms)} of sound` : ""],
    ["Jitter", found.jitter_ms ? milliseconds(found.jitter_ms) : ""],
    ["Round trip", found.round_trip_ms ? milliseconds(found.round_trip_ms) : ""],
    ["Lost on the way to the caller", found.remote_loss ? `${(100 * found.remote_loss).toFixed(1)} %` : ""],
  ].filter(([, value]) => value);
  if (!list.length) return "";
  return make("section", { className: "line" }, make("h2", {}, "The line"),
    make("dl", { className: "facts" }, ...list.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))));
}

const DETAILS = [["collected", "Found out"], ["variables", "Variables"], ["headers", "Headers"], ["record", "Record"]];

function details(call) {
  return DETAILS.filter(([name]) => call[name] && Object.keys(call[name]).length).map(([name, title]) =>
    make("details", { open: name === "collected" }, make("summary", {}, title),
      make("dl", { className: "facts" }, ...Object.entries(call[name]).map(([key, value]) =>
        make("div", {}, make("dt", {}, key.replaceAll("_", " ")),
          make("dd", { dir: "auto" }, shown(value)))))));
}

function shown(value) {
  if (typeof value === "number") return String(Number(value.toPrecision(4)));
  return value !== null && typeof value === "object" ? JSON.stringify(value) : String(value ?? "");
}

/** The player above the call's time, what jumps there, and what marks the words that are heard. */
function playerOf(call, who) {
  const listens = call.recording && who === "admin";
  const audio = listens ? make("audio", { controls: true, preload: "none", src: recording(call.call_id) }) : null;
  let sound = soundOf([]);
  const now = () => audio.currentTime * 1000 + sound.offset; // on the clock of the call
  const set = (ms) => { audio.currentTime = Math.max(0, ms - sound.offset) / 1000; };
  const seek = audio && ((ms) => { set(ms); audio.play(); });
  const picture = axis(seek);
  const element = make("div", { className: "player" });
  let row = "";
  let length = 1000;
  if (audio) {
    const load = make("button", { type: "button" }, "Show the sound");
    load.addEventListener("click", async () => {
      load.disabled = true;
      picture.sound.replaceChildren(await waveform(audio, call.seconds, length, sound));
      load.remove();
    });
    row = make("div", { className: "player-row" }, audio, load);
    const warn = async (otherwise) => {
      const fault = (await soundFault(call.call_id).catch(() => "")) || otherwise;
      if (fault) row.append(make("p", { className: "fault" }, fault));
    };
    if (call.state === "ended") audio.addEventListener("loadedmetadata", () => warn(""), { once: true });
    audio.addEventListener("error", () => warn("The rest of this recording cannot be read: it was changed, or is damaged."), { once: true });
    audio.addEventListener("timeupdate", () => picture.at(now()));
  } else if (call.recording) {
    element.append(make("p", { className: "soft" }, "Recorded; the reader’s key does not let you listen."));
  }
  element.append(picture.element);
  return {
    row, element, seek,
    now: () => (audio?.currentTime ? Math.round(now()) : 0),
    show: (events, whole) => {
      [length, sound] = [whole, soundOf(events)];
      picture.show(events, whole);
    },
    follow: (story) => audio?.addEventListener("timeupdate", () => mark(story, now())),
    goTo: (ms, story) => {
      if (audio) set(ms);
      picture.at(ms);
      mark(story, ms);
    },
  };
}

function mark(story, ms) {
  let current = null;
  for (const item of story.querySelectorAll(".caller, .agent")) {
    if (Number(item.dataset.from) <= ms && ms < Number(item.dataset.to) + 300) current = item;
  }
  for (const item of story.querySelectorAll(".now")) if (item !== current) item.classList.remove("now");
  if (current && !current.classList.contains("now")) {
    current.classList.add("now");
    current.scrollIntoView({ block: "nearest" });
  }
}

function actions(call, who, player) {
  const row = make("div", { className: "actions" });
  const copy = make("button", { type: "button" }, "Copy the link");
  copy.addEventListener("click", async () => {
    const link = new URL(location.href), at = player.now();
    link.hash = `#/call/${encodeURIComponent(call.call_id)}${at ? `?at=${at}` : ""}`;
    const words = at ? `Copied, with ${clock(at)}` : "Copied";
    try {
      await navigator.clipboard.writeText(link.href);
      copy.textContent = words;
    } catch { // without HTTPS browsers have no clipboard
      copy.replaceWith(make("input", { className: "link", readOnly: true, value: link.href, ariaLabel: "The link of this call" }));
      row.querySelector(".link").select();
    }
    say(words);
  });
  row.append(copy, make("a", { href: exported(call.call_id), download: `${call.call_id}.json` }, "Download the record"));
  if (call.turns && !call.forgotten) row.append(make("a", { href: scenario(call.call_id), download: `${call.call_id}.yaml`, title: "a file for offhook eval, in which the caller says the same again" }, "Make a scenario of it"));
  if (who !== "admin") return row;
  if (call.recording) row.append(make("a", { href: recording(call.call_id), download: `${call.call_id}.ogg` }, "Download the recording"));
  if (call.state === "ended" && !call.forgotten) {
    const button = make("button", { type: "button", className: "danger" }, "Forget this call");
    button.addEventListener("click", async () => {
      if (!confirm("Delete the words, numbers, variables and the recording of this call for ever?")) return;
      button.disabled = true;
      const { recordings_waiting: waiting } = await forget(call.call_id);
      if (waiting) alert("The recording is still in its bucket, which cannot be used now. The server deletes it there as soon as it can.");
      dispatchEvent(new HashChangeEvent("hashchange"));
    });
    row.append(button);
  }
  return row;
}
