"""What the user agent answers by itself, and to whom."""

import gc
from dataclasses import replace

import pytest

from benchmarks.sip.cost import Costs
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import Request, Response, parse_message
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import Ended, Progress
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.telephony.sip.user_agent import (
    CallReceived,
    Locate,
    SessionHappened,
    UserAgent,
)

US = ("192.0.2.1", 5060)
PBX = Flow("UDP", ("198.51.100.7", 5060), US)
STRANGER = Flow("UDP", ("203.0.113.9", 5060), US)
TRUNK = Trunk("pbx", addresses=("198.51.100.0/24",))
SDP = (
    "v=0\r\no=- 1 1 IN IP4 198.51.100.7\r\ns=-\r\nc=IN IP4 198.51.100.7\r\nt=0 0\r\n"
    "m=audio 4000 RTP/AVP 0\r\n"
)


def agent(**settings: object) -> UserAgent:
    chosen: dict[str, object] = {"trunks": (TRUNK,), **settings}

    def flow_to(transport, host, port):
        return Flow(transport, (host, port), US)

    return UserAgent(SipSettings(**chosen), lambda flow: US, flow_to)


def message(
    method: str = "INVITE",
    uri: str = "sip:100@192.0.2.1",
    *headers: str,
    body: str = SDP,
    branch: str = "z9hG4bK1",
    to_tag: str = "",
    cseq: int = 1,
    call_id: str = "call-1",
    source: Flow = PBX,
) -> bytes:
    host, port = source.remote
    tag = f";tag={to_tag}" if to_tag else ""
    content = ["Content-Type: application/sdp"] if body else []
    defaults = ["Max-Forwards: 70"] if not any(h.startswith("Max-F") for h in headers) else []
    if any(h.startswith("Content-Type") for h in headers):
        content = []
    lines = [
        f"{method} {uri} SIP/2.0",
        f"Via: SIP/2.0/UDP {host}:{port};branch={branch};rport",
        f"From: <sip:caller@{host}>;tag=theirs",
        f"To: <sip:100@192.0.2.1>{tag}",
        f"Call-ID: {call_id}",
        f"CSeq: {cseq} {method}",
        f"Contact: <sip:caller@{host}:{port}>",
        *defaults,
        *headers,
        *content,
        f"Content-Length: {len(body)}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def answers(ua: UserAgent) -> list[Response]:
    """The responses that it sends now, apart from 100."""
    parsed = [parse_message(data) for data, _ in ua.messages_to_send()]
    return [m for m in parsed if isinstance(m, Response) and m.status > 100]


def events(ua: UserAgent) -> list[object]:
    taken = []
    while (event := ua.next_event()) is not None:
        taken.append(event)
    return taken


def ask(ua: UserAgent, data: bytes, flow: Flow = PBX, now: float = 0.0) -> list[Response]:
    ua.receive(data, flow, now)
    return answers(ua)


@pytest.mark.parametrize(
    ("data", "status", "header"),
    [
        (message("OPTIONS", body=""), 200, "Allow"),
        (message("REGISTER", body=""), 405, "Allow"),
        (message("JUMP", body=""), 501, "Allow"),
        (message("OPTIONS", "sip:100@192.0.2.1", "Max-Forwards: 0", body=""), 200, "Allow"),
        (message("INVITE", "weather:tomorrow"), 416, ""),
        (message("INVITE", "sip:100@192.0.2.1", "Require: nothing, 100rel"), 420, "Unsupported"),
        (message("INVITE", "sip:100@192.0.2.1", "Content-Encoding: gzip"), 415, "Accept-Encoding"),
        (message("INVITE", "sip:100@192.0.2.1", "Content-Type: text/plain"), 415, "Accept"),
        (message("INVITE", "sip:100@192.0.2.1", "Replaces: a;to-tag=b;from-tag=c"), 481, ""),
        (message("BYE", body="", to_tag="nobody"), 481, ""),
        (message("NOTIFY", body=""), 481, ""),
        (message("CANCEL", body=""), 481, ""),
    ],
)
def test_what_is_not_for_us_is_said_in_sips_own_terms(data, status, header):
    [answer] = ask(agent(), data)
    assert answer.status == status
    assert not header or header in answer.headers
    assert answer.to.tag


def test_the_same_call_by_another_way_is_refused():
    ua = agent()
    ua.receive(message(branch="z9hG4bKa"), PBX, 0)
    assert isinstance(events(ua)[0], CallReceived)
    [answer] = ask(ua, message(branch="z9hG4bKb"))
    assert answer.status == 482


def test_a_repeated_invite_is_one_call():
    ua = agent()
    for now in (0, 0.5, 1.5):
        ua.receive(message(), PBX, now)
    calls = [e for e in events(ua) if isinstance(e, CallReceived)]
    assert len(calls) == 1
    assert calls[0].trunk is TRUNK


def test_a_call_given_up_before_it_is_answered_is_over():
    ua = agent()
    ua.receive(message(), PBX, 0)
    call = events(ua)[0]
    found = ask(ua, message("CANCEL", body="", branch="z9hG4bK1"), now=1)
    assert sorted(a.status for a in found) == [200, 487]
    [happened] = [e for e in events(ua) if isinstance(e, SessionHappened)]
    assert happened.session is call.session
    assert isinstance(happened.event, Ended)
    ua.receive(message("ACK", body="", to_tag=found[0].to.tag), PBX, 1.1)
    ua.handle_timer(100)
    assert ua.sessions == 0
    assert ua.transactions == 0


def test_strangers_get_no_answer_and_leave_no_trace():
    ua = agent()
    for method in ("INVITE", "OPTIONS", "REGISTER", "BYE", "SUBSCRIBE", "JUMP"):
        assert not ask(ua, message(method, body="", source=STRANGER), STRANGER)
    assert not events(ua)
    assert ua.transactions == 0
    assert ua.access.dropped == 6


def test_strangers_may_be_refused_instead():
    ua = agent(unknown="refuse")
    [answer] = ask(ua, message(source=STRANGER), STRANGER)
    assert answer.status == 403
    assert ua.transactions == 0


def test_nonsense_of_strangers_is_not_answered_and_a_trunks_is():
    broken = message().replace(b"Max-Forwards: 70", b"Max-Forwards: lots")
    assert not ask(agent(), broken, STRANGER)
    [answer] = ask(agent(), broken, PBX)
    assert answer.status == 400
    assert "Max-Forwards" in answer.reason


def test_a_password_is_asked_for_without_keeping_anything():
    ua = agent(trunks=(Trunk("phone", username="alice", password="secret"),))
    [answer] = ask(ua, message(source=STRANGER), STRANGER)
    assert answer.status == 401
    assert "WWW-Authenticate" in answer.headers
    assert ua.transactions == 0
    again = ask(ua, message(source=STRANGER, branch="z9hG4bK2"), STRANGER, 0.1)
    assert [a.status for a in again] == [401]


def test_who_calls_too_often_is_not_listened_to():
    ua = agent(trunks=(Trunk("phone", username="alice", password="secret"),))
    statuses = []
    for number in range(200):
        data = message(source=STRANGER, branch=f"z9hG4bK{number}", call_id=f"c{number}")
        statuses += [a.status for a in ask(ua, data, STRANGER, now=number / 1000)]
    assert statuses.count(401) < 30
    assert len(statuses) < 40
    assert ua.access.dropped > 150


def test_keep_alives_are_not_messages():
    ua = agent()
    for data in (b"", b"\r\n\r\n", b"\r\n", b"\0", b"jaK\0"):
        ua.receive(data, PBX, 0)
    assert ua.counts.malformed == 0


def test_a_call_of_ours_follows_a_name_once_it_is_known():
    ua = agent(trunks=(replace(TRUNK, server="pbx.example"),))
    target = Uri.parse("sip:200@pbx.example")
    me = NameAddr(Uri.parse("sip:me@pbx.example"))
    session = ua.call(target, PBX, TRUNK, me, NameAddr(target), SDP, 0.0)
    [(data, flow)] = ua.messages_to_send()
    invite = parse_message(data)
    assert isinstance(invite, Request)
    assert flow == PBX
    ringing = reply(invite, 180, "Ringing", contact="<sip:200@node7.pbx.example>")
    ua.receive(ringing, PBX, 0.1)
    assert any(isinstance(e.event, Progress) for e in events(ua) if isinstance(e, SessionHappened))
    ua.receive(reply(invite, 200, "OK", contact="<sip:200@node7.pbx.example>", sdp=SDP), PBX, 0.2)
    [(_, way)] = [(d, f) for d, f in ua.messages_to_send() if d.startswith(b"ACK")]
    assert way == PBX  # nobody has looked yet
    [hop] = [e.hop for e in events(ua) if isinstance(e, Locate)]
    assert hop.host == "node7.pbx.example"
    node = Flow("UDP", ("198.51.100.77", 5060), US)
    ua.next_hops.located(hop, node)
    session.hang_up(0.3)
    ua.session_changed(session, 0.3)
    [(bye, way)] = ua.messages_to_send()
    assert bye.startswith(b"BYE sip:200@node7.pbx.example")
    assert way == node


def reply(request: Request, status: int, reason: str, contact: str, sdp: str = "") -> bytes:
    kept = [
        f"{name}: {value}"
        for name, value in request.headers.items()
        if name in ("Via", "From", "Call-ID", "CSeq")
    ]
    lines = [
        f"SIP/2.0 {status} {reason}",
        *kept,
        f"To: {request.to};tag=far",
        f"Contact: {contact}",
        *(["Content-Type: application/sdp"] if sdp else []),
        f"Content-Length: {len(sdp)}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n" + sdp).encode()


def test_questions_leave_nothing_behind():
    """So that no flood of them can keep calls out."""
    ua = agent()
    for number in range(300):
        data = message("OPTIONS", body="", branch=f"z9hG4bK{number}", call_id=f"o{number}")
        assert [a.status for a in ask(ua, data)] == [200]
    assert ua.transactions == 0
    first, again = (ask(ua, message("OPTIONS", body=""))[0] for _ in range(2))
    assert first.to.tag == again.to.tag


def test_who_asks_while_no_calls_are_taken_is_told_so_and_when_to_ask_again():
    ua = agent()
    ua.accepts_calls = lambda: False
    answer = ask(ua, message("OPTIONS", body=""))[0]
    assert (answer.status, answer.headers.get("Retry-After")) == (503, "10")
    ua.accepts_calls = lambda: True
    assert ask(ua, message("OPTIONS", body=""))[0].status == 200


def test_calls_that_are_over_are_freed_without_the_cyclic_collector() -> None:
    """Either way of the call: a collection would stop all calls in progress."""
    gc.collect()
    gc.disable()
    try:
        costs = Costs()
        for _ in range(10):
            costs.call()
        left = [thing for thing in gc.get_objects() if type(thing) is Session]
    finally:
        gc.enable()
    assert left == []
