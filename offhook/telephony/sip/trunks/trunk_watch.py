"""Monitors a trunk's servers with OPTIONS at intervals (RFC 3261 §11), and by the calls to them.

    state     event                               → state
    any       any response                        → up
    any       a response in UNAVAILABLE           → down
    any       no response, or unreachable         → down, if it is known to respond to OPTIONS, or
                                                    has neither registered us nor taken a call
    down      a call is taken                     → unknown, if it ignores OPTIONS
    any       no response to a call               → down
    down      a call failed FORGET_S ago          → unknown, if the server is not probed

A server that is down is probed more often, and one to which a call has failed at once.
"""

import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.headers import CSeq, Headers, NameAddr
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.trunks.trunks import Trunk

RESPONSE_TIMEOUT_S = 8.0
"""Time limit in s for a response, after which the server is considered down; over UDP the request
has been retransmitted four times by then. A later response still counts."""
DOWN_INTERVAL_S = 15.0
"""Interval of probing a server that is down, unless the normal one is shorter."""
MIN_INTERVAL_S = 2.0
"""Least time in s between two probes of a server, whatever happens: some close each connection
after their response."""
FORGET_S = 60.0
"""Time in s after a failed call until a server that is not probed is called again."""
SPREAD = 0.1
"""Fraction by which an interval may be shorter, at random, so that trunks are not probed at
once."""
UNAVAILABLE = frozenset({408, 502, 503, 504})
"""Responses of a server that accepts no calls now, or of a proxy whose server is gone."""

Reach = Literal["unknown", "up", "down"]


@dataclass(frozen=True, slots=True)
class TrunkState:
    """Whether a trunk can place calls."""

    trunk: str
    state: Reach
    """"up" if any of its servers is."""
    detail: str = ""
    """Details; "" if there is nothing to report."""


class _Server:
    """One server of a trunk."""

    def __init__(self, flow: Flow, due: float | None) -> None:
        self.flow = flow
        self.responds = False
        """Whether it has ever responded to OPTIONS."""
        self.takes_calls = False
        """Whether it has ever responded to a call."""
        self.reach: Reach = "unknown"
        self.detail = ""
        self.call_id = secrets.token_hex(16)
        self.tag = secrets.token_hex(8)
        self.forget_at = 0.0
        """Until when a call without a response counts, if there are no responses to probes."""
        self.probed_at = -MIN_INTERVAL_S
        self.probes_sent = 0
        """Number of probes so far."""
        self.due = due
        """When to probe it, or to forget that a call failed; None while a probe is pending."""
        self.until: float | None = None
        """Deadline of the response."""

    @property
    def place(self) -> tuple[str, tuple[str, int]]:
        return self.flow.transport, self.flow.remote


