"""Calls to extensions, and of extensions to numbers outside: two calls that are connected here."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo
from offhook.media.tasks_io import TaskSet, first_of
from offhook.telephony.call_progress_io import DialError
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.calls_io import SipCalls
from offhook.telephony.sip.dial_plan import Destination, destination, own_uri, request_uri
from offhook.telephony.sip.extensions.pairs_io import MAX_TOGETHER, Pair, Pairs
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.outgoing_calls_io import OutgoingCalls
from offhook.telephony.sip.ringbacks_io import Ringbacks
from offhook.telephony.sip.sessions.refer import Replaces
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import ReferReceived
from offhook.telephony.sip.stack_io import SipStack


class ExtensionCalls:
    """Connects the calls of an endpoint's extensions."""

    def __init__(
        self,
        calls: SipCalls,
        stack: SipStack,
        outgoing: OutgoingCalls,
        pairs: Pairs,
        ringbacks: Ringbacks,
        tasks: TaskSet,
    ) -> None:
        self._calls = calls
        self._stack = stack
        self._outgoing = outgoing
        self._pairs = pairs
        self._ringbacks = ringbacks
        self._tasks = tasks
        self._to_agents: dict[SipCall, asyncio.Event] = {}
        """Set when an incoming call that was connected is transferred to an agent."""

    # --- calling ---

    async def connect(
        self, first: SipCall, where: Destination, accept: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Ring where an incoming call goes, `accept` it when somebody answers there, and connect
        the two until either hangs up. Returns whether `first` was transferred to an agent, whom it
        names then. Raises DialError if nobody answers."""
        second = await self._reach(first, where)
        if not await accept():
            await self._calls.finish(second, End.OTHER_END_HUNG_UP)
            return False
        self._calls.hooks.on_setup(monotonic() - first.history.began.at)
        logger.info("{}: connected with {}", first.call_id, second.call_id)
        self._tasks.spawn(self._calls.finish_when_over(second), f"sip call {second.call_id}")
        self._tasks.spawn(self._pairs.talk(first, second), f"bridge {first.call_id}")
        assert first.leg is not None
        to_agent = self._to_agents[first] = asyncio.Event()
        try:
            await first_of(first.leg.until_closed(), to_agent.wait())
        finally:
            del self._to_agents[first]
        return to_agent.is_set()

    async def _reach(self, first: SipCall, where: Destination) -> SipCall:
        """Call a destination for somebody; returns the call that was answered there. Raises
        DialError, also if `first` ends before."""
        try:
            target = self._target(where, first.info.called)
        except SipError as error:
            raise DialError(404, str(error)) from error
        second = self._second(first, where)
        reached = False
        try:
            await first_of(self._outgoing.reach(second, target), first.history.until("ended"))
            if first.history.state == "ended":
                raise DialError(487, first.abandoned or "cancelled")
            reached = True
        except DialError as error:
            second.failed(error)
            raise
        finally:
            if not reached:
                await self._calls.finish(second, End.CALLER_HUNG_UP)
        return second

    def _second(self, first: SipCall, where: Destination) -> SipCall:
        """Make the call that is connected with `first`: it shows who calls."""
        settings, callers = self._stack.settings, self._calls.callers
        info, outside = first.info, where.outside
        number = where.extension or where.number or info.called
        trunk = outside if outside is not None else settings.phones[where.extension]
        caller, name = info.caller, info.caller_name
        if outside is not None:  # the extension is of no meaning there
            caller, name = outside.caller_id or outside.username, ""
        about = CallInfo(
            edge="sip",
            direction="outbound",
            caller=caller,
            caller_name=name,
            called=number,
            trunk=trunk.name,
            tenant=info.tenant,
        )
        return self._calls.new(trunk, about, of_caller=callers.get(first.call_id, first.call_id))

    def _target(self, where: Destination, called: str) -> Uri:
        """Raises SipError."""
        if where.outside is None:
            return own_uri(where.extension)
        return request_uri(where.number or called, where.outside)

    def _where(self, call: SipCall, number: str) -> Destination | None:
        """Return where an extension in a call may have a number called; None: nowhere."""
        about = CallInfo(
            edge="sip",
            caller=call.trunk.extension if call.trunk is not None else "",
            called=number,
            trunk=call.info.trunk,
        )
        where = destination(self._stack.settings, about, call.trunk)
        tenants = self._calls.hooks.tenants
        if where.status or tenants.is_foreign(call.info, where.agent, where.extension):
            return None
        return where.to(number)

    async def add(self, call: SipCall, number: str) -> None:
        """Call a number for an extension in a call; all hear each other then, and go on when one of
        them leaves. Raises DialError."""
        pair, where = self._pairs.of(call), self._where(call, number)
        if pair is None or pair.leaving is not None:
            raise DialError(403, "only a call between two telephones can have more members")
        if where is None or where.agent is not None:
            raise DialError(403, f"{number} cannot be called from here, or is an agent")
        if len(pair.members) + pair.called >= MAX_TOGETHER:
            raise DialError(486, f"{MAX_TOGETHER} are in the call, and it can have no more")
        pair.called += 1
        try:
            third = await self._reach(call, where)
        finally:
            pair.called -= 1
        self._tasks.spawn(self._calls.finish_when_over(third), f"sip call {third.call_id}")
        if pair.over or call not in pair.members or len(pair.members) >= MAX_TOGETHER:
            third.end(End.OTHER_END_HUNG_UP)
            raise DialError(487, "the call has ended, or is full")
        pair.add(third)

    # --- transfers by the phones ---

    def transfers(self, call: SipCall) -> bool:
        """Return whether a call's REFERs are carried out here."""
        return self._pairs.of(call) is not None

    def receive_refer(self, call: SipCall, refer: ReferReceived) -> None:
        """Give the partner of a phone to whom the phone names, or refuse that."""
        session, pair = call.session, self._pairs.of(call)
        assert session is not None
        assert pair is not None
        extension = call.trunk.extension if call.trunk is not None else ""
        if not extension or pair.leaving is not None or not pair.is_two:
            session.refers.refuse(603, monotonic())  # a caller from outside transfers nobody
        elif refer.replaces:
            self._give_to_its_other_call(call, pair, refer)
        else:
            where = self._where(call, refer.target.number)
            to_agent = self._to_agents.get(pair.other(call))
            if where is None or (where.agent is not None and to_agent is None):
                session.refers.refuse(603, monotonic())
            else:
                session.refers.accept(monotonic())
                give = self._transfer if where.agent is None else self._give_to_agent
                work = give(call, session, pair, where)
                self._tasks.spawn(work, f"transfer {call.call_id}")
        self._stack.session_changed(session)

    async def _give_to_agent(
        self, call: SipCall, session: Session, pair: Pair, where: Destination
    ) -> None:
        """Have an agent go on with whoever has called a phone."""
        partner, call.transferred_to = pair.other(call), where.number
        pair.dissolve()
        await pair.separated.wait()
        if (to_agent := self._to_agents.get(partner)) is not None:  # it has not hung up
            partner.agent = where.agent or ""
            to_agent.set()
        session.refers.notify(200, "OK", monotonic())
        self._stack.session_changed(session)
        call.end(End.TRANSFERRED)

    def _give_to_its_other_call(self, call: SipCall, pair: Pair, refer: ReferReceived) -> None:
        """Connect the partners of two calls of one phone: an attended transfer (RFC 5589 §7)."""
        session = call.session
        assert session is not None
        other = self._other_call(call, refer)
        second = self._pairs.of(other) if other is not None else None
        if other is None or second is None or second is pair or not second.is_two:
            session.refers.refuse(603, monotonic())
            return
        session.refers.accept(monotonic())
        partner = second.other(other)
        second.dissolve()
        pair.replace(call, partner)
        self._calls.callers[partner.call_id] = pair.other(partner).call_id
        call.transferred_to = partner.info.called
        session.refers.notify(200, "OK", monotonic())
        for each in (call, other):
            each.end(End.TRANSFERRED)

    def _other_call(self, call: SipCall, refer: ReferReceived) -> SipCall | None:
        """Return the call that a phone's Replaces names, if it is that extension's too."""
        try:
            named = Replaces.parse(refer.replaces)
        except ValueError:
            return None
        for tag in (named.to_tag, named.from_tag):
            route = self._stack.agent.routes.of(named.call_id, tag)
            found = self._calls.of(route.of) if route is not None else None
            if found is not None and found is not call and found.trunk is call.trunk:
                return found
        return None

    async def _transfer(
        self, call: SipCall, session: Session, pair: Pair, where: Destination
    ) -> None:
        """Ring where a phone transfers its partner to, who hears our ringback, and connect them."""
        partner, pair.leaving = pair.other(call), call
        assert partner.leg is not None
        try:
            with partner.leg.playing(self._ringbacks.of(partner.trunk)):
                third = await self._reach(partner, where)
        except DialError as error:
            pair.leaving = None
            session.refers.notify(error.status or 503, "", monotonic())
            self._stack.session_changed(session)
            if call.state == "ended":
                partner.end(str(error))
            return
        self._tasks.spawn(self._calls.finish_when_over(third), f"sip call {third.call_id}")
        if pair.over:
            third.end(End.OTHER_END_HUNG_UP)
            return
        if call in pair.members:
            pair.replace(call, third)
        call.transferred_to = third.info.called
        session.refers.notify(200, "OK", monotonic())
        self._stack.session_changed(session)
        call.end(End.TRANSFERRED)
