"""The queues of an edge: has members assigned, rung and connected, and callers called back."""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from loguru import logger

from offhook.media.leg import CallInfo, LegError
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.agents.kinds.announcement_io import Announcing
from offhook.pipeline.conversation.call.absence_io import HandedOver
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.events import TransferProgress
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.web.config.config import Config
from offhook.web.config.people.queues import AGENT, PREFIX
from offhook.web.config.people.queues import Queue as QueueSettings
from offhook.web.config.people.tenants import owner
from offhook.web.config.people.transfers import split_extension
from offhook.web.edge.queues.phrases import Phrase, phrase
from offhook.web.edge.queues.queue import Queue, Ticket
from offhook.web.edge.queues.store_io import LocalOrders, Orders, RedisOrders
from offhook.web.edge.queues.waiting_io import Waiting
from offhook.web.edge.transfers.briefed import Event
from offhook.web.edge.transfers.company_io import Company
from offhook.web.edge.transfers.people_io import Briefing, Person
from offhook.web.edge.transfers.transfers_io import Transferable, Transfers, language_of
from offhook.web.http.queue_metrics import QueueMetrics
from offhook.web.records.entries import PART_POSITIONS, Happened

if TYPE_CHECKING:
    from offhook.web.records.writing.writer_io import StoreWriter

TICK_S = 1.0
"""Interval in s at which a queue is looked after, beside each change."""


MAX_GONE = 1000
"""Callers remembered who wait no longer."""


GIVEN_UP = 100 * PART_POSITIONS
"""Position, behind all others of a call, of the event that its caller was not reached."""


class UnknownQueue(KeyError):
    """Raised when no queue, or no member of it, has that name."""


class Records(Protocol):
    @property
    def kept(self) -> "StoreWriter | None": ...


class Phones(Protocol):
    config: Config

    @property
    def records(self) -> Records: ...

    @property
    def sip(self) -> SipEndpoint | None: ...


class CalledBack(Person):
    """A caller who has asked to be called back: hears that, and goes on waiting in the place."""

    def __init__(
        self,
        name: str,
        settings: QueueSettings,
        briefing: Briefing,
        ticket: Ticket,
        report: Callable[[Person, Event, str], None],
    ) -> None:
        super().__init__(ticket.caller, settings, briefing, report)
        self._name, self._ticket = name, ticket

    def agent(self, call: Call, made: Agent) -> Agent:
        self.conversation = call
        call.leg.place = f"{self._name}/{self._ticket.id}"
        words = phrase(Phrase.CALLED_BACK, self.briefing.language)
        desk = Announcing(call, PREFIX + self._name)
        return Agent("callback", desk, greeting=words, greeting_interruptible=False)


