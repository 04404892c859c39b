"""The four machines, one at a time, by what they send and say and when."""

from itertools import pairwise

import pytest

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import (
    MessageError,
    Request,
    Response,
    parse_message,
    respond,
)
from offhook.telephony.sip.transactions.transaction import (
    CLIENT,
    INVITE_CLIENT,
    INVITE_SERVER,
    SERVER,
    Action,
    Event,
    Table,
    Timer,
    TransactionState,
)
from offhook.telephony.sip.transactions.transactions import (
    AckReceived,
    Cancelled,
    Failed,
    RequestReceived,
    ResponseReceived,
    Transactions,
)

UDP = Flow("UDP", ("192.0.2.9", 5080), ("192.0.2.1", 5060))
TCP = Flow("TCP", ("192.0.2.9", 5080), ("192.0.2.1", 5060), 7)
BRANCH = "z9hG4bKone"


def request(
    method: str = "INVITE",
    via: str = f"SIP/2.0/UDP 192.0.2.9:5080;branch={BRANCH}",
    cseq: int = 1,
    to_tag: str = "",
    call_id: str = "call",
    more: str = "",
) -> Request:
    text = (
        f"{method} sip:agent@192.0.2.1 SIP/2.0\r\nVia: {via}\r\nFrom: <sip:a@x>;tag=from\r\n"
        f"To: <sip:agent@x>{f';tag={to_tag}' if to_tag else ''}\r\nCall-ID: {call_id}\r\n"
        f"CSeq: {cseq} {method}\r\nMax-Forwards: 70\r\n{more}\r\n"
    )
    message = parse_message(text.encode())
    assert isinstance(message, Request)
    return message


def ours(method: str = "INVITE") -> Request:
    """As a user gives it: without a Via."""
    made = request(method, more="Route: <sip:p1;lr>\r\nRoute: <sip:p2;lr>\r\n")
    made.headers.remove("Via")
    return made


class Side:
    """Transactions with a clock, and all that they have sent and said, with the times."""

    def __init__(self) -> None:
        self.transactions = Transactions(lambda flow: f"{flow.local[0]}:{flow.local[1]}")
        self.now = 0.0
        self.sent: list[tuple[float, Request | Response, Flow]] = []
        self.said: list[object] = []

    def take(self) -> None:
        for data, flow in self.transactions.messages_to_send():
            self.sent.append((round(self.now, 3), parse_message(data), flow))
        while (event := self.transactions.next_event()) is not None:
            self.said.append(event)

    def run(self, until: float) -> None:
        """Let time pass."""
        self.take()
        while (due := self.transactions.get_timer()) is not None and due <= until:
            self.now = max(self.now, due)
            self.transactions.handle_timer(self.now)
            self.take()
        self.now = until

    def receive(self, message: Request | Response, flow: Flow = UDP) -> None:
        self.transactions.receive(message, flow, self.now)
        self.take()

    def send(self, message: Request, flow: Flow = UDP):  # type: ignore[no-untyped-def]
        transaction = self.transactions.send_request(message, flow, self.now)
        self.take()
        return transaction

    def respond(self, transaction, response: Response) -> None:  # type: ignore[no-untyped-def]
        self.transactions.respond(transaction, response, self.now)
        self.take()

    def answer(self, transaction, status: int, to_tag: str = "to") -> None:  # type: ignore[no-untyped-def]
        """As the far end would."""
        wire = parse_message(transaction.request.serialize())
        assert isinstance(wire, Request)
        self.receive(respond(wire, status, to_tag=to_tag), transaction.flow)

    def times(self, what: str) -> list[float]:
        """When requests of a method, or responses of a status, were sent."""
        return [at for at, m, _ in self.sent if what == name(m)]


def name(message: Request | Response) -> str:
    return message.method if isinstance(message, Request) else str(message.status)


# --- the tables ---


@pytest.mark.parametrize("table", [INVITE_CLIENT, CLIENT, INVITE_SERVER, SERVER])
def test_every_state_is_reached_and_left(table: Table) -> None:
    begun = {state for state, event in table if event is Event.START}
    reached = begun | {state for state, _ in table.values()}
    assert reached == {state for state, _ in table} | {TransactionState.TERMINATED}
    for state in reached - {TransactionState.TERMINATED}:
        assert any(s is state and row[0] is not state for (s, _), row in table.items())


