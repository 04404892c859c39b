"""What is said about the media within a call: re-INVITE, UPDATE, glare, the session timer."""

from dataclasses import replace

import pytest

from offhook.telephony.sip.sessions.session_events import (
    Answered,
    AnswerReceived,
    Confirmed,
    Ended,
    OfferReceived,
    OfferRefused,
    Progress,
    RefreshDue,
    SessionSettings,
)
from offhook.telephony.sip.sessions.session_table import SessionState
from tests.telephony.sip.session_peers import (
    ALLOW_UPDATE,
    ANSWER,
    NO_TIMER,
    OFFER,
    OTHER,
    THIRD,
    Network,
    called,
    calls,
    ended,
    events,
    run,
    talked_to,
    talking,
)

TIMED = SessionSettings(session_seconds=1800)


def agreed(refresher: str, seconds: int = 600) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("Session-Expires", f"{seconds};refresher={refresher}"), ("Require", "timer")


# --- offers of ours ---


def test_a_change_is_offered_by_a_re_invite_and_its_answer_told() -> None:
    session, far = talking()
    session.reoffer(THIRD, 5.0)
    offer = far.requests[-1]
    assert (offer.method, str(offer.cseq), offer.body) == ("INVITE", "2 INVITE", THIRD.encode())
    assert offer.to.tag == "them"
    assert "100rel" not in offer.supported
    far.answer(session, 5.1, 100)
    far.answer(session, 5.2, 200, sdp=OTHER)
    assert events(session) == [AnswerReceived(OTHER)]
    assert [str(ack.cseq) for ack in far.acks] == ["1 ACK", "2 ACK"]
    far.answer(session, 5.7, 200, sdp=OTHER)
    assert [str(ack.cseq) for ack in far.acks] == ["1 ACK", "2 ACK", "2 ACK"]


def test_a_refused_change_leaves_the_call_as_it_was() -> None:
    session, far = talking()
    session.reoffer(THIRD, 5.0)
    far.answer(session, 5.1, 488)
    assert events(session) == [OfferRefused(488, "no common media: 488 Not Acceptable Here")]
    assert session.state is SessionState.ESTABLISHED
    session.reoffer(THIRD, 6.0)
    assert far.methods == ["INVITE"] * 3


def test_a_200_without_an_answer_refuses_the_change() -> None:
    session, far = talking()
    session.reoffer(THIRD, 5.0)
    far.answer(session, 5.1, 200)
    assert events(session) == [OfferRefused(488, "the far end did not answer the offer")]
    assert len(far.acks) == 2


def test_one_change_at_a_time() -> None:
    session, far = talking()
    session.reoffer(THIRD, 5.0)
    session.reoffer(OTHER, 5.1)
    assert events(session) == [OfferRefused(491, "another offer is open")]
    assert far.methods == ["INVITE", "INVITE"]


def test_a_change_waits_for_the_ack_of_the_call() -> None:
    session, far = called()
    session.accept(ANSWER, 0.0)
    session.reoffer(THIRD, 0.1)
    run(session, 1.0)
    assert far.methods == []
    far.acknowledge(session, 1.1)
    assert far.methods == ["INVITE"]
    assert events(session) == [Confirmed(None)]


def test_a_change_waits_for_the_ack_of_a_change_of_theirs() -> None:
    session, far = talking()
    far.ask(session, 5.0, "INVITE", sdp=OTHER)
    session.answer_offer(ANSWER, 5.1)
    session.reoffer(THIRD, 5.2)
    assert far.methods == ["INVITE"]
    far.acknowledge(session, 5.3, cseq=far.cseq)
    assert far.methods == ["INVITE", "INVITE"]


@pytest.mark.parametrize("status", [481, 408])
def test_a_change_that_finds_nobody_ends_the_call(status: int) -> None:
    session, far = talking()
    session.reoffer(THIRD, 5.0)
    far.answer(session, 5.1, status)
    assert ended(session).status == status
    assert far.methods == ["INVITE", "INVITE"] + (["BYE"] if status == 408 else [])


def test_a_change_that_nobody_answers_ends_the_call() -> None:
    session, far = talking()
    session.reoffer(THIRD, 5.0)
    session.responses.failed(far.transactions[-1], "timeout", 37.0)
    assert ended(session) == Ended(408, "the far end does not answer any more", "timeout")
    assert far.methods[-1] == "BYE"


