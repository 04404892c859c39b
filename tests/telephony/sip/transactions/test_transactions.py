"""Two sides joined by a network that loses, delays, reorders and duplicates, in virtual time."""

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.headers import Headers
from offhook.telephony.sip.messages.message import Request, Response, parse_message, respond
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.transactions import transaction_table
from offhook.telephony.sip.transactions.alarms import STOPPED_ALARMS
from offhook.telephony.sip.transactions.transaction import (
    T1,
    T2,
    TRANSACTION_S,
    ClientTransaction,
    ServerTransaction,
    TransactionState,
)
from offhook.telephony.sip.transactions.transactions import (
    AckReceived,
    Cancelled,
    Failed,
    RequestReceived,
    ResponseReceived,
    TransactionEvent,
    Transactions,
)

ADDRESSES = {"a": ("192.0.2.1", 5060), "b": ("2001:db8::2", 5060)}
LONG = 400.0
"""Seconds after which nothing may be left."""


def flow(side: str, connection: int = 0) -> Flow:
    """As that side sees it."""
    other = "b" if side == "a" else "a"
    transport = "TCP" if connection else "UDP"
    return Flow(transport, ADDRESSES[other], ADDRESSES[side], connection)  # type: ignore[arg-type]


def sent_by(way: Flow) -> str:
    host, port = way.local
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_numbers = count()


def request(method: str = "INVITE", body: bytes = b"", via: str = "") -> Request:
    n = next(_numbers)
    headers = Headers(
        [
            ("Max-Forwards", "70"),
            ("From", f"<sip:a@a>;tag=f{n}"),
            ("To", "<sip:b@b>"),
            ("Call-ID", f"c{n}"),
            ("CSeq", f"1 {method}"),
        ]
    )
    if via:
        headers.prepend("Via", via)
    return Request(method, Uri.parse("sip:b@b"), headers, body)


@dataclass
class Line:
    """What one way of the network does to a datagram."""

    loss: float = 0.0
    duplicates: float = 0.0
    jitter: float = 0.0
    """Seconds; what is sent first may come last."""
    drop_next: Counter[str] = field(default_factory=Counter)
    """By the first word of the message."""


class World:
    """Both sides, the network between them and the time."""

    def __init__(self, seed: int = 0, line: Line | None = None, reliable: bool = False) -> None:
        self.random = Random(seed)
        self.line = line or Line()
        self.connection = int(reliable)
        self.now = 0.0
        self.sides = {"a": Transactions(sent_by), "b": Transactions(sent_by)}
        self.wire: list[tuple[float, int, str, bytes]] = []
        self.plans: list[tuple[float, int, object]] = []
        """What users do later: (when, order, function)."""
        self.order = count()
        self.sent: Counter[str] = Counter()

    def later(self, seconds: float, do: object) -> None:
        heappush(self.plans, (self.now + seconds, next(self.order), do))

    def told(self, side: str, event: TransactionEvent) -> None:
        """For users to override."""

    def drain(self) -> None:
        for name, side in self.sides.items():
            while (event := side.next_event()) is not None:
                self.told(name, event)
        for name, side in self.sides.items():
            for data, way in side.messages_to_send():
                assert way.remote == flow(name).remote
                self.carry("b" if name == "a" else "a", data)

    def carry(self, to: str, data: bytes) -> None:
        word = data.split(b" ", 2)[1 if data.startswith(b"SIP/") else 0].decode()
        self.sent[word] += 1
        if self.connection:
            heappush(self.wire, (self.now + 0.01, next(self.order), to, data))
            return
        copies = 1 + (self.random.random() < self.line.duplicates)
        if self.line.drop_next[word] > 0:
            self.line.drop_next[word] -= 1
            copies = 0
        for _ in range(copies):
            if self.random.random() >= self.line.loss:
                at = self.now + 0.001 + self.random.random() * self.line.jitter
                heappush(self.wire, (at, next(self.order), to, data))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            self.drain()
            times = [side.get_timer() for side in self.sides.values()]
            times += [heap[0][0] for heap in (self.wire, self.plans) if heap]
            at = min((t for t in times if t is not None), default=end)
            if at > end or not any(t is not None for t in times):
                break
            self.now = max(self.now, at)
            while self.wire and self.wire[0][0] <= self.now:
                _, _, to, data = heappop(self.wire)
                message = parse_message(data)
                self.sides[to].receive(message, flow(to, self.connection), self.now)
            while self.plans and self.plans[0][0] <= self.now:
                heappop(self.plans)[2]()  # type: ignore[operator]
            for side in self.sides.values():
                side.handle_timer(self.now)
        self.now = end

    def nothing_left(self) -> bool:
        return all(
            len(s) == 0
            and s.get_timer() is None
            and not (s._alarms._deadlines or any(vars(s.table).values()))
            for s in self.sides.values()
        )


