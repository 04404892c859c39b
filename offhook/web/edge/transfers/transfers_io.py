"""Transfers with a briefing: the caller hears music while people are called, one of whom is
connected, or is back with the agent. The table is in `briefed`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Protocol

from offhook.media.bridge_io import Bridge
from offhook.media.end_reason import End
from offhook.media.leg import Leg, LegError
from offhook.media.pcm import Pcm
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.directed_io import Infer
from offhook.pipeline.conversation.sentences import USUAL_LANGUAGE
from offhook.pipeline.conversation.summary_io import summary_of
from offhook.web.config.agents import DEFAULT
from offhook.web.config.config import Config
from offhook.web.config.people.transfers import BriefedTransfer as TransferSettings
from offhook.web.config.people.transfers import Ringing
from offhook.web.edge.transfers.briefed import Action, BriefedTransfer, Event
from offhook.web.edge.transfers.company_io import Company, Pauses
from offhook.web.edge.transfers.music_io import Music
from offhook.web.edge.transfers.people_io import Briefing, People, Person, Phones
from offhook.web.edge.transfers.phrases import Phrase, phrase
from offhook.web.edge.transfers.search_io import Search

MAX_BRIEFING_CHARS = 400
"""Maximum characters of what a person is told of a caller; the rest is cut off at a word."""
FAREWELLS = {
    Action.CANCEL: None,
    Action.SAY_DECLINED: Phrase.DECLINED,
    Action.SAY_UNDECIDED: Phrase.UNDECIDED,
    Action.SAY_CALLER_GONE: Phrase.CALLER_GONE,
    Action.SAY_OTHER_CHOSEN: Phrase.OTHER_CHOSEN,
}
_BRIEF = (
    "You ask a colleague by telephone whether they speak with the caller of this conversation. "
    "Say in one or two short spoken sentences, in the language {language}, who calls and what they "
    "want, with the names and numbers that matter. {number}Begin with a greeting. Answer with "
    "these sentences alone."
)


Seek = Callable[[Company], Awaitable[None]]
"""Calls people for a caller whom an agent keeps company; returns once one is connected. Raises
LegError."""


class Transferable(Protocol):
    """A call that can be transferred."""

    leg: Leg

    @property
    def agent_now(self) -> str:
        """The name of the agent that has the call now."""

    @property
    def infer(self) -> Infer | None:
        """What answers outside the conversation; None if that agent is no language model."""

    async def hand_over(self, agent: str, mailbox: str, reason: str) -> None:
        """Have another agent take the call over, see `LiveCall`."""


class Transfers:
    """The transfers of an edge, with the people whom it calls for them."""

    def __init__(self, phones: Phones) -> None:
        self.people = People(phones)
        self.music = Music()
        self._phones = phones
        self._accompanied: set[str] = set()
        """Calls whose agents keep their callers company."""
        self._tasks = TaskSet()
        """Bridges, summaries, and agents that keep callers company."""

    async def close(self) -> None:
        """End all bridges and the calls to people."""
        await self._tasks.close()
        await self.people.close()

    def destinations(
        self, caller: Transferable, call: Callable[[], Call]
    ) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return what connects a caller with the people of each transfer, by its name; `call`
        returns the conversation."""
        return {
            name: partial(self._to_one, name, settings, caller, call)
            for name, settings in self._phones.config.transfers.items()
        }

    def accompanied(
        self, caller: Transferable, call: Callable[[], Call]
    ) -> Mapping[str, Callable[[], None]]:
        """Return what begins each transfer during which the agent goes on, likewise."""
        return {
            name: partial(
                self.accompany, name, call, partial(self._to_one, name, one, caller, call)
            )
            for name, one in self._phones.config.transfers.items()
            if one.meanwhile == "agent"
        }

    def accompany(self, target: str, find: Callable[[], Call], seek: Seek) -> None:
        """Have the agent keep the caller company while `seek` finds somebody. Raises LegError."""
        call = find()
        if call.leg.call_id in self._accompanied:
            raise LegError("people are being called already")
        self._accompanied.add(call.leg.call_id)
        kept = self._tasks.spawn(Company(call, target).keep(seek), f"company {call.leg.call_id}")
        kept.add_done_callback(lambda _: self._accompanied.discard(call.leg.call_id))

    async def _to_one(
        self,
        name: str,
        settings: TransferSettings,
        caller: Transferable,
        call: Callable[[], Call],
        company: Company | None = None,
    ) -> None:
        briefing = self.briefing(name, caller, call())
        await _Transfer(self, name, settings, call(), briefing, company).run()

    def briefing(
        self, target: str, caller: Transferable, call: Call, since: float = 0.0
    ) -> Briefing:
        """Return what people are told of a caller, who waits since then, or 0 for now. The model is
        asked for it at once."""
        config, agent = self._phones.config, caller.agent_now
        language = language_of(config, agent)
        summary: asyncio.Task[str] | None = None
        if caller.infer is not None:
            number = caller.leg.info.caller
            words = _BRIEF.format(language=language, number=number and f"The number is {number}. ")
            work = summary_of(call, caller.infer, words)
            summary = self._tasks.spawn(work, f"briefing {caller.leg.call_id}")
        calls = phrase(Phrase.CALLS, language).format(caller=_name(call, language))
        text = partial(_briefing_text, summary, calls)
        return Briefing(
            caller.leg.info,
            *("" if agent == DEFAULT else agent, language, text, target),
            *(caller.leg.call_id, since or time.time()),
        )

    def sound(self, call: Call, settings: Ringing, company: Company | None) -> Iterator[Pcm]:
        """Return what a caller hears while nobody speaks."""
        music = self.music.of(settings.music)
        return music if company is None else Pauses(call, music)

    async def connect(
        self, call: Call, person: Person, on_over: Callable[[], None], company: Company | None
    ) -> None:
        """Connect a caller with a person who has accepted, once the agent has parted if it has kept
        the caller company; `on_over` is called at the end. Raises LegError."""
        join = partial(self._join, call, person, on_over)
        if company is None:
            await join()
        else:
            await company.part(phrase(Phrase.CONNECTING, person.briefing.language), join)

    async def _join(self, call: Call, person: Person, on_over: Callable[[], None]) -> None:
        """Have our agent leave the person's line and bridge it. Raises LegError."""
        theirs = person.conversation
        if theirs is None or theirs.leg.closed is not None or call.leg.closed is not None:
            raise LegError("one of the two has hung up")
        await theirs.transfer(call.leg.call_id, by=_at_once)
        person.is_over = True
        bridge = self._bridge(call.leg, theirs.leg, on_over)
        self._tasks.spawn(bridge, f"bridge {call.leg.call_id}")

    async def _bridge(self, first: Leg, second: Leg, on_over: Callable[[], None]) -> None:
        sip = self._phones.sip
        calls = sip.calls if sip is not None else {}
        caller, person = calls.get(first.call_id), calls.get(second.call_id)
        if sip is not None and caller is not None and person is not None:
            await sip.pairs.talk(caller, person, on_over)  # an extension may transfer the caller
            return
        try:
            await Bridge(first, second, on_over).until_over()
        finally:
            for leg in (first, second):
                await leg.hang_up(End.OTHER_END_HUNG_UP)


