"""A far end that says anything at any time: a session never raises and never lives on."""

import random

from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import Ended, SessionSettings
from tests.telephony.sip.session_peers import (
    ANSWER,
    OFFER,
    OTHER,
    called,
    calls,
    events,
    run,
)

METHODS = ("INVITE", "UPDATE", "PRACK", "INFO", "REFER", "NOTIFY", "BYE", "OPTIONS", "MESSAGE")
METHODS += ("ACK", "CANCEL", "x-odd")
STATUSES = (100, 180, 183, 199, 200, 202, 302, 401, 407, 408, 422, 481, 486, 491, 500, 503, 699)
HEADERS = (
    ("Require", "100rel"),
    ("Require", "timer"),
    ("Require", "odd"),
    ("RSeq", "1"),
    ("RSeq", "2"),
    ("RSeq", "99999999999999999999"),
    ("RAck", "1 1 INVITE"),
    ("RAck", "x"),
    ("Supported", "timer, 100rel"),
    ("Session-Expires", "1;refresher=uac"),
    ("Session-Expires", "90;refresher=uas"),
    ("Session-Expires", "99999999999;refresher=who"),
    ("Min-SE", "99999999999"),
    ("Min-SE", "1"),
    ("Retry-After", "9" * 40),
    ("Reason", 'SIP ;;; cause=,,; text="\\'),
    ("Record-Route", "<sip:strict>, <sip:loose;lr>"),
    ("Contact", "*"),
    ("Contact", "<tel:1>"),
    ("Allow", "UPDATE"),
    ("Refer-To", "<sip:a@b?Replaces=%00%0d%0a>"),
    ("Refer-To", "<sip:a@b>"),
    ("Event", "refer;id=9"),
    ("Subscription-State", "terminated"),
    ("Proxy-Authenticate", 'Digest realm="r", nonce="n", qop="auth"'),
    ("Proxy-Authenticate", "Digest"),
)
BODIES = (None, None, OFFER, OTHER, "\x00", "SIP/2.0 200 OK\r\n")
USER = ("ring", "early", "accept", "refuse", "hang up", "reoffer", "answer", "no", "refer", "time")

STEP = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from(METHODS)),
    st.tuples(st.just("answer"), st.sampled_from(STATUSES)),
    st.tuples(st.just("user"), st.sampled_from(USER)),
)
STEPS = st.lists(
    st.tuples(
        STEP,
        st.lists(st.sampled_from(HEADERS), max_size=3),
        st.sampled_from(BODIES),
        st.sampled_from(("them", "other", "")),
        st.integers(0, 5),
    ),
    max_size=25,
)


def do(session: Session, action: str, now: float) -> None:
    match action:
        case "ring":
            session.ring(now)
        case "early":
            session.ring(now, ANSWER)
        case "accept":
            session.accept(ANSWER, now)
            session.answer_offer(ANSWER, now)
        case "refuse":
            session.refuse(486, "", now)
        case "hang up":
            session.hang_up(now, "x\r\ny")
        case "reoffer":
            session.reoffer(OTHER, now)
        case "answer":
            session.answer_offer(ANSWER, now)
            session.refers.accept(now)
            session.refers.notify(200, "OK", now)
        case "no":
            session.refuse_offer(488, now)
            session.refers.refuse(603, now)
        case "refer":
            session.refer(session.invite.uri, now)
            session.info_dtmf("1", now)


@given(STEPS, st.booleans(), st.booleans(), st.integers(0, 99))
def test_whatever_the_far_end_says_a_session_does_not_raise_and_comes_to_its_end(
    steps: list[tuple[tuple[str, str], list[tuple[str, str]], str | None, str, int]],
    outgoing: bool,
    offer: bool,
    seed: int,
) -> None:
    chance = random.Random(seed)
    settings = SessionSettings(session_seconds=300)
    sdp = OFFER if offer else None
    if outgoing:
        session, far = calls(sdp=sdp, settings=settings, digest=DigestClient("us", "secret"))
    else:
        session, far = called(("Supported", "timer, 100rel"), sdp=sdp, settings=settings)
    now = 0.0
    for (kind, what), lines, body, tag, number in steps:
        headers = dict(lines).items()  # one of each: more than one Contact "*" is no message
        now += chance.choice((0.0, 0.1, 1.0, 40.0))
        run(session, now)
        if session.over:
            break
        if kind == "user":
            do(session, what, now)
        elif kind == "answer" and far.transactions:
            to = number % len(far.transactions)
            far.answer(session, now, what, *headers, sdp=body, tag=tag, to=to)  # type: ignore[arg-type]
        elif what in ("ACK", "CANCEL"):
            far.acknowledge(session, now, body, cseq=number)
            if session.life.incoming is not None:
                session.requests.cancelled(session.life.incoming.transaction, now)
        else:
            content_type = ("application/sdp", "application/dtmf")[number % 2]
            data = body.encode() if body else b""
            far.ask(session, now, what, *headers, body=data, content_type=content_type, tag=tag)
    session.hang_up(now)
    for transaction in list(far.transactions):
        session.responses.failed(transaction, "timeout", now + 32.0)
    run(session, now + 10_000.0)
    assert session.over
    assert session.get_timer() is None
    assert len([event for event in events(session) if isinstance(event, Ended)]) == 1
