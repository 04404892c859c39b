"""Who may come in: asked of every request before anything is kept of it.

    from a trunk's address, or its server's      in
    from a source that makes too much noise      nothing, or 503
    of a call or a question that is known        in
    everybody may call (a lab)                   in
    an INVITE where a trunk calls by password    in with the password, 401 without
    anybody else's                               nothing, or 403, as the settings say

Nobody outside is told more than that, and no answer keeps any state.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from offhook.telephony.sip.digest import DigestServer
from offhook.telephony.sip.flow import Flow
from offhook.telephony.sip.message import Request
from offhook.telephony.sip.sources import RequestKind, Sources, Verdict
from offhook.telephony.sip.trunks import SipSettings, Trunk, by_username, identify, is_known

HeaderLines = Iterable[tuple[str, str]]
LIMITED_RETRY_AFTER_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Refusal:
    """All the answer that a stranger gets."""

    status: int
    headers: HeaderLines = ()


class Gate:
    """Lets in requests, or not."""

    def __init__(self, settings: SipSettings, is_ours: Callable[[Request], bool]) -> None:
        """`is_ours`: whether a request is of a call that is there."""
        self._settings = settings
        self._is_ours = is_ours
        self._sources = Sources(settings)
        self._digest = DigestServer(settings.public_address or settings.host)
        self._challenges = any(t.password and not t.register for t in settings.trunks)
        self._addresses: dict[str, Collection[str]] = {}
        self.dropped = 0
        """Requests of strangers that got no answer, since the start."""
        self.refused = 0
        """Those that were challenged or refused."""

    def trust(self, trunk: str, addresses: Collection[str]) -> None:
        """A trunk's server has these addresses: what comes from them is the trunk's."""
        self._addresses[trunk] = addresses
        self._sources.trust(a for each in self._addresses.values() for a in each)

    def judge(self, request: Request, flow: Flow, now: float) -> Refusal | bool:
        """Whether the request comes in, or what to answer it; False is no answer at all."""
        judged = self._judge(request, flow, now)
        if judged is False:
            self.dropped += 1
        elif judged is not True:
            self.refused += 1
        return judged

    def judge_malformed(self, flow: Flow, now: float) -> bool:
        """Whether a request that cannot be understood is told so."""
        if is_known(self._settings.trunks, flow.remote[0], self._addresses):
            return True
        heard = self._sources.verdict(flow.remote[0], "request", now)
        if heard is Verdict.PASS and self._settings.allow_anonymous:
            return True
        self.dropped += 1
        return False

    def trunk_at(self, source: str, request: Request) -> Trunk | None:
        """Whose the address is."""
        return identify(self._settings.trunks, source, request, self._addresses)

    def trunk_of(self, request: Request, flow: Flow) -> Trunk | None:
        """The trunk of a request that was let in; None where everybody may call."""
        trunk = self.trunk_at(flow.remote[0], request)
        if trunk is not None:
            return trunk
        username = self._digest.claimed(request)
        return by_username(self._settings.trunks, username) if username else None

    def _judge(self, request: Request, flow: Flow, now: float) -> Refusal | bool:
        source = flow.remote[0]
        if self.trunk_at(source, request) is not None:
            return True
        proof = bool(self._digest.claimed(request))
        kind: RequestKind = "invite" if request.method == "INVITE" and not proof else "request"
        heard = self._sources.verdict(source, kind, now)
        if heard is Verdict.DROP:
            return False
        if self._is_ours(request):
            return True
        if heard is Verdict.LIMIT:
            return Refusal(503, [("Retry-After", str(LIMITED_RETRY_AFTER_SECONDS))])
        if self._settings.allow_anonymous:
            return True
        if request.method == "INVITE" and self._may_prove_itself(flow):
            return self._prove(request, flow, now)
        return Refusal(403) if self._settings.unknown == "refuse" else False

    def _may_prove_itself(self, flow: Flow) -> bool:
        by_browser = flow.transport in ("WS", "WSS")
        return self._challenges and (self._settings.browsers or not by_browser)

    def _prove(self, request: Request, flow: Flow, now: float) -> Refusal | bool:
        """Digest, without state for who has no password (RFC 3261 §8.2.7, §22)."""
        verdict = self._digest.check(request, self._password_of, now)
        if verdict.ok:
            return True
        if verdict.username and not verdict.stale:
            self._sources.failed(flow.remote[0], now)
        return Refusal(401, self._digest.challenge(request, now, verdict.stale))

    def _password_of(self, username: str) -> str | None:
        trunk = by_username(self._settings.trunks, username)
        return trunk.password if trunk is not None else None
