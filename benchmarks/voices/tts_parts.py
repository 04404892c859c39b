"""Parts of `offhook bench tts` in which many speak: see tts.py."""

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

import numpy as np

from benchmarks.speech.texts import Talk, Word, even_words, frames_of
from benchmarks.table import Table, percentile
from benchmarks.voices.listening import Tally
from benchmarks.voices.tts_load import Reply, Serving, serve
from benchmarks.voices.tts_runners import Machine, usual_voices
from offhook.pipeline.engines.qwen3_tts.prompts import VoicePrompt
from offhook.pipeline.engines.shared.synthesis.messages import FRAME_S, Break, Reason

BUFFER_S = 0.08
"""Of a listener, in front of what he plays: the jitter buffer of a call."""
LATE_SHARE = 0.001
"""Of frames: so many voices are held if no more are late,"""
HEARD_SHARE = 0.9
"""and at least so much of the time is filled with speech: nobody waits to begin."""
DRAIN_S = 20.0
"""The longest that what was begun may take to end."""


def heat(serving: Serving, voices: Sequence[VoicePrompt]) -> None:
    """Voices that were heard before, and one reply through everything."""
    replies = [Reply(serving, Tally(), live=False) for _ in voices]
    text = Talk(serving.machine.config, 0).sentence()
    for reply, voice in zip(replies, voices, strict=True):
        reply.say(voice, text)
    serving.run(DRAIN_S, lambda: all(reply.over for reply in replies))


# --- voices ---


class Speaker:
    """Speaks all the time: the next text when the one before has been heard."""

    def __init__(self, serving: Serving, voice: VoicePrompt, tally: Tally, seed: int) -> None:
        self._serving = serving
        self._voice = voice
        self._tally = tally
        self._talk = Talk(serving.machine.config, seed)
        self.reply: Reply

    def begin(self) -> None:
        self.reply = Reply(self._serving, self._tally, BUFFER_S, ended=self._go_on)
        self.reply.say(self._voice, self._talk.sentence())

    def _go_on(self) -> None:
        self._serving.at(self.reply.listener.plays_until, self.begin)


def speakers(serving: Serving, count: int, tally: Tally, stagger: float) -> list[Speaker]:
    """So many, who begin one after another."""
    voices = usual_voices(serving.machine.config)
    found = [Speaker(serving, voices[i % len(voices)], tally, i) for i in range(count)]
    began = serving.now()
    for i, speaker in enumerate(found):
        serving.at(began + stagger * i / count, speaker.begin)
    return found


def voices(
    machine: Machine, points: Sequence[int], seconds: float, settle: float, as_json: bool
) -> None:
    columns = (
        "voices held frames heard_share late_share gaps longest_gap_ms first_p50_ms first_p95_ms "
        "batch wasted_frames thread_busy"
    )
    note = (
        "all speak all the time. A frame is late when the listener, who plays 80 ms after the "
        "first sound came and waits where there is none, has silence instead; held: "
        f"at most {LATE_SHARE:.1%} are, and {HEARD_SHARE:.0%} of the time of all is heard speech"
    )
    table = Table("voices", note, columns, as_json)
    held = 0
    for count in points:
        row = _voices(machine, count, seconds, settle)
        holds = row["late_share"] <= LATE_SHARE and row["heard_share"] >= HEARD_SHARE
        held = max(held, count * holds)
        table.row(**row, held="yes" if holds else "no")
    Table("voices held", "largest number in real time", "voices", as_json).row(voices=held)


