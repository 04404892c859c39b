"""What the recognition engine tells of where an update's time went, by a clock of its own."""

import pytest

pytest.importorskip("torch")

import numpy as np

from offhook.media.pcm import RATE_IN
from offhook.pipeline.engines.qwen3_asr.scheduler import FIRST_UPDATE_MS
from offhook.pipeline.speech.recognizer import Final, StreamOptions, Timing, Word
from tests.pipeline.engines.qwen3_asr.test_engine import sound
from tests.pipeline.engines.qwen3_asr.test_recognition import Counted, Heard

PIECE_S = 0.02
PIECE = int(PIECE_S * RATE_IN)


class Ticking:
    """A clock that goes on with every look at it, and when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1e-4
        return self.now


@pytest.fixture(scope="module")
def small() -> Counted:
    return Counted(3)


@pytest.fixture(scope="module")
def large() -> Counted:
    return Counted(7, streams=2)


def talked(heard: Heard, busy_s: float = 0.0, words: bool = False) -> list[Timing]:
    """The timings of 0.8 s of speech in pieces, each of which finds the engine free; but once it is
    busy for so long. At the end the clock stands still while nothing is done."""
    clock = Ticking()
    options = StreamOptions(update_ms=80, timing=True, words=words, language="en")
    stream = heard.it.open(options)
    pcm = sound(0.8, 1)
    for at in range(0, len(pcm), PIECE):
        clock.now = 100 + (at + PIECE) / RATE_IN
        heard.it.feed(stream, pcm[at : at + PIECE], clock.now)
        if not 0.4 < at / RATE_IN < 0.4 + busy_s:
            while heard.it.turn(clock):
                pass
    heard.it.finish(stream, clock.now)
    while heard.it.turn(clock):
        pass
    timings = [event.timing for _, event in heard.events]
    assert None not in timings
    return [timing for timing in timings if timing]


def test_an_update_waits_for_its_sound_and_then_for_nothing(small: Counted) -> None:
    heard = Heard(small)
    timings = talked(heard)
    # A text that was not at its end goes on, of the same sound.
    first, second = list({timing.buffered: timing for timing in timings}.values())[:2]
    assert first.buffered - first.begun == pytest.approx(FIRST_UPDATE_MS / 1000 - PIECE_S)
    assert second.buffered - second.begun == pytest.approx(0.08 - PIECE_S, abs=1e-3)
    assert second.begun - first.buffered == pytest.approx(PIECE_S, abs=1e-3)
    for timing in timings:
        at = (timing.begun, timing.buffered, timing.started, timing.done)
        assert list(at) == sorted(at)
        assert timing.started - timing.buffered < 0.002
        assert timing.routed == 0.0
    assert isinstance(heard.events[-1][1], Final)


def test_while_the_engine_is_busy_updates_are_queued_from_when_they_were_due(
    small: Counted,
) -> None:
    timings = talked(Heard(small), busy_s=0.3)
    queued = [timing.started - timing.buffered for timing in timings]
    # Due within 0.08 s of the busy time's beginning, and heard after it.
    assert 0.2 < max(queued) < 0.32
    assert sorted(queued)[-2] < 0.02
    late = timings[int(np.argmax(queued))]
    assert late.buffered - late.begun == pytest.approx(0.08 - PIECE_S, abs=1e-3)


def test_the_second_model_and_the_times_of_words_are_the_models_part(
    small: Counted, large: Counted
) -> None:
    asked = []
    heard = Heard(small, large, align=lambda pcm, text, code, told: asked.append(told))
    talked(heard, words=True)
    assert not isinstance(heard.events[-1][1], Final)
    heard.it.turn(lambda: 150.0)
    asked[0]([Word("a", 0, 80)])
    final = heard.events[-1][1]
    assert isinstance(final, Final)
    assert final.timing is not None
    assert final.timing.started < 101.0
    assert final.timing.done == 150.0


def test_who_does_not_ask_is_told_nothing(small: Counted) -> None:
    heard = Heard(small)
    stream = heard.it.open(StreamOptions(update_ms=80))
    heard.say(stream, sound(0.5, 1), PIECE)
    heard.run()
    assert {event.timing for _, event in heard.events} == {None}