def test_a_change_that_only_gets_provisional_answers_is_cancelled() -> None:
    session, far = talking()
    session.reoffer(THIRD, 5.0)
    far.answer(session, 5.1, 180)
    run(session, 36.9)
    assert not far.cancelled
    run(session, 37.0)
    assert far.cancelled == [far.transactions[-1]]
    far.answer(session, 37.1, 487)
    assert [type(e) for e in events(session)] == [OfferRefused]
    assert session.get_timer() is None


def test_a_contact_in_the_answer_to_a_change_is_the_new_target() -> None:
    session, far = talking()
    session.reoffer(THIRD, 5.0)
    far.answer(session, 5.1, 200, sdp=OTHER, contact="<sip:moved@198.51.100.3>")
    assert str(far.acks[-1].uri) == "sip:moved@198.51.100.3"
    session.hang_up(6.0)
    assert str(far.requests[-1].uri) == "sip:moved@198.51.100.3"


def test_a_2xx_to_a_change_that_comes_after_the_end_still_gets_its_ack() -> None:
    session, far = talking(*agreed("uac"), settings=TIMED)
    session.reoffer(THIRD, 5.0)
    session.hang_up(5.1)
    far.answer(session, 5.2, 200, *agreed("uac"), sdp=OTHER, to=1)
    assert [str(ack.cseq) for ack in far.acks] == ["1 ACK", "2 ACK"]
    assert [type(e) for e in events(session)] == [Ended]
    far.answer(session, 5.3, 200)
    assert session.over
    assert session.get_timer() is None


def test_before_the_call_is_taken_a_change_goes_by_update() -> None:
    session, far = calls()
    reliable = ("Require", "100rel"), ("RSeq", "1")
    far.answer(session, 0.1, 183, *reliable, ALLOW_UPDATE, sdp=ANSWER, to=0)
    events(session)
    session.reoffer(THIRD, 0.2)
    assert far.methods == ["INVITE", "PRACK", "UPDATE"]
    assert far.requests[-1].body == THIRD.encode()
    far.answer(session, 0.3, 200, sdp=OTHER)
    far.answer(session, 0.4, 200, to=0)
    assert events(session) == [AnswerReceived(OTHER), Answered(None)]


def test_the_called_end_changes_by_update_once_its_answer_is_acknowledged() -> None:
    session, far = called(("Supported", "100rel"), ALLOW_UPDATE)
    session.ring(0.0, ANSWER)
    session.reoffer(THIRD, 0.1)
    assert far.methods == [], "the answer may not have come"
    rseq = far.responses[0].headers.get("RSeq")
    far.ask(session, 0.2, "PRACK", ("RAck", f"{rseq} 1 INVITE"))
    assert far.methods == ["UPDATE"]
    session.accept("ignored", 0.3)
    assert far.statuses == [183, 200], "the call is taken when the change is through"
    far.answer(session, 0.4, 200, sdp=OTHER)
    assert far.statuses == [183, 200, 200]
    assert events(session) == [AnswerReceived(OTHER)]


def test_an_early_change_that_finds_nobody_is_refused() -> None:
    session, far = calls()
    reliable = ("Require", "100rel"), ("RSeq", "1")
    far.answer(session, 0.1, 183, *reliable, ALLOW_UPDATE, sdp=ANSWER, to=0)
    session.reoffer(THIRD, 0.2)
    far.answer(session, 0.3, 481)
    assert [type(e) for e in events(session)] == [Progress, OfferRefused]


def test_a_change_before_the_first_media_are_agreed_is_refused() -> None:
    session, _ = calls()
    session.reoffer(THIRD, 0.1)
    assert events(session) == [OfferRefused(491, "another offer is open")]


# --- offers of theirs ---


def test_their_change_is_told_and_answered_in_the_200() -> None:
    session, far = talking()
    far.ask(session, 5.0, "INVITE", sdp=OTHER)
    assert events(session) == [OfferReceived(OTHER)]
    session.answer_offer(THIRD, 5.1)
    assert far.statuses == [200]
    assert far.responses[0].body == THIRD.encode()
    far.acknowledge(session, 5.2, cseq=far.cseq)
    run(session, 100.0)
    assert far.statuses == [200]
    assert events(session) == []