@pytest.mark.parametrize("table", [INVITE_CLIENT, CLIENT, INVITE_SERVER, SERVER])
def test_every_timer_that_is_started_has_a_row_where_it_may_fire(table: Table) -> None:
    for state, actions in table.values():
        for timer in (a for a in actions if isinstance(a, Timer)):
            assert (state, timer) in table


@pytest.mark.parametrize("table", [INVITE_CLIENT, CLIENT])
def test_a_client_that_ends_without_a_response_says_so(table: Table) -> None:
    for (state, _), (after, actions) in table.items():
        if after is TransactionState.TERMINATED and state not in (
            TransactionState.COMPLETED,
            TransactionState.ACCEPTED,
        ):
            assert actions in ((Action.FAIL,), (Action.BREAK,))


# --- client ---


def test_an_invite_is_repeated_with_doubling_waits_until_the_caller_is_told_after_32_s() -> None:
    side = Side()
    transaction = side.send(ours())
    side.run(100)
    assert side.times("INVITE") == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5]
    assert side.said == [Failed(transaction, "timeout")]
    assert len({m.serialize() for _, m, _ in side.sent}) == 1
    assert side.now - 32 >= 0
    assert len(side.transactions) == 0


def test_other_requests_are_repeated_at_most_every_4_s() -> None:
    side = Side()
    transaction = side.send(ours("BYE"))
    side.run(100)
    assert side.times("BYE") == [0, 0.5, 1.5, 3.5, 7.5, 11.5, 15.5, 19.5, 23.5, 27.5, 31.5]
    assert side.said == [Failed(transaction, "timeout")]


def test_after_a_provisional_response_other_requests_are_repeated_every_4_s_until_32_s() -> None:
    side = Side()
    transaction = side.send(ours("BYE"))
    side.run(0.1)
    side.answer(transaction, 100)
    side.run(100)
    assert side.times("BYE") == [0, 0.5, 4.5, 8.5, 12.5, 16.5, 20.5, 24.5, 28.5]
    assert [type(e) for e in side.said] == [ResponseReceived, Failed]


def test_over_a_stream_nothing_is_repeated_but_the_wait_is_the_same() -> None:
    for method in ("INVITE", "BYE"):
        side = Side()
        transaction = side.send(ours(method), TCP)
        side.run(31.9)
        assert not side.said
        side.run(32)
        assert side.times(method) == [0]
        assert side.said == [Failed(transaction, "timeout")]


def test_a_provisional_response_stops_the_repeats_of_an_invite_for_as_long_as_it_rings() -> None:
    side = Side()
    transaction = side.send(ours())
    side.run(0.7)
    side.answer(transaction, 180)
    side.run(120)
    assert side.times("INVITE") == [0, 0.5]
    side.answer(transaction, 486)
    assert [e.response.status for e in side.said] == [180, 486]  # type: ignore[attr-defined]


def test_a_refusal_is_acknowledged_hop_by_hop_as_often_as_it_comes_but_told_once() -> None:
    side = Side()
    transaction = side.send(ours())
    for _ in range(3):
        side.answer(transaction, 486)
    acks = [m for _, m, _ in side.sent if name(m) == "ACK"]
    assert len(acks) == 3
    ack, invite = acks[0], transaction.request
    assert isinstance(ack, Request)
    assert [str(v) for v in ack.vias] == [str(invite.via)]
    assert str(ack.uri) == str(invite.uri)
    assert ack.to.tag == "to"
    assert [str(r) for r in ack.routes] == [str(r) for r in invite.routes]
    assert (ack.cseq.number, ack.call_id) == (invite.cseq.number, invite.call_id)
    assert len(side.said) == 1
    side.run(31.9)
    assert len(side.transactions) == 1
    side.run(32.1)
    assert len(side.transactions) == 0


def test_each_2xx_of_an_accepted_invite_is_told_for_32_s_and_never_acknowledged_here() -> None:
    side = Side()
    transaction = side.send(ours())
    side.answer(transaction, 200, "one")
    side.answer(transaction, 200, "one")
    side.answer(transaction, 486)
    side.run(31)
    side.answer(transaction, 200, "forked")
    side.run(33)
    side.answer(transaction, 200, "late")
    tags = [e.response.to.tag for e in side.said]  # type: ignore[attr-defined]
    assert tags == ["one", "one", "forked"]
    assert side.times("ACK") == []
    assert len(side.transactions) == 0


