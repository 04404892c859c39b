"""Outgoing SIP calls: over which trunk, to which of its servers, and where a call has moved to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from loguru import logger

from offhook.media.answer_status import AnswerStatus, Mode
from offhook.media.end_reason import End
from offhook.media.leg import CallInfo
from offhook.media.tasks_io import TaskSet
from offhook.telephony.call_progress_io import Decision, DialError
from offhook.telephony.sip.call_io import Endpoint, SipCall
from offhook.telephony.sip.calls_io import Host, SipCalls
from offhook.telephony.sip.dial_plan import (
    custom_header,
    extension_called,
    outbound_trunk,
    own_uri,
    request_uri,
)
from offhook.telephony.sip.extensions.ringing_io import Ringer
from offhook.telephony.sip.invites_io import Invites
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.server_lookup_io import ServerLookup
from offhook.telephony.sip.stack_io import SipStack
from offhook.telephony.sip.trunks.trunks import Trunk

MAX_REDIRECTS = 3
"""Times that a call follows "moved" (3xx); then it has failed."""
TRY_NEXT = frozenset({408, 500, 502, 503, 504})
"""Failures before ringing after which another server of the trunk is tried (RFC 3263 §4.3)."""


@dataclass(frozen=True)
class Dial:
    """Parameters of an outbound call."""

    to: str
    """A number, a SIP URI or an extension, "101" or "ext:101"."""
    trunk: str = ""
    """Name of the trunk; "" for the first that has a server."""
    caller: str = ""
    """Number to present; "" for the trunk's."""
    caller_name: str = ""
    agent: str = ""
    ring_seconds: float = 60.0
    variables: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Custom headers for the INVITE, such as X-Order: 17."""
    machine_detection: Mode | None = None
    """What is done about who answers; None: as the trunk, or else the agent, has it."""
    message: str = ""
    """What is left on a machine; "" for the agent's."""
    call_id: str = ""
    """Our id of the call; "" for a new one."""
    of_caller: str = ""
    """Id of the call whose caller it is placed for; "" if it is for itself."""


class OutgoingCalls:
    """Places the outgoing calls of an endpoint."""

    def __init__(
        self,
        calls: SipCalls,
        stack: SipStack,
        host: Host,
        lookup: ServerLookup,
        tasks: TaskSet,
        endpoint: Endpoint,
    ) -> None:
        self.invites = Invites(calls, stack, host)
        self._ringer = Ringer(calls, stack, self.invites, endpoint)
        self._calls = calls
        self._stack = stack
        self._host = host
        self._lookup = lookup
        self._tasks = tasks

    def dial(self, dial: Dial) -> SipCall:
        """Place a call; `SipCall.events` reports its progress. Raises DialError if it cannot be
        attempted."""
        if self._calls.closing:
            raise DialError(503, End.SHUTTING_DOWN)
        try:
            trunk, target = self._way_to(dial)
            headers = [custom_header(name, value) for name, value in dial.headers.items()]
        except SipError as error:
            raise DialError(0, str(error)) from error
        if busy := self._calls.busy_reason(trunk, 0):
            raise DialError(0, busy)
        info = CallInfo(
            edge="sip",
            direction="outbound",
            caller=dial.caller or _usual_caller(trunk, dial),
            caller_name=dial.caller_name,
            called=target.number,
            trunk=trunk.name,
            variables=dial.variables,
        )
        tenants = self._calls.hooks.tenants
        info = tenants.named(info, dial.agent)
        tenants.check(info, dial.agent)
        self._host.admit()
        call = self._calls.new(trunk, info, dial.call_id, dial.of_caller)
        call.ring_seconds, call.agent = dial.ring_seconds, dial.agent
        call.answer_status = AnswerStatus(
            dial.machine_detection or trunk.machine_detection, dial.message
        )
        self._tasks.spawn(self._run(call, target, headers), f"sip call {call.call_id}")
        return call

    def _way_to(self, dial: Dial) -> tuple[Trunk, Uri]:
        """Return the trunk, or the extension that is one, and the target. Raises SipError."""
        settings = self._stack.settings
        number = "" if dial.trunk else extension_called(dial.to, settings)
        if number:
            return settings.phones[number], own_uri(number)
        trunk = outbound_trunk(settings.trunks, dial.trunk)
        return trunk, request_uri(dial.to, trunk)

    async def _run(self, call: SipCall, target: Uri, headers: Sequence[tuple[str, str]]) -> None:
        try:
            if (decision := self._calls.hooks.decision(call, ())) is not None:
                await _until_decided(call, decision)
            await self._place_or_follow(call, target, headers)
            self._calls.hooks.on_setup(monotonic() - call.history.began.at)
            await self._calls.run(call)
        except DialError as error:
            call.failed(error)
        except Exception:
            logger.exception("{}: the call failed", call.call_id)
            call.failed(DialError(500, End.SERVER_FAILED))
        finally:
            await self._calls.finish(call)

    async def _place_or_follow(
        self, call: SipCall, target: Uri, headers: Sequence[tuple[str, str]]
    ) -> None:
        """Place a call, and again where it has moved to, if its trunk allows that. Raises
        DialError."""
        tried = {target.number}
        while True:
            try:
                await self.reach(call, target, headers)
                return
            except DialError as error:
                number, may = error.moved_to, call.trunk is not None and call.trunk.redirects
                written = not set(":@;?") & set(number)  # as a number of this trunk
                follows = may and number and written and number not in tried
                if not follows or len(tried) > MAX_REDIRECTS:
                    raise
                tried.add(number)
                try:
                    target = request_uri(number, call.trunk)
                except SipError:
                    raise error from None
                logger.info("{}: moved to {}", call.call_id, number)

    async def reach(
        self, call: SipCall, target: Uri, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Call a target, wherever it is: phones of an extension, or a server of the call's trunk.
        Raises DialError."""
        if not target.host and call.trunk is not None and call.trunk.extension:
            await self._ringer.ring(call, tuple(headers))
        else:
            flows = await self._lookup.flows_to(target, call.trunk)
            await self.place(call, target, flows, headers)

    async def place(
        self,
        call: SipCall,
        target: Uri,
        flows: Sequence[Flow],
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Try the servers in order until one rings or rejects finally. Raises DialError."""
        if busy := self._calls.busy_reason(call.trunk, 1):
            raise DialError(0, busy)
        upkeep = self._stack.agent.upkeep
        for flow in flows:
            last = flow is flows[-1]
            patience = None if last or call.trunk is None else call.trunk.failover_seconds
            try:
                await self.invites.place(call, target, flow, headers, patience)
                if call.trunk is not None:
                    upkeep.call_taken(call.trunk, flow)
                return
            except DialError as error:
                if call.trunk is not None and error.status in TRY_NEXT:
                    why = str(error) if error.silent else ""
                    upkeep.call_failed(call.trunk, flow, why, monotonic())
                    self._stack.process()
                if last or call.state != "dialing" or error.status not in TRY_NEXT:
                    raise


def _usual_caller(trunk: Trunk, dial: Dial) -> str:
    """Return who calls, if nobody says so: an extension sees the agent's name."""
    return (dial.agent or "agent") if trunk.extension else trunk.caller_id or trunk.username


async def _until_decided(call: SipCall, decision: Decision) -> None:
    """Wait for the decision whether the call is placed: 0, or the status with which it ends. Raises
    DialError if it is not."""
    status = await call.history.decided(decision)
    if status is None:
        raise DialError(487, call.abandoned)
    if status:
        raise DialError(status, End.DECLINED)
