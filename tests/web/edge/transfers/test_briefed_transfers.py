"""Transfers with a briefing over real lines: what each side hears, second by second."""

import asyncio
import sys
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.servers import scripted
from offhook.media.leg import LegError
from offhook.pipeline.conversation.events import AgentTurn, TransferProgress
from offhook.web.edge import admission_io
from tests.support.waiting import until
from tests.telephony.sip.phones import write_tone
from tests.web.edge.transfer_sounds import BLOCK, RATE, Heard
from tests.web.edge.transfers.people import MUSIC_HZ, Office, office

MAX_SILENCE = 5 * RATE // BLOCK
"""Blocks of sound: 5 s, as a busy machine leaves holes."""
SORRY = "Sorry, nobody has time for you at the moment, please call again."
CONNECTED = ["agent", "music", "person"]
BACK = ["agent", "music", "agent"]


class Row(NamedTuple):
    outcome: str
    to: list[str]
    caller: list[str]
    """What the caller hears in its order."""
    people: list[list[str]]
    """What each person who has answered hears."""
    states: list[str]
    ring: str = "in_turn"


BRIEFED = ["ringing", "briefing"]
ROWS = [
    Row(
        "accepts by voice",
        *(["accepts_by_voice"], CONNECTED, [["agent", "caller"]]),
        ["requested", *BRIEFED, "accepted", "bridged", "completed"],
    ),
    Row(
        "accepts by key",
        *(["accepts_by_key"], CONNECTED, [["agent", "caller"]]),
        ["requested", *BRIEFED, "accepted", "bridged", "completed"],
    ),
    Row(
        "declines by voice",
        *(["declines_by_voice"], BACK, [["agent"]]),
        ["requested", *BRIEFED, "rejected", "failed"],
    ),
    Row(
        "declines by key, the next accepts",
        *(["declines_by_key", "accepts_by_key"], CONNECTED, [["agent"], ["agent", "caller"]]),
        ["requested", *BRIEFED, "rejected", *BRIEFED, "accepted", "bridged", "completed"],
    ),
    Row("busy", ["is_busy"], BACK, [], ["requested", "ringing", "rejected", "failed"]),
    Row(
        *("no answer", ["does_not_answer"], BACK, []),
        ["requested", "ringing", "rejected", "failed"],
    ),
    Row(
        *("voicemail, the next accepts", ["is_a_voicemail", "accepts_by_key"], CONNECTED),
        [[], ["agent", "caller"]],
        ["requested", *BRIEFED, "rejected", *BRIEFED, "accepted", "bridged", "completed"],
    ),
    Row(
        *("the caller hangs up", ["listens"], ["agent", "music"], [["agent"]]),
        ["requested", *BRIEFED, "canceled"],
    ),
    Row(
        *("the person hangs up", ["hangs_up", "accepts_by_key"], CONNECTED),
        [["agent"], ["agent", "caller"]],
        ["requested", *BRIEFED, "rejected", *BRIEFED, "accepted", "bridged", "completed"],
    ),
    Row(
        *("all at once", ["does_not_answer", "accepts_by_key", "is_busy"], CONNECTED),
        [["agent", "caller"]],
        [*("requested", "ringing", "ringing", "ringing", "rejected", "briefing"),
         *("accepted", "bridged", "completed")],
        "all",
    ),
]  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word of the agents takes 80 ms, and a busy process has time left for another call."""
    monkeypatch.setattr(admission_io, "BUSY_SHARE", 100.0)
    word = scripted.word_sound()[: 24 * 80]
    monkeypatch.setattr(scripted, "word_sound", lambda: word)


class Came(NamedTuple):
    """What has come of a row."""

    caller: Heard
    people: list[Heard]
    states: list[str]
    farewells: list[str]
    """What people were told at last."""


def address(number: int, one: str) -> str:
    return f"sip:{one}.{number}@{{people}}"


async def run(there: Office, number: int, row: Row) -> Came:
    name, caller = f"row{number}", f"49{number}"
    call = await there.calls(caller)
    events: list[TransferProgress] = []
    call.listeners.append(lambda e: events.append(e) if isinstance(e, TransferProgress) else None)
    transferring = asyncio.create_task(call.transfer(name))
    line = there.callers.lines[caller]
    if row.outcome == "the caller hangs up":
        await until(lambda: there.people.lines.get(f"listens.{number}"))
        (person,) = there.people.lines[f"listens.{number}"]
        await person.hears("agent", 3)
        await line.leg.hang_up("the caller hung up")
        with pytest.raises(LegError, match="the call has ended"):
            await transferring
        await person.leg.until_closed()
    elif row.caller == BACK:
        with pytest.raises(LegError, match="nobody accepted"):
            await transferring
        await call.say(SORRY)
        await line.hears("agent", 3)
        await line.leg.hang_up("the caller hung up")
    else:
        await transferring
        await line.hears("person", 5)
        await line.leg.hang_up("the caller hung up")
    await until(lambda: there.people_are_gone(number))
    await until(lambda: call.leg.closed is not None)
    said = [e.text for e in there.edge.events if isinstance(e, AgentTurn)]
    heard = [one.heard for one in there.people.of(number)]
    return Came(line.heard, heard, [event.state for event in events], said)


def shown(heard: Heard) -> str:
    return ", ".join(f"{len(list(run))} s {name}" for name, run in groupby(heard.seconds))


def silence_from(heard: Heard, name: str) -> int:
    """The most blocks without any sound, from the first of those on."""
    blocks = heard.blocks[heard.blocks.index(name) :]
    return max((len(list(run)) for name, run in groupby(blocks) if not name), default=0)


async def test_what_caller_and_people_hear(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    music = tmp_path / "music.wav"
    write_tone(music, MUSIC_HZ, RATE, seconds=1)
    transfers = {
        f"row{number}": {
            "to": [address(number, one) for one in row.to],
            "ring_seconds": 2 if "does_not_answer" in row.to and row.ring != "all" else 60,
            "music": str(music),
            "ring": row.ring,
        }
        for number, row in enumerate(ROWS)
    }
    async with office({"transfers": transfers}) as there:
        came = await asyncio.gather(*(run(there, n, row) for n, row in enumerate(ROWS)))
    with capsys.disabled():
        for row, one in zip(ROWS, came, strict=True):
            sys.stdout.write(f"\n{row.outcome}\n  caller: {shown(one.caller)}\n")
            for heard in one.people:
                sys.stdout.write(f"  person: {shown(heard)}\n")
    for row, one in zip(ROWS, came, strict=True):
        if row.ring == "in_turn":
            assert one.states == row.states, row.outcome
        else:  # whoever rings at the same time may be busy before another one has answered
            assert sorted(one.states) == sorted(row.states), row.outcome
        assert one.caller.order == row.caller, row.outcome
        assert silence_from(one.caller, "music") <= MAX_SILENCE, row.outcome
        heard = [heard.order for heard in one.people]
        if row.outcome.startswith("voicemail") and heard[0] == ["agent"]:
            heard[0] = []  # a hole that a busy machine has cut into its greeting was answered
        assert heard == row.people, row.outcome
