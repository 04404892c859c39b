"""The requests and responses of one call, without regard to what the call is doing: dialogs, CSeq,
credentials, ACKs, and the checks every request within a dialog must pass (RFC 3261 §8, §12.2, §22).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.messages.message import Request, Response, respond, sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog import Dialog
from offhook.telephony.sip.sessions.session_events import Core, SessionSettings
from offhook.telephony.sip.transactions.transaction import ClientTransaction, ServerTransaction

HeaderLines = Sequence[tuple[str, str]]
ALLOWED = tuple(
    ["INVITE", "ACK", "BYE", "CANCEL", "OPTIONS", "PRACK", "UPDATE", "INFO", "REFER", "NOTIFY"]
)
KNOWN = frozenset({*ALLOWED, "MESSAGE", "PUBLISH", "REGISTER", "SUBSCRIBE"})
"""Registered methods: those of them that are not allowed get 405, any other gets 501 (§21.5.2)."""
MAX_ROUNDS = 4
"""Times one request is sent, each with an answer to the challenge before."""
MAX_FORKS = 16
"""Far ends that one INVITE of ours may reach; responses of others are ignored."""
MAX_SENT = 64
"""Requests of ours without a final response; beyond that key presses are dropped, and reliable
provisional responses wait for their PRACK."""
MAX_ACKS = 16
"""ACKs kept to be sent again when their 2xx is repeated: one for each fork and each re-INVITE."""


@dataclass(eq=False, slots=True)
class PendingRequest:
    """A request of ours that has no final response yet."""

    request: Request
    """Without Via."""
    dialog: Dialog | None
    """None for the INVITE that makes one."""
    transaction: ClientTransaction
    round: int


def fault(request: Request, settings: SessionSettings) -> tuple[int, HeaderLines] | None:
    """The status and headers that refuse a request which no state of a call allows, checked in
    the order of RFC 3261 §8.2; None for a good one."""
    if request.method not in ALLOWED:
        return 405 if request.method in KNOWN else 501, [("Allow", ", ".join(ALLOWED))]
    unknown = [tag for tag in request.require if tag not in settings.supported]
    if unknown:
        return 420, [("Unsupported", ", ".join(unknown))]
    disposition = (request.headers.get("Content-Disposition") or "").lower()
    if request.method in ("INVITE", "UPDATE", "PRACK") and request.body:
        readable = sdp_of(request) is not None or "handling=optional" in disposition
        if not readable:
            return 415, [("Accept", "application/sdp")]
    return None


class DialogRequests:
    """Sends the requests of one call and responds to those of the far end."""

    def __init__(
        self,
        core: Core,
        local_tag: str,
        local_contact: Uri,
        settings: SessionSettings,
        digest: DigestClient | None,
    ) -> None:
        self.settings = settings
        self.contact = local_contact
        self.dialog: Dialog | None = None
        """The dialog of the call; before it is answered the one that was heard of last."""
        self.forks: dict[str, Dialog] = {}
        """By remote tag: all dialogs that an INVITE of ours has made."""
        self.allow: frozenset[str] = frozenset()
        """Methods that the far end has said it allows."""
        self.sent: dict[tuple[str, ...], PendingRequest] = {}
        self._core = core
        self._local_tag = local_tag
        self._digest = digest
        self._acks: dict[tuple[int, str], Request] = {}
        """By the CSeq of the INVITE and the remote tag."""

    def dialog_with(self, remote_tag: str) -> Dialog | None:
        if self.dialog is not None and self.dialog.remote.tag == remote_tag:
            return self.dialog
        return self.forks.get(remote_tag)

    def next_hop(self, request: Request) -> Uri:
        """Where a request of this call goes (RFC 3261 §8.1.2)."""
        dialog = self.dialog_with(request.to.tag)
        if dialog is not None and request.to.tag:
            return dialog.next_hop
        routes = request.routes
        return routes[0].uri if routes else request.uri

    def learn_allow(self, message: Request | Response) -> None:
        """Note the methods of an Allow header."""
        if methods := message.allow:
            self.allow = frozenset(methods) & KNOWN

    # --- our requests ---

    @property
    def full(self) -> bool:
        """MAX_SENT requests have no final response yet."""
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
        """Send the next request of `dialog`, by default that of the call."""
        dialog = dialog or self.dialog
        assert dialog is not None
        agent = ("User-Agent", self.settings.user_agent)
        request = dialog.request(method, [*headers, agent], body, content_type)
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
        """Send the request again with credentials for the challenge (RFC 3261 §22). None: the
        response is no challenge, or one that cannot be met."""
        if response.status not in (401, 407) or sent.round >= MAX_ROUNDS or self._digest is None:
            return None
        again = self._digest.authorize(response, sent.request)
        if again is None:
            return None
        if sent.dialog is not None and again.cseq.number <= sent.dialog.local_cseq:
            again = sent.dialog.again(again)  # another request has taken that number meanwhile
        elif sent.dialog is not None:
            sent.dialog.local_cseq = again.cseq.number
        return self.send(again, sent.dialog, now, sent.round + 1)

    def cancel(self, sent: PendingRequest, now: float) -> None:
        self._core.cancel(sent.transaction, now)

    def ack(self, dialog: Dialog, invite: Request, sdp: str | None = None) -> None:
        """Acknowledge the 2xx to an INVITE of ours (RFC 3261 §13.2.2.4)."""
        ack = dialog.ack(invite, [("User-Agent", self.settings.user_agent)], sdp)
        if len(self._acks) >= MAX_ACKS:
            del self._acks[next(iter(self._acks))]
        self._acks[invite.cseq.number, dialog.remote.tag] = ack
        self._core.ack(ack, self.next_hop(ack))

    def repeat_ack(self, response: Response) -> bool:
        """Send the ACK of a repeated 2xx again. False: this 2xx has had no ACK."""
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
            fields.append(("Contact", f"<{self.contact}>"))
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
