"""Access policy for SIP requests, applied before any state is kept for them.

    from a trunk's address, or its server's      accepted, unless of somebody else's call, or
                                                 more INVITEs than a trunk may send: 503
    from a source over its rate limit            no response, or 503
    within a call, from its far end              accepted
    a retransmission or CANCEL of an accepted one    accepted
    within a call, from elsewhere                accepted with the password of the call's trunk
    anonymous calls allowed (a lab)              accepted
    an INVITE where a trunk uses a password      accepted with the password, 401 without
    from an extension's desk, that has signed in     accepted, of its own calls and for itself
    REGISTER, SUBSCRIBE, where there are
    extensions                                   accepted with an extension's password, 401 without,
                                                 the same for one that does not exist
    from the flow of a registered phone          accepted with its password, never by its address
    anything else                                no response, or 403, by configuration

Strangers learn nothing beyond that, and no response keeps state. Requests over a WebSocket are
never attributed to a trunk by address: any web page viewed behind that address can open one.
"""

import hmac
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from offhook.media.budget import Budget
from offhook.telephony.sip.admission.rate_limiter import RateLimiter, RequestKind, Verdict
from offhook.telephony.sip.auth.digest import DigestServer
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.trunks.extension import trunk_name
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk, by_username, identify, is_known

HeaderLines = Iterable[tuple[str, str]]
LIMITED_RETRY_AFTER_S = 5
OF_PHONES = frozenset({"REGISTER", "SUBSCRIBE"})
TRUNK_INVITES_PER_SECOND = 50.0
TRUNK_INVITES_BURST = 25.0
"""Maximum calls that a trunk may attempt per second, and at once after a pause: more than a process
answers. The others are refused with 503, without state, so that a trunk in a loop, or whoever
forges its address, does not hold up the packets of calls in progress."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The whole response to a request that is refused."""

    status: int
    headers: HeaderLines = ()


class Call(Protocol):
    """What the access policy needs to know about an existing call."""

    @property
    def trunk(self) -> Trunk | None: ...

    def is_from(self, source: str) -> bool:
        """Return whether the far end is known to be at this address."""

    def move(self, flow: Flow) -> None:
        """Move the call to `flow`: the far end has authenticated there."""


