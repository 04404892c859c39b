"""One SIP call, inbound or outbound, from its INVITE to its end (RFC 3261 §13–15).

Sans-io: the owner calls methods, the core passes in messages, `now` is monotonic seconds. After
every call that takes `now`, drain `next_event`, and call `handle_timer` when `get_timer` says so.
Requests of the owner that come too late (the far end has hung up meanwhile) are ignored; none
raises.

A session is composed of parts that can be read alone:

    SessionLifecycle       the state, by the table in `session_table.py`, and the time
    SessionRequests        the far end's requests
    SessionResponses       the responses to ours
    DialogRequests         dialogs, CSeq, credentials, ACKs
    Offers                 which offer is open
    OutgoingInvite or
    IncomingInvite         the initial INVITE
    SuccessSender          our 2xx until its ACK
    SessionModification    re-INVITE and UPDATE
    SessionTimer           refresh and expiry
    ReferUsage             transfers
"""

import random as _random
import secrets
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.messages.headers import Headers, NameAddr
from offhook.telephony.sip.messages.info import (
    DTMF_RELAY,
    key_body,
)
from offhook.telephony.sip.messages.message import Request, sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog import FIRST_CSEQ, MAX_FORWARDS, Dialog, sdp_body
from offhook.telephony.sip.sessions.dialog_requests import (
    ALLOWED,
    HeaderLines,
    request_error,
)
from offhook.telephony.sip.sessions.incoming_invite import IncomingInvite
from offhook.telephony.sip.sessions.offers import (
    PendingOffer,
    Place,
)
from offhook.telephony.sip.sessions.outgoing_invite import OutgoingInvite
from offhook.telephony.sip.sessions.session_events import (
    OfferRefused,
    SessionCore,
    SessionEvent,
    SessionSettings,
)
from offhook.telephony.sip.sessions.session_lifecycle import SessionLifecycle
from offhook.telephony.sip.sessions.session_requests import SessionRequests
from offhook.telephony.sip.sessions.session_responses import SessionResponses
from offhook.telephony.sip.sessions.session_table import (
    OVER,
    Event,
    SessionState,
)
from offhook.telephony.sip.transactions.transaction import (
    ServerTransaction,
)


