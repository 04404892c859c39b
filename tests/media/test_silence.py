"""Who is silent, and for how long that is all right."""

import asyncio

import pytest

from offhook.media import silence_io
from offhook.media.silence_io import LOOKS, SilenceWatch
from tests.support.waiting import HANGS_S


class Line:
    def __init__(self) -> None:
        self.activity = 0
        self.silent: list[str] = []
        self.ended = asyncio.Event()

    def end(self, words: str) -> None:
        self.silent.append(words)
        self.ended.set()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence_io, "FIRST_S", 0.05)
    monkeypatch.setattr(silence_io, "QUIET_S", 0.2)


async def test_who_never_sends_anything_is_silent_after_the_short_time(hurried: None) -> None:
    line = Line()
    SilenceWatch(lambda: line.activity, line.end)
    await asyncio.wait_for(line.ended.wait(), HANGS_S)
    assert line.silent == ["neither sound nor an event came within 0.05 s"]


async def test_who_has_sent_something_may_pause_for_the_long_time(hurried: None) -> None:
    line, looks = Line(), 0

    def activity() -> int:
        nonlocal looks
        looks += 1
        return min(looks, 3 * LOOKS)

    SilenceWatch(activity, line.end)
    await asyncio.wait_for(line.ended.wait(), HANGS_S)
    assert looks > 3 * LOOKS
    assert line.silent == ["neither sound nor an event came for 0.2 s"]


async def test_nobody_is_silent_once_the_watch_has_stopped(hurried: None) -> None:
    line = Line()
    SilenceWatch(lambda: line.activity, line.end).stop()
    await asyncio.sleep(0.1)
    assert not line.silent
