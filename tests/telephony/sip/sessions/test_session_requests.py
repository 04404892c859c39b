"""Requests within a call: challenges, key presses, transfers, and what is not understood."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.telephony.sip.auth.digest import DigestClient, DigestServer
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog_requests import MAX_SENT
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import (
    Answered,
    Dtmf,
    Ended,
    OfferRefused,
    ReferProgress,
    ReferReceived,
)
from offhook.telephony.sip.sessions.session_table import SessionState
from tests.telephony.sip.session_peers import (
    ANSWER,
    OTHER,
    THIRD,
    FarEnd,
    Network,
    called,
    calls,
    ended,
    events,
    run,
    talked_to,
    talking,
)

# --- challenges ---

CHALLENGE = ("Proxy-Authenticate", 'Digest realm="trunk", nonce="n1", algorithm=MD5, qop="auth"')
SECOND = ("WWW-Authenticate", 'Digest realm="far", nonce="n2", algorithm=SHA-256, qop="auth"')
STALE = ("Proxy-Authenticate", 'Digest realm="trunk", nonce="n3", stale=true, qop="auth"')


def with_password() -> tuple[Session, FarEnd]:
    return calls(digest=DigestClient("us", "secret"))


def test_an_invite_that_is_challenged_is_sent_again_with_credentials() -> None:
    session, far = with_password()
    far.answer(session, 0.1, 407, CHALLENGE)
    first, again = far.requests
    assert 'realm="trunk"' in (again.headers.get("Proxy-Authorization") or "")
    assert (first.cseq.number, again.cseq.number) == (1, 2)
    assert (first.call_id, first.from_) == (again.call_id, again.from_)
    assert again.body == first.body
    far.answer(session, 0.2, 200, sdp=ANSWER)
    assert far.acks[0].cseq.number == 2
    assert far.acks[0].headers.get("Proxy-Authorization") == again.headers.get(
        "Proxy-Authorization"
    )
    assert events(session) == [Answered(ANSWER)]


def test_two_realms_are_answered_together() -> None:
    session, far = with_password()
    far.answer(session, 0.1, 407, CHALLENGE)
    far.answer(session, 0.2, 401, SECOND)
    again = far.requests[-1]
    assert again.cseq.number == 3
    assert 'realm="trunk"' in (again.headers.get("Proxy-Authorization") or "")
    assert 'realm="far"' in (again.headers.get("Authorization") or "")


def test_a_stale_nonce_is_answered_anew() -> None:
    session, far = with_password()
    far.answer(session, 0.1, 407, CHALLENGE)
    far.answer(session, 0.2, 407, STALE)
    assert 'nonce="n3"' in (far.requests[-1].headers.get("Proxy-Authorization") or "")
    assert len(far.requests) == 3


def test_a_wrong_password_is_not_tried_again_and_again() -> None:
    session, far = with_password()
    far.answer(session, 0.1, 407, CHALLENGE)
    far.answer(session, 0.2, 407, CHALLENGE)
    assert len(far.requests) == 2
    assert ended(session).reason == (
        "the far end wants a password: 407 Proxy Authentication Required"
    )


def test_a_far_end_that_is_never_content_is_left() -> None:
    session, far = with_password()
    for _ in range(20):
        if not session.over:
            far.answer(session, 0.1, 407, STALE)
    assert len(far.requests) <= 5
    assert session.over


def test_without_a_password_a_challenge_is_a_refusal() -> None:
    session, far = calls()
    far.answer(session, 0.1, 401, SECOND)
    assert ended(session).reason == "the far end wants a password: 401 Unauthorized"


def test_a_challenge_after_giving_up_is_not_answered() -> None:
    session, far = with_password()
    session.hang_up(0.1)
    far.answer(session, 0.2, 407, CHALLENGE)
    assert far.methods == ["INVITE"]
    assert session.over


def test_requests_within_the_call_bring_the_credentials_along() -> None:
    session, far = with_password()
    far.answer(session, 0.1, 407, CHALLENGE)
    far.answer(session, 0.2, 200, sdp=ANSWER)
    session.reoffer(THIRD, 1.0)
    assert "nc=00000002" in (far.requests[-1].headers.get("Proxy-Authorization") or "")


@pytest.mark.parametrize("method", ["INVITE", "BYE", "REFER", "INFO"])
def test_a_request_within_the_call_that_is_challenged_is_sent_again(method: str) -> None:
    session, far = with_password()
    far.answer(session, 0.1, 200, sdp=ANSWER)
    match method:
        case "INVITE":
            session.reoffer(THIRD, 1.0)
        case "BYE":
            session.hang_up(1.0)
        case "REFER":
            session.refer(Uri.parse("sip:desk@h"), 1.0)
        case "INFO":
            session.info_dtmf("1", 1.0)
    far.answer(session, 1.1, 407, CHALLENGE)
    assert far.methods == ["INVITE", method, method]
    assert far.requests[2].cseq.number == far.requests[1].cseq.number + 1
    assert far.requests[2].body == far.requests[1].body
    assert "Proxy-Authorization" in far.requests[2].headers


def test_two_challenged_requests_never_share_a_number() -> None:
    session, far = with_password()
    far.answer(session, 0.1, 200, sdp=ANSWER)
    session.reoffer(THIRD, 1.0)
    session.info_dtmf("1", 1.1)
    far.answer(session, 1.2, 407, CHALLENGE, to=1)
    far.answer(session, 1.3, 407, CHALLENGE, to=2)
    session.hang_up(2.0)
    numbers = [request.cseq.number for request in far.requests]
    assert len(set(numbers)) == len(numbers)
    assert far.methods == ["INVITE", "INVITE", "INFO", "INVITE", "INFO", "BYE"]


def test_after_a_challenge_numbers_go_on_from_the_last() -> None:
    session, far = with_password()
    far.answer(session, 0.1, 183, sdp=ANSWER)
    far.answer(session, 0.2, 407, CHALLENGE)
    far.answer(session, 0.3, 200, sdp=ANSWER)
    session.reoffer(THIRD, 1.0)
    far.answer(session, 1.1, 407, STALE)
    session.hang_up(2.0)
    assert [str(request.cseq) for request in far.requests] == [
        "1 INVITE",
        "2 INVITE",
        "3 INVITE",
        "4 INVITE",
        "5 BYE",
    ]


def test_a_change_that_is_challenged_and_then_left_open_is_cancelled() -> None:
    session, far = with_password()
    far.answer(session, 0.1, 200, sdp=ANSWER)
    session.reoffer(THIRD, 1.0)
    far.answer(session, 1.1, 407, CHALLENGE)
    run(session, 33.0)
    assert far.cancelled == [far.transactions[-1]]


def test_a_change_that_is_challenged_is_still_the_same_offer() -> None:
    session, far = with_password()
    far.answer(session, 0.1, 200, sdp=ANSWER)
    session.reoffer(THIRD, 1.0)
    far.answer(session, 1.1, 407, CHALLENGE)
    far.ask(session, 1.2, "INVITE", sdp=OTHER)
    assert far.statuses == [491]
    far.answer(session, 1.3, 407, CHALLENGE)
    assert [type(e) for e in events(session)] == [Answered, OfferRefused]
    assert session.state is SessionState.ESTABLISHED


def test_a_server_of_ours_and_a_session_of_ours_understand_one_another() -> None:
    server = DigestServer("here")
    session, far = with_password()
    far.answer(session, 0.1, 401, *server.challenge(far.requests[0], 0.1))
    assert server.check(far.requests[1], {"us": "secret"}.get, 0.2).ok


# --- what is not understood ---


@pytest.mark.parametrize(
    ("method", "status"), [("MESSAGE", 405), ("SUBSCRIBE", 405), ("DANCE", 501)]
)
def test_a_method_that_we_do_not_know_is_refused(method: str, status: int) -> None:
    session, far = talking()
    far.ask(session, 1.0, method)
    assert far.statuses == [status]
    assert "UPDATE" in far.responses[0].allow


def test_an_extension_that_we_do_not_know_is_refused() -> None:
    session, far = talking()
    far.ask(session, 1.0, "INFO", ("Require", "timer, precondition, Gin"))
    assert far.statuses == [420]
    assert far.responses[0].headers.get("Unsupported") == "precondition, gin"


def test_an_invite_with_an_extension_that_we_do_not_know_is_refused() -> None:
    session, far = called(("Require", "precondition"))
    assert far.statuses == [420]
    assert session.over
    assert ended(session).status == 420


def test_an_invite_with_a_body_that_we_cannot_read_is_refused() -> None:
    session, far = called(sdp=None)
    assert session.state is SessionState.RECEIVED
    far.ask(session, 0.1, "PRACK", body=b"?", content_type="text/plain")
    assert far.statuses == [415]


def test_requests_out_of_order_are_refused_but_a_bye() -> None:
    session, far = talking()
    far.ask(session, 1.0, "INFO", cseq=50)
    far.ask(session, 1.1, "INFO", cseq=49)
    far.ask(session, 1.2, "BYE", cseq=48)
    assert far.statuses == [200, 500, 200]
    assert session.over


def test_a_stranger_with_our_tag_is_not_in_the_call() -> None:
    session, far = talking()
    far.ask(session, 1.0, "BYE", tag="stranger")
    assert far.statuses == [481]
    assert session.state is SessionState.ESTABLISHED


def test_after_the_end_only_a_bye_is_answered_with_200() -> None:
    session, far = talking()
    session.hang_up(1.0)
    for method in ("INFO", "UPDATE", "INVITE", "REFER", "OPTIONS"):
        far.ask(session, 1.1, method)
    far.ask(session, 1.2, "BYE")
    assert far.statuses == [481] * 5 + [200]


def test_options_within_the_call_tells_what_we_can() -> None:
    session, far = talking()
    far.ask(session, 1.0, "OPTIONS")
    assert far.statuses == [200]
    assert {"INVITE", "REFER"} <= set(far.responses[0].allow)
    assert "timer" in far.responses[0].supported


# --- key presses ---


@pytest.mark.parametrize(
    ("content_type", "body", "digit"),
    [
        ("application/dtmf-relay", b"Signal=5\r\nDuration=160\r\n", "5"),
        ("application/dtmf-relay", b"signal = # \nduration=1", "#"),
        ("application/dtmf-relay", b"Duration=160\r\nSignal=d\r\n", "D"),
        ("application/dtmf-relay", b"Signal=11\r\n", "#"),
        ("Application/DTMF; charset=x", b"*", "*"),
        ("application/dtmf", b"10\r\n", "*"),
    ],
)
def test_a_key_press_by_info_is_told(content_type: str, body: bytes, digit: str) -> None:
    session, far = talking()
    far.ask(session, 1.0, "INFO", body=body, content_type=content_type)
    assert far.statuses == [200]
    assert events(session) == [Dtmf(digit)]


@pytest.mark.parametrize("body", [b"Signal=!\r\n", b"Signal=99", b"", b"Duration=100"])
def test_an_info_that_tells_no_key_is_answered_all_the_same(body: bytes) -> None:
    session, far = talking()
    far.ask(session, 1.0, "INFO", body=body, content_type="application/dtmf-relay")
    assert far.statuses == [200]
    assert events(session) == []


def test_an_info_about_something_else_is_refused() -> None:
    session, far = talking()
    far.ask(session, 1.0, "INFO", body=b"<x/>", content_type="application/media_control+xml")
    assert far.statuses == [415]
    assert "dtmf-relay" in (far.responses[0].headers.get("Accept") or "")


def test_our_key_press_goes_by_info() -> None:
    session, far = talking()
    session.info_dtmf("#", 1.0)
    info = far.requests[-1]
    assert (info.method, info.content_type) == ("INFO", "application/dtmf-relay")
    assert info.body == b"Signal=#\r\nDuration=160\r\n"
    far.answer(session, 1.1, 415)
    assert session.state is SessionState.ESTABLISHED


def test_key_presses_that_nobody_answers_are_bounded() -> None:
    session, far = talking()
    for _ in range(3 * MAX_SENT):
        session.info_dtmf("1", 1.0)
    assert len(far.requests) <= MAX_SENT + 1


def test_an_info_that_finds_nobody_ends_the_call() -> None:
    session, far = talking()
    session.info_dtmf("1", 1.0)
    far.answer(session, 1.1, 481)
    assert ended(session) == Ended(481, "the far end no longer knows the call", "remote")


@settings(max_examples=50)
@given(st.binary(max_size=400), st.sampled_from(["application/dtmf", "application/dtmf-relay"]))
def test_whatever_an_info_says_it_is_a_key_or_none(body: bytes, content_type: str) -> None:
    session, far = talking()
    far.ask(session, 1.0, "INFO", body=body, content_type=content_type)
    for event in events(session):
        assert isinstance(event, Dtmf)
        assert event.digit in "0123456789*#ABCD"


# --- transfers that we ask for ---

DESK = Uri.parse("sip:desk@192.0.2.9")


def notify(
    session: Session, far: FarEnd, now: float, line: str, state: str = "active;expires=60"
) -> None:
    far.ask(
        session,
        now,
        "NOTIFY",
        ("Event", "refer"),
        ("Subscription-State", state),
        body=f"SIP/2.0 {line}\r\n".encode(),
        content_type="message/sipfrag;version=2.0",
    )


def test_a_transfer_that_works_is_told_and_then_we_hang_up() -> None:
    session, far = talking()
    assert session.refer(DESK, 1.0, referred_by="<sip:us@192.0.2.1>")
    refer = far.requests[-1]
    assert refer.headers.get("Refer-To") == "<sip:desk@192.0.2.9>"
    assert refer.headers.get("Referred-By") == "<sip:us@192.0.2.1>"
    assert refer.contacts
    far.answer(session, 1.1, 202)
    notify(session, far, 1.2, "100 Trying")
    notify(session, far, 3.0, "200 OK", "terminated;reason=noresource")
    assert events(session) == [
        ReferProgress(202, "Accepted", False),
        ReferProgress(100, "Trying", False),
        ReferProgress(200, "OK", True),
    ]
    session.hang_up(3.1)
    far.answer(session, 3.2, 200)
    assert session.over


def test_a_transfer_in_place_of_another_call_names_it() -> None:
    session, far = talking()
    other, _ = talked_to()
    assert other.dialog is not None
    session.refer(DESK, 1.0, replaces=other.dialog.replaces)
    (value,) = far.requests[-1].headers.all("Refer-To")
    assert f"Replaces=call%3Bto-tag%3Dthem%3Bfrom-tag%3D{other.local_tag}" in value


def test_the_far_end_hangs_up_before_it_tells_the_outcome() -> None:
    session, far = talking()
    session.refer(DESK, 1.0)
    far.answer(session, 1.1, 202)
    notify(session, far, 1.2, "100 Trying")
    far.ask(session, 3.0, "BYE")
    assert isinstance(events(session)[-1], Ended)
    assert not session.over
    notify(session, far, 3.1, "200 OK", "terminated;reason=noresource")
    assert far.statuses == [200, 200, 200]
    assert events(session) == [ReferProgress(200, "OK", True)]
    assert session.over


def test_the_far_end_hangs_up_and_never_tells_the_outcome() -> None:
    session, far = talking()
    session.refer(DESK, 1.0)
    far.answer(session, 1.1, 202)
    far.ask(session, 3.0, "BYE")
    run(session, 100.0)
    progress = events(session)[-1]
    assert progress == ReferProgress(202, "Accepted", True), "it has taken the caller"
    assert session.over


@pytest.mark.parametrize("status", [603, 403])
def test_a_transfer_that_is_refused_leaves_the_call(status: int) -> None:
    session, far = talking()
    session.refer(DESK, 1.0)
    far.answer(session, 1.1, status)
    (progress,) = events(session)
    assert isinstance(progress, ReferProgress)
    assert (progress.status, progress.final) == (status, True)
    assert str(status) in progress.reason
    assert session.state is SessionState.ESTABLISHED
    assert session.refer(DESK, 2.0), "another may be tried"


def test_a_transfer_without_any_word_of_it_is_done() -> None:
    session, far = talking()
    session.refer(DESK, 1.0)
    far.answer(session, 1.1, 202)
    run(session, 100.0)
    assert events(session)[-1] == ReferProgress(202, "Accepted", True)
    assert session.state is SessionState.ESTABLISHED
    notify(session, far, 101.0, "200 OK")
    assert far.statuses == [481], "too late"


def test_a_transfer_that_nobody_answers_is_given_up() -> None:
    session, far = talking()
    session.refer(DESK, 1.0)
    session.responses.failed(far.transactions[-1], "timeout", 33.0)
    (progress,) = events(session)
    assert isinstance(progress, ReferProgress)
    assert progress.final


def test_a_second_transfer_at_a_time_is_not_begun() -> None:
    session, far = talking()
    assert session.refer(DESK, 1.0)
    assert not session.refer(DESK, 1.1)
    assert far.methods == ["INVITE", "REFER"]


def test_a_notify_of_something_else_is_refused() -> None:
    session, far = talking()
    far.ask(session, 1.0, "NOTIFY", ("Event", "presence"))
    notify(session, far, 1.1, "200 OK")
    session.refer(DESK, 1.2)
    notify(session, far, 1.3, "rubbish")
    assert far.statuses == [489, 481, 400]


# --- transfers that they ask for ---


def test_a_transfer_is_taken_on_and_told_of_until_its_end() -> None:
    session, far = talking()
    far.ask(
        session,
        1.0,
        "REFER",
        ("Refer-To", "<sip:desk@192.0.2.9?Replaces=x%3Bto-tag%3D1%3Bfrom-tag%3D2>"),
        ("Referred-By", "<sip:them@192.0.2.2>"),
    )
    assert events(session) == [ReferReceived(DESK, "x;to-tag=1;from-tag=2", "<sip:them@192.0.2.2>")]
    session.refers.accept(1.1)
    assert far.statuses == [202]
    session.refers.notify(180, "Ringing", 2.0)
    session.refers.notify(200, "OK", 3.0)
    session.refers.notify(200, "OK", 3.1)
    notifies = far.requests[1:]
    assert [request.body for request in notifies] == [
        b"SIP/2.0 100 Trying\r\n",
        b"SIP/2.0 180 Ringing\r\n",
        b"SIP/2.0 200 OK\r\n",
    ]
    assert {request.headers.get("Event") for request in notifies} == {f"refer;id={far.cseq}"}
    assert [(r.headers.get("Subscription-State") or "")[:6] for r in notifies] == [
        "active",
        "active",
        "termin",
    ]
    assert notifies[0].content_type == "message/sipfrag"


def test_a_transfer_is_refused() -> None:
    session, far = talking()
    far.ask(session, 1.0, "REFER", ("Refer-To", "<sip:desk@h>"))
    session.refers.refuse(603, 1.1)
    session.refers.accept(1.2)
    assert far.statuses == [603]


def test_a_transfer_that_we_never_decide_on_is_refused_in_time() -> None:
    session, far = talking()
    far.ask(session, 1.0, "REFER", ("Refer-To", "<sip:desk@h>"))
    run(session, 100.0)
    assert far.statuses == [603]


def test_a_transfer_that_we_have_not_decided_on_ends_with_the_call() -> None:
    session, far = talking()
    far.ask(session, 1.0, "REFER", ("Refer-To", "<sip:desk@h>"))
    far.ask(session, 2.0, "BYE")
    assert far.statuses == [200, 603]
    assert session.over


def test_a_second_transfer_meanwhile_is_refused() -> None:
    session, far = talking()
    far.ask(session, 1.0, "REFER", ("Refer-To", "<sip:desk@h>"))
    session.refers.accept(1.1)
    far.ask(session, 1.2, "REFER", ("Refer-To", "<sip:other@h>"))
    assert far.statuses == [202, 491]
    session.refers.notify(486, "Busy Here", 2.0)
    far.ask(session, 3.0, "REFER", ("Refer-To", "<sip:other@h>"))
    assert len([e for e in events(session) if isinstance(e, ReferReceived)]) == 2


@pytest.mark.parametrize("refer_to", ["", "<sip:a@b", "<sip:a@b>, <sip:c@d>"])
def test_a_transfer_to_nobody_is_refused(refer_to: str) -> None:
    session, far = talking()
    far.ask(session, 1.0, "REFER", ("Refer-To", refer_to))
    assert far.statuses == [400]


def test_the_outcome_is_told_also_after_the_far_end_hung_up() -> None:
    session, far = talking()
    far.ask(session, 1.0, "REFER", ("Refer-To", "<sip:desk@h>"))
    session.refers.accept(1.1)
    far.answer(session, 1.2, 200)
    far.ask(session, 1.3, "BYE")
    assert not session.over
    session.refers.notify(200, "OK", 5.0)
    assert far.methods == ["INVITE", "NOTIFY", "NOTIFY"]
    far.answer(session, 5.1, 481)
    assert session.over


def test_a_far_end_that_does_not_listen_is_told_no_more() -> None:
    session, far = talking()
    far.ask(session, 1.0, "REFER", ("Refer-To", "<sip:desk@h>"))
    session.refers.accept(1.1)
    far.answer(session, 1.2, 481)
    session.refers.notify(200, "OK", 2.0)
    assert far.methods == ["INVITE", "NOTIFY"]
    assert session.state is SessionState.ESTABLISHED


def test_who_wants_no_word_of_it_gets_none() -> None:
    session, far = talking()
    far.ask(session, 1.0, "REFER", ("Refer-To", "<sip:desk@h>"), ("Refer-Sub", "false"))
    session.refers.accept(1.1)
    session.refers.notify(200, "OK", 2.0)
    assert far.responses[0].headers.get("Refer-Sub") == "false"
    assert far.methods == ["INVITE"]


def test_before_the_call_is_taken_nobody_is_transferred() -> None:
    session, far = called()
    far.ask(session, 1.0, "REFER", ("Refer-To", "<sip:desk@h>"))
    assert far.statuses == [403]
    assert not session.refer(DESK, 1.1)


def test_two_sessions_transfer_over_a_bad_network() -> None:
    network = Network(5, loss=0.2, double=0.3, jitter=0.1)
    a, b = network.end("a", "192.0.2.1"), network.end("b", "192.0.2.2")
    a.call(b, 0.0)
    network.run(5.0)
    b.accept(network.now)
    network.run(10.0)
    assert a.session is not None
    assert b.session is not None
    a.session.refer(DESK, network.now)
    network.run(20.0)
    b.session.refers.accept(network.now)
    network.run(25.0)
    b.session.refers.notify(200, "OK", network.now)
    b.session.hang_up(network.now)
    network.run(200.0)
    told = [e for e in a.events if isinstance(e, ReferProgress)]
    assert told[-1] == ReferProgress(200, "OK", True)
    assert a.session.over
    assert b.session.over