def test_a_re_invite_without_an_offer_asks_for_ours() -> None:
    session, far = talked_to()
    far.ask(session, 5.0, "INVITE")
    assert events(session) == [OfferReceived(None)]
    session.answer_offer(THIRD, 5.1)
    assert far.responses[-1].body == THIRD.encode()
    far.acknowledge(session, 5.2, sdp=OTHER, cseq=far.cseq)
    assert events(session) == [AnswerReceived(OTHER)]


def test_our_offer_that_the_ack_does_not_answer_is_off() -> None:
    session, far = talked_to()
    far.ask(session, 5.0, "INVITE")
    session.answer_offer(THIRD, 5.1)
    far.acknowledge(session, 5.2, cseq=far.cseq)
    assert [type(e) for e in events(session)] == [OfferReceived, OfferRefused]
    assert session.state is SessionState.ESTABLISHED


def test_their_change_is_refused() -> None:
    session, far = talking()
    far.ask(session, 5.0, "INVITE", sdp=OTHER)
    session.refuse_offer(488, 5.1)
    assert far.statuses == [488]
    assert session.state is SessionState.ESTABLISHED


def test_a_change_that_we_never_answer_is_refused_in_time() -> None:
    session, far = talking()
    far.ask(session, 5.0, "INVITE", sdp=OTHER)
    run(session, 30.0)
    assert far.statuses == [500]


def test_the_200_to_a_change_is_repeated_and_without_an_ack_the_call_ends() -> None:
    session, far = talking()
    far.ask(session, 5.0, "INVITE", sdp=OTHER)
    session.answer_offer(THIRD, 5.0)
    run(session, 36.9)
    assert far.statuses == [200] * 11
    run(session, 37.0)
    assert far.methods[-1] == "BYE"
    assert ended(session).by == "timeout"


def test_who_sends_a_change_has_seen_our_200_even_if_its_ack_is_lost() -> None:
    session, far = called()
    session.accept(ANSWER, 0.0)
    run(session, 0.9)
    far.ask(session, 1.0, "INVITE", sdp=OTHER)
    assert events(session) == [Confirmed(None), OfferReceived(OTHER)]
    session.answer_offer(THIRD, 1.1)
    far.acknowledge(session, 1.2)
    far.acknowledge(session, 1.3, cseq=far.cseq)
    run(session, 100.0)
    assert far.statuses == [200, 200, 200], "the first is repeated once, before the change"


def test_while_an_answer_is_due_in_the_ack_a_change_has_to_wait() -> None:
    session, far = called(sdp=None)
    session.accept(OFFER, 0.0)
    far.ask(session, 0.1, "INVITE", sdp=OTHER)
    assert far.statuses == [200, 491]


def test_a_second_change_before_the_first_is_answered_is_put_off() -> None:
    session, far = talking()
    far.ask(session, 5.0, "INVITE", sdp=OTHER)
    far.ask(session, 5.1, "INVITE", sdp=THIRD)
    assert far.statuses == [500]
    seconds = far.responses[0].headers.get("Retry-After")
    assert seconds is not None
    assert 0 <= int(seconds) <= 10
    assert events(session) == [OfferReceived(OTHER)]


def test_a_change_before_the_call_is_taken_is_put_off() -> None:
    session, far = called()
    far.ask(session, 5.0, "INVITE", sdp=OTHER)
    assert far.statuses == [500]


def test_a_change_that_is_cancelled_is_off() -> None:
    session, far = talking()
    transaction = far.ask(session, 5.0, "INVITE", sdp=OTHER)
    session.requests.cancelled(transaction, 5.1)
    session.answer_offer(THIRD, 5.2)
    assert far.statuses == [487]
    assert session.state is SessionState.ESTABLISHED


def test_an_open_change_is_answered_when_the_far_end_hangs_up() -> None:
    session, far = talking()
    far.ask(session, 5.0, "INVITE", sdp=OTHER)
    far.ask(session, 5.1, "BYE")
    assert far.statuses == [200, 487]
    assert session.over


def test_a_contact_in_their_change_is_the_new_target() -> None:
    session, far = talking()
    far.ask(session, 5.0, "INVITE", sdp=OTHER, contact="<sip:moved@198.51.100.3>")
    session.info_dtmf("1", 5.05)
    assert str(far.requests[-1].uri) == "sip:them@192.0.2.2", "not before we agree"
    session.answer_offer(THIRD, 5.1)
    session.hang_up(6.0)
    assert str(far.requests[-1].uri) == "sip:moved@198.51.100.3"


