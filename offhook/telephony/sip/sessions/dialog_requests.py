"""Requests and responses of one call regardless of its state: dialogs, CSeq, credentials, ACKs, and
the checks every request within a dialog must pass (RFC 3261 §8, §12.2, §22)."""

from collections.abc import Sequence
from dataclasses import dataclass

from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.media.media_plan import warning
from offhook.telephony.sip.messages.message import Request, Response, respond, sdp_of
from offhook.telephony.sip.messages.recording_metadata import MetadataError, metadata_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog import Dialog
from offhook.telephony.sip.sessions.session_events import SessionCore, SessionSettings
from offhook.telephony.sip.transactions.transaction import ClientTransaction, ServerTransaction

HeaderLines = Sequence[tuple[str, str]]
ALLOWED = tuple(
    ["INVITE", "ACK", "BYE", "CANCEL", "OPTIONS", "PRACK", "UPDATE", "INFO", "REFER", "NOTIFY"]
)
KNOWN = frozenset({*ALLOWED, "MESSAGE", "PUBLISH", "REGISTER", "SUBSCRIBE"})
"""Registered methods: those not in ALLOWED get 405, unknown ones 501 (§21.5.2)."""
MAX_ROUNDS = 4
"""Times that one request is sent, each time with credentials for the last challenge; then the
challenge counts as its refusal."""
MAX_FORKS = 16
"""Limit of far ends one INVITE may reach; responses of others are ignored."""
MAX_SENT = 64
"""Limit of our requests without a final response; beyond it DTMF is dropped, and reliable
provisional responses wait for their PRACK."""
MAX_ACKS = 16
"""ACKs kept for retransmission with their 2xx, one for each fork and each re-INVITE; the oldest is
forgotten and not sent again."""


@dataclass(eq=False, slots=True)
class PendingRequest:
    """A request of ours without a final response."""

    request: Request
    """Without Via."""
    dialog: Dialog | None
    """None for the INVITE that creates one."""
    transaction: ClientTransaction
    round: int


def request_error(request: Request, settings: SessionSettings) -> tuple[int, HeaderLines] | None:
    """Return status and headers that reject a request invalid in any state of a call, checked in
    the order of RFC 3261 §8.2; None for a valid one."""
    if request.method not in ALLOWED:
        return 405 if request.method in KNOWN else 501, [("Allow", ", ".join(ALLOWED))]
    unknown = [tag for tag in request.require if tag not in settings.supported]
    if unknown:
        return 420, [("Unsupported", ", ".join(unknown))]
    described = False
    if settings.recorder:
        try:
            described = metadata_of(request) is not None
        except MetadataError as error:
            return 400, [("Warning", warning(399, str(error)))]
    disposition = (request.headers.get("Content-Disposition") or "").lower()
    if request.method in ("INVITE", "UPDATE", "PRACK") and request.body:
        readable = sdp_of(request) is not None or described or "handling=optional" in disposition
        if not readable:
            return 415, [("Accept", "application/sdp")]
    return None


