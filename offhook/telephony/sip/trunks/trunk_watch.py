"""Whether a trunk's servers are there: each is asked by OPTIONS every so often (RFC 3261 §11).

    state     what comes                              → state
    any       an answer, whatever it says             → up
    any       an answer that says "not I" (CANNOT)    → down
    any       no answer, or no way there              → down

A server that is down is asked more often: it may come back any moment.
"""

import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.headers import CSeq, Headers, NameAddr
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.trunks.trunks import Trunk

ANSWER_S = 8.0
"""For an answer, after which the server is taken for gone; over UDP the question has been repeated
four times by then. An answer that comes later still counts."""
DOWN_S = 15.0
"""Between two questions to a server that is down, if they are not more frequent anyway."""
SPREAD = 0.1
"""The part of a pause by which it may be shorter, at random: trunks are not all asked at once."""
CANNOT = frozenset({408, 502, 503, 504})
"""Answers of one that takes no calls now, or of a proxy before a server that is gone."""

Reach = Literal["unknown", "up", "down"]


@dataclass(frozen=True, slots=True)
class TrunkState:
    """Whether there is a way for a trunk's calls."""

    trunk: str
    state: Reach
    """"up" when one of its servers is."""
    detail: str = ""
    """In words; "" when there is nothing to say."""


class _Server:
    """One of a trunk's."""

    def __init__(self, flow: Flow, now: float) -> None:
        self.flow = flow
        self.reach: Reach = "unknown"
        self.detail = ""
        self.call_id = secrets.token_hex(16)
        self.tag = secrets.token_hex(8)
        self.asked = 0
        """Questions so far."""
        self.due: float | None = now
        """When it is asked; None while it is."""
        self.until: float | None = None
        """By when it must have answered."""

    @property
    def place(self) -> tuple[str, tuple[str, int]]:
        return self.flow.transport, self.flow.remote


class TrunkWatch:
    """Asks the servers of one trunk. `uniform` gives random numbers between two bounds."""

    def __init__(
        self,
        trunk: Trunk,
        user_agent: str,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._trunk = trunk
        self._user_agent = user_agent
        self._uniform = uniform
        self._servers: list[_Server] = []
        self._questions: list[tuple[Request, Flow]] = []

    def use(self, flows: Sequence[Flow], now: float) -> None:
        """Where the servers are. New ones are asked at once, known ones go on as they were."""
        known = {server.place: server for server in self._servers}
        self._servers = []
        for flow in flows:
            server = known.get((flow.transport, flow.remote)) or _Server(flow, now)
            server.flow = flow
            self._servers.append(server)
        self.handle_timer(now)

    def doubt(self, flow: Flow, now: float) -> None:
        """A call has not got through to this server: ask it now."""
        for server in self._servers:
            if server.place == (flow.transport, flow.remote) and server.due is not None:
                server.due = now
        self.handle_timer(now)

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
            return TrunkState(self._trunk.name, "up", detail)
        if "unknown" in reaches or not reaches:
            return TrunkState(self._trunk.name, "unknown", detail)
        return TrunkState(self._trunk.name, "down", detail)

    # --- questions and answers ---

    def questions_to_send(self) -> list[tuple[Request, Flow]]:
        """OPTIONS without Via, and where they go."""
        questions, self._questions = self._questions, []
        return questions

    def asked(self, call_id: str) -> bool:
        """Whether this Call-ID is of one of our questions."""
        return any(server.call_id == call_id for server in self._servers)

    def receive(self, response: Response, now: float) -> None:
        if response.status < 200:
            return
        for server in self._servers:
            if server.call_id == response.call_id:
                if response.status in CANNOT:
                    said = f"{response.status} {response.reason}".rstrip()
                    self._note(server, "down", f"{_name(server.flow)} answers {said}", now)
                else:
                    self._note(server, "up", "", now)

    def failed(self, request: Request, why: str, now: float) -> None:
        """`request`, a question of ours, has no answer; `why` in words, as far as it is known."""
        for server in self._servers:
            latest = request.cseq.number == server.asked and server.until is not None
            if server.call_id == request.call_id and latest:
                why = why or "cannot be reached"
                self._note(server, "down", f"{_name(server.flow)}: {why}", now)

    def get_timer(self) -> float | None:
        times = [t for server in self._servers for t in (server.due, server.until)]
        return min((t for t in times if t is not None), default=None)

    def handle_timer(self, now: float) -> None:
        for server in self._servers:
            if server.until is not None and now >= server.until:
                silent = f"{_name(server.flow)} has not answered for {ANSWER_S:g} s"
                self._note(server, "down", silent, now)
            if server.due is not None and now >= server.due:
                self._ask(server, now)

    def _note(self, server: _Server, reach: Reach, detail: str, now: float) -> None:
        server.reach, server.detail = reach, detail
        pause = float(self._trunk.watch_s)
        if reach == "down":
            pause = min(pause, DOWN_S)
        server.until = None
        server.due = now + pause * self._uniform(1 - SPREAD, 1)

    def _ask(self, server: _Server, now: float) -> None:
        server.asked += 1
        server.due, server.until = None, now + ANSWER_S
        ours, theirs = self._trunk.address_of_record, self._trunk.registrar
        headers = Headers(
            [
                ("From", str(NameAddr(ours, parameters=(("tag", server.tag),)))),
                ("To", str(NameAddr(theirs))),
                ("Call-ID", server.call_id),
                ("CSeq", str(CSeq(server.asked, "OPTIONS"))),
                ("Max-Forwards", "70"),
                ("Accept", "application/sdp"),
                ("User-Agent", self._user_agent),
            ]
        )
        self._questions.append((Request("OPTIONS", theirs, headers), server.flow))


def _name(flow: Flow) -> str:
    host, port = flow.remote
    where = f"[{host}]" if ":" in host else host
    return f"{where}:{port} by {flow.transport}"