class Queues:
    """All queues of one edge, and its part of those that it shares."""

    def __init__(self, phones: Phones, transfers: Transfers, metrics: QueueMetrics) -> None:
        """Raises ConfigError."""
        self.transfers = transfers
        redis = phones.config.server.redis if phones.config.queues else ""
        self._orders: Orders = RedisOrders(redis) if redis else LocalOrders()
        self._phones, self._metrics = phones, metrics
        self._server = uuid.uuid4().hex[:12]
        self._queues: dict[str, Queue] = {}
        self._waiting: dict[str, dict[str, Waiting]] = {}
        """Callers of this edge, by queue and ticket."""
        self._callbacks: dict[str, dict[str, Ticket]] = {}
        """Those whom this edge is to call back, likewise."""
        self._speaking: dict[str, dict[str, str]] = {}
        """Members who speak with callers of this edge, by queue and ticket."""
        self._gone: deque[tuple[str, str]] = deque(maxlen=MAX_GONE)
        """Queues and tickets of callers of this edge who wait no longer: a change of the order may
        have been lost while Redis failed."""
        self._changed = asyncio.Event()
        self._tasks = TaskSet()

    async def start(self) -> None:
        """Read the music, and begin to look after the queues."""
        await self.load()
        for name in self._phones.config.queues:
            self._metrics.begin(name)
        self._tasks.spawn(self._look_after(), "queues")

    async def load(self) -> None:
        config = self._phones.config
        named = (*config.transfers.values(), *config.queues.values())
        await self.transfers.music.load(one.music for one in named)

    def reload(self) -> None:
        """The configuration is another one."""
        self._tasks.spawn(self.load(), "music")
        for name in tuple(self._queues):
            state = self._queues.pop(name).dump()
            if name in self._phones.config.queues:
                self._queue(name).load(state)
        self.wake()

    async def close(self) -> None:
        await self._tasks.close()
        await self.transfers.close()
        await self._orders.close()

    # --- callers ---

    def destinations(
        self, caller: Transferable, call: Callable[[], Call]
    ) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return what connects a caller with the people of each transfer, by its name, and what has
        them wait in each queue, by its name with PREFIX; `call` returns the conversation."""
        return {
            **self.transfers.destinations(caller, call),
            **{
                PREFIX + name: partial(self._wait, name, settings, caller, call)
                for name, settings in self._phones.config.queues.items()
            },
        }

    def accompanied(
        self, caller: Transferable, call: Callable[[], Call]
    ) -> Mapping[str, Callable[[], None]]:
        """Return what begins each transfer, and each wait, during which the agent goes on."""
        begin, wait = self.transfers.accompany, self._wait
        return {
            **self.transfers.accompanied(caller, call),
            **{
                PREFIX + name: partial(
                    begin, PREFIX + name, call, partial(wait, name, settings, caller, call)
                )
                for name, settings in self._phones.config.queues.items()
                if settings.meanwhile == "agent"
            },
        }

    async def _wait(
        self,
        name: str,
        settings: QueueSettings,
        caller: Transferable,
        find: Callable[[], Call],
        company: Company | None = None,
    ) -> None:
        """Returns once the caller is connected. Raises LegError."""
        call, leg, now = find(), caller.leg, time.time()
        queue, _, ticket_id = leg.place.partition("/")
        number = leg.info.caller if leg.info.direction == "inbound" else leg.info.called
        ticket = Ticket(
            ticket_id if queue == name and ticket_id else uuid.uuid4().hex[:12],
            call=leg.call_id,
            caller=number,
            joined=now,
            priority=settings.priority(number),
            server=self._server,
            renewed=now,
            agent=caller.agent_now,
        )
        if not await self.change(name, partial(_join, ticket, settings.max_length, now)):
            self.count(name, "full", 0)
            await self._overflow(name, settings.overflow, caller, call)
            return
        leg.place = f"{name}/{ticket.id}"
        briefing = self.transfers.briefing(PREFIX + name, caller, call, ticket.joined)
        waiting = Waiting(self, name, settings, call, briefing, ticket, company)
        here = self._waiting.setdefault(name, {})
        self._callbacks.get(name, {}).pop(ticket.id, None)
        here[ticket.id] = waiting
        self.wake()
        try:
            is_connected = await waiting.run()
        finally:
            del here[ticket.id]
            leg.place = ""
            if not waiting.calls_back:
                self._gone.append((name, ticket.id))
            now = time.time()
            if waiting.calls_back:
                ticket.calls_back = True
                self._callbacks.setdefault(name, {})[ticket.id] = ticket
                work = self.change(name, lambda queue: queue.join(ticket, now))
            else:
                work = self.change(name, lambda queue: queue.leave(ticket.id, now))
            self._tasks.spawn(work, f"leave {name}")
            self.wake()
        if not is_connected:
            await self._overflow(name, settings.overflow, caller, call)

    async def _overflow(self, name: str, target: str, caller: Transferable, call: Call) -> None:
        """Have a caller who cannot wait go elsewhere. Raises LegError: the caller is back with the
        agent, or with another one."""
        agent = target.removeprefix(AGENT)
        if not target:
            raise LegError("nobody is free, and the caller need not wait any longer")
        if agent != target:
            reason = f"Nobody of {name} is free."
            take_over = partial(caller.hand_over, agent, PREFIX + name, reason)
            raise HandedOver(f"{agent} takes the call over", take_over)
        to = caller.leg.destinations.get(target)
        if not call.away:  # the agent has kept the caller company
            await call.transfer(target)
        else:
            await (caller.leg.transfer(target) if to is None else to())

    def go_on(self, call: Call, *, with_model: bool) -> None:
        """Have a caller who comes from another server wait again, in the same place; `with_model`:
        a language model can keep the caller company."""
        target = PREFIX + call.leg.place.partition("/")[0]
        if call.leg.place and with_model and target in call.leg.accompanied:
            call.leg.accompanied[target]()
        elif call.leg.place and target in call.leg.destinations:
            self._tasks.spawn(self._go_on(call, target), f"queue {call.leg.call_id}")

    async def _go_on(self, call: Call, target: str) -> None:
        with suppress(LegError):  # the agent has the caller again
            await call.transfer(target)

    # --- what goes on ---

    async def change(self, name: str, change: Callable[[Queue], Any]) -> Any:
        """Apply a change to a queue, see `Orders`."""
        return await self._orders.change(name, self._queue(name), change)

    def wake(self) -> None:
        self._changed.set()

    def count(self, name: str, outcome: str, waited_s: float) -> None:
        settings = self._phones.config.queues.get(name)
        within_s = settings.service_seconds if settings is not None else 0
        self._metrics.count(name, outcome, waited_s, within_s)

    def connected(self, name: str, ticket: str, address: str) -> Callable[[], None]:
        speaking = self._speaking.setdefault(name, {})
        speaking[ticket] = address

        def over() -> None:
            speaking.pop(ticket, None)
            now = time.time()
            work = self.change(name, lambda queue: queue.released(address, ticket, now))
            self._tasks.spawn(work, f"released {address}")
            self.wake()

        return over

    def _queue(self, name: str) -> Queue:
        if name not in self._queues:
            s = self._phones.config.queues[name]
            self._queues[name] = Queue(s.members, s.strategy, s.wrap_up_seconds)
        return self._queues[name]

    async def _look_after(self) -> None:
        while True:
            if not self._phones.config.queues:
                await self._changed.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._changed.wait()
            self._changed.clear()
            for name in self._phones.config.queues:
                await self._assign(name)

    async def _assign(self, name: str) -> None:
        """Renew this edge's callers in a queue, and have them offered to members."""
        waiting, back = self._waiting.get(name, {}), self._callbacks.setdefault(name, {})
        tickets = [*(one.ticket for one in waiting.values()), *back.values()]

        extensions = self._extensions(name)

        def assign(queue: Queue) -> tuple[dict[str, list[str]], list[Ticket], list[Ticket]]:
            now = time.time()
            queue.see_phones(self._server, extensions, now)
            adopted = queue.adopt(self._server, now)
            given_up = queue.renew(self._server, tickets, self._speaking.get(name, {}), now)
            for _, ticket_id in (one for one in self._gone if one[0] == name):
                queue.leave(ticket_id, now)
            queue.assign(now)
            return {t.id: list(t.offered) for t in queue.order}, adopted, given_up

        offered, adopted, given_up = await self.change(name, assign)
        for _ in given_up:
            self.count(name, "abandoned", 0)
        back.update({ticket.id: ticket for ticket in adopted})
        self._metrics.waiting.labels(name).set(len(waiting) + len(back))
        for ticket_id, one in tuple(waiting.items()):
            one.offer(offered.get(ticket_id, []))
        for ticket_id, ticket in tuple(back.items()):
            if offered.get(ticket_id):  # a member is kept free for the caller meanwhile
                del back[ticket_id]
                self._tasks.spawn(self._call_back(name, ticket), f"callback {ticket_id}")

    def _extensions(self, name: str) -> dict[str, bool]:
        """Return the members of a queue that are extensions, and whether a phone is registered."""
        config, sip = self._phones.config, self._phones.sip
        settings = config.queues[name]
        extensions = config.sip.extensions if config.sip is not None else {}
        numbers = {
            address: settings.extension_of(split_extension(address)[0], extensions)
            for address in settings.members
        }
        phones = None if sip is None else sip.user_agent.phones.registrar
        return {
            address: phones is not None and bool(phones.bindings(number))
            for address, number in numbers.items()
            if number
        }

    async def _call_back(self, name: str, ticket: Ticket) -> None:
        """Call a caller back, who then waits in the place again."""
        config = self._phones.config
        settings = config.queues[name]
        over = asyncio.Event()

        def report(person: Person, event: Event, reason: str) -> None:
            if event in (Event.UNREACHED, Event.HUNG_UP, Event.MACHINE, Event.UNDECIDED):
                over.set()

        agent = ticket.agent if ticket.agent in config.agents else ""
        its = owner(config.tenants, "queues", name)
        info = CallInfo(direction="outbound", tenant=its)
        briefing = Briefing(info, agent, language_of(config, ticket.agent), _nothing)
        person = CalledBack(name, settings, briefing, ticket, report)
        self.transfers.people.ring(person)
        here = self._waiting.setdefault(name, {})
        while not over.is_set() and ticket.id not in here:
            await self.change(name, partial(_renew, self._server, ticket))
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await over.wait()
        if ticket.id in here:
            return
        if await self.change(name, lambda queue: queue.not_reached(ticket.id, time.time())):
            self._callbacks[name][ticket.id] = ticket
        else:
            self._give_up(name, ticket)
        self.wake()

    def _give_up(self, name: str, ticket: Ticket) -> None:
        """Note with the call of a caller that calling back was in vain."""
        self.count(name, "not_reached", 0)
        reason = "was called back and not reached"
        logger.info("{}: queue {}: {} {}", ticket.call, name, ticket.caller, reason)
        if (kept := self._phones.records.kept) is not None:
            waited_ms = int(1000 * (time.time() - ticket.joined))
            fields = asdict(TransferProgress(waited_ms, PREFIX + name, "failed", reason=reason))
            del fields["at_ms"]
            event = Happened(ticket.call, GIVEN_UP, waited_ms, "transfer_progress", fields)
            kept.add(event)

    # --- the operator ---

    async def shown(self, name: str) -> dict[str, Any]:
        """Return a queue as the operator sees it. Raises UnknownQueue."""
        settings, extensions = self._settings(name), self._extensions(name)

        def show(queue: Queue) -> dict[str, Any]:
            now = time.time()
            queue.see_phones(self._server, extensions, now)
            return {
                "name": name,
                "strategy": settings.strategy,
                "waiting": [
                    {
                        "call_id": t.call,
                        "caller": t.caller,
                        "position": position,
                        "priority": t.priority,
                        "waited_seconds": round(now - t.joined, 1),
                        "offered": t.offered,
                        "called_back": t.calls_back,
                    }
                    for position, t in enumerate(queue.order, 1)
                ],
                "members": [
                    {
                        "member": address,
                        "state": member.state(now),
                        "paused": member.paused,
                        "seconds": round(now - member.since, 1) if member.since else None,
                    }
                    for address, member in queue.members.items()
                ],
                "wait_seconds": queue.wait_s(len(queue.tickets) + 1, now),
            }

        shown: dict[str, Any] = await self.change(name, show)
        return shown

    def presence(self, extension: str) -> list[dict[str, Any]]:
        """Return the queues of which an extension is a member, as they were at the last look."""
        config, now = self._phones.config, time.time()
        extensions = config.sip.extensions if config.sip is not None else {}
        return [
            {"name": name, "member": address, **self._queue(name).presence(address, now)}
            for name, settings in config.queues.items()
            for address in settings.members
            if settings.extension_of(split_extension(address)[0], extensions) == extension
        ]

    async def pause(self, name: str, member: str, paused: bool) -> None:
        """Have a member rung no more, or again. Raises UnknownQueue."""
        if member not in self._settings(name).members:
            raise UnknownQueue(f"no member of {name!r} is {member!r}")
        await self.change(name, lambda queue: queue.pause(member, paused))
        self.wake()

    def _settings(self, name: str) -> QueueSettings:
        settings = self._phones.config.queues.get(name)
        if settings is None:
            there = ", ".join(self._phones.config.queues) or "none"
            raise UnknownQueue(f"no queue is called {name!r} (there: {there})")
        return settings


def _join(ticket: Ticket, max_length: int, now: float, queue: Queue) -> bool:
    """Return whether a caller waits: one who has a place has it again."""
    if ticket.id not in queue.tickets and len(queue.tickets) >= max_length:
        return False
    queue.join(ticket, now)
    return True


def _renew(server: str, ticket: Ticket, queue: Queue) -> None:
    queue.renew(server, [ticket], {}, time.time())


async def _nothing(wait_s: float) -> str:
    """One who is called back is told nothing of a caller."""
    return ""