class Session:
    """One call. Create it with `incoming` or `outgoing`."""

    def __init__(
        self,
        core: SessionCore,
        call_id: str,
        offered: bool,
        local_tag: str,
        local_contact: Uri,
        settings: SessionSettings,
        digest: DigestClient | None,
        we_called: bool,
        random: Callable[[], float],
        now: float,
    ) -> None:
        """`offered`: whether the initial INVITE carries an offer."""
        self.call_id = call_id
        self.local_tag = local_tag
        self.we_called = we_called
        """Whether the Call-ID is ours."""
        life = self.life = SessionLifecycle(
            *(core, offered, local_tag, local_contact, settings, digest, we_called, random, now)
        )
        self.refers = life.refers
        """Accepts, refuses and reports on a ReferReceived."""
        self.requests = SessionRequests(life)
        """Receives the far end's requests, from the core."""
        self.responses = SessionResponses(life)
        """Receives the responses to ours."""

    @classmethod
    def incoming(
        cls,
        core: SessionCore,
        transaction: ServerTransaction,
        request: Request,
        local_contact: Uri,
        settings: SessionSettings,
        now: float,
        random: Callable[[], float] = _random.random,
    ) -> "Session":
        """Create the session of an inbound call. A request that cannot be served (420, 422 …) is
        rejected at once: the session has then ended."""
        tag = secrets.token_hex(8)
        offered = sdp_of(request) is not None
        session = cls(
            *(core, request.call_id, offered, tag, local_contact, settings, None, False),
            random,
            now,
        )
        requests, timer = session.life.requests, session.life.timer
        dialog = requests.dialog = Dialog.from_request(request, tag, local_contact)
        requests.learn_allow(request)
        session.life.incoming = IncomingInvite(
            transaction, request, requests, session.life.offers, timer, session.life.success, random
        )
        if request.expires is not None:
            session.life.ring_deadline = now + min(settings.ring_seconds, request.expires)
        refusal = request_error(request, settings)
        too_short = timer.refusal(request)
        if refusal is None and too_short is not None:
            refusal = 422, too_short
        if refusal is None and dialog.remote_target.scheme not in ("sip", "sips"):
            refusal = 400, []  # neither Contact nor From tells where to send requests
        if refusal is not None:
            session.refuse(refusal[0], "", now, refusal[1])
        return session

    @classmethod
    def outgoing(
        cls,
        core: SessionCore,
        target: Uri,
        from_: NameAddr,
        to: NameAddr,
        local_contact: Uri,
        sdp: str | None,
        settings: SessionSettings,
        now: float,
        headers: Sequence[tuple[str, str]] = (),
        digest: DigestClient | None = None,
        random: Callable[[], float] = _random.random,
    ) -> "Session":
        """Place a call. `sdp` is our offer; None asks for theirs. `headers` are added to the
        INVITE, such as Replaces, or Route for an outbound proxy."""
        tag = secrets.token_hex(8)
        body, content_type = sdp_body(sdp)
        fields = Headers(
            [
                ("Max-Forwards", MAX_FORWARDS),
                ("From", str(from_.with_parameter("tag", tag))),
                ("To", str(to)),
                ("Call-ID", secrets.token_hex(16)),
                ("CSeq", f"{FIRST_CSEQ} INVITE"),
                ("Contact", f"<{local_contact}>"),
                ("Allow", ", ".join(ALLOWED)),
                ("Supported", ", ".join(settings.supported)),
                ("User-Agent", settings.user_agent),
                *headers,
            ]
        )
        if body:
            fields.add("Content-Type", content_type)
        invite = Request("INVITE", replace(target, headers=()), fields, body)
        session = cls(
            *(core, invite.call_id, sdp is not None, tag, local_contact, settings, digest, True),
            random,
            now,
        )
        for name, value in session.life.timer.request_headers():
            fields.set(name, value)
        if digest is not None:
            digest.preempt(invite)
        session.life.outgoing = OutgoingInvite(
            invite,
            session.life.requests,
            session.life.offers,
            session.life.timer,
            weakref.proxy(session.life),
        )
        session.life.outgoing.send(now)
        return session

    @classmethod
    def restored(
        cls,
        core: SessionCore,
        dialog: Dialog,
        we_called: bool,
        settings: SessionSettings,
        now: float,
        digest: DigestClient | None = None,
        random: Callable[[], float] = _random.random,
    ) -> "Session":
        """Continue the established call of another server in its dialog: `reoffer` must follow, so
        that the far end learns our address."""
        session = cls(
            *(core, dialog.call_id, True, dialog.local.tag, dialog.local_contact, settings),
            *(digest, we_called, random, now),
        )
        session.life.state = SessionState.ESTABLISHED
        session.life.ring_deadline = session.life.response_deadline = None
        session.life.requests.dialog = dialog
        session.life.offers.complete()
        return session

    # --- state ---

    @property
    def state(self) -> SessionState:
        return self.life.state

    @property
    def responded(self) -> bool:
        """Whether the far end has responded to anything."""
        return self.responses.any

    def next_event(self) -> SessionEvent | None:
        return self.life.events.popleft() if self.life.events else None

    @property
    def dialog(self) -> Dialog | None:
        """The call's dialog; before the answer, the one heard from last."""
        return self.life.requests.dialog

    @property
    def invite(self) -> Request:
        """The initial INVITE as received, or as last sent, without Via."""
        part = self.life.outgoing or self.life.incoming
        assert part is not None
        return part.request

    @property
    def moved_to(self) -> tuple[Uri, ...]:
        """Where a call of ours that was refused with 3xx can be placed instead."""
        return self.life.outgoing.moved_to if self.life.outgoing is not None else ()

    @property
    def supports_refer(self) -> bool:
        """Whether the far end may support REFER: its Allow says so, or it has sent none (RFC 3261
        §20.5)."""
        return not self.life.requests.allow or "REFER" in self.life.requests.allow

    @property
    def over(self) -> bool:
        """Whether nothing more is sent or awaited: drop the session once its events are drained.
        Later than `Ended`: a BYE awaits its response, a transfer its outcome."""
        return self.state is SessionState.ENDED and self.life.linger_deadline is None

    # --- the call ---

    def ring(self, now: float, sdp: str | None = None) -> None:
        """Send a ringing response; with `sdp`, early media: the answer to their offer, or our offer
        if they made none and support 100rel."""
        incoming = self.life.incoming
        if self.state is SessionState.RECEIVED and incoming and incoming.accepting is None:
            incoming.ring(now, sdp)

    def accept(self, sdp: str, now: float) -> None:
        """Answer the call. `sdp` is the answer to their offer, or our offer if they made none;
        ignored if media are already negotiated. Confirmed or Ended follows."""
        incoming = self.life.incoming
        if self.state is SessionState.RECEIVED and incoming and incoming.accepting is None:
            incoming.accepting = sdp
            self.life.advance(now)

    def refuse(self, status: int, reason: str, now: float, headers: HeaderLines = ()) -> None:
        """Reject the call. `reason` is the reason phrase, "" for the standard one."""
        self.life.apply(Event.REFUSE, now, status, reason, headers=headers)
        self.life.advance(now)

    def hang_up(self, now: float, reason: str = "", status: int = 0) -> None:
        """End the call as its state requires: reject it (480 unless `status` is given), cancel it
        or send BYE. `reason` is sent in a Reason header (RFC 3326)."""
        self.life.apply(Event.HANG_UP, now, status, reason)
        self.life.advance(now)

    def leave(self, now: float, reason: str) -> None:
        """End an established call here without a message: another server continues the dialog."""
        self.life.apply(Event.LEAVE, now, 200, reason)
        self.life.advance(now)

    def info_dtmf(self, digit: str, now: float) -> None:
        """Send a DTMF digit, one of 0-9*#A-D, by INFO. Ignored without a call; one that is still
        ringing may already have a machine listening."""
        talking = self.state in (SessionState.PROCEEDING, SessionState.ESTABLISHED)
        if self.dialog is not None and talking and not self.life.requests.full:
            body = key_body(digit)
            self.life.requests.request("INFO", now, body=body, content_type=DTMF_RELAY)

    # --- media ---

    def reoffer(self, sdp: str, now: float) -> None:
        """Send an offer: in a re-INVITE, before the answer in an UPDATE. It waits while an INVITE
        is in progress. AnswerReceived, OfferRefused or Ended follows; OfferRefused with 491 at once
        if another offer is open."""
        if self.state in OVER:
            return
        if self.life.offers.open or not self.life.offers.agreed:
            self.life.events.append(OfferRefused(491, "another offer is open"))
            return
        self.life.offers.pending = PendingOffer(sdp)
        self.life.advance(now)

    def answer_offer(self, sdp: str, now: float) -> None:
        """Respond to an OfferReceived, or an Answered with an offer: our answer, or our offer if it
        asked for one. Ignored if the offer has been withdrawn."""
        offers, theirs = self.life.offers, self.life.offers.theirs
        if theirs is None or theirs.place is Place.INVITE:
            return
        offers.theirs = None
        if theirs.place is Place.SUCCESS:
            self.life.apply(Event.ANSWER, now, sdp=sdp)
        elif theirs.sdp is None:
            offers.ours = Place.SUCCESS
        else:
            offers.agreed = True
        if theirs.response is not None and self.life.outgoing is not None:
            self.life.outgoing.acknowledge(theirs.response, now, sdp)
        elif theirs.transaction is not None and theirs.place is Place.PRACK:
            self.life.requests.respond(theirs.transaction, 200, now, sdp=sdp)
        elif theirs.transaction is not None:
            self.life.modification.accept(theirs.transaction, sdp, now)
        self.life.advance(now)

    def refuse_offer(self, status: int, now: float) -> None:
        """Reject an OfferReceived: the media stay as they are."""
        self.life.refuse_offer(status, now)

    # --- transfers ---

    def refer(self, target: Uri, now: float, replaces: str = "", referred_by: str = "") -> bool:
        """Ask the far end to call `target`, replacing the call `replaces` (`Dialog.replaces`).
        ReferProgress follows. Returns False without a call, or if a transfer is in progress."""
        if self.state is not SessionState.ESTABLISHED or self.refers.sending:
            return False
        self.refers.send(target, now, replaces, referred_by)
        return True

    # --- time ---

    def get_timer(self) -> float | None:
        return self.life.get_timer()

    def handle_timer(self, now: float) -> None:
        self.life.handle_timer(now)
