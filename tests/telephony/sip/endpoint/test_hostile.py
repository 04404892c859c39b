"""Strangers, and callers who want more than their call: what they send is let pass."""

from dataclasses import replace

import pytest

from offhook.telephony.sip.auth.digest import Challenge, DigestClient
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request, parse_message
from offhook.telephony.sip.sessions.session_events import Confirmed, Ended
from offhook.telephony.sip.trunks.trunks import Trunk
from offhook.telephony.sip.user_agent import CallReceived, Locate, SessionHappened, UserAgent
from tests.telephony.sip.test_user_agent import (
    PBX,
    SDP,
    STRANGER,
    TRUNK,
    US,
    agent,
    ask,
    events,
    message,
)

PHONE = Flow("UDP", ("203.0.113.50", 5060), US)
ALICE = Trunk("alice", username="alice", password="wonder")
OTHER = Trunk("other", addresses=("203.0.113.9",))
"""STRANGER's, where that is a trunk too."""


def call_up(ua: UserAgent, flow: Flow = PBX, *headers: str, **kinds: object) -> CallReceived:
    """A call that is answered and acknowledged."""
    ua.receive(message("INVITE", "sip:100@192.0.2.1", *headers, source=flow, **kinds), flow, 0)
    call = next(e for e in events(ua) if isinstance(e, CallReceived))
    call.session.accept(SDP, 0)
    ua.session_changed(call.session, 0)
    ack = message("ACK", body="", source=flow, to_tag=call.session.local_tag, **kinds)
    ua.receive(ack.replace(b"branch=z9hG4bK1", b"branch=z9hG4bKack"), flow, 0)
    assert any(isinstance(e.event, Confirmed) for e in events(ua))
    ua.messages_to_send()
    return call


def happened(ua: UserAgent) -> list[object]:
    return [e.event for e in events(ua) if isinstance(e, SessionHappened)]


# --- somebody else's call ---


@pytest.mark.parametrize(
    ("method", "header"),
    [
        ("BYE", "X-None: 1"),
        ("INVITE", "X-None: 1"),
        ("UPDATE", "X-None: 1"),
        ("REFER", "Refer-To: <sip:+900666@pbx.example>"),
        ("INFO", "Content-Type: application/dtmf-relay"),
    ],
)
@pytest.mark.parametrize("trunks", [(TRUNK,), (TRUNK, OTHER)])
def test_who_has_seen_the_tags_of_a_call_cannot_touch_it_from_elsewhere(method, header, trunks):
    ua = agent(trunks=trunks)
    call = call_up(ua)
    body = "Signal=5\r\n" if method == "INFO" else SDP if method in ("INVITE", "UPDATE") else ""
    data = message(
        *(method, "sip:100@192.0.2.1", header),
        body=body,
        branch="z9hG4bKx",
        to_tag=call.session.local_tag,
        cseq=7,
        source=STRANGER,
    )
    assert not ask(ua, data, STRANGER, 1)
    assert not happened(ua)
    data = data.replace(b"z9hG4bKx", b"z9hG4bKy")
    assert ask(ua, data, PBX, 1) or happened(ua)  # the same from where the call is


def test_the_acknowledgement_of_a_stranger_brings_no_media():
    ua = agent()
    ua.receive(message(body=""), PBX, 0)
    call = next(e for e in events(ua) if isinstance(e, CallReceived))
    call.session.accept(SDP, 0)
    ua.session_changed(call.session, 0)
    tag = call.session.local_tag
    ua.receive(message("ACK", branch="z9hG4bKx", to_tag=tag, source=STRANGER), STRANGER, 0.1)
    assert not happened(ua)
    ua.receive(message("ACK", branch="z9hG4bKy", to_tag=tag), PBX, 0.2)
    assert [type(e) for e in happened(ua)] == [Confirmed]


@pytest.mark.parametrize("trunks", [(TRUNK,), (TRUNK, OTHER)])
def test_a_stranger_cannot_give_up_a_call_that_rings(trunks):
    ua = agent(trunks=trunks)
    ua.receive(message(), PBX, 0)
    events(ua)
    assert not ask(ua, message("CANCEL", body=""), STRANGER, 0.1)
    assert not happened(ua)
    assert len(ask(ua, message("CANCEL", body=""), PBX, 0.2)) == 2
    assert [type(e) for e in happened(ua)] == [Ended]


