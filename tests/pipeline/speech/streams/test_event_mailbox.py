"""The events of a recognizer's stream between the engine and whoever reads."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, Partial, Timing
from offhook.pipeline.speech.streams.event_mailbox_io import MAX_EVENTS, EventMailbox
from tests.support.waiting import HANGS_S


def partial(text: str) -> Partial:
    return Partial(text, 0, 0)


def final(text: str) -> Final:
    return Final(text, 0)


async def unread(mailbox: EventMailbox) -> list[Partial | Final]:
    """All that can be read without waiting; the reader fails after it."""
    events: list[Partial | Final] = []

    async def read() -> None:
        async for event in mailbox.events():
            events.append(event)

    mailbox.fail(EngineError("no more"))
    with pytest.raises(EngineError, match="no more"):
        await read()
    return events


def taking(mailbox: EventMailbox) -> "asyncio.Task[Partial | Final]":
    """A reader's next event."""
    return asyncio.ensure_future(anext(mailbox.events()))


async def next_of(events: AsyncIterator[Partial | Final]) -> Partial | Final:
    return await asyncio.wait_for(anext(events), HANGS_S)


async def test_events_come_as_they_were_put_also_to_a_reader_who_waits() -> None:
    mailbox = EventMailbox()
    mailbox.put(final("one"))
    mailbox.put(final("two"))
    events = mailbox.events()
    assert [await next_of(events) for _ in range(2)] == [final("one"), final("two")]
    waits = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.01)
    assert not waits.done()
    mailbox.put(partial("three"))
    assert await asyncio.wait_for(waits, HANGS_S) == partial("three")


async def test_what_nobody_waited_for_is_there_for_the_next_reader() -> None:
    mailbox = EventMailbox()
    waits = taking(mailbox)
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    mailbox.put(final("one"))
    assert await asyncio.wait_for(taking(mailbox), HANGS_S) == final("one")


async def test_an_unread_partial_gives_way_to_what_is_newer_and_a_final_does_not() -> None:
    mailbox = EventMailbox()
    for event in (partial("o"), partial("one"), final("one."), partial("t"), partial("two")):
        mailbox.put(event)
    assert await unread(mailbox) == [final("one."), partial("two")]


async def test_the_partial_of_a_cancelled_utterance_is_dropped_and_a_final_is_not() -> None:
    mailbox = EventMailbox()
    mailbox.put(final("one."))
    mailbox.put(partial("two"))
    for _ in range(2):
        mailbox.drop_partial()
    assert await unread(mailbox) == [final("one.")]


async def test_an_error_is_raised_after_what_was_put_before_it_and_ends_what_comes() -> None:
    mailbox = EventMailbox()
    mailbox.put(final("one"))
    mailbox.fail(EngineError("it broke"))
    mailbox.put(final("two"))
    events = mailbox.events()
    assert await next_of(events) == final("one")
    for _ in range(2):  # whoever reads again is told again
        with pytest.raises(EngineError, match="it broke"):
            await next_of(mailbox.events())


async def test_an_error_reaches_a_reader_who_waits() -> None:
    mailbox = EventMailbox()
    waits = taking(mailbox)
    await asyncio.sleep(0)
    mailbox.fail(EngineError("it broke"))
    with pytest.raises(EngineError, match="it broke"):
        await asyncio.wait_for(waits, HANGS_S)


async def test_close_ends_the_reader_at_once_whatever_is_unread() -> None:
    mailbox = EventMailbox()
    for text in ("one", "two", "three"):
        mailbox.put(final(text))
    mailbox.fail(EngineError("it broke"))
    read = []
    async for event in mailbox.events():
        read.append(event)
        mailbox.close()
    assert read == [final("one")]
    assert [event async for event in mailbox.events()] == []


async def test_close_ends_a_reader_who_waits() -> None:
    mailbox = EventMailbox()

    async def read() -> list[Partial | Final]:
        return [event async for event in mailbox.events()]

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    mailbox.close()
    assert await asyncio.wait_for(reading, HANGS_S) == []


async def test_beyond_the_bound_the_stream_fails_and_no_final_is_lost_unsaid() -> None:
    mailbox = EventMailbox()
    for number in range(MAX_EVENTS + 2):
        mailbox.put(final(str(number)))
        mailbox.put(partial("more"))
    read: list[str] = []

    async def read_all() -> None:
        async for event in mailbox.events():
            read.append(event.text)

    with pytest.raises(EngineError, match=f"{MAX_EVENTS} events"):
        await asyncio.wait_for(read_all(), HANGS_S)
    assert read == [str(number) for number in range(MAX_EVENTS)]


async def test_a_timing_says_when_the_event_was_put() -> None:
    mailbox = EventMailbox()
    before = time.monotonic()
    mailbox.put(Final("one", 0, timing=Timing(1.0, 2.0, 3.0, 4.0)))
    after = time.monotonic()
    mailbox.put(final("two"))
    timed, untimed = await unread(mailbox)
    assert timed.timing is not None
    assert before <= timed.timing.routed <= after
    assert (timed.timing.begun, timed.timing.done) == (1.0, 4.0)
    assert untimed.timing is None


@given(st.lists(st.sampled_from(("partial", "final", "take"))))
def test_every_final_is_read_once_in_order_and_the_last_partial_at_the_end(
    steps: list[str],
) -> None:
    async def run() -> None:
        mailbox = EventMailbox()
        events = mailbox.events()
        put: list[Partial | Final] = []
        read: list[Partial | Final] = []
        for number, step in enumerate(steps):
            if step == "take":
                if put[-1:] != read[-1:]:
                    read.append(await next_of(events))
            else:
                put.append(partial(str(number)) if step == "partial" else final(str(number)))
                mailbox.put(put[-1])
        read += await unread(mailbox)
        assert [e for e in read if isinstance(e, Final)] == [e for e in put if isinstance(e, Final)]
        assert read[-1:] == put[-1:]
        numbers = [int(event.text) for event in read]
        assert numbers == sorted(set(numbers))

    asyncio.run(run())
