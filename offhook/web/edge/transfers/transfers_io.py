"""Transfers with a briefing: the caller hears music while people are called, one of whom is
connected, or is back with the agent. The table is in `briefed`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

from offhook.media.bridge_io import Bridge
from offhook.media.end_reason import End
from offhook.media.leg import Leg, LegError
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.directed_io import Infer
from offhook.pipeline.conversation.events import TransferProgress, TransferState
from offhook.pipeline.conversation.sentences import USUAL_LANGUAGE
from offhook.pipeline.conversation.summary_io import summary_of
from offhook.web.config.agents import DEFAULT
from offhook.web.config.config import Config
from offhook.web.config.people.transfers import BriefedTransfer as TransferSettings
from offhook.web.edge.transfers.briefed import Action, BriefedTransfer, Event
from offhook.web.edge.transfers.music_io import Music
from offhook.web.edge.transfers.people_io import Briefing, People, Person, Phones
from offhook.web.edge.transfers.phrases import Phrase, phrase

MAX_BRIEFING_CHARS = 400
"""Maximum characters of what a person is told of a caller; the rest is cut off at a word."""
MAX_NEWS = 256
"""News of the people of one transfer that may wait: a few for each."""
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


class Transferable(Protocol):
    """A call that can be transferred."""

    leg: Leg

    @property
    def agent_now(self) -> str:
        """The name of the agent that has the call now."""

    @property
    def infer(self) -> Infer | None:
        """What answers outside the conversation; None if that agent is no language model."""


class Transfers:
    """The transfers of an edge, with the people whom it calls for them."""

    def __init__(self, phones: Phones) -> None:
        self.people = People(phones)
        self.music = Music()
        self._phones = phones
        self._tasks = TaskSet()
        """Bridges, and summaries."""

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

    async def _to_one(
        self, name: str, settings: TransferSettings, caller: Transferable, call: Callable[[], Call]
    ) -> None:
        await _Transfer(self, name, settings, call(), self.briefing(name, caller, call())).run()

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

    def connect(self, call: Call, person: Person, on_over: Callable[[], None]) -> None:
        """Bridge a caller with a person whose briefing is over; `on_over` is called at the end."""
        assert person.conversation is not None
        person.is_over = True
        bridge = self._bridge(call.leg, person.conversation.leg, on_over)
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


class _Transfer:
    """One that is under way."""

    def __init__(
        self,
        transfers: Transfers,
        name: str,
        settings: TransferSettings,
        call: Call,
        briefing: Briefing,
    ) -> None:
        self._transfers, self._name, self._settings = transfers, name, settings
        self._call = call
        self._core = BriefedTransfer(len(settings.to), all_at_once=settings.ring == "all")
        self._news: asyncio.Queue[tuple[int, Event, str] | None] = asyncio.Queue(MAX_NEWS)
        self._people = [
            Person(address, settings, briefing, partial(self._note, number))
            for number, address in enumerate(settings.to)
        ]

    def _note(self, person: int, event: Event, reason: str) -> None:
        if not self._news.full():
            self._news.put_nowait((person, event, reason))

    async def run(self) -> None:
        """Return once the caller is connected. Raises LegError if nobody is, or the caller has
        gone."""
        leg = self._call.leg
        leaving = asyncio.create_task(leg.until_closed(), name=f"caller {leg.call_id}")
        leaving.add_done_callback(lambda _: self._news.put_nowait(None))
        try:
            with leg.playing(self._transfers.music.of(self._settings.music)):
                await self._follow()
        finally:
            self._core.caller_gone()  # or cancelled; nothing if it is over
            await self._act()
            leaving.cancel()
        if self._core.result != "connected":
            gone = leg.closed is not None
            raise LegError("the call has ended" if gone else "nobody accepted the call")

    async def _follow(self) -> None:
        await self._act()
        while self._core.result is None:
            news = await self._news.get()
            if news is None:
                self._core.caller_gone()
            else:
                person, event, reason = news
                self._core.receive(event, person, reason)
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
        """Have our agent leave the person's line and bridge it; return whether it is still up."""
        call = person.conversation
        if call is None or call.leg.closed is not None or self._call.leg.closed is not None:
            return False
        try:
            await call.transfer(self._call.leg.call_id, by=_at_once)
        except LegError:
            return False
        self._transfers.connect(self._call, person, partial(self._emit, "completed"))
        return True

    def _report(self) -> None:
        while (report := self._core.next_report()) is not None:
            person = None if report.person is None else self._people[report.person]
            self._emit(report.state, person, report.reason)

    def _emit(self, state: TransferState, person: Person | None = None, reason: str = "") -> None:
        placed = None if person is None else person.placed
        self._call.emit(
            TransferProgress(
                *(self._call.leg.heard_ms, self._name, state),
                address="" if person is None else person.address,
                reason=reason,
                called="" if placed is None else placed.call_id,
            )
        )


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
