"""What is made of the echo detector's answers."""

from typing import Any

import numpy as np
import pytest

from offhook.media.pcm import PACKET_MS, SAMPLES_IN, Pcm
from offhook.pipeline.conversation.turns.echo_gate import (
    KNOWN_MS,
    LINGERS_MS,
    MS,
    QUIET_PROVES_MS,
    TAIL_MS,
    UNKNOWN_MS,
    EchoGate,
)

SILENCE = np.zeros(SAMPLES_IN, np.int16)


class Detector:
    """Answers as it is told."""

    def __init__(self) -> None:
        self.finds = self.repeats = False
        self.delay_ms = 0

    def sent(self, said: Pcm | None) -> None:
        pass

    def add_received(self, heard: Pcm) -> None:
        pass

    def is_echo(self, ago: int) -> bool:
        return self.finds


class Line:
    def __init__(self) -> None:
        self.gate, self.now = EchoGate(), 0
        detector: Any = Detector()
        self.detector = self.gate._detector = detector

    def passes(self, ms: int, *, speaks: bool = True, quiet: bool = True) -> None:
        for _ in range(ms // PACKET_MS):
            self.now += SAMPLES_IN
            self.gate.add(SILENCE, SILENCE if speaks else None, self.now, quiet=quiet)

    def is_echo(self, *, suspected: bool = False, speaking: bool = True) -> bool:
        return self.gate.is_echo(self.now, speaking=speaking, suspected=suspected)


@pytest.fixture
def line() -> Line:
    return Line()


def test_nothing_is_echo_long_after_the_agents_last_word(line: Line) -> None:
    line.detector.finds = True
    line.passes(500)
    assert line.is_echo()
    line.passes(TAIL_MS + PACKET_MS, speaks=False)
    assert not line.is_echo()


def test_a_line_is_free_once_the_agent_was_heard_alone(line: Line) -> None:
    line.passes(QUIET_PROVES_MS, quiet=False)
    assert not line.gate.is_free
    line.passes(QUIET_PROVES_MS)
    assert line.gate.is_free
    line.detector.finds = line.detector.repeats = True
    assert line.is_echo()
    assert not line.gate.is_free


def test_a_single_find_on_a_free_line_is_not_believed(line: Line) -> None:
    line.passes(QUIET_PROVES_MS)
    line.detector.finds = True
    assert not line.is_echo()
    line.detector.repeats = True
    line.passes(200)
    assert line.is_echo()


@pytest.mark.parametrize(("speaking", "misses"), [(True, 2), (False, 3)])
def test_where_echo_is_known_several_checks_must_find_none(
    line: Line, speaking: bool, misses: int
) -> None:
    line.passes(1000)
    line.detector.finds = line.detector.repeats = True
    assert line.is_echo()
    line.detector.finds = False
    for _ in range(misses - 1):
        line.passes(100)
        assert line.is_echo(speaking=speaking)
    line.passes(100)
    assert not line.is_echo(speaking=speaking)
    line.detector.finds = True
    line.passes(KNOWN_MS)
    assert line.is_echo()


def test_a_check_is_good_for_a_tenth_of_a_second(line: Line) -> None:
    line.passes(200)
    assert not line.is_echo()
    line.detector.finds = True
    line.passes(80)
    assert not line.is_echo()
    line.passes(20)
    assert line.is_echo()


def test_what_is_no_echo_is_counted_while_somebody_may_speak_over_the_agent(line: Line) -> None:
    for _ in range(3):
        line.passes(100)
        line.is_echo(suspected=True)
    counted = line.gate.no_echo_ms
    assert counted >= 200
    line.detector.finds = True
    line.passes(100)
    line.is_echo(suspected=True)
    assert line.gate.no_echo_ms == counted
    line.passes(100)
    line.is_echo()
    assert line.gate.no_echo_ms == 0


def test_after_a_pause_the_callers_sound_begins_when_the_echo_is_over(line: Line) -> None:
    line.passes(200)
    line.gate.pause()
    assert line.gate.over_since == line.now + (UNKNOWN_MS + LINGERS_MS) * MS
    assert line.gate.may_return
    line.passes(UNKNOWN_MS + LINGERS_MS, speaks=False)
    assert not line.gate.may_return