def test_a_body_that_is_no_session_description_is_refused() -> None:
    session, far = talking()
    far.ask(session, 5.0, "INVITE", body=b"<xml/>", content_type="text/xml")
    assert far.statuses == [415]
    assert far.responses[0].headers.get("Accept") == "application/sdp"
    far.ask(
        session,
        5.1,
        "UPDATE",
        ("Content-Disposition", "render;handling=optional"),
        body=b"<xml/>",
        content_type="text/xml",
    )
    assert far.statuses == [415, 200]


def test_an_update_with_an_offer_is_answered_in_its_200() -> None:
    session, far = talking()
    far.ask(session, 5.0, "UPDATE", sdp=OTHER, contact="<sip:moved@h>")
    assert events(session) == [OfferReceived(OTHER)]
    session.answer_offer(THIRD, 5.1)
    assert far.responses[0].body == THIRD.encode()
    assert session.get_timer() is None, "an UPDATE has no ACK"
    session.hang_up(6.0)
    assert str(far.requests[-1].uri) == "sip:moved@h"


def test_an_update_without_an_offer_only_refreshes() -> None:
    session, far = talking()
    far.ask(session, 5.0, "UPDATE")
    assert far.statuses == [200]
    assert far.responses[0].body == b""
    assert events(session) == []


def test_an_early_update_of_the_caller_is_put_off_until_its_offer_is_answered() -> None:
    session, far = called()
    far.ask(session, 0.1, "UPDATE", sdp=OTHER)
    assert far.statuses == [500]


def test_an_early_update_of_the_called_is_taken() -> None:
    session, far = calls()
    far.answer(session, 0.1, 183, ("Require", "100rel"), ("RSeq", "1"), sdp=ANSWER, to=0)
    far.ask(session, 0.2, "UPDATE", sdp=OTHER)
    session.answer_offer(THIRD, 0.3)
    assert far.statuses == [200]
    assert [type(e) for e in events(session)] == [Progress, OfferReceived]


# --- both at once ---


@pytest.mark.parametrize("method", ["INVITE", "UPDATE"])
def test_a_change_of_theirs_that_meets_one_of_ours_gets_491(method: str) -> None:
    session, far = talking()
    session.reoffer(THIRD, 5.0)
    far.ask(session, 5.01, method, sdp=OTHER)
    assert far.statuses == [491]
    assert events(session) == []


def test_who_made_the_call_id_waits_longer_after_491() -> None:
    session, far = talking()
    session.reoffer(THIRD, 5.0)
    far.answer(session, 5.1, 491)
    timer = session.get_timer()
    assert timer is not None
    assert 5.1 + 2.1 <= timer <= 5.1 + 4.0
    run(session, timer)
    assert far.methods == ["INVITE"] * 3
    assert far.requests[-1].body == THIRD.encode()
    far.answer(session, 9.5, 200, sdp=OTHER)
    assert events(session) == [AnswerReceived(OTHER)]


def test_who_was_called_waits_shorter_after_491() -> None:
    session, far = talked_to()
    session.reoffer(THIRD, 5.0)
    far.answer(session, 5.1, 491)
    timer = session.get_timer()
    assert timer is not None
    assert 5.1 <= timer <= 5.1 + 2.0


def test_a_second_491_is_taken_for_an_answer() -> None:
    session, far = talking()
    session.reoffer(THIRD, 5.0)
    far.answer(session, 5.1, 491)
    run(session, 10.0)
    far.answer(session, 10.1, 491)
    assert events(session) == [OfferRefused(491, "refused: 491 Request Pending")]
    assert session.get_timer() is None


def test_a_change_of_theirs_takes_the_place_of_ours_that_waits() -> None:
    session, far = talking()
    session.reoffer(THIRD, 5.0)
    far.answer(session, 5.1, 491)
    far.ask(session, 5.2, "INVITE", sdp=OTHER)
    assert events(session) == [
        OfferRefused(491, "the far end made an offer first"),
        OfferReceived(OTHER),
    ]
    session.answer_offer(THIRD, 5.3)
    far.acknowledge(session, 5.4, cseq=far.cseq)
    run(session, 100.0)
    assert far.methods == ["INVITE"] * 2


