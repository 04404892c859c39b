"""Requests too long for UDP: by TCP, and back to UDP where nobody hears that."""

import pytest

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import Request, parse_message, respond
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.session_events import Ended
from offhook.telephony.sip.transactions.large_requests import (
    LARGE_BYTES,
    TCP_RETRY_S,
    TCP_TIMEOUT_S,
)
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.telephony.sip.user_agent import SessionHappened, UserAgent

US = ("192.0.2.1", 5060)
UDP = Flow("UDP", ("198.51.100.7", 5060), US)
TCP = Flow("TCP", UDP.remote, US, 1)
ELSEWHERE = Flow("UDP", ("203.0.113.9", 5060), US)
TRUNK = Trunk("pbx", server="pbx.example", options_seconds=0)
SDP = (
    "v=0\r\no=- 1 1 IN IP4 198.51.100.7\r\ns=-\r\nc=IN IP4 198.51.100.7\r\nt=0 0\r\n"
    "m=audio 4000 RTP/AVP 0\r\n"
)


class Office:
    def __init__(self):
        self.now = 0.0
        self.agent = UserAgent(
            SipSettings(trunks=(TRUNK,)),
            lambda flow: US,
            lambda transport, host, port: Flow(transport, (host, port), US, 1),
        )
        self.agent.use_targets("pbx", [UDP], 0.0)

    def calls(self, size=2000, flow=UDP):
        target = Uri.parse("sip:100@pbx.example")
        me = NameAddr(Uri.parse("sip:me@pbx.example"))
        story = [("X-Story", "x" * size)]
        return self.agent.call(target, flow, TRUNK, me, NameAddr(target), SDP, self.now, story)

    def sent(self):
        messages = [(parse_message(d), flow) for d, flow in self.agent.messages_to_send()]
        return [(m, flow) for m, flow in messages if isinstance(m, Request)]

    def passes(self, seconds):
        sent, end = self.sent(), self.now + seconds
        while (timer := self.agent.get_timer()) is not None and timer <= end:
            self.now = max(self.now, timer)
            self.agent.handle_timer(self.now)
            sent += self.sent()
        self.now = end
        return sent

    def answers(self, request, flow, status):
        self.agent.receive(respond(request, status, to_tag="t").serialize(), flow, self.now)

    def ends(self):
        found = []
        while (event := self.agent.next_event()) is not None:
            if isinstance(event, SessionHappened) and isinstance(event.event, Ended):
                found.append(event.event)
        return found


def ways(sent):
    return [(request.method, flow.transport) for request, flow in sent]


@pytest.mark.parametrize(
    ("size", "flow", "transport"),
    [
        (2000, UDP, "TCP"),
        (LARGE_BYTES, UDP, "TCP"),
        (100, UDP, "UDP"),
        (2000, ELSEWHERE, "UDP"),  # a phone, which need not be reachable by TCP
        (2000, Flow("TLS", UDP.remote, US, 2), "TLS"),
    ],
)
def test_what_is_too_long_for_udp_goes_by_tcp_to_a_trunks_server(size, flow, transport):
    office = Office()
    office.calls(size, flow)
    [(invite, flow_for)] = office.sent()
    assert flow_for.transport == invite.via.transport == transport
    assert flow_for.remote == flow.remote


def test_once_it_was_heard_by_tcp_it_stays_there():
    office = Office()
    session = office.calls()
    [(invite, _)] = office.sent()
    office.answers(invite, TCP, 180)
    assert not office.passes(30)
    session.hang_up(office.now)
    office.agent.session_changed(session, office.now)
    assert ways(office.sent()) == [("CANCEL", "TCP")]


def test_where_nobody_listens_it_goes_by_udp_at_once_and_is_the_same_request():
    office = Office()
    office.calls()
    [(first, _)] = office.sent()
    office.agent.flow_failed(TCP, office.now, "nobody listens there")
    [(again, flow_for)] = office.sent()
    assert flow_for == UDP
    assert again.via.transport == "UDP"
    assert len(again.vias) == 1
    assert (again.via.branch, again.cseq, again.body) == (first.via.branch, first.cseq, first.body)
    assert not office.ends()
    office.answers(again, UDP, 486)
    [ended] = office.ends()
    assert ended.status == 486
    office.calls()
    assert ways(office.sent())[-1] == ("INVITE", "UDP")  # remembered


def test_where_tcp_is_taken_and_nothing_said_it_goes_by_udp_too():
    office = Office()
    office.calls()
    sent = office.passes(TCP_TIMEOUT_S - 0.1)
    assert ways(sent) == [("INVITE", "TCP")]
    sent = office.passes(0.2)
    assert ways(sent) == [("INVITE", "UDP")]
    sent = office.passes(2)  # repeated as UDP wants it
    assert ways(sent) == [("INVITE", "UDP")] * 2
    # the connection may fail later: that is nobody's business any more
    office.agent.flow_failed(TCP, office.now)
    assert not office.ends()


def test_if_udp_has_no_answer_either_the_call_ends():
    office = Office()
    office.calls()
    office.passes(TCP_TIMEOUT_S + 33)
    [ended] = office.ends()
    assert (ended.status, ended.by) == (408, "timeout")
    assert office.agent.transactions == 0


def test_who_has_given_up_is_not_called_by_udp():
    office = Office()
    session = office.calls()
    office.sent()
    session.hang_up(office.now)
    office.agent.session_changed(session, office.now)
    office.agent.flow_failed(TCP, office.now)
    assert not office.passes(60)
    assert office.agent.transactions == 0


def test_a_server_without_tcp_is_tried_again_after_an_hour():
    office = Office()
    office.calls()
    office.agent.flow_failed(TCP, office.now)
    office.passes(TCP_RETRY_S - 1)
    office.calls()
    assert ways(office.sent()) == [("INVITE", "UDP")]
    office.passes(2)
    office.calls()
    assert ways(office.sent())[-1] == ("INVITE", "TCP")
