"""Who may come in: asked of every request before anything is kept of it.

    from a trunk's address, or its server's      in, if not of a call of somebody else
    from a source that makes too much noise      nothing, or 503
    of a call, from where that call is           in
    a repeat or a CANCEL of what was let in      in
    of a call, from elsewhere                    in with the password of the call's trunk
    everybody may call (a lab)                   in
    an INVITE where a trunk calls by password    in with the password, 401 without
    anybody else's                               nothing, or 403, as the settings say

Nobody outside is told more than that, and no answer keeps any state. What comes over a WebSocket
is never a trunk's by its address: any web page that is looked at behind that address can open one.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from offhook.telephony.sip.admission.rate_limiter import RateLimiter, RequestKind, Verdict
from offhook.telephony.sip.auth.digest import DigestServer
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk, by_username, identify, is_known

HeaderLines = Iterable[tuple[str, str]]
LIMITED_RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True)
class Refusal:
    """All the answer that a stranger gets."""

    status: int
    headers: HeaderLines = ()


class Call(Protocol):
    """What is to be known of a call that is there."""

    @property
    def trunk(self) -> Trunk | None: ...

    def is_from(self, source: str) -> bool:
        """Whether the far end is at this address, as far as it has said."""

    def move(self, flow: Flow) -> None:
        """The far end has proved that it is there now."""


class AccessPolicy:
    """Lets in requests, or not."""

    def __init__(
        self,
        settings: SipSettings,
        call_of: Callable[[Request], Call | None],
        follows: Callable[[Request, Flow], bool],
    ) -> None:
        """`call_of`: the call that a request is of, whoever sent it. `follows`: whether it repeats
        or cancels what was let in, and comes from the same host."""
        self._settings = settings
        self._call_of = call_of
        self._follows = follows
        self._rate_limiter = RateLimiter(settings)
        self._digest = DigestServer(settings.public_address or settings.host)
        self._challenges = any(t.password and not t.register for t in settings.trunks)
        self._addresses: dict[str, Collection[str]] = {}
        self.dropped = 0
        """Requests of strangers that got no answer, since the start."""
        self.refused = 0
        """Those that were challenged or refused."""

    def use(self, settings: SipSettings) -> None:
        """Other trunks, and other rules for strangers."""
        self._settings = settings
        self._challenges = any(t.password and not t.register for t in settings.trunks)
        self._rate_limiter.use(settings)
        there = {trunk.name for trunk in settings.trunks}
        for gone in self._addresses.keys() - there:
            self.trust(gone, ())

    def trust(self, trunk: str, addresses: Collection[str]) -> None:
        """A trunk's server has these addresses: what comes from them is the trunk's."""
        self._addresses[trunk] = addresses
        self._rate_limiter.trust(a for each in self._addresses.values() for a in each)

    def authorize(self, request: Request, flow: Flow, now: float) -> Refusal | bool:
        """Whether the request comes in, or what to answer it; False is no answer at all."""
        judged = self._judge(request, flow, now)
        if judged is False:
            self.dropped += 1
        elif judged is not True:
            self.refused += 1
        return judged

    def authorize_malformed(self, flow: Flow, now: float) -> bool:
        """Whether a request that cannot be understood is told so."""
        if not _by_browser(flow) and is_known(
            self._settings.trunks, flow.remote[0], self._addresses
        ):
            return True
        heard = self._rate_limiter.check(flow.remote[0], "request", now)
        if heard is Verdict.PASS and self._settings.allow_anonymous:
            return True
        self.dropped += 1
        return False

    def is_party(self, call: Call, flow: Flow) -> bool:
        """Whether what comes by the flow may be of this call: from its far end, or its trunk."""
        source = flow.remote[0]
        if call.is_from(source):
            return True
        if call.trunk is None or _by_browser(flow):
            return False
        return is_known((call.trunk,), source, self._addresses)

    def trunk_of(self, request: Request, flow: Flow) -> Trunk | None:
        """The trunk of a request that was let in; None where everybody may call: there nobody has
        proved to be whom the request names."""
        trunk = self._trunk_at(request, flow)
        if trunk is not None or self._settings.allow_anonymous:
            return trunk
        username = self._digest.claimed(request)
        return by_username(self._settings.trunks, username) if username else None

    def _judge(self, request: Request, flow: Flow, now: float) -> Refusal | bool:
        source = flow.remote[0]
        call = self._call_of(request)
        own = call is not None and self.is_party(call, flow)
        if self._trunk_at(request, flow) is not None and (call is None or own):
            return True
        proof = bool(self._digest.claimed(request))
        kind: RequestKind = "invite" if request.method == "INVITE" and not proof else "request"
        heard = self._rate_limiter.check(source, kind, now)
        if heard is Verdict.DROP:
            return False
        if own or self._follows(request, flow):
            return True
        if request.method == "ACK":  # of nothing, or of a call that is elsewhere: never answered
            return call is None
        if heard is Verdict.LIMIT:
            if not self._would_answer(request, flow):
                return False
            return Refusal(503, [("Retry-After", str(LIMITED_RETRY_AFTER_S))])
        if call is not None:
            return self._prove_moved(call, request, flow, now)
        if self._settings.allow_anonymous:
            return True
        if request.method == "INVITE" and self._may_prove_itself(flow):
            return self._prove(request, flow, now, self._settings.trunks)
        return self._unknown()

    def _would_answer(self, request: Request, flow: Flow) -> bool:
        """Whether a stranger hears from us at all."""
        s = self._settings
        challenged = request.method == "INVITE" and self._may_prove_itself(flow)
        return s.allow_anonymous or s.unknown == "refuse" or challenged

    def _unknown(self) -> Refusal | bool:
        return Refusal(403) if self._settings.unknown == "refuse" else False

    def _trunk_at(self, request: Request, flow: Flow) -> Trunk | None:
        """Whose the address is."""
        if _by_browser(flow):
            return None
        return identify(self._settings.trunks, flow.remote[0], request, self._addresses)

    def _may_prove_itself(self, flow: Flow) -> bool:
        return self._challenges and (self._settings.browsers or not _by_browser(flow))

    def _prove_moved(self, call: Call, request: Request, flow: Flow, now: float) -> Refusal | bool:
        """Of a call that is elsewhere: a phone that has changed networks."""
        trunk = call.trunk
        provable = trunk is not None and trunk.password and request.method != "CANCEL"
        if trunk is None or not provable or not self._may_prove_itself(flow):
            return self._unknown()
        judged = self._prove(request, flow, now, (trunk,))
        if judged is True:
            call.move(flow)
        return judged

    def _prove(
        self, request: Request, flow: Flow, now: float, trunks: Sequence[Trunk]
    ) -> Refusal | bool:
        """Digest, without state for who has no password (RFC 3261 §8.2.7, §22)."""

        def password_of(username: str) -> str | None:
            trunk = by_username(trunks, username)
            return trunk.password if trunk is not None else None

        source = flow.remote[0]
        verdict = self._digest.check(request, password_of, now, source)
        if verdict.ok:
            return True
        if verdict.username and not verdict.stale:
            self._rate_limiter.failed(source, now)
        return Refusal(401, self._digest.challenge(request, now, verdict.stale, source))


def _by_browser(flow: Flow) -> bool:
    return flow.transport in ("WS", "WSS")