def test_repeats_of_a_final_response_to_another_request_are_absorbed() -> None:
    side = Side()
    transaction = side.send(ours("OPTIONS"))
    side.answer(transaction, 200)
    side.answer(transaction, 200)
    side.run(4.9)
    side.answer(transaction, 200)
    assert len(side.said) == 1
    side.run(5.1)
    assert len(side.transactions) == 0


def test_a_response_for_somebody_else_or_to_no_request_of_ours_is_dropped() -> None:
    side = Side()
    transaction = side.send(ours())
    response = respond(transaction.request, 200, to_tag="to")
    response.headers.add("Via", "SIP/2.0/UDP elsewhere;branch=z9hG4bKx")
    side.receive(response)
    side.receive(respond(request(), 200, to_tag="to"))
    assert not side.said


def test_a_request_goes_out_with_a_via_of_ours_and_the_users_own_stays_as_it_was() -> None:
    side = Side()
    given = ours()
    first, second = side.send(given), side.send(given)
    assert "Via" not in given.headers
    via = first.request.via
    assert (via.transport, via.host, via.port, via.rport) == ("UDP", "192.0.2.1", 5060, "")
    assert via.branch.startswith("z9hG4bK")
    assert via.branch != second.request.via.branch


def test_a_flow_that_breaks_ends_the_requests_on_it_and_no_others() -> None:
    side = Side()
    broken, ringing = side.send(ours(), TCP), side.send(ours(), TCP)
    other, done = side.send(ours()), side.send(ours("BYE"), TCP)
    side.answer(ringing, 180)
    side.answer(done, 200)
    side.said.clear()
    side.transactions.flow_failed(TCP, side.now)
    side.take()
    assert side.said == [Failed(broken, "transport"), Failed(ringing, "transport")]
    side.answer(other, 200)
    assert len(side.said) == 3


# --- CANCEL ---


def test_a_cancel_waits_for_a_provisional_response_and_has_the_branch_of_its_invite() -> None:
    side = Side()
    transaction = side.send(ours())
    side.transactions.cancel(transaction, side.now)
    side.run(0.3)
    assert side.times("CANCEL") == []
    side.answer(transaction, 180)
    side.answer(transaction, 180)
    assert side.times("CANCEL") == [0.3]
    cancel = next(m for _, m, _ in side.sent if name(m) == "CANCEL")
    assert cancel.via.branch == transaction.request.via.branch
    assert (cancel.cseq.number, cancel.to.tag) == (1, "")
    assert [str(r) for r in cancel.routes] == [str(r) for r in transaction.request.routes]


def test_a_cancelled_invite_ends_with_its_487_and_the_cancels_own_responses_are_not_told() -> None:
    side = Side()
    transaction = side.send(ours())
    side.answer(transaction, 180)
    side.transactions.cancel(transaction, side.now)
    side.transactions.cancel(transaction, side.now)
    side.take()
    assert side.times("CANCEL") == [0]
    cancel = next(m for _, m, _ in side.sent if name(m) == "CANCEL")
    assert isinstance(cancel, Request)
    side.receive(respond(cancel, 200, to_tag="to"))
    side.answer(transaction, 487)
    assert [e.response.status for e in side.said] == [180, 487]  # type: ignore[attr-defined]
    side.run(40)
    assert len(side.transactions) == 0


def test_a_cancelled_invite_that_is_never_answered_ends_32_s_after_the_cancel() -> None:
    side = Side()
    transaction = side.send(ours())
    side.answer(transaction, 180)
    side.run(10)
    side.transactions.cancel(transaction, side.now)
    side.run(41.9)
    assert len(side.said) == 1
    side.run(42)
    assert side.said[1:] == [Failed(transaction, "timeout")]
    assert len(side.transactions) == 0


def test_there_is_nothing_to_cancel_after_a_final_response() -> None:
    side = Side()
    transaction = side.send(ours())
    side.answer(transaction, 200)
    side.transactions.cancel(transaction, side.now)
    side.run(100)
    assert side.times("CANCEL") == []