def test_a_strangers_cancel_of_nothing_gets_no_answer():
    ua = agent()
    assert not ask(ua, message("CANCEL", body="", source=STRANGER), STRANGER)


def test_another_address_of_the_same_trunk_may_speak_for_the_call():
    ua = agent()
    call = call_up(ua)
    node = Flow("UDP", ("198.51.100.8", 5060), US)
    bye = message("BYE", body="", branch="z9hG4bKx", to_tag=call.session.local_tag, cseq=2)
    assert [a.status for a in ask(ua, bye, node, 1)] == [200]


def test_the_far_ends_contact_may_speak_for_the_call():
    ua = agent()
    data = message().replace(b"Contact: <sip:caller@198.51.100.7", b"Contact: <sip:c@203.0.113.80")
    ua.receive(data, PBX, 0)
    call = next(e for e in events(ua) if isinstance(e, CallReceived))
    call.session.accept(SDP, 0)
    ua.session_changed(call.session, 0)
    ua.messages_to_send()
    bye = message("BYE", body="", branch="z9hG4bKx", to_tag=call.session.local_tag, cseq=2)
    assert [a.status for a in ask(ua, bye, Flow("UDP", ("203.0.113.80", 5060), US), 1)] == [200]


def proved(ua: UserAgent, trunk: Trunk, data: bytes, flow: Flow, now: float) -> bytes:
    """The request again with the password that its 401 asks for."""
    [challenge] = ask(ua, data, flow, now)
    assert challenge.status == 401
    request = parse_message(data)
    assert isinstance(request, Request)
    again = DigestClient(trunk.username, trunk.password).authorize(challenge, request)
    assert again is not None
    via = str(request.via).replace("branch=z9hG4bK", "branch=z9hG4bKproved")
    again.headers.prepend("Via", via)
    return again.serialize()


def call_by_password(ua: UserAgent, flow: Flow = PHONE) -> CallReceived:
    ua.receive(proved(ua, ALICE, message(source=flow), flow, 0.1), flow, 0.1)
    call = next(e for e in events(ua) if isinstance(e, CallReceived))
    call.session.accept(SDP, 0)
    ua.session_changed(call.session, 0)
    ack = message("ACK", body="", branch="z9hG4bKack", to_tag=call.session.local_tag, cseq=2)
    ua.receive(ack, flow, 0)
    events(ua)
    ua.messages_to_send()
    return call


def test_a_phone_that_has_moved_proves_itself_anew():
    bob = Trunk("bob", username="bob", password="builder")
    ua = agent(trunks=(ALICE, bob))
    call = call_by_password(ua)
    moved = Flow("UDP", ("203.0.113.77", 5060), US)
    bye = message(
        "BYE", body="", branch="z9hG4bKx", to_tag=call.session.local_tag, cseq=3, source=moved
    )
    as_bob = proved(ua, bob, bye, moved, 1)
    assert [a.status for a in ask(ua, as_bob, moved, 1)] in ([], [401], [403])
    assert not happened(ua)
    as_alice = proved(ua, ALICE, bye.replace(b"z9hG4bKx", b"z9hG4bKz"), moved, 1)
    assert [a.status for a in ask(ua, as_alice, moved, 1)] == [200]
    assert [type(e) for e in happened(ua)] == [Ended]


def test_a_goodbye_whose_answer_was_lost_is_answered_again():
    ua = agent(trunks=(ALICE,))
    call = call_by_password(ua)
    bye = message(
        "BYE", body="", branch="z9hG4bKx", to_tag=call.session.local_tag, cseq=3, source=PHONE
    )
    assert [a.status for a in ask(ua, bye, PHONE, 1)] == [200]
    assert ua.sessions == 0
    assert [a.status for a in ask(ua, bye, PHONE, 1.5)] == [200]


# --- calls that take another's place ---


def replacing(call: CallReceived, flow: Flow, call_id: str = "call-2") -> bytes:
    tag = call.session.local_tag
    value = f"Replaces: call-1;to-tag={tag};from-tag=theirs"
    return message(
        *("INVITE", "sip:100@192.0.2.1", value),
        branch=f"z9hG4bK{call_id}",
        call_id=call_id,
        source=flow,
    )