class TrunkWatch:
    """Probes the servers of one trunk. `uniform` returns a random number between two bounds."""

    def __init__(
        self,
        trunk: Trunk,
        user_agent: str,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.trunk = trunk
        self._user_agent = user_agent
        self._uniform = uniform
        self._servers: list[_Server] = []
        self._probes: list[tuple[Request, Flow]] = []
        self._changed: list[Flow] = []

    def use(self, flows: Sequence[Flow], now: float) -> None:
        """Set the servers. New ones are probed at once, known ones keep their state."""
        known = {server.place: server for server in self._servers}
        self._servers = []
        for flow in flows:
            due = now if self._probing else None
            server = known.get((flow.transport, flow.remote)) or _Server(flow, due)
            server.flow = flow
            self._servers.append(server)
        self.handle_timer(now)

    def probe_now(self, flow: Flow, now: float) -> None:
        """Something failed at this server: probe it now, unless that has just been done."""
        for server in self._servers:
            if server.place == (flow.transport, flow.remote) and server.due is not None:
                soon = max(now, server.probed_at + MIN_INTERVAL_S)
                server.due = min(server.due, soon) if self._probing else server.due
        self.handle_timer(now)

    def call_failed(self, flow: Flow, why: str, now: float) -> None:
        """A call to this server failed. If there was no response, as `why` says, it is down until
        it responds to a probe."""
        for server in self._servers:
            if why and server.place == (flow.transport, flow.remote):
                self._mark(server, "down", f"{_name(flow)}: {why}")
                server.forget_at = now + FORGET_S
                if not self._probing:
                    server.due = server.forget_at
        self.probe_now(flow, now)

    def call_taken(self, flow: Flow) -> None:
        """A call to this server rings, or was answered or rejected."""
        for server in self._servers:
            if server.place == (flow.transport, flow.remote):
                server.takes_calls = True
                if server.reach == "down" and not server.responds:
                    self._mark(server, "unknown", "")

    def is_down(self, flow: Flow) -> bool:
        place = flow.transport, flow.remote
        return any(s.place == place and s.reach == "down" for s in self._servers)

    @property
    def state(self) -> TrunkState:
        reaches = [server.reach for server in self._servers]
        down = [server.detail for server in self._servers if server.reach == "down"]
        detail = "; ".join(down)
        if "up" in reaches:
            if down:
                detail = f"{len(down)} of {len(reaches)} servers down: {detail}"
            return TrunkState(self.trunk.name, "up", detail)
        if "unknown" in reaches or not reaches:
            return TrunkState(self.trunk.name, "unknown", detail)
        return TrunkState(self.trunk.name, "down", detail)

    # --- probes ---

    def probes_to_send(self) -> list[tuple[Request, Flow]]:
        """Return OPTIONS requests without Via, Contact and Allow, and their flows."""
        questions, self._probes = self._probes, []
        return questions

    def changed_servers(self) -> list[Flow]:
        """Return the servers that have gone down, or come back, since the last call."""
        changed, self._changed = self._changed, []
        return changed

    def owns(self, call_id: str) -> bool:
        """Return whether this Call-ID belongs to one of our probes."""
        return self.flow_of(call_id) is not None

    def flow_of(self, call_id: str) -> Flow | None:
        """Return the flow to the server that is probed with this Call-ID."""
        return next((s.flow for s in self._servers if s.call_id == call_id), None)

    def receive(self, response: Response, now: float) -> None:
        if response.status < 200:
            return
        for server in self._servers:
            if server.call_id == response.call_id:
                server.responds = True
                if response.status in UNAVAILABLE:
                    said = f"{response.status} {response.reason}".rstrip()
                    self._set_reach(server, "down", f"{_name(server.flow)} answers {said}", now)
                else:
                    self._set_reach(server, "up", "", now)

    def failed(self, request: Request, why: str, now: float) -> None:
        """Handle a probe that got no response; `why` says the reason, if known."""
        for server in self._servers:
            latest = request.cseq.number == server.probes_sent and server.until is not None
            if server.call_id == request.call_id and latest:
                self._silent(server, f"{_name(server.flow)}: {why or 'unreachable'}", now)

    def get_timer(self) -> float | None:
        times = [t for server in self._servers for t in (server.due, server.until)]
        return min((t for t in times if t is not None), default=None)

    def handle_timer(self, now: float) -> None:
        for server in self._servers:
            if server.until is not None and now >= server.until:
                silent = f"{_name(server.flow)} has not responded for {RESPONSE_TIMEOUT_S:g} s"
                self._silent(server, silent, now)
            if not self._probing and server.due is not None and now >= server.due:
                server.reach, server.detail, server.due = "unknown", "", None
            elif server.due is not None and now >= server.due:
                self._probe(server, now)

    @property
    def _probing(self) -> bool:
        return bool(self.trunk.options_interval_s)

    def _silent(self, server: _Server, detail: str, now: float) -> None:
        """Handle a probe without a response. Some servers ignore OPTIONS: that they have registered
        us, or taken a call, says more."""
        if server.responds or not (self.trunk.register or server.takes_calls):
            self._set_reach(server, "down", detail, now)
        elif now < server.forget_at:
            self._set_reach(server, "down", server.detail, now)
        else:
            self._set_reach(server, "unknown", "", now)

    def _set_reach(self, server: _Server, reach: Reach, detail: str, now: float) -> None:
        self._mark(server, reach, detail)
        pause = float(self.trunk.options_interval_s)
        if reach == "down":
            pause = min(pause, DOWN_INTERVAL_S)
        server.until = None
        server.due = now + pause * self._uniform(1 - SPREAD, 1)

    def _mark(self, server: _Server, reach: Reach, detail: str) -> None:
        if (reach == "down") != (server.reach == "down"):
            self._changed.append(server.flow)
        server.reach, server.detail = reach, detail

    def _probe(self, server: _Server, now: float) -> None:
        server.probes_sent, server.probed_at = server.probes_sent + 1, now
        server.due, server.until = None, now + RESPONSE_TIMEOUT_S
        ours, theirs = self.trunk.address_of_record, self.trunk.registrar
        if self.trunk.public_name:
            ours = replace(ours, host=self.trunk.public_name)
        headers = Headers(
            [
                ("From", str(NameAddr(ours, parameters=(("tag", server.tag),)))),
                ("To", str(NameAddr(theirs))),
                ("Call-ID", server.call_id),
                ("CSeq", str(CSeq(server.probes_sent, "OPTIONS"))),
                ("Max-Forwards", "70"),
                ("Accept", "application/sdp"),
                ("User-Agent", self._user_agent),
            ]
        )
        self._probes.append((Request("OPTIONS", theirs, headers), server.flow))


def _name(flow: Flow) -> str:
    host, port = flow.remote
    where = f"[{host}]" if ":" in host else host
    return f"{where}:{port} by {flow.transport}"
