"""The INVITEs of outgoing calls: one after the other, until the media are acceptable."""

import asyncio
from collections.abc import Sequence
from time import monotonic

from loguru import logger

from offhook.media.leg import Leg, NoPorts
from offhook.telephony.call_progress_io import DialError
from offhook.telephony.call_record import Attempt
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.calls_io import Host, SipCalls
from offhook.telephony.sip.media.keying import Profile
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.offer_answer import remaining_profiles
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.offers_io import ANSWER_TIMEOUT_S, webrtc
from offhook.telephony.sip.sessions.session_events import Answered, Ended
from offhook.telephony.sip.stack_io import SipStack
from offhook.telephony.sip.trunks.trunks import CODECS, Trunk, caller_identity

WEBRTC_PROFILE = "UDP/TLS/RTP/SAVPF"
"""Profile of WebRTC media (RFC 8834 §4.2), as the record of a call has it."""
NOT_ACCEPTABLE = frozenset({488, 606})
"""Responses to an INVITE whose media are not acceptable."""


class Invites:
    """Sends the INVITEs of an endpoint's calls."""

    def __init__(self, calls: SipCalls, stack: SipStack, host: Host) -> None:
        self._calls = calls
        self._stack = stack
        self._host = host

    async def place(
        self,
        call: SipCall,
        target: Uri,
        flow: Flow,
        headers: Sequence[tuple[str, str]] = (),
        response_seconds: float | None = None,
    ) -> Answered:
        """Call `target` over `flow` and wait for the answer, for the first response of any kind at
        most `response_seconds`. If our media are not acceptable to the far end, the next permitted
        profile is offered. Raises DialError."""
        _raise_if_abandoned(call)
        call.transport = call.transport or flow.transport
        leg = call.leg or await self._leg_to_offer(call, flow)
        profile, *left = (leg.negotiation.profiles if isinstance(leg, SipLeg) else ()) or (None,)
        while True:
            sdp = await _offer(call, leg, profile)
            outcome = await self._invite(call, target, flow, sdp, headers, response_seconds)
            if isinstance(outcome, Ended) and isinstance(leg, SipLeg):
                leg.negotiation.rollback()
            media = (profile or "") if isinstance(leg, SipLeg) else WEBRTC_PROFILE
            call.attempts.append(_attempt(call, flow, media, outcome))
            if isinstance(outcome, Answered):
                if not isinstance(leg, SipLeg):
                    await _use_webrtc_answer(call, leg)
                return outcome
            # A far end that answered with unusable SDP is not called again.
            refused = outcome.by == "remote" and outcome.status in NOT_ACCEPTABLE
            again = refused and call.state == "dialing"
            left = remaining_profiles(left, outcome.sdp) if again else []
            if not left:
                raise _dial_error(call, outcome)
            logger.info("{}: {} was not acceptable, trying {}", call.call_id, profile, left[0])
            profile, *left = left

    async def _leg_to_offer(self, call: SipCall, flow: Flow) -> Leg:
        """Make the leg of an outgoing call. Raises DialError."""
        of_a_browser = flow.transport in ("WS", "WSS")
        if call.trunk is not None and (call.trunk.webrtc or of_a_browser):
            peer_leg = self._host.webrtc_leg(call.call_id)
            call.use_leg(peer_leg)
            return peer_leg
        leg = self._calls.hooks.new_leg(call.call_id, call.trunk, flow)
        call.use_leg(leg)
        try:
            await leg.bind()
        except NoPorts as error:
            raise DialError(503, str(error)) from error
        return leg

    async def _invite(
        self,
        call: SipCall,
        target: Uri,
        flow: Flow,
        sdp: str,
        headers: Sequence[tuple[str, str]],
        response_seconds: float | None,
    ) -> Answered | Ended:
        """Send one INVITE and wait for its outcome. Raises DialError."""
        _raise_if_abandoned(call)
        call.ended = None
        call.outcome = asyncio.get_running_loop().create_future()
        try:
            self._send(call, target, flow, sdp, headers, response_seconds)
            return await call.outcome
        except SipError as error:  # a number that cannot be written as a URI
            raise DialError(0, str(error)) from error
        finally:
            call.outcome = None

    def _send(
        self,
        call: SipCall,
        target: Uri,
        flow: Flow,
        sdp: str,
        headers: Sequence[tuple[str, str]],
        response_seconds: float | None,
    ) -> None:
        """Send the INVITE and attach its session to the call. Raises SipError."""
        trunk, info = call.trunk, call.info
        number, name = info.called, ""  # for an inbound call that we are referred on from
        if info.direction == "outbound":
            number, name = info.caller, info.caller_name
        caller, shown_by = caller_identity(
            trunk or Trunk("nobody's"), number, name, self._stack.address_of(flow)[0]
        )
        session = self._stack.agent.call(
            target,
            flow,
            trunk,
            caller,
            NameAddr(target),
            sdp,
            monotonic(),
            (*shown_by, *headers),
            call.ring_seconds,
            response_seconds,
        )
        self._calls.adopt(call, session)
        self._stack.process()


def _raise_if_abandoned(call: SipCall) -> None:
    if call.abandoned:
        raise DialError(487, call.abandoned)


async def _offer(call: SipCall, leg: Leg, profile: Profile | None) -> str:
    """Return our first offer. Raises DialError."""
    if isinstance(leg, SipLeg):
        return leg.offer(profile=profile)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            codecs = call.trunk.codecs if call.trunk is not None else CODECS
            return await webrtc(leg).offer_audio(codecs)
    except NoPorts as error:
        raise DialError(503, str(error)) from error
    except TimeoutError:
        raise DialError(500, "the leg made no offer") from None


async def _use_webrtc_answer(call: SipCall, leg: Leg) -> None:
    """Apply the answer, from the 2xx or before it. Raises DialError."""
    sdp, call.early = call.early, None
    try:
        await webrtc(leg).accept(sdp or "")
    except ValueError as error:
        raise DialError(488, f"no acceptable media: {error}") from error
    call.set_state("answered", 200, "OK")


def _attempt(call: SipCall, flow: Flow, media: str, outcome: Answered | Ended) -> Attempt:
    host, port = flow.remote
    server = f"{f'[{host}]' if ':' in host else host}:{port} {flow.transport}"
    status, reason = 200, "OK"
    if isinstance(outcome, Ended):
        status, reason = outcome.status, outcome.reason
    call_id = call.session.call_id if call.session is not None else ""
    return Attempt(call_id, server, media, status, reason)


def _dial_error(call: SipCall, outcome: Ended) -> DialError:
    session = call.session
    silent = session is not None and not session.responded and outcome.by != "local"
    contacts = session.moved_to if session is not None else ()
    moved_to = next((uri.number for uri in contacts if uri.number), "")
    return DialError(outcome.status, outcome.reason, silent, moved_to)