class _Transfer(Search):
    """One that is under way."""

    def __init__(
        self,
        transfers: Transfers,
        name: str,
        settings: TransferSettings,
        call: Call,
        briefing: Briefing,
        company: Company | None,
    ) -> None:
        super().__init__(call, name)
        self._transfers, self._settings, self._company = transfers, settings, company
        self._core = BriefedTransfer(len(settings.to), all_at_once=settings.ring == "all")
        self._people = [Person(address, settings, briefing, self._note) for address in settings.to]

    async def run(self) -> None:
        """Return once the caller is connected. Raises LegError if nobody is, or the caller has
        gone."""
        try:
            with self._playing(self._transfers.sound(self._call, self._settings, self._company)):
                await self._follow()
        finally:
            self._core.caller_gone()  # or cancelled; nothing if it is over
            await self._act()
        if self._core.result != "connected":
            gone = self._call.leg.closed is not None
            raise LegError("the call has ended" if gone else "nobody accepted the call")

    async def _follow(self) -> None:
        await self._act()
        while self._core.result is None:
            news = await self._news.get()
            if news is None:
                self._core.caller_gone()
            else:
                person, event, reason = news
                self._core.receive(event, self._people.index(person), reason)
            await self._act()

    async def _act(self) -> None:
        """Carry out what is due, and report it."""
        people = self._transfers.people
        self._report()
        while (due := self._core.next_action()) is not None:
            action, number = due
            person = self._people[number]
            if action is Action.RING:
                people.ring(person)
            elif action is Action.CONNECT:
                connected = await self._connect(person)
                self._core.receive(Event.BRIDGED if connected else Event.HUNG_UP, number)
            else:
                people.release(person, FAREWELLS[action])
            self._report()

    async def _connect(self, person: Person) -> bool:
        """Return whether both lines are still up, and connected."""
        over = partial(self._emit, "completed")
        try:
            await self._transfers.connect(self._call, person, over, self._company)
        except LegError:
            return False
        return True

    def _report(self) -> None:
        while (report := self._core.next_report()) is not None:
            person = None if report.person is None else self._people[report.person]
            self._emit(report.state, person, report.reason)


async def _at_once() -> None:
    """The line is to be bridged: there is nothing to wait for."""


async def _briefing_text(summary: asyncio.Task[str] | None, words: str, wait_s: float) -> str:
    """Return who calls and why: the model's words, or else a fixed sentence."""
    if summary is not None:
        await asyncio.wait((summary,), timeout=wait_s)
        if summary.done() and not summary.cancelled() and (text := summary.result().strip()):
            short = text[:MAX_BRIEFING_CHARS]
            return text if short == text else short.rpartition(" ")[0]
    return words


def _name(call: Call, language: str) -> str:
    """Return what a caller is called: a name that an agent has noted, or the line's, and the
    number."""
    info, noted = call.leg.info, call.leg.collected
    name = str(noted.get("name") or info.caller_name)
    return ", ".join(filter(None, (name, info.caller))) or phrase(Phrase.SOMEBODY, language)


def language_of(config: Config, agent: str) -> str:
    """Return the language in which an agent begins its calls."""
    settings = config.agent_called(agent or DEFAULT) or config.agent
    first = settings.languages[0] if settings.languages else settings.language
    return first or config.tts.language or USUAL_LANGUAGE