def _voices(machine: Machine, count: int, seconds: float, settle: float) -> dict[str, float]:
    tally = Tally()
    tally.counting = False
    with serve(machine) as serving:
        counters = serving.engine.counters
        speakers(serving, count, tally, settle)
        serving.run(settle)
        tally.counting = True
        before = counters.steps, counters.frames, counters.wasted_frames, serving.busy
        serving.run(seconds)
        after = counters.steps, counters.frames, counters.wasted_frames, serving.busy
    steps, frames, wasted, busy = np.subtract(after, before).tolist()
    return {
        "voices": count,
        "frames": tally.frames,
        "heard_share": tally.frames * FRAME_S / (count * seconds),
        "late_share": tally.late_share,
        "gaps": len(tally.gaps),
        "longest_gap_ms": 1000 * max(tally.gaps, default=0.0),
        "first_p50_ms": percentile(tally.first_ms, 50),
        "first_p95_ms": percentile(tally.first_ms, 95),
        "batch": frames / max(1, steps),
        "wasted_frames": int(wasted),
        "thread_busy": busy / seconds,
    }


# --- open loop ---

PUBLISHED_P95_MS: dict[float, float] = {
    1: 26.5,
    2: 27.2,
    4: 31.6,
    8: 33.1,
    10: 34.1,
    12: 62.2,
    16: 69.5,
    20: 77.2,
}
"""By requests a second: the 95th percentile of the time to the first audible sound that
nari-labs/benchmarks (reports/Qwen3-TTS-1.7B-CustomVoice/Nari-Qwen3-TTS) gives for one H100, of the
1.7B with its weights, through HTTP on the same machine. Ours is without a socket, and silence at
the beginning is not in it."""
WORD_S = 0.01
"""Between two words of the text `words`."""
END_S = 1.0
"""For what was asked last to begin."""
TEXTS = ("whole", "words", "file")


class Point(NamedTuple):
    rate: float
    """Requests a second."""
    seconds: float
    text: str
    """One of TEXTS."""


class Arrivals:
    """Requests that come however many are there already (Poisson)."""

    def __init__(self, serving: Serving, point: Point) -> None:
        self.tally = Tally()
        self.replies: list[Reply] = []
        self.lag_ms: list[float] = []
        """Of the client: how much later than planned it asked."""
        self.peak = 0
        """Requests at once."""
        self._serving = serving
        self._text = point.text
        self._voice = usual_voices(serving.machine.config)[0]
        self._talk = Talk(serving.machine.config, 1)
        random = Random(point.rate)
        at, end = serving.now(), serving.now() + point.seconds
        self.planned = 0
        while (at := at + random.expovariate(point.rate)) < end:
            self.planned += 1
            serving.at(at, partial(self._ask, at))

    def _ask(self, planned: float) -> None:
        serving = self._serving
        self.lag_ms.append(1000 * (serving.now() - planned))
        reply = Reply(serving, self.tally, live=self._text != "file")
        self.replies.append(reply)
        self.peak = max(self.peak, sum(not r.over for r in self.replies))
        said = self._talk.sentence()
        if self._text != "words":
            reply.say(self._voice, said)
            return
        reply.open(self._voice)
        began = serving.now()
        for i, word in enumerate(said):
            write = partial(reply.write, [word], i == len(said) - 1)
            if i:
                serving.at(began + i * WORD_S, write)
            else:
                write()

    def over(self) -> bool:
        return len(self.replies) == self.planned and all(reply.over for reply in self.replies)


def open_loop(machine: Machine, points: Sequence[Point], as_json: bool) -> None:
    columns = (
        "text a_second requests first_p50_ms first_p95_ms published_p95_ms engine_p95_ms "
        "all_p95_ms underruns peak refused silent client_lag_p95_ms"
    )
    note = (
        "requests come at random (Poisson), 4.4 s of speech each. text: whole at once; words, one "
        "in 10 ms; file, whole and not paced, and only there `all` is from the request to the last "
        "sound: else sound is made 0.6 s ahead of who listens. underruns: requests whose listener, "
        "playing at once, had to wait; silent: who heard nothing within 1 s. published: the "
        "1.7B on one H100, nari-labs/benchmarks"
    )
    table = Table("open", note, columns, as_json)
    for point in points:
        with serve(machine) as serving:
            heat(serving, usual_voices(machine.config)[:1])
            arrivals = Arrivals(serving, point)
            serving.run(point.seconds)
            serving.run(END_S, arrivals.over)
        replies, tally = arrivals.replies, arrivals.tally
        ended = [1000 * (r.ended - r.asked) for r in replies if r.ended is not None]
        table.row(
            text=point.text,
            a_second=point.rate,
            requests=len(replies),
            first_p50_ms=percentile(tally.first_ms, 50),
            first_p95_ms=percentile(tally.first_ms, 95),
            published_p95_ms=PUBLISHED_P95_MS.get(point.rate),
            engine_p95_ms=percentile(tally.engine_ms, 95),
            all_p95_ms=percentile(ended if point.text == "file" else [], 95),
            underruns=sum(r.listener.gaps > 0 for r in replies),
            peak=arrivals.peak,
            refused=sum(r.refused for r in replies),
            silent=sum(r.first is None and not r.refused for r in replies),
            client_lag_p95_ms=percentile(arrivals.lag_ms, 95),
        )


