"""Whatever happens to the utterances of a stream, each has its final, once and in its turn."""

from collections.abc import Callable
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.recognizer import Final, Partial
from offhook.pipeline.speech.remote.asr_protocol import MAX_AUDIO_BYTES, RATES
from offhook.pipeline.speech.streams import utterance_queue
from offhook.pipeline.speech.streams.utterance_queue import (
    LIFE_CYCLE,
    Action,
    Event,
    Utterance,
    UtteranceQueue,
    UtteranceState,
)

TENTH = RATE_IN // 10
UTTERANCE_S, KEPT_S, WAITING = 1, 2, 4
END = "zz"
"""The language of a final that was asked for."""


SMALL = patch.multiple(
    utterance_queue, MAX_UTTERANCE_S=UTTERANCE_S, MAX_KEPT_S=KEPT_S, MAX_WAITING=WAITING
)


class SentOnce(Utterance):
    replays = False


class Quiet(Utterance):
    cut_at_quiet = True


class Stream:
    """A queue, whoever speaks into it and whoever hears, who may say anything of anything."""

    def __init__(self, make: Callable[[int], Utterance]) -> None:
        self.all: list[Utterance] = []
        self.finished: list[Utterance] = []
        self.told: list[Partial | Final] = []
        self.sent: dict[Utterance, bytes] = {}
        self.refused = False
        self.position = 0

        def begin(start: int) -> Utterance:
            self.all.append(make(start))
            return self.all[-1]

        self.queue = UtteranceQueue(begin)

    def pick(self, which: int) -> Utterance | None:
        return self.all[-1 - which % len(self.all)] if self.all else None

    def do(self, what: str, which: int, size: int) -> None:
        utterance = self.pick(which)
        match what:
            case "feed":
                pcm = np.arange(self.position, self.position + size * TENTH) % 32768
                self.position += len(pcm)
                self.refused |= not self.queue.feed(pcm.astype(np.int16), 0.0)
            case "finish":
                self.queue.finish(0.0)
                newest = [u for u in self.all if u.state is not UtteranceState.OPEN][-1]
                self.finished.append(newest)
            case "cancel":
                self.queue.cancel()
            case "partial" if utterance:
                words = "a b c d e f"[: 2 * size]
                self.hear(utterance, Partial(words, min(which, len(words)), 100 * size))
            case "part" if utterance:
                audio_ms = min(100 * size, utterance.audio_ms)
                self.hear(utterance, Final(str(utterance.number), audio_ms, continues=True))
            case "final" if utterance:
                self.end_of(utterance)
            case "lose" if utterance:
                if not self.queue.lose(utterance, float(which * size)):
                    self.told += self.queue.give_up(utterance)
            case "give up" if utterance:
                self.told += self.queue.give_up(utterance)
            case "send" if utterance:
                while (piece := utterance.next_to_send(size * 999 * 2)) is not None:
                    assert piece or utterance.finish_sent
        while (oldest := self.queue.overdue) is not None:
            self.told += self.queue.give_up(oldest)
        self.check()

    def hear(self, utterance: Utterance, event: Partial | Final) -> None:
        self.told += self.queue.receive(utterance, event)

    def end_of(self, utterance: Utterance) -> None:
        language = END if utterance.state is UtteranceState.FINISHED else "en"
        final = Final(str(utterance.number), utterance.audio_ms, language=language)
        self.hear(utterance, final)

    def check(self) -> None:
        waiting = list(self.queue)
        assert sum(len(u.pcm) for u in waiting) <= 2 * KEPT_S * RATE_IN
        assert self.queue.waiting <= WAITING
        assert all(u.state is not UtteranceState.OPEN for u in waiting[:-1])
        for utterance in waiting:
            if utterance.replays:
                assert len(utterance.pcm) == 2 * utterance.fed
                assert utterance.sent <= len(utterance.pcm)
                assert len(utterance.pcm) <= 2 * UTTERANCE_S * RATE_IN or utterance.cut_at_quiet
                if utterance.pcm and not self.refused:
                    first = int.from_bytes(utterance.pcm[:2], "little")
                    assert first == utterance.start % 32768
            if utterance.state not in (UtteranceState.OPEN, UtteranceState.FINISHED):
                assert utterance is not waiting[0]

    def end(self) -> None:
        """Everything that can still have a final has one."""
        if self.queue.open is not None:
            self.do("finish", 0, 1)
        for utterance in reversed(self.all):
            self.end_of(utterance)
        assert not list(self.queue)


STEPS = st.tuples(
    st.sampled_from(
        ("feed", "feed", "finish", "cancel", "partial", "part", "final", "lose", "give up", "send")
    ),
    st.integers(0, 5),
    st.integers(1, 12),
)


FULL = [*[("finish", 0, 1)] * WAITING, ("feed", 0, 11)]
"""As many as may wait, and sound of more than one utterance."""


@SMALL
@given(st.lists(STEPS, max_size=60), st.sampled_from((Utterance, SentOnce, Quiet)))
@example(FULL, Utterance)
def test_no_final_is_lost_or_doubled_and_all_come_in_order(
    steps: list[tuple[str, int, int]], make: Callable[[int], Utterance]
) -> None:
    stream = Stream(make)
    for what, which, size in steps:
        stream.do(what, which, size)
    stream.end()
    finals = [event for event in stream.told if isinstance(event, Final)]
    kept = [u for u in stream.all if u.state is not UtteranceState.CANCELLED]
    ends = [final.text for final in finals if final.lost or final.language == END]
    assert ends == [str(u.number) if u.state is UtteranceState.DONE else "" for u in kept]
    asked = [u for u in stream.finished if u.state is not UtteranceState.CANCELLED]
    assert sum(not final.continues for final in finals) == len(asked)
    numbers = [int(final.text) for final in finals if final.text]
    assert numbers == sorted(numbers)


