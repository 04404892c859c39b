"""A phone that comes back on another port and says nothing in its call: where our requests go."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request, Response, parse_message, respond, sdp_of
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import AnswerReceived, Ended
from offhook.telephony.sip.transactions.flow_failover import SILENCE_S
from offhook.telephony.sip.transactions.transaction import TRANSACTION_S
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.telephony.sip.user_agent import CallReceived, SessionHappened, UserAgent

US = ("10.53.0.1", 5060)
NAT = "10.53.0.2"
OLD, NEW, NEIGHBOUR = (Flow("UDP", (NAT, port), US) for port in (40001, 40002, 40003))
INSIDE = ("192.168.77.2", 5060)
"""The phone's address, as it knows it."""
NEAR = ("10.53.0.50", 5060)
"""The same, where its network has the numbers of ours."""
SDP = (
    "v=0\r\no=- 1 1 IN IP4 10.53.0.2\r\ns=-\r\nc=IN IP4 10.53.0.2\r\nt=0 0\r\n"
    "m=audio 4000 RTP/AVP 0\r\n"
)
TRUNK = Trunk("phones", addresses=(NAT,))


def message(
    method: str,
    to_tag: str = "",
    *,
    cseq: int = 1,
    call_id: str = "call",
    user: str = "ann",
    at: tuple[str, int] = INSIDE,
    sent_by: str = "",
    contact: str = "",
    routes: Sequence[str] = (),
) -> bytes:
    body = SDP if method == "INVITE" else ""
    host, port = at
    lines = [
        f"{method} sip:agent@{US[0]} SIP/2.0",
        f"Via: SIP/2.0/UDP {sent_by or f'{host}:{port};rport'};branch=z9hG4bK{method}{cseq}{user}",
        *routes,
        f"From: <sip:{user}@phones.example>;tag=far",
        f"To: <sip:agent@{US[0]}>" + (f";tag={to_tag}" if to_tag else ""),
        f"Call-ID: {call_id}",
        f"CSeq: {cseq} {method}",
        f"Contact: <sip:{user}@{contact or f'{host}:{port}'}>",
        "Max-Forwards: 70",
        *(["Content-Type: application/sdp"] if body else []),
        f"Content-Length: {len(body)}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


class Edge:
    """Our side of one call, on a clock of its own."""

    def __init__(self, trunk: Trunk = TRUNK, flow: Flow = OLD, **invite: object) -> None:
        self.now = 0.0
        self.ended: list[Ended] = []
        self.answers: list[AnswerReceived] = []
        self.agent = UserAgent(
            SipSettings(trunks=(trunk,)),
            lambda flow: US,
            lambda transport, host, port: Flow(transport, (host, port), US),
        )
        self.session = self._call(flow, **invite)

    def _call(self, flow: Flow, **invite: object) -> Session:
        self.agent.receive(message("INVITE", **invite), flow, self.now)  # type: ignore[arg-type]
        received = self.agent.next_event()
        assert isinstance(received, CallReceived)
        received.session.accept(SDP, self.now)
        self.agent.session_changed(received.session, self.now)
        ack = message("ACK", received.session.local_tag, **invite)  # type: ignore[arg-type]
        self.agent.receive(ack, flow, self.now)
        self.sent()
        return received.session

    def receive(self, data: bytes, flow: Flow) -> None:
        self.agent.receive(data, flow, self.now)

    def hang_up(self) -> None:
        self.session.hang_up(self.now)
        self.agent.session_changed(self.session, self.now)

    def reoffer(self) -> None:
        self.session.reoffer(SDP, self.now)
        self.agent.session_changed(self.session, self.now)

    def sent(self) -> list[tuple[Request, Flow]]:
        while (event := self.agent.next_event()) is not None:
            match event:
                case SessionHappened(_, Ended() as end):
                    self.ended.append(end)
                case SessionHappened(_, AnswerReceived() as answer):
                    self.answers.append(answer)
        parsed = [(parse_message(data), flow) for data, flow in self.agent.messages_to_send()]
        return [(m, flow) for m, flow in parsed if isinstance(m, Request)]

    def passes(self, seconds: float) -> list[tuple[Request, Flow]]:
        sent, end = self.sent(), self.now + seconds
        while (timer := self.agent.get_timer()) is not None and timer <= end:
            assert timer > self.now - 1e-9
            self.now = max(self.now, timer)
            self.agent.handle_timer(self.now)
            sent += self.sent()
        self.now = end
        return sent

    def replies(self, request: Request, flow: Flow, status: int) -> None:
        body = SDP.encode() if request.method == "INVITE" and status == 200 else b""
        response = respond(
            request,
            status,
            headers=[("Contact", f"<sip:ann@{INSIDE[0]}:{INSIDE[1]}>")],
            body=body,
            content_type="application/sdp" if body else "",
        )
        self.receive(response.serialize(), flow)


def ways(sent: list[tuple[Request, Flow]]) -> list[tuple[str, int]]:
    """Where something went, in order, each place once in a row."""
    places = [flow.remote for _, flow in sent]
    return [p for n, p in enumerate(places) if n == 0 or p != places[n - 1]]


KEEP_ALIVE = b"\r\n\r\n"
OPTIONS = message("OPTIONS", call_id="question")
REGISTER = message("REGISTER", call_id="binding")
RENAMED = message("OPTIONS", call_id="question", at=(NAT, 40002))
"""Of a phone that has learnt its new address from a response to it."""


@pytest.mark.parametrize("sign", [KEEP_ALIVE, OPTIONS, REGISTER, RENAMED])
def test_a_bye_reaches_a_phone_on_another_port_that_said_nothing_in_its_call(sign: bytes) -> None:
    edge = Edge()
    edge.receive(sign, NEW)
    edge.sent()
    edge.hang_up()
    sent = edge.passes(2 * SILENCE_S - 0.1)
    assert ways(sent) == [OLD.remote, NEW.remote]
    assert len({(r.method, r.via.branch) for r, _ in sent}) == 1
    assert len([flow for _, flow in sent if flow == NEW]) == 4
    edge.replies(sent[-1][0], NEW, 200)
    assert edge.passes(2 * TRANSACTION_S) == []
    assert len(edge.ended) == 1
    assert not edge.agent.busy


def test_a_phone_that_comes_back_while_the_bye_waits_is_hung_up() -> None:
    edge = Edge()
    edge.hang_up()
    assert ways(edge.passes(9.0)) == [OLD.remote]
    edge.receive(KEEP_ALIVE, NEW)
    sent = edge.passes(4.0)
    assert ways(sent)[-1] == NEW.remote
    edge.replies(sent[-1][0], NEW, 200)
    assert edge.passes(TRANSACTION_S) == []
    assert not edge.agent.busy


def test_a_bye_is_given_up_when_the_time_of_its_transaction_is_up() -> None:
    edge = Edge()
    edge.receive(KEEP_ALIVE, NEW)
    edge.hang_up()
    sent = edge.passes(TRANSACTION_S - 0.1)
    assert ways(sent) == [OLD.remote, NEW.remote, OLD.remote]
    edge.passes(0.2)
    assert not edge.agent.busy
    assert edge.passes(2 * TRANSACTION_S) == []


def test_a_neighbour_behind_the_same_nat_gets_nothing() -> None:
    """It has said who it is, or comes from another address."""
    edge = Edge()
    edge.receive(message("OPTIONS", call_id="another", user="bob", at=("192.168.77.3", 5060)), NEW)
    edge.receive(KEEP_ALIVE, NEW)
    edge.receive(KEEP_ALIVE, Flow("UDP", ("10.53.0.9", 40001), US))
    edge.sent()
    edge.hang_up()
    assert ways(edge.passes(2 * TRANSACTION_S)) == [OLD.remote]


def test_a_neighbour_of_unknown_name_says_no_and_the_phone_is_hung_up() -> None:
    edge = Edge()
    edge.receive(KEEP_ALIVE, NEW)
    edge.receive(KEEP_ALIVE, NEIGHBOUR)
    edge.hang_up()
    sent = edge.passes(SILENCE_S + 0.1)
    assert ways(sent) == [OLD.remote, NEIGHBOUR.remote]
    edge.replies(sent[-1][0], NEIGHBOUR, 481)
    sent = edge.sent()
    assert ways(sent) == [NEW.remote]
    edge.replies(sent[-1][0], NEW, 200)
    assert edge.passes(TRANSACTION_S) == []


def test_who_answers_late_is_known_by_where_its_answer_comes_from() -> None:
    edge = Edge()
    edge.receive(OPTIONS, NEW)
    edge.receive(message("OPTIONS", call_id="other", at=("192.168.77.3", 5060)), NEIGHBOUR)
    edge.sent()
    edge.reoffer()
    sent = edge.passes(2 * SILENCE_S + 0.1)
    assert ways(sent) == [OLD.remote, NEW.remote, NEIGHBOUR.remote]
    edge.replies(sent[-1][0], OLD, 200)
    assert [(ack.method, flow) for ack, flow in edge.sent()] == [("ACK", OLD)]
    edge.hang_up()
    assert ways(edge.passes(1.0)) == [OLD.remote]


def test_a_late_refusal_of_a_neighbour_does_not_end_the_search() -> None:
    edge = Edge()
    edge.receive(KEEP_ALIVE, NEW)
    edge.receive(KEEP_ALIVE, NEIGHBOUR)
    edge.hang_up()
    sent = edge.passes(2 * SILENCE_S + 0.1)
    assert ways(sent) == [OLD.remote, NEIGHBOUR.remote, NEW.remote]
    edge.replies(sent[-1][0], NEIGHBOUR, 481)
    sent = edge.passes(0.1)
    assert ways(sent) == [NEW.remote]
    edge.replies(sent[-1][0], NEW, 200)
    assert edge.passes(TRANSACTION_S) == []


def test_an_offer_finds_the_phone_and_the_call_goes_on_there() -> None:
    """The phone whose Contact it is, before another one of the same account."""
    edge = Edge()
    edge.receive(OPTIONS, NEW)
    edge.receive(message("OPTIONS", call_id="other", at=("192.168.77.3", 5060)), NEIGHBOUR)
    edge.sent()
    edge.reoffer()
    sent = edge.passes(SILENCE_S + 0.1)
    assert ways(sent) == [OLD.remote, NEW.remote]
    edge.replies(sent[-1][0], NEW, 200)
    [(ack, flow)] = edge.sent()
    assert (ack.method, flow.remote) == ("ACK", NEW.remote)
    assert [sdp_of(parse_message(message("INVITE")))] == [a.sdp for a in edge.answers]
    edge.hang_up()
    assert ways(edge.passes(1.0)) == [NEW.remote]


def test_only_a_bye_goes_where_nobody_has_said_who_it_is() -> None:
    edge = Edge()
    edge.receive(KEEP_ALIVE, NEW)
    edge.reoffer()
    sent = edge.passes(TRANSACTION_S - 0.1)
    assert ways(sent) == [OLD.remote]
    sent = edge.passes(2 * TRANSACTION_S)
    assert {(r.method, flow.remote[1]) for r, flow in sent} == {("BYE", 40001), ("BYE", 40002)}


def test_what_was_seen_before_the_phone_spoke_last_is_not_where_it_is_now() -> None:
    edge = Edge()
    edge.receive(KEEP_ALIVE, NEW)
    edge.receive(KEEP_ALIVE, OLD)
    edge.hang_up()
    assert ways(edge.passes(TRANSACTION_S)) == [OLD.remote]


SOURCE = OLD.remote
ELSEWHERE = "10.53.0.60:5060"


@pytest.mark.parametrize(
    ("invite", "trunk", "goes"),
    [
        # the Via has an address of our own block, and the phone does not send from it: a NAT
        ({"at": NEAR}, None, [SOURCE, NEAR]),
        ({"at": NEAR}, "source", [SOURCE]),
        ({"at": NEAR}, "as given", [NEAR, SOURCE]),
        ({"at": NEAR, "contact": ELSEWHERE}, None, [SOURCE, ("10.53.0.60", 5060)]),
        # the Via's address is right, its port is not: of a NAT that STUN has not seen
        ({"at": (NAT, 5060)}, None, [SOURCE, (NAT, 5060)]),
        ({"at": (NAT, 5060), "sent_by": f"{NAT}:5060"}, None, [(NAT, 5060), SOURCE]),
        # the Via is right: a Contact elsewhere is meant, and the source is tried if it is silent
        ({"at": SOURCE, "contact": ELSEWHERE}, None, [("10.53.0.60", 5060), SOURCE]),
        ({"at": SOURCE, "contact": ELSEWHERE}, "source", [SOURCE]),
        # the Via has a name, which says nothing
        ({"at": NEAR, "sent_by": "phone.local;rport"}, None, [NEAR, SOURCE]),
        # another private network than the source's, or nearer than it: never
        ({"at": INSIDE}, None, [SOURCE]),
        ({"at": SOURCE, "contact": "127.0.0.1:5060"}, None, [SOURCE]),
        # a proxy in between has its own Via; the Contact is not the proxy's
        (
            {"at": NEAR, "routes": [f"Via: SIP/2.0/UDP {ELSEWHERE};branch=z9hG4bKp"]},
            None,
            [SOURCE, NEAR],
        ),
        (
            {
                "at": ("10.53.0.70", 5060),
                "contact": f"{NEAR[0]}:{NEAR[1]}",
                "routes": [f"Via: SIP/2.0/UDP {ELSEWHERE};branch=z9hG4bKp"],
            },
            None,
            [NEAR, SOURCE],
        ),
    ],
)
def test_where_a_bye_goes_first_and_then(
    invite: dict[str, object], trunk: str | None, goes: list[tuple[str, int]]
) -> None:
    edge = Edge(replace(TRUNK, contact=trunk), **invite)
    edge.hang_up()
    assert ways(edge.passes(2 * SILENCE_S))[:2] == goes


def test_a_contact_that_is_silent_is_not_tried_first_again() -> None:
    edge = Edge(at=OLD.remote, contact=ELSEWHERE)
    edge.reoffer()
    sent = edge.passes(SILENCE_S + 0.1)
    assert ways(sent) == [("10.53.0.60", 5060), SOURCE]
    reply = respond(sent[-1][0], 488)
    assert isinstance(reply, Response)
    edge.receive(reply.serialize(), OLD)
    [(ack, flow)] = edge.sent()
    assert (ack.method, flow.remote) == ("ACK", SOURCE)
    edge.hang_up()
    assert ways(edge.passes(1.0)) == [SOURCE]
