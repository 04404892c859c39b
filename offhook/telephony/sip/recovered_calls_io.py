"""SIP calls that go on at another server: what it needs of one of ours, and taking over one of
its."""

from collections.abc import Callable
from datetime import datetime
from time import monotonic

from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, LegError, NoPorts
from offhook.media.tasks_io import TaskSet
from offhook.telephony.call_progress_io import DialError, Moment
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.calls_io import SipCalls
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import NotAcceptable
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.server_lookup_io import ServerLookup
from offhook.telephony.sip.sessions.saved_dialog import SAVED_TRANSPORTS, SavedDialog
from offhook.telephony.sip.sessions.session_route import flow_address, transport_of
from offhook.telephony.sip.sessions.session_table import SessionState
from offhook.telephony.sip.stack_io import SipStack
from offhook.telephony.sip.trunks.trunks import Trunk

NOT_RECOVERED = End.CONNECTION_LOST + ": another server could not continue the call"


def saved_dialog(call: SipCall) -> SavedDialog | None:
    """Return what another server needs to continue the call; None if it cannot: before the call is
    established or while it is transferred, with DTLS, over TLS or WebSocket, and for callers who
    belong to no trunk."""
    session, leg, trunk = call.session, call.leg, call.trunk
    if session is None or trunk is None or not isinstance(leg, SipLeg) or call.transferring:
        return None
    dialog, transport = session.dialog, SAVED_TRANSPORTS.get(call.transport)
    if session.state is not SessionState.ESTABLISHED or dialog is None:
        return None
    media = leg.negotiation.saved()
    if media is None or transport is None:
        return None
    return SavedDialog.of(dialog, session.we_called, transport, media)


def saved_version(call: SipCall) -> tuple[object, ...]:
    """Return what changes whenever `saved_dialog` does; cheaper to compare."""
    session, leg = call.session, call.leg
    dialog = session.dialog if session is not None else None
    if session is None or dialog is None or not isinstance(leg, SipLeg):
        return ()
    return (
        *(session.call_id, session.local_tag, session.state, call.transferring),
        *(dialog.local_cseq, dialog.remote_cseq, dialog.remote_target, leg.negotiation.version),
    )


class RecoveredCalls:
    """Continues calls of other servers at an endpoint."""

    def __init__(
        self, calls: SipCalls, stack: SipStack, lookup: ServerLookup, tasks: TaskSet
    ) -> None:
        self._calls = calls
        self._stack = stack
        self._lookup = lookup
        self._tasks = tasks

    def recover(
        self,
        saved: SavedDialog,
        info: CallInfo,
        agent: str,
        times: tuple[datetime, datetime],
        report: Callable[[SipCall, DialError | None], None],
    ) -> SipCall:
        """Continue the established call of another server, which began and was answered at these
        times; `report` is called with the outcome. The call runs then, or is recorded as lost.
        Raises SipError if its trunk is unknown here."""
        trunks = self._stack.settings.accounts
        trunk = next((t for t in trunks if t.name == info.trunk), None)
        if trunk is None:
            raise SipError(f"no trunk is named {info.trunk[:48]!r}")
        call = self._calls.new(trunk, info)
        call.agent = agent
        call.history.began, call.history.answered = map(Moment.of, times)
        running = self._run(call, saved, trunk, report)
        self._tasks.spawn(running, f"sip call {call.call_id}")
        return call

    async def _run(
        self,
        call: SipCall,
        saved: SavedDialog,
        trunk: Trunk,
        report: Callable[[SipCall, DialError | None], None],
    ) -> None:
        failure: DialError | None = None
        try:
            try:
                await self._continue(call, saved, await self._flow(saved, trunk), trunk)
            except DialError as error:
                failure = DialError(error.status, f"{NOT_RECOVERED}: {error}")
            except Exception:
                logger.exception("{}: the call failed", call.call_id)
                failure = DialError(500, End.SERVER_FAILED)
            report(call, failure)
            if failure is not None:
                call.failed(failure)
                return
            await self._calls.run(call)
        finally:
            await self._calls.finish(call)

    async def _continue(self, call: SipCall, saved: SavedDialog, flow: Flow, trunk: Trunk) -> None:
        """Send a re-INVITE in the call's dialog (RFC 3261 §14.1), and wait for the answer. Raises
        DialError if the far end refuses it, or if our settings exclude the call's media."""
        call.transport = saved.transport
        leg = self._calls.hooks.new_leg(call.call_id, trunk, flow)
        call.use_leg(leg)
        agent = self._stack.agent
        try:
            await leg.bind(saved.media)
            dialog = saved.dialog(agent.addresses.contact(flow, trunk))
            session = agent.restore(dialog, saved.we_called, flow, trunk, monotonic())
            self._calls.adopt(call, session)
            await call.offers.exchange(lambda: call.offer(session, leg))
        except (SipError, NotAcceptable, NoPorts) as error:
            raise DialError(0, str(error)) from error
        except LegError as error:
            if call.ended is None:
                raise DialError(0, str(error)) from error
            reason = f"{call.ended.status} {call.ended.reason}"
            raise DialError(call.ended.status, reason) from error
        except TimeoutError:
            raise DialError(408, "no answer to the re-INVITE") from None
        call.set_state("answered", 200, "OK")
        leg.connect()

    async def _flow(self, saved: SavedDialog, trunk: Trunk) -> Flow:
        """The flow to the next hop, which must be an address of the trunk: whoever can write what
        is saved must not direct us elsewhere. Raises DialError."""
        agent = self._stack.agent
        try:
            hop = saved.next_hop()
            address = flow_address(hop, saved.transport)
            if address is not None:
                flow = agent.next_hops.flow_to(transport_of(hop, saved.transport), address)
            else:
                flow = (await self._lookup.flows_to(hop, None))[0]
        except SipError as error:
            raise DialError(0, str(error)) from error
        if not agent.access.is_address_of(trunk, flow.remote[0]):
            raise DialError(0, f"{hop.host} is no address of the trunk {trunk.name!r}")
        return flow
