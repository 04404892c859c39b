"""People who are extensions: their own phones ring, they are briefed, or accept at their desk."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from offhook.media.leg import LegError
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import TransferProgress
from offhook.web.config.config import Config, ConfigError, load
from offhook.web.edge import admission_io
from tests.support.waiting import until
from tests.telephony.sip.extensions.desks import Desk
from tests.web.edge.phones import Served
from tests.web.edge.test_extensions import desk, office, table

AGENT = {"greeting": "Hello, one moment."}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy process has time left for another call."""
    monkeypatch.setattr(admission_io, "BUSY_SHARE", 100.0)


def config(folder: Path, **more: Any) -> Config:
    return Config.model_validate({**table(folder), "agent": AGENT, **more})


def states(call: Call) -> list[str]:
    found: list[str] = []
    call.listeners.append(
        lambda e: found.append(e.state) if isinstance(e, TransferProgress) else None
    )
    return found


async def call_of(server: Served, caller: Desk) -> Call:
    """Somebody calls the agent."""
    await caller.begins_to_call("500")
    await caller.is_answered()
    await until(lambda: server.edge.conversations)
    (call,) = server.edge.conversations.values()
    assert isinstance(call, Call)
    return call


@pytest.mark.parametrize("to", ["ext:101", "101"])
async def test_who_accepts_by_a_key_is_connected(tmp_path: Path, to: str) -> None:
    sales = {"transfers": {"sales": {"to": [to]}}}
    async with (
        office(config(tmp_path, **sales)) as server,
        desk(server, "101") as ann,
        desk(server, "102") as bob,
    ):
        call = await call_of(server, bob)
        found = states(call)
        transfer = asyncio.create_task(call.transfer("sales"))
        await ann.answers()
        await until(lambda: len(server.edge.conversations) == 2)
        await until(lambda: "briefing" in found)
        key = asyncio.create_task(presses(ann, 1, transfer))
        await transfer
        await key
        await ann.talks_with(bob)
        assert found == ["requested", "ringing", "briefing", "accepted", "bridged"]
        ticked = [id(leg) for phase in server.edge.clock._phases for leg in phase]
        assert len(ticked) == len(set(ticked)) == 2
        await bob.far.hang_up()
        await ann.far.is_hung_up()


async def presses(ann: Desk, key: int, until_done: "asyncio.Task[None]") -> None:
    """Until it is understood: before the briefing has begun, it is none."""
    while not until_done.done():
        ann.line.key(key, 101)
        await ann.line.says(0.3, 0.0)


async def test_who_accepts_at_the_desk_is_not_briefed(tmp_path: Path) -> None:
    support = {"queues": {"support": {"members": ["ext:101"], "wrap_up_seconds": 60}}}
    async with (
        office(config(tmp_path, **support)) as server,
        desk(server, "101") as ann,
        desk(server, "102") as bob,
    ):
        call = await call_of(server, bob)
        found, people = states(call), server.edge.queues.transfers.people
        transfer = asyncio.create_task(call.transfer("queue:support"))
        invite = await ann.rings()
        [(call_id, person)] = people.at("101").items()
        assert server.sip.calls[call_id].info.caller == "102"
        assert person.briefing.call_id == call.leg.call_id
        assert person.briefing.target == "queue:support"
        assert "102" in await person.briefing.text(0)
        person.decide("accept")
        assert people.at("102") == {}
        ann.far.reply(invite, 200, sdp=ann.line.sdp())
        await ann.far.asked("ACK")
        await transfer
        await ann.talks_with(bob)
        assert people.at("101") == {}
        assert found == ["requested", "ringing", "accepted", "bridged"]
        await ann.far.hang_up()
        await bob.far.is_hung_up()
        queue = server.edge.queues
        async with asyncio.timeout(30):
            while (await queue.shown("support"))["members"][0]["state"] != "wrap_up":
                await asyncio.sleep(0.05)


async def test_who_declines_at_the_desk_or_has_no_phone_is_followed_by_the_next(
    tmp_path: Path,
) -> None:
    made = table(tmp_path)
    made["sip"]["extensions"]["103"] = {"password": "pass-103"}
    sales = {"transfers": {"sales": {"to": ["ext:103", "ext:101", "ext:102"]}}}
    async with (
        office(Config.model_validate({**made, "agent": AGENT, **sales})) as server,
        desk(server, "101") as ann,
        desk(server, "102") as bob,
    ):
        call = await call_of(server, bob)
        found = states(call)
        transfer = asyncio.create_task(call.transfer("sales"))
        await ann.rings()
        assert found == ["requested", "ringing", "rejected", "ringing"]  # 103 has no phone
        [person] = server.edge.queues.transfers.people.at("101").values()
        person.decide("decline")
        await ann.far.asked("CANCEL")
        await bob.rings()
        assert found[4:] == ["rejected", "ringing"]
        await bob.far.hang_up()
        with pytest.raises(LegError, match="nobody accepted"):
            await transfer


FILE = """
[sip]
udp = 5060

[sip.extensions.101]
password = "x"

"""


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ('[transfers.sales]\nto = ["ext:101"]', ""),
        ('[queues.sales]\nmembers = ["101"]', ""),
        ('[queues.sales]\nmembers = ["ext:102"]', r"no \[sip.extensions.102\] \(there: 101\)"),
        ('[transfers.sales]\nto = ["ext:101", "102"]', "102 is called by it"),
    ],
)
def test_unknown_extensions_are_faults(tmp_path: Path, lines: str, fault: str) -> None:
    path = tmp_path / "offhook.toml"
    path.write_text(FILE + lines)
    if fault:
        with pytest.raises(ConfigError, match=fault):
            load(path, {})
    else:
        load(path, {})