def test_the_peers_cancel_is_answered_and_told_once_while_the_invite_is_unanswered() -> None:
    side = Side()
    side.receive(request())
    (received,) = side.said
    assert isinstance(received, RequestReceived)
    side.respond(received.transaction, respond(received.request, 180, to_tag="mine"))
    for _ in range(2):
        side.receive(request("CANCEL"))
    assert side.said[1:] == [Cancelled(received.transaction, side.said[1].request)]  # type: ignore[attr-defined]
    assert side.said[1].request.method == "CANCEL"  # type: ignore[attr-defined]
    responses = [m for _, m, _ in side.sent if name(m) == "200"]
    assert len(responses) == 2
    assert responses[0].to.tag == "mine"
    side.respond(received.transaction, respond(received.request, 487, to_tag="mine"))
    assert side.times("487") == [0]


def test_a_cancel_that_comes_after_the_answer_changes_nothing() -> None:
    side = Side()
    side.receive(request())
    received = side.said.pop()
    assert isinstance(received, RequestReceived)
    side.respond(received.transaction, respond(received.request, 200, to_tag="mine"))
    side.receive(request("CANCEL"))
    assert not side.said
    assert len(side.times("200")) == 2


def test_a_cancel_of_nothing_is_answered_481() -> None:
    side = Side()
    side.receive(request("CANCEL"))
    side.receive(request("CANCEL"))
    assert not side.said
    assert side.times("481") == [0, 0]
    assert len({m.to.tag for _, m, _ in side.sent}) == 1
    assert len(side.transactions) == 0


# --- server ---


def received(side: Side, method: str = "INVITE", flow: Flow = UDP) -> RequestReceived:
    side.receive(request(method), flow)
    event = side.said.pop()
    assert isinstance(event, RequestReceived)
    return event


def test_an_invite_is_told_once_and_answered_100_after_200_ms_of_silence() -> None:
    side = Side()
    received(side)
    side.run(0.1)
    side.receive(request())
    assert not side.sent
    side.run(10)
    assert side.times("100") == [0.2]
    side.receive(request())
    assert side.times("100") == [0.2, 10]
    assert not side.said


def test_no_100_is_sent_once_the_user_has_said_something() -> None:
    side = Side()
    event = received(side)
    side.run(0.1)
    side.respond(event.transaction, respond(event.request, 180, to_tag="mine"))
    side.run(30)
    side.receive(request())
    assert [name(m) for _, m, _ in side.sent] == ["180", "180"]


def test_another_request_is_answered_100_after_3_5_s_and_given_up_after_32() -> None:
    side = Side()
    event = received(side, "REFER")
    side.run(3.4)
    side.receive(request("REFER"))
    assert not side.sent
    side.run(31.9)
    assert side.times("100") == [3.5]
    assert len(side.transactions) == 1
    side.run(32)
    side.respond(event.transaction, respond(event.request, 202, to_tag="mine"))
    assert side.times("202") == []
    assert len(side.transactions) == 0


def test_a_refused_invite_is_repeated_until_the_ack_comes() -> None:
    side = Side()
    event = received(side)
    side.respond(event.transaction, respond(event.request, 486, to_tag="mine"))
    side.run(8)
    assert side.times("486") == [0, 0.5, 1.5, 3.5, 7.5]
    side.receive(request("ACK", to_tag="mine"))
    side.run(12.9)
    side.receive(request())
    side.receive(request("ACK", to_tag="mine"))
    assert len(side.times("486")) == 5
    assert not side.said
    side.run(13.1)
    assert len(side.transactions) == 0


def test_a_refused_invite_without_an_ack_is_given_up_after_32_s() -> None:
    side = Side()
    event = received(side)
    side.respond(event.transaction, respond(event.request, 486, to_tag="mine"))
    side.run(32.1)
    times = side.times("486")
    assert [b - a for a, b in pairwise(times)] == [0.5, 1, 2] + [4] * 7
    assert len(side.transactions) == 0


