"""Two models and the times of words: who says what, and in what order it is told."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

pytest.importorskip("torch")

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.qwen3_asr import recognition
from offhook.pipeline.engines.qwen3_asr.engine import AsrEngine, TextUpdate
from offhook.pipeline.engines.qwen3_asr.passes import Pass, Verdict
from offhook.pipeline.engines.qwen3_asr.recognition import Align, Recognition
from offhook.pipeline.engines.qwen3_asr.runner import Runner
from offhook.pipeline.engines.qwen3_asr.scheduler import Cost
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions, Word
from tests.pipeline.engines.qwen3_asr.test_engine import (
    FILES,
    PAGES,
    STREAMS,
    Ids,
    random_weights,
    sound,
)
from tests.pipeline.engines.shared.model import tiny


class Counted(Runner):
    """A runner that counts its calls."""

    def __init__(self, seed: int, streams: int = STREAMS) -> None:
        super().__init__(random_weights(seed), streams + FILES, PAGES)
        self.live = streams
        self.calls: Counter[str] = Counter()

    def prefill(self, passes: Sequence[Pass]) -> Callable[[], list[Verdict]]:
        self.calls["prefill"] += 1
        return super().prefill(passes)

    def decode(self, slots: Sequence[int]) -> Callable[[], list[int]]:
        self.calls["decode"] += 1
        return super().decode(slots)


@pytest.fixture(scope="module")
def small() -> Counted:
    return Counted(3)


@pytest.fixture(scope="module")
def large() -> Counted:
    """With room for two utterances."""
    return Counted(7, streams=2)


class Heard:
    """A recognition whose clock stands still, and what it told."""

    def __init__(self, first: Counted, second: Counted | None = None, align: Align | None = None):
        self.events: list[tuple[int, Partial | Final]] = []

        def engine(runner: Counted) -> Callable[[Callable[[TextUpdate], None]], AsrEngine]:
            runner.calls.clear()
            most = (Cost(4.0, 0.001, 0.002), runner.live, FILES, 8, 4096)
            return lambda tell: AsrEngine(runner, Ids(tiny.tokenizer()), PAGES, *most, tell)

        self.it = Recognition(
            lambda stream, event: self.events.append((stream, event)),
            engine(first),
            engine(second) if second else None,
            align,
        )

    def run(self) -> None:
        while self.it.turn(lambda: 0.0):
            pass

    def say(self, stream: int, pcm: Pcm, step: int = 0) -> None:
        """An utterance; with `step`, heard as it comes in steps of so many samples."""
        for at in range(0, len(pcm), step or len(pcm)):
            self.it.feed(stream, pcm[at : at + (step or len(pcm))], 0.0)
            if step:
                self.run()
        self.it.finish(stream, 0.0)

    def texts(self, kind: type[Partial] | type[Final], stream: int = 1) -> list[str]:
        return [e.text for s, e in self.events if s == stream and isinstance(e, kind)]


def said(heard: Heard, sounds: Sequence[Pcm], step: int = 0, language: str | None = None) -> Heard:
    """One stream, one utterance after another."""
    stream = heard.it.open(StreamOptions(language=language))
    for pcm in sounds:
        heard.say(stream, pcm, step)
        heard.run()
    return heard


@pytest.mark.parametrize("language", [None, pytest.param("en", marks=pytest.mark.slow)])
def test_the_second_model_has_the_last_word(
    small: Counted, large: Counted, language: str | None
) -> None:
    sounds = [sound(seconds, seed) for seed, seconds in enumerate((0.3, 1.0, 8.3))]
    both, first = (
        said(Heard(*runners), sounds, 48_000, language) for runners in ((small, large), (small,))
    )
    second = said(Heard(large), sounds, language=language)
    assert both.texts(Final) == second.texts(Final)
    assert both.texts(Final) != first.texts(Final)
    assert both.texts(Partial) == first.texts(Partial)
    assert len(both.texts(Partial)) >= 4


def test_what_both_say_needs_no_decode_step(small: Counted, large: Counted) -> None:
    sounds = [sound(2.0, seed) for seed in range(3)]
    same = Counted(3)
    texts = said(Heard(small, same), sounds, 16_000).texts(Final)
    # One step is under way before the verdict is read.
    assert same.calls == {"prefill": len(sounds), "decode": len(sounds)}
    assert texts == said(Heard(small), sounds).texts(Final)
    assert any(len(text.split()) > 4 for text in texts)
    said(Heard(small, large), sounds)
    assert large.calls["decode"] > large.calls["prefill"]


def test_many_utterances_at_once_are_told_in_their_order(small: Counted, large: Counted) -> None:
    """More than the second model has room for."""
    heard = Heard(small, large)
    streams = [heard.it.open(StreamOptions(live=i < 2)) for i in range(3)]
    sounds = {s: [sound(0.6 + i / 4 + s / 2, 10 * s + i) for i in range(3)] for s in streams}
    for stream, three in sounds.items():
        for pcm in three:
            heard.say(stream, pcm)
    heard.run()
    for stream, three in sounds.items():
        assert heard.texts(Final, stream) == said(Heard(large), three).texts(Final)


def test_a_stream_closed_while_it_is_revised_leaves_nothing(small: Counted, large: Counted) -> None:
    heard = Heard(small, large)
    for i in range(5):
        stream = heard.it.open()
        heard.say(stream, sound(2.0, i))
        for _ in range(i):
            heard.it.turn(lambda: 0.0)
        heard.it.close(stream)
        heard.run()
    left = [e.pages_left for e in (heard.it._first, heard.it._second) if e is not None]
    assert left == [PAGES - 1, PAGES - 1]
    assert not heard.it._revising


def test_a_long_utterance_keeps_the_first_models_text(
    small: Counted, large: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognition, "MAX_KEPT", 4 * 16_000)
    sounds = [sound(4.1, 1), sound(3.9, 2)]
    heard = Heard(small, large)
    stream = heard.it.open()
    for pcm in sounds:
        heard.say(stream, pcm)
    heard.run()
    first, second = (said(Heard(r), sounds).texts(Final) for r in (small, large))
    assert heard.texts(Final, stream) == [first[0], second[1]]


def test_words_come_in_order_and_count_in_the_streams_own_sound(small: Counted) -> None:
    asked: list[tuple[Pcm, Callable[[Sequence[Word]], None]]] = []
    heard = Heard(small, align=lambda pcm, text, code, told: asked.append((pcm, told)))
    stream = heard.it.open(StreamOptions(words=True, language="en"))
    seeds = (3, 4, 5)
    heard.it.feed(stream, sound(1.0, 1), 0.0)
    heard.it.cancel(stream)
    heard.it.cancel(stream)  # nothing in progress: nothing happens
    for seed in seeds:
        heard.say(stream, sound(1.0, seed))
    heard.it.feed(stream, sound(1.0, 6), 0.0)  # its partial waits for the finals before it
    heard.run()
    assert len(asked) == len(seeds)
    assert not any(isinstance(event, Final) for _, event in heard.events)
    heard.events.clear()
    for pcm, told in reversed(asked):
        assert any((pcm == sound(1.0, seed)).all() for seed in seeds)
        told([Word("x", 100, 200)])
    events = [event for _, event in heard.events]
    assert [type(event) for event in events] == [Final, Final, Final, Partial]
    spans = [(w.start_ms, w.end_ms) for e in events if isinstance(e, Final) for w in e.words]
    assert spans == [(1100, 1200), (2100, 2200), (3100, 3200)]


def test_words_nobody_can_align(small: Counted) -> None:
    with pytest.raises(EngineError, match="aligner"):
        Heard(small).it.open(StreamOptions(words=True))
    asked: list[str] = []
    heard = Heard(small, align=lambda pcm, text, code, told: asked.append(code))
    stream = heard.it.open(StreamOptions(words=True, language="pl"))
    heard.say(stream, sound(2.0, 1))
    heard.run()
    assert len(heard.texts(Final, stream)) == 1
    assert not asked