def test_two_changes_at_once_end_with_both_ends_agreeing() -> None:
    network = Network()
    a, b = network.end("a", "192.0.2.1"), network.end("b", "192.0.2.2")
    a.call(b, 0.0)
    network.run(0.5)
    b.accept(network.now)
    network.run(1.0)
    a.reoffer(network.now)
    b.reoffer(network.now)
    network.run(20.0)
    assert network.log.count("SIP/2.0 491 Request Pending") == 2
    assert a.described == b.described[::-1]
    assert [type(e) for e in b.events] == [Confirmed, AnswerReceived]
    assert [type(e) for e in a.events] == [Answered, OfferRefused, OfferReceived]


# --- the session timer ---


def test_the_caller_refreshes_by_update() -> None:
    session, far = talking(*agreed("uac"), ALLOW_UPDATE, settings=TIMED)
    assert far.requests[0].headers.get("Session-Expires") == "1800"
    run(session, 300.1)
    update = far.requests[-1]
    assert (update.method, update.body) == ("UPDATE", b"")
    assert update.headers.get("Session-Expires") == "600;refresher=uac"
    far.answer(session, 300.2, 200, *agreed("uac"))
    assert session.get_timer() == 600.2
    assert events(session) == []


def test_the_called_refreshes_where_that_is_agreed() -> None:
    session, far = talked_to(ALLOW_UPDATE, settings=TIMED)
    assert far.responses[0].headers.get("Session-Expires") == "1800;refresher=uas"
    run(session, 901.0)
    assert far.methods == ["UPDATE"]
    assert far.requests[0].headers.get("Session-Expires") == "1800;refresher=uac"


def test_without_update_the_owner_is_asked_for_an_offer_that_changes_nothing() -> None:
    session, far = talking(*agreed("uac"), settings=TIMED)
    run(session, 300.1)
    assert events(session) == [RefreshDue()]
    session.reoffer(OFFER, 300.2)
    assert far.requests[-1].headers.get("Session-Expires") == "600;refresher=uac"
    far.answer(session, 300.3, 200, *agreed("uac"), sdp=ANSWER)
    assert session.get_timer() == 600.3


@pytest.mark.parametrize("status", [405, 501])
def test_an_update_that_is_not_known_after_all_makes_way_for_a_re_invite(status: int) -> None:
    session, far = talking(*agreed("uac"), ALLOW_UPDATE, settings=TIMED)
    run(session, 300.1)
    far.answer(session, 300.2, status)
    assert events(session) == [RefreshDue()]
    run(session, 500.0)
    assert events(session)[0] == RefreshDue(), "it is asked for again"
    assert far.methods == ["INVITE", "UPDATE"]


def test_without_a_refresh_of_theirs_the_call_ends() -> None:
    session, far = talking(*agreed("uas"), settings=TIMED)
    run(session, 568.0)
    assert far.methods == ["INVITE"]
    assert run(session, 600.0) == pytest.approx(0.1 + 600 - 32)
    assert far.methods == ["INVITE", "BYE"]
    assert ended(session) == Ended(408, "the far end did not refresh the call", "timeout")


@pytest.mark.parametrize("method", ["UPDATE", "INVITE"])
def test_a_refresh_of_theirs_keeps_the_call(method: str) -> None:
    session, far = talking(*agreed("uas"), settings=TIMED)
    headers = ("Session-Expires", "600;refresher=uac"), ("Supported", "timer")
    far.ask(session, 300.0, method, *headers, sdp=OTHER if method == "INVITE" else None)
    if method == "INVITE":
        session.answer_offer(THIRD, 300.0)
        far.acknowledge(session, 300.0, cseq=far.cseq)
    assert far.responses[-1].headers.get("Session-Expires") == "600;refresher=uac"
    assert far.responses[-1].require == ["timer"]
    assert session.get_timer() == 300.0 + 600 - 32


@pytest.mark.parametrize("status", [408, 481])
def test_a_refresh_that_finds_nobody_ends_the_call(status: int) -> None:
    session, far = talking(*agreed("uac"), ALLOW_UPDATE, settings=TIMED)
    run(session, 300.1)
    far.answer(session, 300.2, status)
    assert ended(session).status == status