def test_only_who_has_a_call_may_have_it_replaced():
    ua = agent(trunks=(TRUNK, OTHER))
    call = call_up(ua)
    [answer] = ask(ua, replacing(call, STRANGER), STRANGER, 1)
    assert answer.status == 481
    assert not events(ua)
    ua.receive(replacing(call, PBX, "call-3"), PBX, 1)
    assert events(ua)[0].replaces is call.session


def test_a_call_that_is_over_or_not_yet_taken_is_not_replaced():
    ua = agent()
    ua.receive(message(), PBX, 0)
    ringing = next(e for e in events(ua) if isinstance(e, CallReceived))
    [answer] = ask(ua, replacing(ringing, PBX), PBX, 1)
    assert answer.status == 481
    ua = agent()
    call = call_up(ua)
    call.session.hang_up(1)
    ua.session_changed(call.session, 1)
    ua.messages_to_send()
    [answer] = ask(ua, replacing(call, PBX), PBX, 1)
    assert answer.status == 603


# --- whom a caller passes for ---


def test_a_name_without_its_password_is_nobodys_where_everybody_may_call():
    ua = agent(trunks=(ALICE,), allow_anonymous=True)
    header = (
        'Authorization: Digest username="alice", realm="127.0.0.1", nonce="x", '
        'uri="sip:100@192.0.2.1", response="0"'
    )
    ua.receive(message("INVITE", "sip:100@192.0.2.1", header, source=STRANGER), STRANGER, 0)
    [call] = [e for e in events(ua) if isinstance(e, CallReceived)]
    assert call.trunk is None


@pytest.mark.parametrize("transport", ["WS", "WSS"])
def test_a_web_page_is_not_a_trunk_because_its_reader_sits_behind_one(transport):
    """Any page that a browser in the trunk's network shows can open a WebSocket to us."""
    ua = agent(browsers=True)
    page = Flow(transport, ("198.51.100.7", 50_000), US, 3)
    assert not ask(ua, message(), page)
    assert not events(ua)


def test_a_made_up_source_does_not_lock_a_phone_out():
    """Whoever sends wrong passwords in a phone's name has no nonce that was given to the phone."""
    ua = agent(trunks=(ALICE,))
    [challenge] = ask(ua, message(source=STRANGER), STRANGER)
    nonce = Challenge.parse(challenge.headers.get("WWW-Authenticate") or "").nonce
    for number in range(20):
        header = (
            f'Authorization: Digest username="alice", realm="127.0.0.1", nonce="{nonce}", '
            f'uri="sip:100@192.0.2.1", response="0", algorithm=MD5, qop=auth, '
            f'cnonce="c", nc=0000000{number % 9 + 1}'
        )
        data = message(
            *("INVITE", "sip:100@192.0.2.1", header), branch=f"z9hG4bK{number}", source=PHONE
        )
        ask(ua, data, PHONE, number)
    assert [a.status for a in ask(ua, message(source=PHONE), PHONE, 30)] == [401]


def test_who_guesses_passwords_is_locked_out():
    ua = agent(trunks=(ALICE,))
    wrong = replace(ALICE, password="wrong")
    heard = 0
    for number in range(20):
        data = message(branch=f"z9hG4bKq{number}", call_id=f"c{number}", source=PHONE)
        if not ask(ua, data, PHONE, number):
            break
        data = data.replace(b"z9hG4bKq", b"z9hG4bKw")
        heard += len(ask(ua, proved(ua, wrong, data, PHONE, number + 0.1), PHONE, number + 0.1))
    assert heard <= 11
    assert not ask(ua, message(branch="z9hG4bKlast", source=PHONE), PHONE, 40)


def test_a_scanner_learns_nothing_however_often_it_asks():
    ua = agent()
    for number in range(200):
        data = message("OPTIONS", body="", branch=f"z9hG4bK{number}", source=STRANGER)
        assert not ask(ua, data, STRANGER, number / 50)


# --- where a caller has us send ---


def contact(data: bytes, uri: str) -> bytes:
    head, _, rest = data.partition(b"Contact: <")
    return head + b"Contact: <" + uri.encode() + b">" + rest.partition(b">")[2]


