"""People with phones of their own, over real SIP and sound: each does what its name says, and keeps
what it hears."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.answers.scenes import silence
from benchmarks.answers.voices import trimmed, voices_of
from offhook.media.codecs.resample import Resampler
from offhook.media.leg import Leg
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.pipeline.conversation.call_io import Call
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.web.config.config import Config
from tests.support.marks import Ears, marked
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.telephony.sip.phones import LOOPBACK, ToneHost, endpoint, port_of
from tests.web.edge.scripted_edge import ScriptedEdge
from tests.web.edge.transfer_sounds import BLOCK, RATE, Heard

MUSIC_HZ, PERSON_HZ, CALLER_HZ = 1200, 620, 440
QUIET_BLOCKS = 8
"""Of 100 ms without our voice, after which it has ended."""
PAUSE_BLOCKS = 80
"""Of 100 ms, after which somebody who was not understood says it again."""
RINGS_S = 0.8
"""Time in s until somebody is found to be busy, in which the caller hears music."""
VOICEMAIL = (
    "This is the voicemail of Ann and Bob please leave your name and a message after the tone"
)
"""In one breath: a pause that a busy machine makes longer would be an invitation to speak."""


@cache
def speech(text: str) -> Pcm:
    """What is said for a text, as Flite reads it, and its mark: at 24 kHz in whole packets."""
    voice = trimmed(voices_of("en")[0][1](SPOKEN[text])).astype(np.int16)
    sound = np.concatenate((silence(300).astype(np.int16), marked(voice, RATE_IN, MARKS_HZ[text])))
    sound = Resampler(RATE_IN, RATE_OUT).process(sound[: len(sound) // 2 * 2])
    return sound[: len(sound) // SAMPLES_OUT * SAMPLES_OUT]


class Line:
    """One call of somebody: what they hear, and what they do."""

    def __init__(self, leg: Leg, pitches: dict[float, str]) -> None:
        self.leg = leg
        self._pitches = pitches
        self._pieces: list[Pcm] = []
        self._hz = 0.0
        self._at = 0
        leg.listen(self._tick)

    def _tick(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        self._pieces.append(heard[::2].copy())
        if self._hz:
            angles = 2 * np.pi * self._hz / RATE_OUT * (np.arange(SAMPLES_OUT) + self._at)
            self._at += SAMPLES_OUT
            self.leg.playout.write((8000 * np.sin(angles)).astype(np.int16))

    @property
    def heard(self) -> Heard:
        sound = np.concatenate([np.zeros(BLOCK, np.int16), *self._pieces])
        return Heard(sound, self._pitches, "agent")

    def hums(self, hz: float) -> None:
        """From now on."""
        self._hz = hz

    def says(self, text: str) -> None:
        self.leg.playout.write(speech(text))

    async def hears(self, name: str, blocks: int = 1) -> None:
        """So many blocks of 100 ms, of the last second."""
        await until(lambda: self.heard.blocks[-RATE // BLOCK :].count(name) >= blocks)

    async def is_briefed(self) -> None:
        """Our voice has begun and ended."""
        await self.hears("agent")
        await until(lambda: not any(self.heard.blocks[-QUIET_BLOCKS:]))

    async def answers(self, text: str) -> None:
        """Again until it is understood: somebody else is heard, or the line is closed."""
        while self.leg.closed is None and "caller" not in self.heard.blocks:
            self.says(text)
            await until(partial(self._is_over, len(self.heard.blocks) + PAUSE_BLOCKS))

    def _is_over(self, blocks: int) -> bool:
        heard = self.heard.blocks
        return self.leg.closed is not None or "caller" in heard[-5:] or len(heard) > blocks


Script = Callable[[Line], Coroutine[Any, Any, None]]


async def accepts_by_voice(line: Line) -> None:
    line.says("Hello?")
    await line.is_briefed()
    await line.answers("Yes.")
    await speaks_with_the_caller(line)


async def accepts_by_key(line: Line) -> None:
    line.says("Hello?")
    await line.hears("agent", 3)
    line.leg.send_dtmf("1")
    await speaks_with_the_caller(line)


async def speaks_with_the_caller(line: Line) -> None:
    await line.hears("caller", 3)
    line.hums(PERSON_HZ)
    await line.leg.until_closed()


async def declines_by_voice(line: Line) -> None:
    line.says("Hello?")
    await line.is_briefed()
    await line.answers("No.")
    await line.leg.until_closed()


async def declines_by_key(line: Line) -> None:
    line.says("Hello?")
    await line.hears("agent", 3)
    line.leg.send_dtmf("2")
    await line.leg.until_closed()


async def listens(line: Line) -> None:
    line.says("Hello?")
    await line.leg.until_closed()


async def hangs_up(line: Line) -> None:
    line.says("Hello?")
    await line.hears("agent", 3)
    await line.leg.hang_up("the person hung up")


async def is_called_back(line: Line) -> None:
    line.says("Hello?")
    await line.hears("music")
    line.hums(CALLER_HZ)
    await line.leg.until_closed()


async def is_a_voicemail(line: Line) -> None:
    line.says(VOICEMAIL)
    await line.leg.until_closed()


SCRIPTS: dict[str, Script] = {
    one.__name__: one
    for one in (
        *(accepts_by_voice, accepts_by_key, declines_by_voice, declines_by_key),
        *(listens, hangs_up, is_a_voicemail, is_called_back),
    )
}
DECISIONS: dict[str, Callable[[], Awaitable[int]]] = {}
"""Of those who do not answer."""


async def is_busy() -> int:
    await asyncio.sleep(RINGS_S)
    return 486


async def does_not_answer() -> int:
    await asyncio.Event().wait()
    return 0


DECISIONS |= {one.__name__: one for one in (is_busy, does_not_answer)}


class Persons(ToneHost):
    """Phones of people, who are called by what they do: `sip:accepts_by_key.2@…`."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, list[Line]] = {}
        """By what is called."""

    async def run_call(self, leg: Leg, agent: str) -> None:
        called = leg.info.called
        line = Line(leg, {CALLER_HZ: "caller", MUSIC_HZ: "music", PERSON_HZ: "person"})
        self.lines.setdefault(called, []).append(line)
        self.clock.add(leg)
        try:
            await SCRIPTS[called.partition(".")[0]](line)
        finally:
            await leg.hang_up("over")
            self.clock.remove(leg)

    def of(self, number: int) -> list[Line]:
        """Of those that one caller was to speak with, in the order in which they have answered."""
        lines = (ls for name, ls in self.lines.items() if name.endswith(f".{number}"))
        return [line for each in lines for line in each]

    @staticmethod
    def decision(call: SipCall, headers: object) -> Any:
        of = DECISIONS.get(call.info.called.partition(".")[0])
        return None if of is None else of()


