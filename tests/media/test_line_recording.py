"""Who starts, stops, pauses and resumes the recording of a line, and what is in the file then."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.line_recording import LineRecording, NotRecorded
from offhook.media.pcm import SAMPLES_IN
from offhook.media.recording import Recorder

LOUD = np.full(SAMPLES_IN, 1000, np.int16)


def line_of(reports: list[Any] | None = None) -> LineRecording:
    line = LineRecording()
    line.open = lambda: Recorder("call", 0.0)
    if reports is not None:
        line.report = lambda change, by: reports.append((change, by))
    return line


def heard(line: LineRecording) -> list[bool]:
    """Whether there is sound, tick by tick."""
    assert line.recorder is not None
    return [bool(tick[0].any()) for tick in line.recorder.read_ticks(10_000)]


@given(st.lists(st.sampled_from(["start", "stop", "pause", "resume"]), max_size=12))
def test_only_what_is_on_and_not_paused_is_in_the_file(steps: list[str]) -> None:
    reports: list[Any] = []
    line = line_of(reports)
    on = paused = False
    wanted: list[bool] = []
    changes = 0
    for step in steps:
        before = on, paused
        on = {"start": True, "stop": False}.get(step, on)
        paused = {"pause": True, "resume": False}.get(step, paused)
        changed = getattr(line, step)("operator")
        assert changed == ((on, paused) != before)
        changes += changed
        line.tick(LOUD, None, 0.0)
        if line.recorder is not None:
            wanted.append(on and not paused)
        assert line.state == ("paused" if paused else "on" if on else "off")
    assert len(reports) == changes
    if line.recorder is not None:
        assert heard(line) == wanted


def test_the_key_toggles_and_is_nobodys_else() -> None:
    reports: list[Any] = []
    line = line_of(reports)
    assert not line.press("*")
    line.pause_key = "*"
    assert [line.press(key) for key in "*1*"] == [True, False, True]
    assert reports == [("paused", "key"), ("resumed", "key")]


def test_a_pause_for_a_turn_ends_with_it_unless_somebody_else_pauses() -> None:
    line = line_of()
    line.pause("agent", until_turn=True)
    line.end_turn()
    assert not line.paused
    line.pause("agent", until_turn=True)
    line.pause("operator")
    line.end_turn()
    assert line.paused


def test_a_pause_of_the_operators_is_not_ended_by_a_detail() -> None:
    line = line_of()
    line.pause("operator")
    line.resume_if_paused_by("agent", "detail")
    assert line.paused


def test_a_line_that_is_never_recorded_says_how_it_could_be() -> None:
    line = LineRecording()
    with pytest.raises(NotRecorded, match=r"\[recording\] enabled"):
        line.start("operator")
    assert line.state == "off"
    assert line.pause("operator")
    assert line.state == "paused"