def test_a_refresh_that_nobody_answers_ends_the_call() -> None:
    session, far = talking(*agreed("uac"), ALLOW_UPDATE, settings=TIMED)
    run(session, 300.1)
    session.responses.failed(far.transactions[-1], "timeout", 332.1)
    assert far.methods[-1] == "BYE"
    assert ended(session).by == "timeout"


def test_refreshes_that_are_refused_are_tried_again_until_the_call_ends() -> None:
    session, far = talking(*agreed("uac", 120), ALLOW_UPDATE, settings=TIMED)
    while "BYE" not in far.methods:
        timer = session.get_timer()
        assert timer is not None
        before = len(far.requests)
        run(session, timer)
        if len(far.requests) > before and far.methods[-1] == "UPDATE":
            far.answer(session, timer + 0.01, 503)
    assert far.methods.count("UPDATE") >= 2
    assert ended(session).status == 408


def test_a_422_is_answered_with_a_longer_time() -> None:
    session, far = calls(settings=TIMED)
    far.answer(session, 0.1, 422, ("Min-SE", "3600"))
    again = far.requests[-1]
    assert (again.method, str(again.cseq)) == ("INVITE", "2 INVITE")
    assert again.headers.get("Session-Expires") == "3600"
    assert again.headers.get("Min-SE") == "3600"
    assert again.to.tag == ""
    assert again.body == OFFER.encode()
    far.answer(session, 0.2, 200, *agreed("uac", 3600), sdp=ANSWER)
    assert str(far.acks[0].cseq) == "2 ACK"
    assert events(session) == [Answered(ANSWER)]


def test_a_422_that_wants_ever_more_ends_the_call() -> None:
    session, far = calls(settings=TIMED)
    for seconds in (2000, 3000, 4000):
        far.answer(session, 0.1, 422, ("Min-SE", str(seconds)))
    assert far.methods == ["INVITE"] * 3
    assert ended(session).status == 422


@pytest.mark.parametrize("method", ["INVITE", "UPDATE"])
def test_a_422_within_the_call_is_answered_too(method: str) -> None:
    session, far = talking(*agreed("uac"), ALLOW_UPDATE, settings=TIMED)
    if method == "INVITE":
        session.reoffer(THIRD, 5.0)
    else:
        run(session, 301.0)
    far.answer(session, 301.1, 422, ("Min-SE", "900"))
    assert far.methods[-2:] == [method, method]
    assert far.requests[-1].headers.get("Session-Expires") == "900;refresher=uac"
    assert far.requests[-1].cseq.number == far.requests[-2].cseq.number + 1
    far.answer(session, 301.2, 200, *agreed("uac", 900), sdp=OTHER if method == "INVITE" else None)
    assert events(session) == ([AnswerReceived(OTHER)] if method == "INVITE" else [])


def test_who_asks_for_too_short_a_time_is_told_ours() -> None:
    session, far = called(
        ("Session-Expires", "60"), ("Supported", "timer"), settings=replace(TIMED, min_se=120)
    )
    assert far.statuses == [422]
    assert far.responses[0].headers.get("Min-SE") == "120"
    assert session.over
    other, beyond = talking(settings=TIMED)
    beyond.ask(other, 1.0, "UPDATE", ("Session-Expires", "60"), ("Supported", "timer"))
    assert beyond.statuses == [422]


def test_two_ends_keep_a_call_alive_between_them_for_hours() -> None:
    network = Network(3, loss=0.1, double=0.3, jitter=0.2)
    a = network.end("a", "192.0.2.1", SessionSettings(session_seconds=100))
    b = network.end("b", "192.0.2.2", SessionSettings(session_seconds=100))
    network.loss = 0.0
    a.call(b, 0.0)
    network.run(2.0)
    b.accept(network.now)
    network.run(5.0)
    network.loss = 0.1
    network.run(7200.0)
    assert not a.ends
    assert not b.ends
    assert network.log.count("UPDATE sip:b@192.0.2.2 SIP/2.0") > 7200 / 60
    network.drop = lambda data: True
    network.run(7500.0)
    assert a.ends
    assert b.ends


def test_without_timers_nothing_is_left_running() -> None:
    session, _ = talking(settings=NO_TIMER)
    assert session.get_timer() is None