def test_an_accepted_invite_absorbs_repeats_and_passes_acks_and_the_users_own_repeats() -> None:
    side = Side()
    event = received(side)
    answer = respond(event.request, 200, to_tag="mine")
    side.respond(event.transaction, answer)
    side.receive(request())
    assert side.times("200") == [0]
    side.run(0.5)
    side.respond(event.transaction, answer)
    assert side.times("200") == [0, 0.5]
    side.receive(request("ACK", to_tag="mine"))
    side.receive(request("ACK", "SIP/2.0/UDP 192.0.2.9;branch=z9hG4bKother", to_tag="mine"))
    assert [type(e) for e in side.said] == [AckReceived, AckReceived]
    side.run(31.9)
    assert len(side.transactions) == 1
    side.run(32)
    assert len(side.transactions) == 0


def test_a_final_response_to_another_request_is_given_again_for_32_s_over_udp_only() -> None:
    side = Side()
    event = received(side, "OPTIONS")
    side.respond(event.transaction, respond(event.request, 200, to_tag="mine"))
    side.respond(event.transaction, respond(event.request, 500, to_tag="mine"))
    side.run(31)
    side.receive(request("OPTIONS"))
    assert [name(m) for _, m, _ in side.sent] == ["200", "200"]
    assert not side.said
    side.run(32)
    assert len(side.transactions) == 0
    event = received(side, "OPTIONS", TCP)
    side.respond(event.transaction, respond(event.request, 200, to_tag="mine"))
    assert len(side.transactions) == 0


def test_a_caller_whose_connection_breaks_while_it_rings_is_told_of() -> None:
    side = Side()
    event = received(side, flow=TCP)
    side.transactions.flow_failed(TCP, side.now)
    side.take()
    assert side.said == [Failed(event.transaction, "transport")]
    assert len(side.transactions) == 0
    over_udp = received(side)
    side.said.clear()
    side.transactions.flow_failed(UDP, side.now)
    side.take()
    assert not side.said
    assert over_udp.transaction.state is TransactionState.PROCEEDING


# --- matching, and where responses go ---


def test_requests_without_the_magic_cookie_are_matched_as_in_rfc_2543() -> None:
    side = Side()
    old = "SIP/2.0/UDP 192.0.2.9:5080;branch=1"
    side.receive(request(via=old))
    event = side.said.pop()
    assert isinstance(event, RequestReceived)
    side.receive(request(via=old))
    side.receive(request("CANCEL", via=old))
    assert side.said == [Cancelled(event.transaction, side.said[0].request)]  # type: ignore[attr-defined]
    side.said.clear()
    side.receive(request(via=old, call_id="another"))
    side.receive(request(via=old, cseq=2))
    assert [type(e) for e in side.said] == [RequestReceived] * 2
    side.respond(event.transaction, respond(event.request, 487, to_tag="mine"))
    side.receive(request("ACK", via=old, to_tag="another"))
    assert event.transaction.state is TransactionState.COMPLETED
    side.receive(request("ACK", via=old, to_tag="mine"))
    assert event.transaction.state is TransactionState.CONFIRMED


def test_requests_are_told_apart_by_branch_sent_by_and_method() -> None:
    side = Side()
    for via in (
        "SIP/2.0/UDP 192.0.2.9:5080;branch=z9hG4bKa",
        "SIP/2.0/UDP 192.0.2.9:5080;branch=z9hG4bKb",
        "SIP/2.0/UDP 192.0.2.9:5081;branch=z9hG4bKa",
        "SIP/2.0/UDP 192.0.2.8:5080;branch=z9hG4bKa",
    ):
        side.receive(request(via=via))
        side.receive(request("OPTIONS", via=via))
        side.receive(request("OPTIONS", via=via))
    assert len(side.said) == 8