class Callers(ToneHost):
    """Phones of callers, who hum."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, Line] = {}
        """By the number from which they call."""

    async def run_call(self, leg: Leg, agent: str) -> None:
        line = Line(leg, {PERSON_HZ: "person", MUSIC_HZ: "music"})
        self.lines[leg.info.caller] = line
        self.clock.add(leg)
        try:
            await line.hears("music")
            line.hums(CALLER_HZ)
            await leg.until_closed()
        finally:
            self.clock.remove(leg)


SPOKEN = {
    "Hello?": "Hello?",
    "Yes.": "Yes please put them through.",
    "No.": "No I am sorry but I have no time today.",
    VOICEMAIL: VOICEMAIL,
}
"""What is said for each text."""
MARKS_HZ = dict(zip(SPOKEN, (2900, 3000, 3100, 3200), strict=True))
"""A tone within each text, by which it is known whatever a busy machine loses of its words."""


class PersonsEdge(ScriptedEdge):
    async def start(self) -> None:
        await super().start()
        self.engines.configured.recognizer = Ears(MARKS_HZ)


class Office:
    """A server, callers, and people who are called."""

    def __init__(
        self, edge: PersonsEdge, callers: Callers, calling: SipEndpoint, people: Persons
    ) -> None:
        self.edge, self.callers, self.people = edge, callers, people
        self._calling = calling

    async def calls(self, number: str) -> Call:
        """Somebody calls from a number; returns the conversation, once it is greeted."""
        self._calling.dial(Dial("desk", caller=number))
        await until(lambda: self._found(number) is not None)
        call = self._found(number)
        assert call is not None
        await until(lambda: number in self.callers.lines)
        await self.callers.lines[number].is_briefed()
        return call

    def people_are_gone(self, number: int) -> bool:
        return all(line.leg.closed is not None for line in self.people.of(number))

    def _found(self, number: str) -> Call | None:
        calls = self.edge.conversations.values()
        found = (c for c in calls if isinstance(c, Call) and c.leg.info.caller == number)
        return next((c for c in found if c.leg.info.direction == "inbound"), None)


@asynccontextmanager
async def office(table: dict[str, Any]) -> AsyncIterator[Office]:
    """`table` is the rest of the configuration; in its texts {people} stands for the host of the
    people."""
    people, callers = Persons(), Callers()
    async with endpoint(people) as (called, _):
        called.hooks.decision = people.decision
        port = free_port()
        where = f"127.0.0.1:{port_of(called, 'UDP')}"
        trunks = [
            {"name": "people", "server": where, "codecs": ["pcmu"], "options_seconds": 0},
            {"name": "callers", "addresses": ["127.0.0.0/8"], "codecs": ["pcmu"]},
        ]
        config = {
            "server": {"port": 0, "drain_seconds": 0, "max_lateness_ms": 0, "max_calls": 200},
            "webrtc": {"addresses": ["127.0.0.1"]},
            "agent": {"greeting": "Hello, one moment."},
            "sip": {"udp": port, "tcp": port, "trunks": trunks},
            **filled(table, where),
        }
        edge = PersonsEdge(Config.model_validate(config))
        if "records" in table:
            edge.records.open_store(edge.config)
        await edge.start()
        try:
            desk = replace(LOOPBACK, server=f"127.0.0.1:{port}", options_seconds=0)
            async with endpoint(callers, trunks=(desk,)) as (calling, _):
                yield Office(edge, callers, calling, people)
        finally:
            await edge.close()


def filled(table: Any, where: str) -> Any:
    """The table with the host of the people in its texts."""
    if isinstance(table, dict):
        return {name: filled(value, where) for name, value in table.items()}
    if isinstance(table, list):
        return [filled(value, where) for value in table]
    return table.replace("{people}", where) if isinstance(table, str) else table