class Calls(World):
    """A calls and asks, cancels some of it and acknowledges; B rings, answers, repeats its 2xx."""

    def __init__(self, seed: int, line: Line, reliable: bool = False) -> None:
        super().__init__(seed, line, reliable)
        self.asked: list[ClientTransaction] = []
        self.outcomes: dict[ClientTransaction, list[str]] = {}
        self.arrived: Counter[tuple[str, str]] = Counter()
        self.cancelled: Counter[ServerTransaction] = Counter()
        self.open: dict[ServerTransaction, Response | None] = {}
        """B's: those not answered; or whose 2xx has no ACK yet."""

    def ask(self, method: str, cancel_after: float | None) -> None:
        way = flow("a", self.connection)
        transaction = self.sides["a"].send_request(request(method), way, self.now)
        self.asked.append(transaction)
        self.outcomes[transaction] = []
        if cancel_after is not None:
            self.later(cancel_after, lambda: self.sides["a"].cancel(transaction, self.now))

    def told(self, side: str, event: TransactionEvent) -> None:
        match event:
            case ResponseReceived(transaction, response) if response.status >= 200:
                self.outcomes[transaction].append(str(response.status))
                if response.status == 200 and transaction.request.method == "INVITE":
                    ack = Request("ACK", Uri.parse("sip:b@b"), transaction.request.headers.copy())
                    ack.headers.remove("Via")
                    ack.headers.set("CSeq", "1 ACK")
                    ack.headers.set("To", response.headers.get("To") or "")
                    self.sides["a"].send_once(ack, transaction.flow)
            case Failed(transaction, reason):
                assert isinstance(transaction, ClientTransaction)
                self.outcomes[transaction].append(reason)
            case RequestReceived(transaction, received, _):
                self.arrived[received.via.branch or "", received.method] += 1
                self.open[transaction] = None
                self.later(self.random.random() * 2, lambda: self.ring(transaction))
            case Cancelled(transaction, _):
                assert self.open[transaction] is None
                self.cancelled[transaction] += 1
                self.answer(transaction, 487)
            case AckReceived(received, _):
                for transaction in tuple(self.open):
                    if transaction.request.call_id == received.call_id:
                        del self.open[transaction]

    def ring(self, transaction: ServerTransaction) -> None:
        if transaction.request.method != "INVITE":
            self.answer(transaction, self.random.choice([200, 404]))
        elif transaction in self.open:
            response = respond(transaction.request, 180, to_tag="b")
            self.sides["b"].respond(transaction, response, self.now)
            answer = self.random.choice([200, 486])
            self.later(self.random.random() * 3, lambda: self.answer(transaction, answer))

    def answer(self, transaction: ServerTransaction, status: int) -> None:
        if transaction not in self.open or self.open[transaction] is not None:
            return
        response = respond(transaction.request, status, to_tag="b")
        self.sides["b"].respond(transaction, response, self.now)
        if status == 200 and transaction.request.method == "INVITE":
            self.open[transaction] = response
            self.later(T1, lambda: self.repeat(transaction, T1, self.now))
        else:
            del self.open[transaction]

    def repeat(self, transaction: ServerTransaction, waited: float, since: float) -> None:
        """§13.3.1.4"""
        response = self.open.get(transaction)
        if response is None:
            return
        if self.now - since >= TRANSACTION_S:
            del self.open[transaction]
            return
        self.sides["b"].respond(transaction, response, self.now)
        wait = min(2 * waited, T2)
        self.later(wait, lambda: self.repeat(transaction, wait, since))


cancels = st.one_of(st.none(), st.floats(0, 6))
questions = st.lists(
    st.tuples(st.sampled_from(["INVITE", "INVITE", "BYE", "OPTIONS"]), cancels, st.floats(0, 3)),
    min_size=1,
    max_size=8,
)


