"""Calls to people who are to speak with a caller: each is rung, briefed and asked to decide."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, LegError
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.answering.policy import AnswerPolicy
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.telephony.call_progress_io import DialError
from offhook.telephony.carriers.call_io import CarrierCall
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.web.config.config import Config
from offhook.web.config.people.transfers import Ringing, host_of, split_extension
from offhook.web.edge.placing.requests import DialRequest
from offhook.web.edge.refusals import Busy, NoPhones
from offhook.web.edge.transfers.briefed import Event
from offhook.web.edge.transfers.decision import Decision
from offhook.web.edge.transfers.phrases import Phrase, phrase

SUMMARY_WAIT_S = 1.5
"""Time in s for which a person who has answered waits for the model's words on the caller; then a
fixed sentence says who calls."""
OF_DECISIONS: dict[Decision | None, Event] = {
    "accept": Event.ACCEPTED,
    "decline": Event.DECLINED,
    None: Event.UNDECIDED,
}


class HangsUp(Protocol):
    async def hang_up(self, call_id: str) -> None:
        """End a call. Raises KeyError if it is unknown or has ended, LegError if its carrier
        fails."""


class Phones(Protocol):
    """What an edge calls people with."""

    config: Config

    def dial(self, dial: Dial) -> SipCall: ...
    async def dial_by_carrier(self, asked: DialRequest) -> CarrierCall: ...

    @property
    def programs(self) -> HangsUp: ...

    @property
    def sip(self) -> SipEndpoint | None: ...


@dataclass(frozen=True)
class Briefing:
    """What people are told of a caller."""

    caller: CallInfo
    agent: str
    """Name of the agent with whose voice they are spoken to; "" for the default."""
    language: str
    text: Callable[[float], Coroutine[Any, Any, str]]
    """Returns who calls and why, after so many seconds at most in which a model may say it."""
    target: str = ""
    """Of the transfer: a name in the configuration."""
    call_id: str = ""
    """The caller's call; "" where it is the caller who is called."""
    since: float = 0.0
    """When the caller began to wait, in seconds since 1970."""

    @property
    def number(self) -> str:
        """Returns the number that the people called see."""
        inbound = self.caller.direction == "inbound"
        return self.caller.caller if inbound else self.caller.called


class Person:
    """One who is called for a caller. `report` receives what becomes of it, with the reason."""

    def __init__(
        self,
        address: str,
        ringing: Ringing,
        briefing: Briefing,
        report: Callable[["Person", Event, str], None],
    ) -> None:
        self.address, self.ringing, self.briefing = address, ringing, briefing
        self.report = partial(report, self)
        self.number, self.keys = split_extension(address)
        self.placed: SipCall | CarrierCall | None = None
        self.conversation: Call | None = None
        """Once the person has answered."""
        self.extension = ""
        """Whose phones ring here; "" if the person is called elsewhere."""
        self.is_over = False
        """Is connected with the caller, or not to be."""
        self.has_agreed = False
        """Has accepted at a desk while the phone rang, and is not briefed."""

    @property
    def policy(self) -> AnswerPolicy | None:
        """Returns what is done about who answers: machines are hung up on; None behind keys, where
        a menu answers first, and at an extension, where a machine has no phone."""
        is_person = self.keys or self.extension
        return None if is_person else AnswerPolicy("detect", has_model=False)

    def agent(self, call: Call, made: Agent) -> Agent:
        """Returns the agent that briefs the person, in the place of the one that was made."""
        # Few servers ever brief anybody: what that takes is no part of one that waits.
        from offhook.web.edge.transfers.briefing_io import BriefingAgent

        self.conversation = call
        offer = phrase(Phrase.OFFER, self.briefing.language)
        desk = BriefingAgent(call, self, offer)
        return Agent("briefing", desk, on_idle=desk.remind)

    async def introduction(self) -> str:
        return await self.briefing.text(SUMMARY_WAIT_S)

    def decide(self, decision: Decision) -> None:
        """The person has decided at a desk, before or after the phone was answered."""
        if decision == "accept" and self.conversation is None:
            self.has_agreed = True
            self.report(Event.AGREED, "")
        else:
            self.decided(decision)

    def decided(self, meaning: Decision | None) -> None:
        self.report(OF_DECISIONS[meaning], "")


