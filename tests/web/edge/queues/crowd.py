"""Callers who wait in a queue and the people who speak with them, all with phones of their own:
who hears whom is known by pitch."""

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from random import Random
from typing import Any

import numpy as np

from offhook.media.leg import Leg
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.telephony.sip.call_io import SipCall
from tests.telephony.sip.phones import ToneHost, level, peak_hz
from tests.web.edge.transfers.people import speech

LOOK_S = 0.25
HEARD_TICKS = 25
"""Of 20 ms, in which a pitch is looked for: 0.5 s."""
STEP_HZ = 25
CALLERS_HZ, PEOPLE_HZ = 400, 2000
"""Of the first; the others follow in steps."""
NEAR_HZ = 6
SPEECH_LEVEL = 150
DEAD_S = 20.0
"""Time in s without any sound after which somebody finds the line dead."""
HURRIES_S = 1.5
"""The same of callers who do not wait for a moment."""
LONG_DEAD_S = 40.0
"""The same of callers who wait."""
PATIENCE_S = 60.0
"""Time in s from the answer in which a person wants to hear the caller."""
AGAIN_S = 2.0
"""Time in s after which a key is pressed again."""


@cache
def hum(hz: int) -> tuple[Pcm, Pcm]:
    """Two packets that can be repeated."""
    angles = 2 * np.pi * hz / RATE_OUT * np.arange(2 * SAMPLES_OUT)
    sound = (8000 * np.sin(angles)).astype(np.int16)
    return sound[:SAMPLES_OUT], sound[SAMPLES_OUT:]


class Phone:
    """One call of somebody who hums from `hums` on."""

    def __init__(self, leg: Leg) -> None:
        self.leg = leg
        self._hz = 0
        self._last: deque[Pcm] = deque(maxlen=HEARD_TICKS)
        self._sounded = time.monotonic()
        leg.listen(self._tick)

    def hums(self, hz: int) -> None:
        self._hz = hz

    def _tick(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        self._last.append(heard.copy())
        if self._hz:
            self.leg.playout.write(hum(self._hz)[self.leg.ticks & 1])

    @property
    def sound(self) -> Pcm:
        return np.concatenate(self._last) if self._last else np.zeros(0, np.int16)

    def sounds(self) -> bool:
        """Whether anything was heard in the last half second."""
        if heard := level(self.sound) > SPEECH_LEVEL:
            self._sounded = time.monotonic()
        return heard

    @property
    def dead_s(self) -> float:
        """For how long nothing has been heard, as far as anybody has listened."""
        return 0.0 if self.sounds() else time.monotonic() - self._sounded

    def hears(self) -> float:
        """The pitch of the last half second in Hz, 0 if it is quiet."""
        return peak_hz(self.sound, RATE_IN) if self.sounds() else 0.0


@dataclass
class Caller:
    """Somebody who calls once."""

    number: str
    hz: int
    gives_up_after_s: float | None = None
    """Patience in s."""
    gives_up_when_dead: bool = False
    server: str = ""
    leg: Leg | None = None
    gave_up: bool = False
    heard: list[str] = field(default_factory=list)
    """People whom the caller has heard."""
    ended: str = ""


@dataclass
class Person:
    """Somebody who is rung for callers, one at a time. Every so many calls the phone is busy, or
    the call is declined."""

    name: str
    hz: int
    declines_every: int = 0
    busy_every: int = 0
    is_in_a_call: bool = False
    declined: int = 0
    busy: int = 0
    counted: Any = field(default_factory=lambda: count(1))


def every(number: int, times: int) -> bool:
    return bool(times) and number % times == 0


class Callers(ToneHost):
    """The phones of all callers."""

    def __init__(self, callers: list[Caller], people: list[Person]) -> None:
        super().__init__()
        self.by_number = {one.number: one for one in callers}
        self._people = people

    async def run_call(self, leg: Leg, agent: str) -> None:
        caller = self.by_number[leg.info.caller]
        caller.leg, phone = leg, Phone(leg)
        phone.hums(caller.hz)
        began = time.monotonic()
        self.clock.add(leg)
        try:
            while leg.closed is None:
                await asyncio.sleep(LOOK_S)
                pitch = phone.hears()
                for person in self._people:
                    if abs(pitch - person.hz) < NEAR_HZ and person.name not in caller.heard:
                        caller.heard.append(person.name)
                hurries = caller.gives_up_when_dead or bool(caller.heard)
                dead = phone.dead_s > (HURRIES_S if hurries else LONG_DEAD_S)
                patience = caller.gives_up_after_s
                out = patience is not None and time.monotonic() - began > patience
                if (dead or out) and leg.closed is None:
                    caller.gave_up = not caller.heard
                    await leg.hang_up("gives up")
        finally:
            caller.ended = str(leg.closed)
            self.clock.remove(leg)


@dataclass
class Served:
    at: float
    caller: str
    person: str


class People(ToneHost):
    """The phones of all people."""

    def __init__(self, people: list[Person], callers: list[Caller], seed: int) -> None:
        super().__init__()
        self.by_name = {one.name: one for one in people}
        self._callers = {one.number: one for one in callers}
        self._random = Random(seed)
        self.rung: list[Served] = []
        """Of each call, when it came."""
        self.clashes: list[tuple[float, str, str]] = []
        """Calls that came while another one was going on: when, for whom, and to whom."""
        self.accepted: list[Served] = []
        """Of each, when the caller was heard."""

    def decision(self, call: SipCall, headers: object) -> Any:
        return self._answer(call)

    async def _answer(self, call: SipCall) -> int:
        person = self.by_name[call.info.called]
        self.rung.append(Served(time.time(), call.info.caller, person.name))
        if person.is_in_a_call:
            self.clashes.append((time.time(), call.info.caller, person.name))
            return 486
        await asyncio.sleep(self._random.uniform(0.5, 2))
        if every(next(person.counted), person.busy_every):
            person.busy += 1
            return 486
        person.is_in_a_call = True
        return 0

    async def run_call(self, leg: Leg, agent: str) -> None:
        person, caller = self.by_name[leg.info.called], self._callers[leg.info.caller]
        phone = Phone(leg)
        self.clock.add(leg)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._speak(phone, person, caller)
        await leg.hang_up("over")
        self.clock.remove(leg)
        person.is_in_a_call = False

    async def _speak(self, phone: Phone, person: Person, caller: Caller) -> None:
        leg = phone.leg
        leg.playout.write(speech("Hello?"))
        while not phone.sounds() and leg.closed is None:
            await asyncio.sleep(LOOK_S)
        declines = every(len(self.accepted) + 1, person.declines_every)
        pressed = 0.0
        while abs(phone.hears() - caller.hz) > NEAR_HZ:
            if leg.closed is not None or phone.dead_s > DEAD_S:
                person.declined += declines
                return
            if time.monotonic() - pressed > AGAIN_S:
                pressed = time.monotonic()
                leg.send_dtmf("2" if declines else "1")
            await asyncio.sleep(LOOK_S)
        self.accepted.append(Served(time.time(), caller.number, person.name))
        phone.hums(person.hz)
        await asyncio.sleep(self._random.uniform(2, 4))