def play(calls: Calls, asked: list[tuple[str, float | None, float]]) -> None:
    for method, cancel, at in asked:
        calls.later(at, lambda m=method, c=cancel: calls.ask(m, c))
    calls.run(LONG)


def check(calls: Calls, timeouts: bool = True) -> None:
    for transaction, outcome in calls.outcomes.items():
        assert outcome, transaction
        accepted = transaction.request.method == "INVITE" and set(outcome) == {"200"}
        assert accepted or len(outcome) == 1
        assert timeouts or "timeout" not in outcome
    assert all(n == 1 for n in calls.arrived.values())
    assert all(n == 1 for n in calls.cancelled.values())
    assert not calls.open
    assert calls.nothing_left()


@given(
    questions,
    st.integers(0, 10**6),
    st.floats(0, 0.4),
    st.floats(0, 1),
    st.floats(0, 0.4),
)
def test_every_request_has_one_outcome_whatever_the_network_does(
    asked: list[tuple[str, float | None, float]],
    seed: int,
    loss: float,
    duplicates: float,
    jitter: float,
) -> None:
    calls = Calls(seed, Line(loss, duplicates, jitter))
    play(calls, asked)
    assert len(calls.outcomes) == len(asked)
    check(calls)


@settings(max_examples=50)
@given(questions, st.integers(0, 10**6), st.booleans())
def test_nothing_times_out_on_a_network_that_only_delays_and_duplicates(
    asked: list[tuple[str, float | None, float]], seed: int, reliable: bool
) -> None:
    calls = Calls(seed, Line(0, 0.5, 0.4), reliable)
    play(calls, asked)
    check(calls, timeouts=False)
    if reliable:
        assert calls.sent["INVITE"] == sum(method == "INVITE" for method, _, _ in asked)


def test_without_a_network_every_request_times_out_once() -> None:
    calls = Calls(1, Line(loss=1.0))
    play(calls, [("INVITE", None, 0), ("INVITE", 3.0, 0), ("BYE", None, 1), ("OPTIONS", 1.0, 0)])
    assert list(calls.outcomes.values()) == [["timeout"]] * 4
    assert calls.nothing_left()


class Refusing(World):
    """B refuses every INVITE at once."""

    told_a: list[str]

    def told(self, side: str, event: TransactionEvent) -> None:
        self.told_a = getattr(self, "told_a", [])
        if isinstance(event, RequestReceived):
            self.transaction = event.transaction
            response = respond(event.request, 486, to_tag="b")
            self.sides["b"].respond(event.transaction, response, self.now)
        elif isinstance(event, ResponseReceived):
            self.told_a.append(str(event.response.status))


@pytest.mark.parametrize("lost", [1, 2, 4])
def test_a_lost_ack_of_a_refusal_is_repaired_by_the_next_repeat(lost: int) -> None:
    world = Refusing(line=Line(drop_next=Counter(ACK=lost)))
    world.sides["a"].send_request(request(), flow("a"), 0)
    world.run(20)
    assert world.told_a == ["486"]
    assert world.sent["486"] == world.sent["ACK"] == lost + 1
    world.run(LONG)
    assert world.sent["486"] == lost + 1
    assert world.nothing_left()


def test_a_lost_refusal_is_repaired_by_its_repeat() -> None:
    world = Refusing(line=Line(drop_next=Counter({"486": 3})))
    world.sides["a"].send_request(request(), flow("a"), 0)
    world.run(LONG)
    assert world.told_a == ["486"]
    assert world.nothing_left()


def test_a_2xx_that_crosses_with_the_cancel_reaches_the_caller() -> None:
    calls = Calls(0, Line())
    calls.ask("INVITE", None)
    calls.run(0.1)
    (transaction,) = calls.outcomes
    (server,) = calls.open
    calls.sides["b"].respond(server, respond(server.request, 180, to_tag="b"), calls.now)
    calls.run(0.01)
    calls.answer(server, 200)
    calls.sides["a"].cancel(transaction, calls.now)
    calls.run(LONG)
    assert set(calls.outcomes[transaction]) == {"200"}
    assert not calls.cancelled
    assert calls.nothing_left()


def test_the_user_can_do_all_it_wants_with_what_is_long_over() -> None:
    calls = Calls(0, Line())
    play(calls, [("INVITE", None, 0), ("BYE", None, 0)])
    for transaction in calls.asked:
        calls.sides["a"].cancel(transaction, calls.now)
        response = respond(transaction.request, 200, to_tag="b")
        server = ServerTransaction(transaction.request, flow("b"), transaction.key, flow("b"))
        server.state = TransactionState.TERMINATED
        calls.sides["b"].respond(server, response, calls.now)
    calls.sides["a"].flow_failed(flow("a"), calls.now)
    calls.run(1)
    assert calls.nothing_left()


