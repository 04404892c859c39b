"""One caller who waits in a queue: hears music and announcements, and is connected with a member.

what happens                    the caller
it is the caller's turn         hears music while members are rung and briefed
a member accepts                is connected
all pass the caller on          keeps the place, and is offered to others
it takes too long               leaves the queue for its `overflow`
presses the key                 hears that we call back; the place is kept
hangs up                        is gone; members who are briefed are released
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import LegError
from offhook.media.pcm import SAMPLES_OUT, Pcm
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import Dtmf
from offhook.pipeline.conversation.events import Event as CallEvent
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import sound_of
from offhook.web.config.people.queues import PREFIX
from offhook.web.config.people.queues import Queue as QueueSettings
from offhook.web.edge.queues.phrases import Phrase, announcement, phrase
from offhook.web.edge.queues.queue import Queue, Ticket
from offhook.web.edge.transfers.briefed import Event
from offhook.web.edge.transfers.company_io import Company
from offhook.web.edge.transfers.people_io import Briefing, Person
from offhook.web.edge.transfers.phrases import Phrase as Farewell
from offhook.web.edge.transfers.search_io import Search
from offhook.web.edge.transfers.transfers_io import Transfers

SPEAK_S = 10.0
"""Time limit in s for an announcement to be synthesized; then it is left out."""
FIRST_S = 1.0
"""Time in s of music before the first announcement."""


class WaitingSound(Iterator[Pcm]):
    """Music, and announcements in its place."""

    def __init__(self, music: Iterator[Pcm]) -> None:
        self._music = music
        self._spoken: deque[Pcm] = deque()

    def __next__(self) -> Pcm:
        return self._spoken.popleft() if self._spoken else next(self._music)

    def speak(self, pcm: Pcm) -> None:
        """Play a sound at 24 kHz before the music goes on."""
        padded = np.concatenate((pcm, np.zeros(-len(pcm) % SAMPLES_OUT, np.int16)))
        self._spoken.extend(padded.reshape(-1, SAMPLES_OUT))

    @property
    def left_s(self) -> float:
        """Seconds of announcements that are left."""
        return len(self._spoken) / 50


class Host(Protocol):
    """The queues of an edge."""

    transfers: Transfers

    async def change(self, name: str, change: Callable[[Queue], Any]) -> Any: ...
    def wake(self) -> None:
        """Have the members assigned anew."""

    def count(self, name: str, outcome: str, waited_s: float) -> None: ...
    def connected(self, name: str, ticket: str, address: str) -> Callable[[], None]:
        """A member speaks with a caller; returns what is called when that is over."""


class Waiting(Search):
    """Of one caller, from joining to the end of it."""

    def __init__(
        self,
        host: Host,
        name: str,
        settings: QueueSettings,
        call: Call,
        briefing: Briefing,
        ticket: Ticket,
        company: Company | None,
    ) -> None:
        super().__init__(call, PREFIX + name)
        self.ticket = ticket
        self._company = company
        self._host, self._name, self._settings = host, name, settings
        self._briefing = briefing
        self._people: dict[str, Person] = {}
        """Members who are rung or briefed now, by their addresses."""
        self._decided: set[str] = set()
        """Members who have accepted or passed, which the order may not know yet."""
        self._sound = WaitingSound(host.transfers.sound(call, settings, company))
        self._calls_back = False
        self._announced_at = time.time() - settings.announce_seconds + FIRST_S

    @property
    def _language(self) -> str:
        call = self._call
        return call.language.speaking.language or call.engines.hearing.language or ""

    def offer(self, addresses: list[str]) -> None:
        """Ring these members, and nobody else."""
        for address in [a for a in self._people if a not in addresses]:
            self._release(address, Farewell.OTHER_CHOSEN)
        for address in addresses:
            if address not in self._people and address not in self._decided:
                person = Person(address, self._settings, self._briefing, self._note)
                self._people[address] = person
                self._emit("ringing", person)
                self._host.transfers.people.ring(person)

    async def run(self) -> bool:
        """Return whether the caller is connected, once that is so or it takes too long. Raises
        LegError if the caller has gone."""
        self._emit("requested")
        self._call.listeners.append(self._listen)
        outcome = "abandoned"
        try:
            with self._playing(self._sound):
                outcome = "answered" if await self._wait() else "too_long"
        except LegError:
            outcome = "callback" if self._calls_back else "abandoned"
            raise
        finally:
            self._call.listeners.remove(self._listen)
            self._host.count(self._name, outcome, time.time() - self.ticket.joined)
            for address in tuple(self._people):
                self._release(address, Farewell.CALLER_GONE)
            if outcome == "abandoned":
                self._emit("canceled", reason="the caller hung up")
        if outcome == "too_long":
            self._emit("failed", reason="it took too long")
        return outcome == "answered"

    def _listen(self, event: CallEvent) -> None:
        key = self._settings.callback_key
        if isinstance(event, Dtmf) and key and event.digit == key and self._briefing.number:
            self._calls_back = True
            self._news.put_nowait(None)

    async def _wait(self) -> bool:
        """Return whether the caller is connected; False: it takes too long."""
        leg, settings = self._call.leg, self._settings
        until = time.time() + settings.max_wait_seconds
        while True:
            due = [until]
            if settings.announce_seconds:
                due.append(self._announced_at + settings.announce_seconds)
            try:
                async with asyncio.timeout(max(0.0, min(due) - time.time())):
                    news = await self._news.get()
            except TimeoutError:
                if time.time() >= until:
                    return False
                self._announced_at = time.time()
                await self._announce()
                continue
            if leg.closed is not None:
                raise LegError("the call has ended")
            if self._calls_back:
                await self._call_back()
            elif news is not None and await self._follow(*news):
                return True

    async def _follow(self, person: Person, event: Event, reason: str) -> bool:
        """Follow what becomes of a member; return whether the caller is connected."""
        address = person.address
        if self._people.get(address) is not person:
            return False
        if event in (Event.ANSWERED, Event.AGREED):
            if event is Event.ANSWERED and not person.has_agreed:
                self._emit("briefing", person)
            return False
        del self._people[address]
        self._decided.add(address)
        if event is Event.ACCEPTED and await self._connect(address, person):
            return True
        words = {Event.DECLINED: Farewell.DECLINED, Event.UNDECIDED: Farewell.UNDECIDED}
        if event is Event.ACCEPTED:
            reason = "could not be connected"
        self._emit("rejected", person, reason or event.name.lower().replace("_", " "))
        self._host.transfers.people.release(person, words.get(event))
        await self._host.change(
            self._name, lambda queue: queue.passed(self.ticket.id, address, time.time())
        )
        self._decided.discard(address)
        self._host.wake()
        return False

    async def _connect(self, address: str, person: Person) -> bool:
        def accept(queue: Queue) -> bool:
            return queue.accepted(self.ticket.id, address, time.time())

        if not await self._host.change(self._name, accept):
            return False
        self._emit("accepted", person)
        over = self._host.connected(self._name, self.ticket.id, address)

        def on_over() -> None:
            self._emit("completed")
            over()

        for other in tuple(self._people):
            self._release(other, Farewell.OTHER_CHOSEN)
        try:
            await self._host.transfers.connect(self._call, person, on_over, self._company)
        except LegError:
            over()
            return False
        self._call.leg.place = ""
        self._emit("bridged", person)
        return True

    def _release(self, address: str, words: Farewell | None) -> None:
        if (person := self._people.pop(address, None)) is not None:
            self._host.transfers.people.release(person, words)

    # --- what the caller hears ---

    async def _announce(self) -> None:
        def place(queue: Queue) -> tuple[int, float | None]:
            position = queue.position(self.ticket.id)
            return position, queue.wait_s(position, time.time())

        position, wait_s = await self._host.change(self._name, place)
        key = self._settings.callback_key if self._briefing.number else ""
        if position:
            about = {"queue": self._name, "position": position, "wait_seconds": wait_s}
            words = "{}: queue {}: place {} is announced, waiting time in s: {}"
            wait = "unknown" if wait_s is None else round(wait_s)
            logger.bind(**about).info(words, self._call.leg.call_id, self._name, position, wait)
            text = announcement(position, wait_s, key, self._language)
            if self._company is None:
                await self._speak(text)
            else:
                self._company.announce(text)

    async def _call_back(self) -> None:
        """Say goodbye to a caller who keeps the place, and hang up. Raises LegError."""
        await self._speak(phrase(Phrase.NOTED, self._language))
        while self._sound.left_s and self._call.leg.closed is None:
            await asyncio.sleep(0.1)
        self._call.leg.place = ""
        self._emit("canceled", reason="is called back")
        await self._call.leg.hang_up(End.AGENT_HUNG_UP)
        raise LegError("the caller is called back")

    @property
    def calls_back(self) -> bool:
        """Whether the caller has asked to be called back."""
        return self._calls_back

    async def _speak(self, text: str) -> None:
        """Have a text spoken over the music; a voice that fails is passed over."""
        stream = self._call.engines.synthesizer.open(self._call.language.speaking)
        with suppress(TimeoutError):
            try:
                async with asyncio.timeout(SPEAK_S):
                    self._sound.speak(await sound_of(stream, text))
            except EngineError as error:
                logger.warning("{}: not announced: {}", self._call.leg.call_id, error)
