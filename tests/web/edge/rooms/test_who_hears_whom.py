"""Rooms over real edges: a carrier's stream, a phone and browsers with an agent in one call."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import pytest

from offhook.web.config.config import Config
from tests.support.waiting import until
from tests.web.edge import phones
from tests.web.edge.phones import TABLE, served
from tests.web.edge.rooms.ends import (
    BLOCKS,
    DeskPhone,
    Ends,
    FarEnd,
    desk_phone,
    level,
    sine,
    who_hears_whom,
    with_doors,
)

CALLER_HZ, DESK_HZ, PAGE_HZ, BOSS_HZ, AGENT_HZ = 450, 700, 1100, 1500, 2300
HUMANS = {"caller": CALLER_HZ, "desk": DESK_HZ, "page": PAGE_HZ}
ALL = {**HUMANS, "boss": BOSS_HZ, "agent": AGENT_HZ}


class Agent(FarEnd):
    """A bot in place of the agent: an end of its own, on our side of the line."""


class Meeting:
    """The call of a Twilio caller with an agent, and all far ends."""

    def __init__(self, ends: Ends, phone: DeskPhone) -> None:
        self.ends, self.phone = ends, phone
        self.agent: Agent
        self.call = ""

    async def begin(self, agents: list[Agent]) -> None:
        self.call = await self.ends.by_twilio("caller", CALLER_HZ)
        await until(lambda: agents)
        [self.agent] = agents
        self.ends.by_name["agent"] = self.agent

    async def fill(self) -> None:
        """Two colleagues, and the boss, who listens."""
        await self.ends.dialled(self.call, "desk", DESK_HZ, self.phone)
        await self.ends.from_browser(self.call, "page", PAGE_HZ)
        await self.ends.from_browser(self.call, "boss", BOSS_HZ, role="listen")

    def __getitem__(self, name: str) -> FarEnd:
        return self.ends.by_name[name]

    async def hear(self, *speaking: str, **expected: set[str]) -> None:
        """While these speak, all come to hear those expected, and nobody else."""
        for name, end in self.ends.by_name.items():
            end.says = name in speaking
        for end in self.ends.by_name.values():
            await end.listens(BLOCKS + 25)
        await until(lambda: who_hears_whom(self.ends.by_name, ALL).items() >= expected.items())


@asynccontextmanager
async def meeting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Meeting]:
    agents: list[Agent] = []

    async def bot(arguments: Any) -> None:
        leg = arguments.webrtc_connection
        agents.append(Agent(leg, AGENT_HZ))
        await leg.until_closed()

    monkeypatch.setattr(phones, "bot", bot)
    async with desk_phone() as (phone, port), AsyncExitStack() as stack:
        config = with_doors(Config.model_validate({**TABLE, "server": {"port": 0}}), port)
        server = await stack.enter_async_context(served(config))
        talk = Meeting(Ends(server, stack), phone)
        await talk.begin(agents)
        yield talk


async def test_three_people_an_agent_and_a_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    async with meeting(monkeypatch) as talk:
        await talk.fill()
        await talk.hear(
            *("caller", "desk", "page"),
            caller={"desk", "page"},
            desk={"caller", "page"},
            page={"caller", "desk"},
            boss={"caller", "desk", "page"},
            agent={"caller", "desk", "page"},
        )
        await talk.hear(
            *("agent", "page", "boss"),
            caller={"agent", "page"},
            desk={"agent", "page"},
            page={"agent"},
            boss={"agent", "page"},
            agent={"page"},
        )


async def test_a_whisper_is_in_nobody_elses_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    async with meeting(monkeypatch) as talk:
        await talk.fill()
        await talk.ends.change(talk.call, "boss", role="whisper:desk")
        await talk.hear(
            *("caller", "boss"),
            caller=set(),
            desk={"caller", "boss"},
            page={"caller"},
            boss={"caller"},
            agent={"caller"},
        )
        for name in ("caller", "page", "agent"):
            assert talk[name].level(BOSS_HZ) <= -60, name


async def test_barging_in_muting_holding_and_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    async with meeting(monkeypatch) as talk:
        boss = await talk.ends.from_browser(talk.call, "boss", BOSS_HZ, role="listen")
        await talk.hear("boss", "agent", caller={"agent"}, boss={"agent"}, agent=set())
        await talk.ends.change(talk.call, "boss", role="speak")
        await talk.hear(
            "boss", "caller", caller={"boss"}, boss={"caller"}, agent={"boss", "caller"}
        )
        await talk.ends.change(talk.call, "caller", muted=True)
        await talk.hear("caller", "agent", caller={"agent"}, boss={"agent"}, agent=set())
        await talk.ends.change(talk.call, "caller", muted=False, on_hold=True)
        await talk.hear("caller", "agent", caller=set(), boss={"agent"}, agent=set())
        await talk.ends.change(talk.call, "caller", on_hold=False)
        path = f"/calls/{talk.call}/members/boss"
        left = await (await talk.ends.server.client.delete(path)).json()
        assert [member["name"] for member in left["members"]] == ["caller", "agent"]
        await until(lambda: boss.leg.closed)
        del talk.ends.by_name["boss"]
        assert list(await talk.ends.members(talk.call)) == ["caller", "agent"]
        await talk.hear("caller", "agent", caller={"agent"}, agent={"caller"})


async def test_the_room_ends_with_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with meeting(monkeypatch) as talk:
        await talk.fill()
        await talk["caller"].leg.hang_up("enough")
        for name in ("desk", "page", "boss"):
            await until(lambda name=name: talk[name].leg.closed)
        await until(lambda: not talk.ends.server.edge.calls)


def test_a_level_is_that_of_the_tone() -> None:
    sound = np.concatenate([sine(1000, at * 480) for at in range(25)])
    assert level(sound, 1000, 24_000) == pytest.approx(0, abs=0.1)
    assert level(sound, 700, 24_000) < -60