# --- bounds ---


def flood(side: Transactions, number: int, now: float, body: bytes = b"") -> Counter[int]:
    """That many requests of distinct branches; the statuses of what is sent back at once."""
    statuses: Counter[int] = Counter()
    way, one = flow("b"), request("OPTIONS", body)
    for i in range(number):
        headers = one.headers.copy()
        headers.prepend("Via", f"SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK{now}-{i}")
        side.receive(Request("OPTIONS", one.uri, headers, body), way, now)
        while side.next_event() is not None:
            statuses[0] += 1
        for data, _ in side.messages_to_send():
            statuses[int(data[8:11])] += 1
    return statuses


def test_a_flood_of_distinct_requests_is_held_to_a_bound_and_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_table, "MAX_TRANSACTIONS", 1000)
    side = Transactions(sent_by)
    assert flood(side, 30_000, 0.0) == {0: 1000, 503: 29_000}
    assert len(side) == 1000
    assert len(side._alarms._deadlines) == 2000
    assert len(side.table._seen) <= 1000
    side.handle_timer(TRANSACTION_S)
    side.messages_to_send()
    assert flood(side, 1, TRANSACTION_S) == {0: 1}
    assert len(side) == 1
    assert side.table._bytes < 10_000


def test_large_bodies_reach_the_bound_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_table, "MAX_BYTES", 1_000_000)
    side = Transactions(sent_by)
    statuses = flood(side, 100, 0.0, bytes(60_000))
    assert statuses[0] == 16
    assert statuses[503] == 84


def test_calls_in_progress_go_on_while_all_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_table, "MAX_TRANSACTIONS", 10)
    side = Transactions(sent_by)
    via = "SIP/2.0/UDP 192.0.2.1;branch=z9hG4bKcall"
    invite = request(via=via)
    side.receive(invite, flow("b"), 0)
    received = side.next_event()
    assert isinstance(received, RequestReceived)
    flood(side, 100, 0.0)
    cancel = Request("CANCEL", invite.uri, invite.headers.copy())
    cancel.headers.set("CSeq", "1 CANCEL")
    cancel.headers.set("Via", via)
    side.receive(cancel, flow("b"), 0)
    assert isinstance(side.next_event(), Cancelled)
    side.respond(received.transaction, respond(invite, 487, to_tag="b"), 0)
    assert [data[8:11] for data, _ in side.messages_to_send()] == [b"200", b"487"]
    ours = side.send_request(request("BYE"), flow("b"), 0)
    assert ours.state is TransactionState.TRYING


def test_many_transactions_that_come_and_go_leave_no_heap_of_stopped_timers() -> None:
    side = Transactions(sent_by)
    way = flow("b", connection=1)
    for i in range(5000):
        via = f"SIP/2.0/TCP 192.0.2.1;branch=z9hG4bK{i}"
        side.receive(request("OPTIONS", via=via), way, 0)
        event = side.next_event()
        assert isinstance(event, RequestReceived)
        side.respond(event.transaction, respond(event.request, 200, to_tag="b"), 0)
        side.messages_to_send()
    assert len(side) == 0
    assert len(side._alarms._deadlines) <= STOPPED_ALARMS
    assert side.get_timer() is None


def seconds_for_100(live: int) -> float:
    """CPU time to send 100 requests and come to their first repeats, while so many others wait."""
    side = Transactions(sent_by)
    for _ in range(live):
        side.send_request(request("OPTIONS"), flow("a", 1), 0)
    side.messages_to_send()
    best = 1.0
    for run in range(6):  # the others repeat in some of them
        given = [request("OPTIONS") for _ in range(100)]
        started = thread_time()
        for one in given:
            side.send_request(one, flow("a"), run)
            side.get_timer()
        side.handle_timer(run + T1)
        best = min(best, thread_time() - started)
        assert len(side.messages_to_send()) >= 200
    return best


@pytest.mark.slow
def test_ten_thousand_live_transactions_do_not_slow_down_the_next() -> None:
    assert seconds_for_100(10_000) < 10 * seconds_for_100(10)