@pytest.mark.parametrize(
    "uri",
    [
        "sip:x@127.0.0.1:6379;transport=tcp",
        "sip:x@[::1]:6379;transport=tcp",
        "sip:x@169.254.169.254:80;transport=tcp",
        "sip:x@0.0.0.0:5060",
        "sip:x@239.1.2.3:5060",
        "sip:x@255.255.255.255:5060",
        "sip:x@[2001:db8::1]:5060",
    ],
)
def test_no_caller_has_us_talk_to_ourselves_or_to_everybody(uri):
    ua = agent()
    ua.receive(contact(message(), uri), PBX, 0)
    call = next(e for e in events(ua) if isinstance(e, CallReceived))
    call.session.accept(SDP, 0)
    ua.session_changed(call.session, 0)
    ua.receive(
        contact(message("ACK", body="", branch="z9hG4bKa", to_tag=call.session.local_tag), uri),
        *(PBX, 0.1),
    )
    ua.messages_to_send()
    call.session.hang_up(1)
    ua.session_changed(call.session, 1)
    [(bye, way)] = ua.messages_to_send()
    assert bye.startswith(b"BYE")
    assert way == PBX


def hang_up_at(ua: UserAgent, call: CallReceived, now: float = 1) -> Flow:
    call.session.hang_up(now)
    ua.session_changed(call.session, now)
    [(bye, way)] = ua.messages_to_send()
    assert bye.startswith(b"BYE")
    return way


def named_call(ua: UserAgent, name: str, number: int, now: float = 0) -> CallReceived:
    data = contact(message(branch=f"z9hG4bKn{number}", call_id=f"named-{number}"), f"sip:x@{name}")
    ua.receive(data, PBX, now)
    call = next(e for e in events(ua) if isinstance(e, CallReceived))
    call.session.accept(SDP, now)
    ua.session_changed(call.session, now)
    ua.receive(
        message(
            *("ACK",),
            body="",
            branch=f"z9hG4bKm{number}",
            call_id=f"named-{number}",
            to_tag=call.session.local_tag,
        ),
        *(PBX, now + 0.1),
    )
    events(ua)
    ua.messages_to_send()
    return call


def test_a_name_that_leads_to_ourselves_is_not_followed():
    ua = agent()
    first, second = named_call(ua, "rebound.example", 1), named_call(ua, "rebound.example", 2)
    assert hang_up_at(ua, first) == PBX
    [hop] = [e.hop for e in events(ua) if isinstance(e, Locate)]
    ua.next_hops.located(hop, Flow("TCP", ("127.0.0.1", 6379), US))
    assert hang_up_at(ua, second) == PBX


def test_callers_cannot_have_names_looked_up_without_end():
    ua = agent()
    asked = 0
    for number in range(100):
        hang_up_at(ua, named_call(ua, f"n{number}.example", number, number), number + 1)
        asked += sum(isinstance(e, Locate) for e in events(ua))
    assert asked <= 40


def test_a_name_that_was_not_found_is_looked_up_again():
    ua = agent()
    hang_up_at(ua, named_call(ua, "late.example", 1))
    [hop] = [e.hop for e in events(ua) if isinstance(e, Locate)]
    ua.next_hops.located(hop, None)
    hang_up_at(ua, named_call(ua, "late.example", 2))
    assert [e.hop for e in events(ua) if isinstance(e, Locate)] == [hop]


# --- what is kept ---


def test_a_call_that_is_over_leaves_nothing_behind_however_long_it_meant_to_last():
    ua = agent()
    for number in range(300):
        header = "Session-Expires: 90000;refresher=uac"
        now = number * 100.0
        data = message(
            *("INVITE", "sip:100@192.0.2.1", header, "Supported: timer"),
            branch=f"z9hG4bK{number}",
            call_id=f"c{number}",
        )
        ua.receive(data, PBX, now)
        call = next(e for e in events(ua) if isinstance(e, CallReceived))
        tag = call.session.local_tag
        call.session.accept(SDP, now)
        ua.session_changed(call.session, now)
        of = {"body": "", "call_id": f"c{number}", "to_tag": tag}
        ua.receive(message("ACK", branch=f"z9hG4bKa{number}", **of), PBX, now)
        ua.receive(message("BYE", branch=f"z9hG4bKb{number}", cseq=2, **of), PBX, now)
        ua.messages_to_send()
        events(ua)
        while (timer := ua.get_timer()) is not None and timer < now + 90:
            ua.handle_timer(timer)
    assert ua.sessions == 0
    assert ua.routes.alarms < 100