class People:
    """Calls people by the phones of an edge, and follows their calls."""

    def __init__(self, phones: Phones) -> None:
        self._phones = phones
        self._by_call: dict[str, Person] = {}
        self._tasks = TaskSet()

    def find(self, call_id: str) -> Person | None:
        """Return whom a call was placed to; None for any other call."""
        return self._by_call.get(call_id)

    def at(self, extension: str) -> dict[str, Person]:
        """Return who is called at an extension for a caller and has not been connected yet, by the
        ids of the calls to its phones."""
        return {
            call_id: person
            for call_id, person in self._by_call.items()
            if person.extension == extension and person.briefing.call_id and not person.is_over
        }

    def ring(self, person: Person) -> None:
        self._tasks.spawn(self._follow(person), f"person {person.address}")

    def release(self, person: Person, words: Phrase | None = None) -> None:
        """End the call to a person, with these words if one has answered."""
        person.is_over = True
        self._tasks.spawn(self._release(person, words), f"release {person.address}")

    async def close(self) -> None:
        await self._tasks.close()

    async def _release(self, person: Person, words: Phrase | None) -> None:
        placed, call = person.placed, person.conversation
        if placed is None or placed.state == "ended":
            return
        if words is not None and call is not None and call.leg.closed is None:
            await call.say(phrase(words, person.briefing.language), instead=True)
            await call.hang_up()
        else:
            await self._hang_up(placed)

    async def _hang_up(self, placed: SipCall | CarrierCall) -> None:
        try:
            await self._phones.programs.hang_up(placed.call_id)
        except KeyError:
            return
        except LegError as error:
            logger.warning("{}: not hung up: {}", placed.call_id, error)

    async def _follow(self, person: Person) -> None:
        """Call a person, and report what becomes of it until the call has ended."""
        try:
            placed = person.placed = await self._place(person)
        except (DialError, Busy, NoPhones) as error:
            words = error.sentence if isinstance(error, Busy) else str(error)
            person.report(Event.UNREACHED, words or "no phones are configured")
            return
        self._by_call[placed.call_id] = person
        tenant = person.briefing.caller.tenant or placed.info.tenant
        placed.info = replace(placed.info, tenant=tenant)
        try:
            if person.is_over:
                await self._hang_up(placed)
            await self._report_progress(person, placed)
        finally:
            del self._by_call[placed.call_id]

    async def _report_progress(self, person: Person, placed: SipCall | CarrierCall) -> None:
        answered = False
        deciding: asyncio.TimerHandle | None = None
        try:
            async with aclosing(placed.events()) as events:
                async for progress in events:
                    if progress.state == "answered" and not answered:
                        answered = True
                        person.report(Event.ANSWERED, "")
                        deciding = asyncio.get_running_loop().call_later(
                            person.ringing.brief_seconds, person.report, Event.UNDECIDED, ""
                        )
                    elif progress.state == "ended":
                        reason = progress.reason
                        if reason.startswith(End.MACHINE_ANSWERED):
                            person.report(Event.MACHINE, reason)
                        else:
                            person.report(Event.HUNG_UP if answered else Event.UNREACHED, reason)
        finally:
            if deciding is not None:
                deciding.cancel()

    async def _place(self, person: Person) -> SipCall | CarrierCall:
        """Raises DialError, Busy and NoPhones."""
        ringing, briefing, sip = person.ringing, person.briefing, self._phones.config.sip
        extensions = sip.extensions if sip is not None else {}
        person.extension = ringing.extension_of(person.number, extensions)
        if ringing.carrier and not person.extension:
            asked = DialRequest(
                to=person.number,
                carrier=ringing.carrier,
                agent=briefing.agent,
                ring_seconds=ringing.ring_seconds,
            )
            return await self._phones.dial_by_carrier(asked)
        dial = Dial(
            person.number,
            "" if person.extension else self._trunk_towards(person),
            caller=briefing.number,
            caller_name=briefing.caller.caller_name,
            agent=briefing.agent,
            ring_seconds=ringing.ring_seconds,
            of_caller=briefing.call_id,
        )
        return self._phones.dial(dial)

    def _trunk_towards(self, person: Person) -> str:
        """Return the name of the trunk by which a person is called; "" for the first."""
        sip, usual = self._phones.config.sip, person.ringing.trunk
        if sip is None or usual:
            return usual
        there = [trunk for trunk in sip.trunks if trunk.server]
        host = host_of(person.number)
        towards = [trunk.name for trunk in there if host and trunk.is_host(host)]
        callers = [trunk.name for trunk in there if trunk.name == person.briefing.caller.trunk]
        return next(iter((*towards, *callers)), "")