@SMALL
@given(st.lists(STEPS, max_size=60))
@example(FULL)
def test_what_was_stable_is_never_taken_back(steps: list[tuple[str, int, int]]) -> None:
    stream = Stream(Utterance)
    stable, covered = "", 0
    for what, which, size in steps:
        before = len(stream.told)
        stream.do(what, which, size) if what != "cancel" else None
        for event in stream.told[before:]:
            if isinstance(event, Final):
                stable, covered = "", 0
                continue
            assert event.text.startswith(stable)
            assert event.audio_ms >= covered
            stable, covered = event.text[: event.stable_chars], event.audio_ms


def test_sound_is_sent_again_from_the_beginning_when_whoever_heard_it_is_lost() -> None:
    queue = UtteranceQueue(Utterance)
    pcm = np.arange(10 * TENTH).astype(np.int16)
    queue.feed(pcm[: 4 * TENTH], 0.0)
    utterance = queue.oldest
    assert utterance is not None
    assert utterance.next_to_send(1 << 20) == pcm[: 4 * TENTH].tobytes()
    queue.receive(utterance, Final("one", 100, continues=True))
    queue.feed(pcm[4 * TENTH :], 0.0)
    queue.finish(0.0)
    assert utterance.next_to_send(1 << 20) == pcm[4 * TENTH :].tobytes()
    assert utterance.next_to_send(1 << 20) == b""
    assert queue.lose(utterance, now=100.0)
    assert utterance.start == TENTH
    assert utterance.next_to_send(1 << 20) == pcm[TENTH:].tobytes()
    assert utterance.next_to_send(1 << 20) == b""
    assert utterance.next_to_send(1 << 20) is None
    for now in (100.1, 100.2, 109.9):
        assert queue.lose(utterance, now)
    assert not queue.lose(utterance, 110.0)
    assert queue.give_up(utterance) == [Final("", 900, language="und", lost=True)]


def test_finals_wait_for_those_before_them_and_a_cancelled_one_has_none() -> None:
    queue = UtteranceQueue(Utterance)
    made = []
    for _ in range(3):
        queue.feed(np.zeros(TENTH, np.int16), 0.0)
        queue.finish(0.0)
        made.append(list(queue)[-1])
    assert queue.receive(made[2], Final("3", 100)) == []
    assert queue.receive(made[1], Partial("2", 0, 100)) == []
    assert queue.receive(made[1], Final("2", 100)) == []
    assert queue.cancel() is made[2]
    assert queue.receive(made[0], Final("1", 100)) == [Final("1", 100), Final("2", 100)]
    assert queue.receive(made[2], Final("3", 100)) == []
    assert queue.oldest is None


def test_a_server_reads_no_more_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utterance_queue, "MAX_UNHEARD_S", 1)
    queue = UtteranceQueue(SentOnce, bounded=False)
    queue.feed(np.zeros(20 * TENTH, np.int16), 0.0)
    assert queue.full
    utterance = queue.oldest
    assert utterance is not None
    queue.receive(utterance, Partial("", 0, 1500))
    assert not queue.full
    for _ in range(utterance_queue.MAX_WAITING):
        assert not queue.full
        queue.finish(0.0)
    assert queue.full


def test_what_a_server_reads_before_it_is_full_has_room_in_the_stream_behind_it() -> None:
    client, kept = UtteranceQueue(SentOnce, bounded=False), UtteranceQueue(Utterance)
    longest = np.zeros(MAX_AUDIO_BYTES // 2 * RATE_IN // min(RATES), np.int16)
    second = np.zeros(RATE_IN, np.int16)
    for seconds in range(utterance_queue.MAX_UTTERANCE_S):
        assert client.feed(second, 0.0)
        assert kept.feed(second, 0.0)
        assert client.oldest is not None
        client.receive(client.oldest, Partial("", 0, 1000 * seconds + 1000))
    while not client.full:
        pcm = longest if client.feed(second, 0.0) and client.full else second
        assert kept.feed(pcm, 0.0)


def test_every_row_of_the_life_cycle_leads_somewhere() -> None:
    for state, event in product(UtteranceState, Event):
        after, action = LIFE_CYCLE.get((state, event), (state, Action.NOTHING))
        if state is UtteranceState.CANCELLED:
            assert (after, action) == (state, Action.NOTHING)
        if event is Event.CANCEL:
            assert after is UtteranceState.CANCELLED
        if after in (UtteranceState.DONE, UtteranceState.FAILED) and state is not after:
            assert action is Action.SETTLE


def test_sound_that_was_sent_before_counts_as_if_it_had_been_fed() -> None:
    fed, counted = (UtteranceQueue(SentOnce, timed=True, bounded=False) for _ in range(2))
    sound = np.ones(TENTH, np.int16)
    for queue in (fed, counted):
        queue.feed(sound, 1.0)
        assert next(iter(queue)).next_to_send(1 << 20)
    for at in (2.0, 3.0):
        fed.feed(sound, at)
        counted.count(TENTH, at)
        fed.finish(at)
        counted.finish(at)
    for ours, theirs in zip(counted, fed, strict=True):
        assert (ours.start, ours.number, ours.fed) == (theirs.start, theirs.number, theirs.fed)
        assert ours.arrivals is not None
        assert theirs.arrivals is not None
        assert vars(ours.arrivals) == vars(theirs.arrivals)
        assert ours.next_to_send(1 << 20) == b""  # only its end
