"""Streams of an engine are the same from another process."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from offhook.pipeline.engines.shared import process_link_io
from offhook.pipeline.engines.shared.process_link_io import ProcessLink
from offhook.pipeline.engines.shared.synthesis.far_streams_io import FarStreams, StreamsDoor
from offhook.pipeline.engines.shared.synthesis.messages import Ended, EngineEvent, Reason, Starved
from offhook.pipeline.engines.shared.synthesis.reply_streams_io import Listener
from offhook.pipeline.speech.errors import EngineError, EngineFailed, EngineOverloaded
from tests.support.waiting import HANGS_S


class Streams:
    """Records calls; implements `ReplyStreams`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.listeners: list[Listener[EngineEvent]] = []
        self.failed: EngineFailed | None = None

    def open(self, listener: Listener[EngineEvent], request: Any) -> None:
        if self.failed is not None:
            raise self.failed
        self.listeners.append(listener)
        self.calls.append(("open", request))

    def write(self, listener: Listener[EngineEvent], parts: Sequence[str], *, last: bool) -> None:
        self.calls.append(("write", self.listeners.index(listener), parts, last))

    def cancel(self, listener: Listener[EngineEvent]) -> None:
        self.calls.append(("cancel", self.listeners.index(listener)))


class Reply:
    def __init__(self) -> None:
        self.told: list[EngineEvent] = []
        self.errors: list[EngineError] = []

    def receive(self, told: EngineEvent) -> None:
        self.told.append(told)

    def fail(self, error: EngineError) -> None:
        self.errors.append(error)


@pytest.fixture
def streams() -> Streams:
    return Streams()


@pytest.fixture
def far(streams: Streams) -> FarStreams[str, EngineEvent]:
    ends: list[Any] = []
    far: FarStreams[str, EngineEvent] = FarStreams(lambda message: ends[0].receive(message))
    ends.append(StreamsDoor(streams, far.receive))
    return far


def test_text_goes_there_and_events_come_back(
    streams: Streams, far: FarStreams[str, EngineEvent]
) -> None:
    one, other = Reply(), Reply()
    far.open(one, "one")
    far.open(other, "other")
    far.write(other, ["a", "b"], last=False)
    far.write(one, [], last=True)
    assert streams.calls == [
        ("open", "one"),
        ("open", "other"),
        ("write", 1, ["a", "b"], False),
        ("write", 0, [], True),
    ]
    streams.listeners[1].receive(Starved(7))
    streams.listeners[0].receive(Ended(9, Reason.SPOKEN))
    assert (one.told, other.told) == ([Ended(9, Reason.SPOKEN)], [Starved(7)])
    far.write(one, ["late"], last=False)
    far.cancel(one)
    assert len(streams.calls) == 4  # it had ended
    far.cancel(other)
    streams.listeners[1].receive(Starved(7))
    assert streams.calls[4:] == [("cancel", 1)]
    assert len(other.told) == 1


def test_a_stream_that_fails_is_one_and_an_engine_that_fails_is_all(
    streams: Streams, far: FarStreams[str, EngineEvent]
) -> None:
    one, other = Reply(), Reply()
    far.open(one, "one")
    streams.listeners[0].fail(EngineOverloaded("full"))
    assert [error.fault for error in one.errors] == ["full"]
    streams.failed = EngineFailed("broken")
    far.open(other, "other")
    assert other.errors == [streams.failed]
    with pytest.raises(EngineFailed):
        far.open(Reply(), "third")


async def test_streams_of_a_process_that_has_ended_are_freed(streams: Streams) -> None:
    door: StreamsDoor[str, EngineEvent] = StreamsDoor(streams, lambda said: None)
    far: FarStreams[str, EngineEvent] = FarStreams(door.receive)
    for name in ("one", "two"):
        far.open(Reply(), name)
    streams.listeners[0].receive(Ended(1, Reason.SPOKEN))
    await door.close()
    assert streams.calls[2:] == [("cancel", 1)]


async def test_messages_of_a_turn_are_one_block_in_order() -> None:
    got: list[Any] = []
    lost = asyncio.Event()
    ours, theirs = socket.socketpair()
    link = await ProcessLink.over(ours, got.append, lambda: None)
    far = await ProcessLink.over(theirs, got.append, lost.set)
    for number in range(3):
        link.send((number, b"x" * 100_000))
    link.close()
    await lost.wait()
    assert [number for number, _ in got] == [0, 1, 2]
    far.send("nowhere")
    far.close()


async def test_a_process_that_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_link_io, "MAX_UNREAD_BYTES", 1000)
    lost = asyncio.Event()
    ours, theirs = socket.socketpair()
    link = await ProcessLink.over(ours, print, lost.set)
    link.send(b"x" * 10_000_000)
    async with asyncio.timeout(HANGS_S):
        await lost.wait()
    theirs.close()