# --- text of a language model ---

LLM_WORDS, LLM_SENTENCE = 24, 12
"""Words of a token each, of a reply and of a sentence."""
LLM_REPLIES = 8
"""Of each case, where there is room for so many."""


def _sentences(said: Sequence[Word]) -> Iterator[list[Word]]:
    sentence: list[Word] = []
    for word in said:
        sentence.append(word)
        if word.ends is Break.SENTENCE:
            yield sentence
            sentence = []


def llm(machine: Machine, rates: Sequence[float], as_json: bool) -> None:
    """All at the same time, so the slowest text is how long it takes."""
    columns = (
        "tokens_a_second given replies first_p50_ms first_p95_ms waits_each longest_wait_ms "
        "waited_s starved_each not_spoken frames_off"
    )
    note = (
        "text comes token by token and is given as it comes, or a sentence at a time. first: from "
        "the first token. waits: silence in what a listener hears while text is awaited, before "
        "voice_sound moves it between words. not spoken: replies that did not end as they should; "
        "frames off: of their length"
    )
    table = Table("llm", note, columns, as_json)
    voice = usual_voices(machine.config)[0]
    text = even_words(LLM_WORDS, LLM_SENTENCE, machine.config)
    replies = min(LLM_REPLIES, machine.streams // (2 * len(rates)))
    cases: dict[tuple[float, str], tuple[Tally, list[Reply]]] = {}
    with serve(machine) as serving:
        heat(serving, [voice])
        began = serving.now() + 0.05
        for rate in rates:
            for given in ("tokens", "sentences"):
                tally = Tally()
                parts = [[word] for word in text] if given == "tokens" else [*_sentences(text)]
                made = [Reply(serving, tally, BUFFER_S) for _ in range(replies)]
                for i, reply in enumerate(made):
                    # Over two seconds: nobody's first token comes with another's.
                    at = (i + len(cases) / (2 * len(rates))) * 2.0 / replies
                    _type(serving, reply, voice, parts, began + at, rate)
                cases[rate, given] = tally, made
        everybody = [reply for _, made in cases.values() for reply in made]
        longest = LLM_WORDS / min(rates) + 2
        serving.run(longest + DRAIN_S, lambda: all(r.over for r in everybody))
    for (rate, given), (tally, made) in cases.items():
        sentence_s = (LLM_SENTENCE - 1) / rate if given == "sentences" else 0.0
        firsts = [ms + 1000 * sentence_s for ms in tally.first_ms]
        table.row(
            tokens_a_second=rate,
            given=given,
            replies=len(made),
            first_p50_ms=percentile(firsts, 50),
            first_p95_ms=percentile(firsts, 95),
            waits_each=len(tally.gaps) / len(made),
            longest_wait_ms=1000 * max(tally.gaps, default=0.0),
            waited_s=sum(tally.gaps) / len(made),
            starved_each=sum(r.starved for r in made) / len(made),
            not_spoken=sum(r.reason is not Reason.SPOKEN for r in made),
            frames_off=max(abs(r.listener.frames - frames_of(LLM_WORDS)) for r in made),
        )


def _type(
    serving: Serving,
    reply: Reply,
    voice: VoicePrompt,
    parts: Sequence[Sequence[Word]],
    began: float,
    rate: float,
) -> None:
    """Each part when its last token has come; the first token comes at `began`."""
    tokens = 0
    for i, part in enumerate(parts):
        tokens += sum(len(word.tokens) for word in part)
        if i == 0:
            serving.at(began, partial(reply.open, voice))
        when = began + (tokens - 1) / rate
        serving.at(when, partial(reply.write, part, i == len(parts) - 1))


# --- barge-in ---


class Interrupted:
    """Speaks until somebody talks over it, and then begins anew in the slot that it left."""

    def __init__(self, serving: Serving, voice: VoicePrompt, seed: int, tally: Tally) -> None:
        self.cancelled: list[tuple[Reply, float, float]] = []
        """With when, and the s of sound that came and was not heard."""
        self.next: list[Reply] = []
        """After each."""
        self.stopped = False
        self._serving = serving
        self._voice = voice
        self._tally = tally
        self._random = Random(seed)
        self._talk = Talk(serving.machine.config, seed)
        self._reply: Reply

    def begin(self) -> None:
        self._reply = reply = Reply(self._serving, self._tally, BUFFER_S, ended=self.begin)
        reply.say(self._voice, self._talk.sentence() + self._talk.sentence())
        wait = self._random.uniform(0.0, 4.0)
        self._serving.at(self._serving.now() + wait, lambda: self._interrupt(reply))

    def _interrupt(self, reply: Reply) -> None:
        if reply is not self._reply or self.stopped:
            return
        now = self._serving.now()
        reply.cancel()
        self.cancelled.append((reply, now, reply.listener.unheard(now)))
        self.begin()
        self.next.append(self._reply)


def barge(machine: Machine, count: int, seconds: float, as_json: bool) -> None:
    columns = (
        "voices cancels wasted_frames_mean wasted_frames_most unheard_p50_ms unheard_p95_ms "
        "reused_p50_ms reused_p95_ms first_p50_ms first_p95_ms"
    )
    note = (
        "as many speak as there are slots, each until it is cancelled at a random moment; who "
        "comes next has but that slot. wasted frames: made or being made when it was cancelled, "
        "and never told. unheard: sound told and not played. reused: from the cancel until the "
        "next stream has the slot; first: to its first sound"
    )
    table = Table("barge", note, columns, as_json)
    tally = Tally()
    usual = usual_voices(machine.config)
    with serve(machine, count) as serving:
        everybody = [Interrupted(serving, usual[i % len(usual)], i, tally) for i in range(count)]
        for i, one in enumerate(everybody):
            serving.at(serving.now() + 2.0 * i / count, one.begin)
        serving.run(seconds)
        for one in everybody:
            one.stopped = True
        serving.run(0.5)
    cancelled = [made for one in everybody for made in one.cancelled]
    after = [reply for one in everybody for reply in one.next]
    reused = [1000 * (r.opened - at) for r, (_, at, _) in zip(after, cancelled, strict=True)]
    wasted = [reply.wasted for reply, _, _ in cancelled]
    unheard = [1000 * left for _, _, left in cancelled]
    table.row(
        voices=count,
        cancels=len(cancelled),
        wasted_frames_mean=sum(wasted) / max(1, len(wasted)),
        wasted_frames_most=max(wasted, default=0),
        unheard_p50_ms=percentile(unheard, 50),
        unheard_p95_ms=percentile(unheard, 95),
        reused_p50_ms=percentile(reused, 50),
        reused_p95_ms=percentile(reused, 95),
        first_p50_ms=percentile(_firsts(after), 50),
        first_p95_ms=percentile(_firsts(after), 95),
    )


def _firsts(replies: Sequence[Reply]) -> list[float]:
    return [1000 * (reply.first - reply.asked) for reply in replies if reply.first is not None]
