"""Who answers, by sound and words in virtual time: what each of the kinds of answers is taken for,
and that no person is ever lost."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.answers.answers import Heard, play
from benchmarks.answers.scenes import HUMAN, Maker, Scene, silence, tone
from offhook.media.pcm import SAMPLES_IN
from offhook.pipeline.conversation.answering.detector import (
    FOLLOWS,
    SILENT_MS,
    AnswerDetector,
    Verdict,
)
from offhook.pipeline.speech.vad.vad_io import VadBatch

RESULTS = [result for result in FOLLOWS if result is not None]


@cache
def maker(second: bool = False) -> Maker:
    return Maker(7, None, second=second)


def hear(*sounds: np.ndarray) -> Heard:
    """What a line with these sounds, and silence behind them, is taken for."""
    pcm = np.concatenate((*sounds, silence(7000))).astype(np.int16)
    return play(Scene("", "", HUMAN, silence(0), pcm=pcm), VadBatch(), "none")


def found(*sounds: np.ndarray) -> list[str]:
    return [verdict.result for verdict in hear(*sounds).verdicts]


def text(said: str) -> np.ndarray:
    return maker().say(said, "en", 0, -24.0)


LONG = "We are not at home at the moment, so tell us what you want and when we can ring you."


def test_a_short_hello_is_a_person_at_once() -> None:
    hello = text("Hello?")
    heard = hear(silence(500), hello)
    (verdict,) = heard.verdicts
    assert verdict.result == "human"
    over = 500 + len(hello) // 16
    assert verdict.after_ms in range(over, over + 301)


def test_what_speaks_for_long_is_a_machine_until_it_beeps() -> None:
    results = found(silence(300), text(LONG), silence(400), tone((700.0,), 300))
    assert results == ["machine", "machine_end"]


def test_a_machine_by_its_length_alone_is_not_certain() -> None:
    machine = hear(silence(300), text(LONG)).verdicts[0]
    assert (machine.result, machine.certain) == ("machine", False)


def test_who_speaks_for_a_while_and_waits_is_a_person() -> None:
    firm = text("Baker and Sons in Springfield, good morning to you.")
    assert found(silence(300), firm)[-1] == "human"


def test_who_says_more_than_a_hello_is_answered_soon_if_it_is_understood() -> None:
    said = "en Good evening to you, I have just come in from the garden with my neighbour."
    scene = maker().on_the_line(maker().spoken("person", said, HUMAN), 0)
    heard = play(scene, VadBatch(), "all")
    assert heard.is_in_time
    assert not heard.is_lost


def test_silence_is_decided() -> None:
    (verdict,) = hear().verdicts
    assert verdict == Verdict("unknown", SILENT_MS, "nobody speaks", certain=False)


def test_a_click_is_no_voice() -> None:
    click = np.zeros(480)
    click[::7] = 9000
    assert found(silence(300), click) == ["unknown"]


def test_a_fax_machine_is_known_by_either_tone() -> None:
    assert found(silence(300), tone((2100.0,), 2600)) == ["fax"]
    assert found(silence(300), tone((1100.0,), 500)) == ["fax"]
    assert found(silence(4000), tone((2100.0,), 2600)) == ["unknown", "fax"]


def test_the_tones_before_an_announcement_are_known() -> None:
    tones = [tone((f,), 330) for f in (950.0, 1400.0, 1800.0)]
    assert found(silence(300), *tones)[0] == "unavailable"


@pytest.mark.parametrize("frequencies", [(425.0,), (480.0, 620.0)])
def test_a_busy_tone_is_known(frequencies: tuple[float, ...]) -> None:
    pulses = [np.concatenate((tone(frequencies, 500), silence(500))) for _ in range(4)]
    assert found(*pulses)[0] == "unavailable"


@pytest.mark.parametrize(("frequencies", "on_ms"), [((425.0,), 1000), ((440.0, 480.0), 2000)])
def test_a_ringing_tone_is_nobody_and_who_answers_then_is_heard(
    frequencies: tuple[float, ...], on_ms: int
) -> None:
    rings = [np.concatenate((tone(frequencies, on_ms), silence(4000))) for _ in range(2)]
    assert found(*rings, text("Hello?")) == ["human"]


@settings(deadline=None, max_examples=25)
@given(
    *(st.integers(0, 2**31 - 1), st.integers(0, 199)),
    *(st.sampled_from(("all", "some", "none")), st.booleans()),
)
def test_no_person_is_lost_on_any_line(seed: int, number: int, words: str, second: bool) -> None:
    made = maker(second)
    made.rng = np.random.default_rng(seed)
    scene = made.on_the_line(made.person(number), number)
    heard = play(scene, VadBatch(), words)
    assert not heard.is_lost, (scene.text, heard.verdicts)
    # Who says what mailboxes say is greeted as well, only later.
    assert heard.delay_ms is not None or heard.verdicts[-1].result == "machine_end"


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31 - 1))
def test_a_mailbox_with_a_beep_has_its_end_found_behind_it(seed: int) -> None:
    made = maker()
    made.rng = np.random.default_rng(seed)
    number = seed % 8
    scene = made.on_the_line(made.other(number), 0)
    verdicts = play(scene, VadBatch(), "all").verdicts
    assert verdicts[-1].result == "machine_end", (scene.text, verdicts)
    assert scene.beep_ms is not None
    assert verdicts[-1].after_ms >= scene.beep_ms, (scene.text, verdicts)


INPUTS = st.one_of(
    st.tuples(st.just("tick"), st.integers(0, 300)),
    st.tuples(st.just("voice"), st.floats(0, 1)),
    st.tuples(st.just("words"), st.sampled_from(("hello", "after the tone", "press 1", "x" * 50))),
    st.tuples(st.just("carrier"), st.sampled_from(RESULTS)),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(INPUTS, max_size=60))
def test_only_results_that_may_follow_do(inputs: list[tuple[str, object]]) -> None:
    detector, before = AnswerDetector(), None
    noise = np.random.default_rng(1).normal(0, 50, SAMPLES_IN).astype(np.int16)
    for kind, value in inputs:
        for _ in range(value if kind == "tick" else 1):  # type: ignore[call-overload]
            if kind == "tick":
                verdict = detector.tick(noise)
            elif kind == "voice":
                verdict = detector.voice(value, detector.now_ms)  # type: ignore[arg-type]
            elif kind == "words":
                verdict = detector.words(value)  # type: ignore[arg-type]
            else:
                verdict = detector.carrier(value)  # type: ignore[arg-type]
            if verdict is not None:
                last = None if before is None else before.result
                again = last == verdict.result
                assert verdict.result in FOLLOWS[last] or again
                assert verdict.after_ms == detector.now_ms
                before = verdict
