"""What SIP messages cost the one who takes them, without network: two user agents in one process,
of which one calls and the other is timed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.callers.rtp import offer
from benchmarks.media.media import Step, Timer
from benchmarks.processes.own_server import HOST
from benchmarks.sip.options import request
from offhook.telephony.sip.media.media_plan import MediaSettings
from offhook.telephony.sip.media.offer_answer import MediaNegotiation
from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import parse_message
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.trace import Trace
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.telephony.sip.user_agent import CallReceived, UserAgent

CALLS = 400
WARM_UP_CALLS = 100
CALL_S = 0.5
"""Of virtual time from one call to the next."""
TRUNK = Trunk("other", addresses=("127.0.0.0/8",))
CALLER, SERVER = (HOST, 5070), (HOST, 5060)


def _agent(local: tuple[str, int]) -> UserAgent:
    def flow_to(transport: TransportName, host: str, port: int) -> Flow:
        return Flow(transport, (host, port), local)

    settings = SipSettings(host=HOST, udp=local[1], tcp=None, trunks=(TRUNK,))
    return UserAgent(settings, lambda flow: local, flow_to)


def _events(agent: UserAgent) -> Iterator[object]:
    while (event := agent.next_event()) is not None:
        yield event


class Costs:
    """Calls between two user agents. The caller's part is not timed, the server's is."""

    def __init__(self) -> None:
        self._caller, self._server = _agent(CALLER), _agent(SERVER)
        self._now = 0.0
        self._timers: dict[str, Timer] = {}
        self._sdp = offer(40_000)
        self._to_server = Flow("UDP", SERVER, CALLER)
        self._to_caller = Flow("UDP", CALLER, SERVER)
        self._trace = Trace(2000)

    def steps(self) -> list[Step]:
        return [timer.step(0) for timer in self._timers.values()]

    def forget(self) -> None:
        """What was measured so far."""
        self._timers.clear()

    def call(self) -> None:
        """INVITE, 200, ACK, BYE, 200."""
        self._now += CALL_S
        target = Uri("sip", "100", *SERVER)
        session = self._caller.call(
            target,
            self._to_server,
            TRUNK,
            NameAddr(Uri("sip", "caller", HOST)),
            NameAddr(target),
            self._sdp,
            self._now,
        )
        self._deliver("INVITE")
        self._deliver("ACK")
        session.hang_up(self._now)
        self._caller.session_changed(session, self._now)
        self._deliver("BYE")
        with self._timed("call", "timers"):
            self._server.handle_timer(self._now)
        self._caller.handle_timer(self._now)
        for agent in (self._caller, self._server):
            list(_events(agent))

    def options(self) -> None:
        self._now += CALL_S
        self._pass("OPTIONS", request(SERVER, CALLER))
        self._server.handle_timer(self._now)

    def negotiate(self) -> None:
        with self._timed("call", "SDP: offer to answer"):
            MediaNegotiation(MediaSettings(), HOST, 40_002, 40_003, session_id=1).answer(self._sdp)

    def _deliver(self, method: str) -> None:
        """What the caller has to send, and the answers back."""
        for data, _ in self._caller.messages_to_send():
            for answer in self._pass(method, data):
                self._caller.receive(answer, self._to_server, self._now)

    def _pass(self, method: str, data: bytes) -> list[bytes]:
        """One request through the server: its answers."""
        self._parts(method, data)
        with self._timed("call", f"{method}, whole"):
            self._server.receive(data, self._to_caller, self._now)
            for event in _events(self._server):
                if isinstance(event, CallReceived):
                    event.session.accept(self._sdp, self._now)
                    self._server.session_changed(event.session, self._now)
            answers = [answer for answer, _ in self._server.messages_to_send()]
        for answer in answers:
            self._parts(f"answer to {method}", answer)
        return answers

    def _parts(self, name: str, data: bytes) -> None:
        """By themselves: reading it, and keeping it for people to look at."""
        with self._timed("part", f"read {name}"):
            parse_message(data)
        with self._timed("part", f"trace {name}"):
            self._trace.record(data, self._to_caller, sent=False, wall_time=self._now)

    @contextmanager
    def _timed(self, kind: str, name: str) -> Iterator[None]:
        timer = self._timers.setdefault(name, Timer(kind, name))
        started = time.thread_time_ns()
        yield
        timer.add(started)


def measure(calls: int = CALLS) -> list[Step]:
    """µs of CPU; the first calls, which warm up, are not counted."""
    costs = Costs()
    for number in range(calls + WARM_UP_CALLS):
        if number == WARM_UP_CALLS:
            costs.forget()
        costs.call()
        costs.options()
        costs.negotiate()
    return costs.steps()


def print_steps(steps: list[Step]) -> None:
    print(f"{'microseconds of one core':40}{'p50':>8}{'p99':>8}")
    for step in sorted(steps, key=lambda step: step.direction):
        print(f"{step.name:40}{step.us:8.1f}{step.p99_us:8.1f}")
    whole = sum(s.us for s in steps if s.direction == "call" and "OPTIONS" not in s.name)
    print(f"{'a call without its sound, sum':40}{whole:8.1f}")
