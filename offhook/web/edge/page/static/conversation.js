// The words of one call, both sides, in the order they were heard. Pure: no DOM, no network.
//
// Entries: {kind: "caller", text, partial, typed}
//          {kind: "agent", written, spoken, unheard, speaking, latency}
//          {kind: "note", text}
// Whoever is told of an entry may note there when it was, as `at`, in seconds of the call.
// `onEntry(entry)` is called for a new or changed entry; one with `gone` has been taken back.

const WORD = /[\p{L}\p{N}]/u;

export class Conversation {
  entries = [];
  #onEntry;
  #caller = null; // the caller's turn that more words go to
  #begun = false; // the caller began a new turn since that one was sealed
  #reply = null; // the agent's reply that more words go to
  #next = null; // the reply being written while that one is still spoken
  #cutReply = null; // the last reply that was interrupted, until the server tells what was heard
  #cut = false; // and nothing of a next one has come
  #latency = null; // of a reply that has not begun to sound

  constructor(onEntry) {
    this.#onEntry = onEntry;
  }

  // --- the caller

  /** A turn of the caller's begins. */
  callerBegan() {
    this.#begun = true;
  }

  /** Words recognised so far in this turn; `final` ones stay. */
  callerSaid(words, final) {
    if (this.#caller?.sealed && !final) {
      if (this.#begun) this.#settleCaller();
      else this.#moveCaller();
    }
    const entry = this.#callerEntry();
    entry.partial = final ? "" : words.trim();
    if (final) entry.text = join(entry.text, words.trim());
    if (!entry.text && !entry.partial) this.#takeBack(entry);
    else this.#changed(entry);
    if (entry.sealed && final) this.#caller = null;
  }

  callerTyped(words) {
    this.#sealCaller();
    this.#add({ kind: "caller", text: words, partial: "", typed: true });
  }

  #callerEntry() {
    this.#caller ??= { kind: "caller", text: "", partial: "", typed: false };
    return this.#caller;
  }

  /** The agent answers: later words are a new turn, but a late final may still complete this one. */
  #sealCaller() {
    if (!this.#caller) return;
    this.#begun = false;
    if (this.#caller.partial) this.#caller.sealed = true;
    else this.#caller = null;
  }

  /** The agent said something in between, and the turn goes on below that: its words come again. */
  #moveCaller() {
    const entry = this.#caller;
    this.#caller = null;
    entry.partial = "";
    if (entry.text) this.#changed(entry);
    else this.#takeBack(entry);
  }

  /** New words, and the final of the turn before never came: what was recognised of it stays. */
  #settleCaller() {
    const entry = this.#caller;
    this.#caller = null;
    entry.text = join(entry.text, entry.partial);
    entry.partial = "";
    this.#changed(entry);
  }

  // --- the agent

  /** Text as the agent writes it, ahead of the voice. */
  agentWrote(text) {
    if (this.#cut) return;
    (this.#next ?? this.#openReply()).written += text;
  }

  /** Words as they are spoken. */
  agentSaid(words) {
    if (this.#cut) return;
    if (this.#next && endOf(words, this.#next.written, "") !== null) this.agentStopped();
    const entry = this.#openReply();
    this.#show(entry);
    const end = endOf(words, entry.written, entry.spoken);
    entry.spoken = end === null ? join(entry.spoken, words) : entry.written.slice(0, end);
    this.#changed(entry);
  }

  agentStarted() {
    this.#cut = false;
    if (!this.#reply) return;
    this.#reply.speaking = true;
    if (this.#reply.spoken) this.#changed(this.#reply);
  }

  /** A pause for breath stops the voice too: the reply is over when all of it was spoken. */
  agentStopped() {
    const entry = this.#reply;
    if (!entry) return;
    entry.speaking = false;
    if (entry.spoken) this.#changed(entry);
    if (unspokenOf(entry) !== "") return;
    this.#reply = this.#next;
    this.#next = null;
  }

  /** A new reply is being written: the one before is over once all of it was spoken. */
  agentThinks() {
    this.#cut = false;
    if (!this.#reply || unspokenOf(this.#reply) !== "") return;
    if (this.#reply.speaking && this.#reply.spoken) this.#next = newReply();
    else this.agentStopped();
  }

  /** The caller cut in. What was heard is our own guess until the server tells. */
  interrupted(heard = null, unheard = null) {
    if (heard === null) this.#cut = true;
    const entry = heard === null ? this.#reply : this.#cutReply ?? this.#reply;
    if (!entry) return;
    this.#cutReply = heard === null ? entry : null;
    if (entry === this.#reply) this.#reply = this.#next = null;
    entry.speaking = false;
    entry.spoken = heard ?? entry.spoken;
    // The server tells what was made into sound; the agent may have written more.
    const unspoken = unspokenOf(entry);
    entry.unheard = unspoken.length > (unheard?.length ?? 0) ? unspoken : (unheard ?? "");
    if (heard) this.#show(entry);
    if (entry.shown) this.#changed(entry);
  }

  #openReply() {
    this.#reply ??= newReply();
    return this.#reply;
  }

  #show(entry) {
    if (entry.shown) return;
    entry.shown = true;
    this.#sealCaller();
    entry.latency ??= this.#latency;
    this.#latency = null;
    this.#add(entry);
  }

  // --- around the words

  /** `{spans: [{name, ms}], total_ms}` of the reply being spoken or about to be. */
  latency(breakdown) {
    const entry = this.#reply;
    if (entry?.shown && !entry.latency) {
      entry.latency = breakdown;
      this.#changed(entry);
    } else {
      this.#latency = breakdown;
    }
  }

  /** The caller made a sound that was no turn; the agent goes on. */
  wentOn(text) {
    if (this.#caller && !this.#caller.sealed) this.#takeBack(this.#caller);
    this.note(text);
  }

  note(text) {
    this.#add({ kind: "note", text });
  }

  #add(entry) {
    this.entries.push(entry);
    this.#onEntry(entry);
  }

  #changed(entry) {
    if (!this.entries.includes(entry)) this.#add(entry);
    else this.#onEntry(entry);
  }

  #takeBack(entry) {
    this.#caller = null;
    const at = this.entries.indexOf(entry);
    if (at < 0) return;
    this.entries.splice(at, 1);
    entry.gone = true;
    this.#onEntry(entry);
  }
}

function newReply() {
  return { kind: "agent", written: "", spoken: "", unheard: "", speaking: true, latency: null };
}

/** The part of a reply that was written and not spoken. */
function unspokenOf({ written, spoken }) {
  return written.startsWith(spoken) ? written.slice(spoken.length).trim() : "";
}

/**
 * Where in `written` the words now spoken end, punctuation after them included, so that the
 * text keeps the spaces it was written with; null when the voice says something else.
 */
function endOf(words, written, spoken) {
  if (!written.startsWith(spoken)) return null;
  const wanted = words.trim();
  const at = written.indexOf(wanted, spoken.length);
  if (at < 0 || WORD.test(written.slice(spoken.length, at))) return null;
  let end = at + wanted.length;
  while (end < written.length && !WORD.test(written[end]) && !/\s/.test(written[end])) end++;
  return end;
}

/** Two runs of words as one: a space between them unless there is one or punctuation follows. */
function join(before, after) {
  if (!before || !after) return before || after;
  const space = /\s$/.test(before) || /^[\s.,;:!?…)\]}’'"]/u.test(after) ? "" : " ";
  return before + space + after;
}