class AccessPolicy:
    """Accepts or refuses requests."""

    def __init__(
        self,
        settings: SipSettings,
        call_of: Callable[[Request], Call | None],
        follows: Callable[[Request, Flow], bool],
        is_phone: Callable[[Flow], bool] = lambda flow: False,
    ) -> None:
        """`call_of` returns the call a request belongs to, whoever sent it. `follows` returns
        whether it retransmits or cancels an accepted request and comes from the same host.
        `is_phone` returns whether a phone of an extension has registered over a flow."""
        self._settings = settings
        self._call_of = call_of
        self._follows = follows
        self._is_phone = is_phone
        self._rate_limiter = RateLimiter(settings)
        self._digest = DigestServer(settings.public_address or settings.host, settings.digest)
        self._challenges = any(t.password and not t.register for t in settings.accounts)
        self._addresses: dict[str, Collection[str]] = {}
        self._attempts: dict[str, Budget] = {}
        """Of calls, by trunk."""
        self.dropped = 0
        """Requests dropped without a response, since the start."""
        self.refused = 0
        """Requests challenged or refused."""

    def use(self, settings: SipSettings) -> None:
        """Apply other trunks and other rules for unknown sources."""
        self._settings = settings
        self._challenges = any(t.password and not t.register for t in settings.accounts)
        self._rate_limiter.use(settings)
        there = {trunk.name for trunk in settings.trunks}
        for gone in self._addresses.keys() - there:
            self.trust(gone, ())
            self._attempts.pop(gone, None)

    def trust(self, trunk: str, addresses: Collection[str]) -> None:
        """Set the addresses of a trunk's server; requests from them are the trunk's."""
        self._addresses[trunk] = addresses
        self._rate_limiter.trust(a for each in self._addresses.values() for a in each)

    def is_address_of(self, trunk: Trunk, address: str) -> bool:
        """Return whether a numeric address is one of the trunk's."""
        return is_known((trunk,), address, self._addresses)

    def authorize(self, request: Request, flow: Flow, now: float) -> Refusal | bool:
        """Return True to accept the request, a Refusal to send, or False for no response at all."""
        decision = self._decide(request, flow, now)
        if decision is False:
            self.dropped += 1
        elif decision is not True:
            self.refused += 1
        return decision

    def authorize_malformed(self, flow: Flow, now: float) -> bool:
        """Return whether to respond to a malformed request."""
        if not _over_websocket(flow) and is_known(
            self._settings.trunks, flow.remote[0], self._addresses
        ):
            return True
        verdict = self._rate_limiter.check(flow.remote[0], "request", now)
        if verdict is Verdict.PASS and self._settings.allow_anonymous:
            return True
        self.dropped += 1
        return False

    def is_party(self, call: Call, flow: Flow) -> bool:
        """Return whether `flow` may belong to this call: to its far end, or its trunk."""
        source = flow.remote[0]
        if flow.extension:
            return call.trunk is not None and call.trunk.extension == flow.extension
        if call.is_from(source):
            return True
        if call.trunk is None or _over_websocket(flow):
            return False
        return is_known((call.trunk,), source, self._addresses)

    def may_replace(self, call: Call, request: Request, flow: Flow) -> bool:
        """Return whether the sender of an INVITE may take this call over: its own trunk may."""
        return self.is_party(call, flow) or self.trunk_of(request, flow) is call.trunk

    def trunk_of(self, request: Request, flow: Flow) -> Trunk | None:
        """Return the trunk of an accepted request; None if anonymous calls are allowed, since then
        nobody has proved an identity."""
        if flow.extension:
            return self._settings.phones.get(flow.extension)
        trunk = self._trunk_at(request, flow)
        if trunk is not None or (self._settings.allow_anonymous and not self._is_phone(flow)):
            return trunk
        username = self._digest.claimed_username(request)
        return by_username(self._settings.accounts, username) if username else None

    def extension_of(self, request: Request, flow: Flow) -> str:
        """Return the extension that has proved to have sent an accepted REGISTER or SUBSCRIBE."""
        return flow.extension or self._digest.claimed_username(request)

    def serves_phones(self, method: str) -> bool:
        """Return whether requests of this method are for the extensions' phones alone."""
        return bool(self._settings.extensions) and method in OF_PHONES

    def _decide(self, request: Request, flow: Flow, now: float) -> Refusal | bool:
        source = flow.remote[0]
        if flow.extension:
            return self._of_desk(request, flow, now)
        if self.serves_phones(request.method):
            return self._of_phone(request, flow, now)
        call = self._call_of(request)
        own = call is not None and self.is_party(call, flow)
        trunk = self._trunk_at(request, flow)
        if trunk is not None and (call is None or own):
            return self._may_call(trunk, request, flow, now) or _too_many()
        proof = bool(self._digest.claimed_username(request))
        kind: RequestKind = "invite" if request.method == "INVITE" and not proof else "request"
        verdict = self._rate_limiter.check(source, kind, now)
        if verdict is Verdict.DROP:
            return False
        if own or self._follows(request, flow):
            return True
        if request.method == "ACK":  # of nothing, or of a call elsewhere: an ACK is never answered
            return call is None
        if verdict is Verdict.LIMIT:
            if not self._would_respond(request, flow):
                return False
            return _too_many()
        if call is not None:
            return self._authenticate_move(call, request, flow, now)
        if self._settings.allow_anonymous and not self._is_phone(flow):
            return True
        if request.method == "INVITE" and self._may_authenticate(flow):
            return self._authenticate(request, flow, now, self._settings.accounts)
        if request.method == "OPTIONS" and self._is_phone(flow):  # it asks whether we are there
            return True
        return self._unknown()

    def sign_in(self, number: str, password: str, source: str, now: float) -> Refusal | bool:
        """Return whether the password is that of an extension; a Refusal if too many were tried
        from this address. They are counted with those of phones."""
        if self._rate_limiter.check(source, "request", now) is not Verdict.PASS:
            return _too_many()
        extension = self._settings.extensions.get(number)
        expected = extension.password if extension is not None else ""
        same = hmac.compare_digest(password.encode(errors="surrogatepass"), expected.encode())
        if extension is not None and same:
            return True
        self._rate_limiter.record_failure(source, now)
        return False

    def _of_desk(self, request: Request, flow: Flow, now: float) -> Refusal | bool:
        """Decide on a request of a desk, whose extension is limited in place of its address: many
        may come through one proxy."""
        verdict = self._rate_limiter.check(trunk_name(flow.extension), "request", now)
        if verdict is not Verdict.PASS:
            return _too_many() if verdict is Verdict.LIMIT else False
        call = self._call_of(request)
        is_own = call is None or self.is_party(call, flow)
        return is_own and flow.extension in self._settings.extensions

    def _of_phone(self, request: Request, flow: Flow, now: float) -> Refusal | bool:
        """Decide on a REGISTER or SUBSCRIBE, from wherever: only a password counts."""
        verdict = self._rate_limiter.check(flow.remote[0], "request", now)
        if verdict is not Verdict.PASS:
            return _too_many() if verdict is Verdict.LIMIT else False
        if not self._may_authenticate(flow):
            return self._unknown()
        phones = tuple(self._settings.phones.values())
        return self._authenticate(request, flow, now, phones)

    def _may_call(self, trunk: Trunk, request: Request, flow: Flow, now: float) -> bool:
        """Whether a request of a trunk is no attempt to call, or not one too many."""
        if request.method != "INVITE" or request.to.tag or self._follows(request, flow):
            return True
        attempts = self._attempts.get(trunk.name)
        if attempts is None:
            attempts = Budget(TRUNK_INVITES_PER_SECOND, TRUNK_INVITES_BURST)
            self._attempts[trunk.name] = attempts
        return attempts.spend(1, now)

    def _would_respond(self, request: Request, flow: Flow) -> bool:
        """Whether an unknown source gets any response."""
        s = self._settings
        challenged = request.method == "INVITE" and self._may_authenticate(flow)
        return s.allow_anonymous or s.unknown == "refuse" or challenged

    def _unknown(self) -> Refusal | bool:
        return Refusal(403) if self._settings.unknown == "refuse" else False

    def _trunk_at(self, request: Request, flow: Flow) -> Trunk | None:
        """The trunk the source address belongs to."""
        if _over_websocket(flow) or self._is_phone(flow):
            return None
        return identify(self._settings.trunks, flow.remote[0], request, self._addresses)

    def _may_authenticate(self, flow: Flow) -> bool:
        return self._challenges and (self._settings.browsers or not _over_websocket(flow))

    def _authenticate_move(
        self, call: Call, request: Request, flow: Flow, now: float
    ) -> Refusal | bool:
        """Authenticate a request of a call from a new address: a phone that changed networks."""
        trunk = call.trunk
        provable = trunk is not None and trunk.password and request.method != "CANCEL"
        if trunk is None or not provable or not self._may_authenticate(flow):
            return self._unknown()
        decision = self._authenticate(request, flow, now, (trunk,))
        if decision is True:
            call.move(flow)
        return decision

    def _authenticate(
        self, request: Request, flow: Flow, now: float, trunks: Sequence[Trunk]
    ) -> Refusal | bool:
        """Digest authentication, stateless until the password is right (RFC 3261 §8.2.7, §22)."""

        def password_of(username: str) -> str | None:
            trunk = by_username(trunks, username)
            return trunk.password if trunk is not None else None

        source = flow.remote[0]
        verdict = self._digest.check(request, password_of, now, source)
        if verdict.ok:
            return True
        if verdict.username and not verdict.stale:
            self._rate_limiter.record_failure(source, now)
        return Refusal(401, self._digest.challenge(request, now, verdict.stale, source))


def _over_websocket(flow: Flow) -> bool:
    return flow.transport in ("WS", "WSS")


def _too_many() -> Refusal:
    return Refusal(503, [("Retry-After", str(LIMITED_RETRY_AFTER_S))])