class DialogRequests:
    """Sends the requests of one call and responds to the far end's."""

    def __init__(
        self,
        core: SessionCore,
        local_tag: str,
        local_contact: Uri,
        settings: SessionSettings,
        digest: DigestClient | None,
    ) -> None:
        self.settings = settings
        self.contact = local_contact
        self.dialog: Dialog | None = None
        """The call's dialog; before the answer, the one heard from last."""
        self.forks: dict[str, Dialog] = {}
        """All dialogs created by our INVITE, by remote tag."""
        self.allow: frozenset[str] = frozenset()
        """Methods the far end has announced in Allow."""
        self.sent: dict[tuple[str, ...], PendingRequest] = {}
        self._core = core
        self._local_tag = local_tag
        self._digest = digest
        self._acks: dict[tuple[int, str], Request] = {}
        """By CSeq of the INVITE and remote tag."""

    def dialog_with(self, remote_tag: str) -> Dialog | None:
        if self.dialog is not None and self.dialog.remote.tag == remote_tag:
            return self.dialog
        return self.forks.get(remote_tag)

    def next_hop(self, request: Request) -> Uri:
        """Return where a request of this call goes (RFC 3261 §8.1.2)."""
        dialog = self.dialog_with(request.to.tag)
        if dialog is not None and request.to.tag:
            return dialog.next_hop
        routes = request.routes
        return routes[0].uri if routes else request.uri

    def learn_allow(self, message: Request | Response) -> None:
        """Record the methods of an Allow header."""
        if methods := message.allow:
            self.allow = frozenset(methods) & KNOWN

    # --- our requests ---

    @property
    def full(self) -> bool:
        """Whether MAX_SENT requests have no final response."""
        return len(self.sent) >= MAX_SENT

    def request(
        self,
        method: str,
        now: float,
        headers: HeaderLines = (),
        body: bytes = b"",
        content_type: str = "",
        dialog: Dialog | None = None,
    ) -> PendingRequest:
        """Send the next request of `dialog`, by default the call's."""
        dialog = dialog or self.dialog
        assert dialog is not None
        agent = ("User-Agent", self.settings.user_agent)
        request = dialog.request(method, [*headers, agent], body, content_type)
        if features := self.settings.contact_features:
            request.headers.set("Contact", f"<{dialog.local_contact}>{features}")
        if self._digest is not None:
            self._digest.preempt(request)
        return self.send(request, dialog, now)

    def send(
        self, request: Request, dialog: Dialog | None, now: float, round: int = 1
    ) -> PendingRequest:
        transaction = self._core.request(request, self.next_hop(request), now)
        sent = self.sent[transaction.key] = PendingRequest(request, dialog, transaction, round)
        return sent

    def retry(self, sent: PendingRequest, response: Response, now: float) -> PendingRequest | None:
        """Resend the request with credentials for the challenge (RFC 3261 §22). Returns None if the
        response is not a challenge, or one that cannot be answered."""
        if response.status not in (401, 407) or sent.round >= MAX_ROUNDS or self._digest is None:
            return None
        again = self._digest.authorize(response, sent.request)
        if again is None:
            return None
        if sent.dialog is not None and again.cseq.number <= sent.dialog.local_cseq:
            again = sent.dialog.renumbered(again)  # another request has used that number meanwhile
        elif sent.dialog is not None:
            sent.dialog.local_cseq = again.cseq.number
        return self.send(again, sent.dialog, now, sent.round + 1)

    def cancel(self, sent: PendingRequest, now: float, headers: HeaderLines = ()) -> None:
        sent.transaction.cancel_headers = headers
        self._core.cancel(sent.transaction, now)

    def ack(self, dialog: Dialog, invite: Request, sdp: str | None = None) -> None:
        """Acknowledge the 2xx to an INVITE of ours (RFC 3261 §13.2.2.4)."""
        ack = dialog.ack(invite, [("User-Agent", self.settings.user_agent)], sdp)
        if len(self._acks) >= MAX_ACKS:
            del self._acks[next(iter(self._acks))]
        self._acks[invite.cseq.number, dialog.remote.tag] = ack
        self._core.ack(ack, self.next_hop(ack))

    def repeat_ack(self, response: Response) -> bool:
        """Retransmit the ACK for a repeated 2xx. Returns False if this 2xx was never
        acknowledged."""
        ack = self._acks.get((response.cseq.number, response.to.tag))
        if ack is not None:
            self._core.ack(ack, self.next_hop(ack))
        return ack is not None

    @property
    def acks_full(self) -> bool:
        return len(self._acks) >= MAX_ACKS

    # --- requests of the far end ---

    def respond(
        self,
        transaction: ServerTransaction,
        status: int,
        now: float,
        reason: str = "",
        headers: HeaderLines = (),
        sdp: str | None = None,
    ) -> Response:
        response = self.response(transaction.request, status, reason, headers, sdp)
        self.send_response(transaction, response, now)
        return response

    def send_response(self, transaction: ServerTransaction, response: Response, now: float) -> None:
        self._core.respond(transaction, response, now)

    def response(
        self,
        request: Request,
        status: int,
        reason: str = "",
        headers: HeaderLines = (),
        sdp: str | None = None,
    ) -> Response:
        fields = [*headers, ("Server", self.settings.user_agent)]
        if request.method in ("INVITE", "UPDATE") and 100 < status < 300:
            fields.append(("Contact", f"<{self.contact}>{self.settings.contact_features}"))
        if request.method in ("INVITE", "UPDATE", "OPTIONS") and 100 < status < 300:
            fields.append(("Allow", ", ".join(ALLOWED)))
            fields.append(("Supported", ", ".join(self.settings.supported)))
        return respond(
            request,
            status,
            reason,
            to_tag=self._local_tag,
            headers=fields,
            body=sdp.encode("utf-8", "surrogateescape") if sdp else b"",
            content_type="application/sdp" if sdp else "",
        )