def test_a_request_that_came_by_two_ways_is_marked_the_second_time() -> None:
    side = Side()
    for branch in "ab":
        side.receive(request(via=f"SIP/2.0/UDP p{branch};branch=z9hG4bK{branch}"))
    side.receive(request(via="SIP/2.0/UDP pc;branch=z9hG4bKc", cseq=2))
    side.receive(request("INFO", via="SIP/2.0/UDP pa;branch=z9hG4bKd", to_tag="dialog"))
    side.receive(request("INFO", via="SIP/2.0/UDP pa;branch=z9hG4bKe", to_tag="dialog"))
    merged = [e.transaction.merged for e in side.said]  # type: ignore[attr-defined]
    assert merged == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("via", "stamp", "to"),
    [
        # RFC 3581: both, and back to the source
        ("192.0.2.9;rport;branch=z9hG4bKa", (";rport=5080", ";received=192.0.2.9"), 5080),
        ("10.0.0.1;rport;branch=z9hG4bKa", (";rport=5080", ";received=192.0.2.9"), 5080),
        # RFC 3261 §18.2.1, §18.2.2
        ("192.0.2.9;branch=z9hG4bKa", (), 5060),
        ("192.0.2.9:5070;branch=z9hG4bKa", (), 5070),
        ("phone.example.com:5070;branch=z9hG4bKa", (";received=192.0.2.9",), 5070),
        ("phone.example.com;maddr=203.0.113.1;branch=z9hG4bKa", (";received=192.0.2.9",), 5060),
        # behind a NAT
        ("10.0.0.1:5070;branch=z9hG4bKa", (";received=192.0.2.9",), 5080),
        # a lie is overwritten
        ("192.0.2.9;rport=1;received=1.1.1.1;branch=z9hG4bKa", (";rport=5080",), 5080),
    ],
)
def test_the_via_says_where_a_request_came_from_and_its_response_goes_there(
    via: str, stamp: tuple[str, ...], to: int
) -> None:
    side = Side()
    side.receive(request("OPTIONS", via=f"SIP/2.0/UDP {via}, SIP/2.0/UDP other;branch=z9hG4bKo"))
    event = side.said.pop()
    assert isinstance(event, RequestReceived)
    assert event.flow == UDP
    side.respond(event.transaction, respond(event.request, 200, to_tag="mine"))
    _, response, flow = side.sent[0]
    assert flow == Flow("UDP", ("192.0.2.9", to), UDP.local)
    top, under = response.vias
    assert all(part in str(top) for part in stamp)
    assert str(top).count("received") == any("received" in p for p in stamp) or "1.1.1.1" in via
    assert "1.1.1.1" not in str(top)
    assert str(under) == "SIP/2.0/UDP other;branch=z9hG4bKo"


def test_over_ipv6_the_source_is_noted_without_brackets() -> None:
    side = Side()
    flow = Flow("UDP", ("2001:db8::9", 5080), ("2001:db8::1", 5060))
    side.receive(request("OPTIONS", via="SIP/2.0/UDP [2001:db8::8];rport;branch=z9hG4bKa"), flow)
    event = side.said.pop()
    assert isinstance(event, RequestReceived)
    assert (event.request.via.received, event.request.via.rport) == ("2001:db8::9", "5080")


def test_over_a_stream_the_response_goes_back_by_the_connection() -> None:
    side = Side()
    side.receive(request("OPTIONS", via="SIP/2.0/TCP 192.0.2.9:5070;branch=z9hG4bKa"), TCP)
    event = side.said.pop()
    assert isinstance(event, RequestReceived)
    side.respond(event.transaction, respond(event.request, 200, to_tag="mine"))
    assert side.sent[0][2] == TCP


def test_what_is_refused_without_a_transaction_leaves_nothing_behind() -> None:
    side = Side()
    for _ in range(2):
        side.transactions.refuse(request("OPTIONS"), UDP, 403, headers=[("Retry-After", "5")])
    side.transactions.refuse(request("ACK"), UDP, 403)
    side.take()
    assert [name(m) for _, m, _ in side.sent] == ["403", "403"]
    assert side.sent[0][1].headers.get("Retry-After") == "5"
    assert len({m.to.tag for _, m, _ in side.sent}) == 1
    assert len(side.transactions) == 0


def test_what_could_not_be_read_is_refused_as_far_as_it_was() -> None:
    side = Side()
    broken = b"OPTIONS sip:a SIP/2.0\r\nVia: SIP/2.0/UDP x;rport;branch=1\r\nCSeq: x\r\n\r\n"
    with pytest.raises(MessageError) as raised:
        parse_message(broken)
    assert raised.value.request is not None
    side.transactions.refuse(raised.value.request, UDP, raised.value.status, raised.value.reason)
    ((data, flow),) = side.transactions.messages_to_send()
    assert data.startswith(b"SIP/2.0 400 ")
    assert b"rport=5080" in data
    assert flow == UDP
