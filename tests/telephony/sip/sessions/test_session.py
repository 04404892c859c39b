"""One call from its INVITE to its end, against a far end written by hand."""

import pytest

from offhook.telephony.sip.sessions.dialog import MAX_ROUTES
from offhook.telephony.sip.sessions.dialog_requests import MAX_FORKS
from offhook.telephony.sip.sessions.session_events import (
    Answered,
    AnswerReceived,
    Confirmed,
    Ended,
    OfferReceived,
    Progress,
    SessionSettings,
)
from offhook.telephony.sip.sessions.session_table import SessionState
from tests.telephony.sip.session_peers import (
    ANSWER,
    NO_TIMER,
    OFFER,
    OTHER,
    THIRD,
    US,
    Network,
    arrived,
    called,
    calls,
    ended,
    events,
    made,
    run,
    talking,
)

# --- we call ---


def test_a_call_is_placed_and_taken() -> None:
    session, far = calls(("X-Account", "7"))
    invite = far.requests[0]
    assert invite.method == "INVITE"
    assert invite.to.tag == ""
    assert invite.from_.tag == session.local_tag
    assert invite.headers.get("X-Account") == "7"
    assert invite.supported == ["100rel", "timer", "replaces"]
    far.answer(session, 0.1, 100, tag="")
    far.answer(session, 0.2, 180)
    far.answer(session, 0.3, 200, sdp=ANSWER)
    assert events(session) == [Progress(180, "Ringing", None), Answered(ANSWER)]
    assert [str(ack.cseq) for ack in far.acks] == ["1 ACK"]
    assert session.state is SessionState.ESTABLISHED
    assert session.dialog is not None
    assert session.dialog.id == (session.call_id, session.local_tag, "them")
    assert session.get_timer() is None


def test_a_repeated_200_is_acknowledged_again_and_told_once() -> None:
    session, far = talking()
    far.answer(session, 0.6, 200, sdp=ANSWER)
    assert len(far.acks) == 2
    assert far.acks[0].cseq == far.acks[1].cseq
    assert events(session) == []


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [
        (486, "", "busy"),
        (600, "", "busy"),
        (603, "", "declined: 603 Decline"),
        (408, "", "no answer"),
        (480, "", "not available: 480 Temporarily Unavailable"),
        (404, "", "no such number: 404 Not Found"),
        (403, "Not today", "refused: 403 Not today"),
        (488, "", "no common media: 488 Not Acceptable Here"),
        (500, "", "the far end failed: 500 Server Internal Error"),
        (421, "", "refused: 421 Extension Required"),
    ],
)
def test_a_refusal_is_told_in_words(status: int, reason: str, text: str) -> None:
    session, far = calls()
    far.answer(session, 0.1, status, reason=reason)
    assert ended(session) == Ended(status, text, "remote")
    assert session.over
    assert session.get_timer() is None


def test_retry_after_is_shown() -> None:
    session, far = calls()
    far.answer(session, 0.1, 503, ("Retry-After", "30 (overload)"))
    assert ended(session).reason == (
        "the far end failed: 503 Service Unavailable, try again in 30 s"
    )


def test_a_number_that_has_moved_is_shown_and_not_followed() -> None:
    session, far = calls()
    far.answer(session, 0.1, 302, ("Contact", "<sip:new@192.0.2.7>"))
    assert ended(session).reason == "moved: 302 Moved Temporarily, now at sip:new@192.0.2.7"
    assert far.methods == ["INVITE"]


def test_the_reason_of_a_refusal_is_shown() -> None:
    session, far = calls()
    far.answer(session, 0.1, 480, ("Reason", 'Q.850;cause=1;text="Unallocated \\"number\\""'))
    assert ended(session).reason == ("not available: 480 Temporarily Unavailable (no such number)")


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        ('realm="r", nonce="n", algorithm=AKAv1-MD5', "wants a digest not known here (AKAv1-MD5)"),
        ('realm="r", nonce="n", qop="auth-conf"', "wants a digest not known here (qop auth-conf)"),
        ('realm="r", nonce="n"', "wants a password"),
    ],
)
def test_a_digest_that_we_do_not_know_is_not_a_missing_password(
    challenge: str, reason: str
) -> None:
    session, far = calls()
    far.answer(session, 0.1, 401, ("WWW-Authenticate", f"Digest {challenge}"))
    assert ended(session).reason == f"the far end {reason}: 401 Unauthorized"


def test_the_cause_of_a_pbx_that_knows_none_says_nothing() -> None:
    session, far = calls()
    far.answer(session, 0.1, 486, ("Reason", "Q.850;cause=0"))
    assert ended(session).reason == "busy"


def test_a_refusal_says_the_same_only_once() -> None:
    session, far = calls()
    far.answer(session, 0.1, 486, ("Reason", 'Q.850;cause=17;text="User busy"'))
    assert ended(session).reason == "busy"


@pytest.mark.parametrize(
    ("failure", "end"),
    [
        ("timeout", Ended(408, "no response", "timeout")),
        ("transport", Ended(503, "the far end cannot be reached", "transport")),
    ],
)
def test_no_response_at_all_is_told_in_words(failure: str, end: Ended) -> None:
    session, far = calls()
    session.responses.failed(far.transactions[0], failure, 32.0)
    assert ended(session) == end
    assert session.over


def test_nobody_answers_in_time() -> None:
    session, far = calls(settings=SessionSettings(session_seconds=0, ring_seconds=20))
    far.answer(session, 0.1, 180)
    run(session, 19.0)
    assert not far.cancelled
    run(session, 20.0)
    assert far.cancelled == [far.transactions[0]]
    assert ended(session) == Ended(408, "no answer after 20 s", "timeout")
    assert not session.over, "the 487 is awaited"
    far.answer(session, 20.1, 487)
    assert session.over


def test_giving_up_cancels_and_tells_at_once() -> None:
    session, far = calls()
    session.hang_up(0.5)
    assert far.cancelled == [far.transactions[0]]
    assert ended(session) == Ended(487, "cancelled", "local")
    far.answer(session, 0.6, 487)
    assert events(session) == []
    assert session.over


def test_a_2xx_that_crosses_the_cancel_gets_its_ack_and_a_bye() -> None:
    session, far = calls()
    far.answer(session, 0.1, 180)
    session.hang_up(0.5)
    events(session)
    far.answer(session, 0.6, 200, sdp=ANSWER)
    assert len(far.acks) == 1
    assert far.methods == ["INVITE", "BYE"]
    assert events(session) == [], "it was told that the call is over"
    far.answer(session, 0.7, 200)
    assert session.over


def test_a_cancel_that_nobody_hears_is_not_waited_for_endlessly() -> None:
    session, _ = calls()
    session.hang_up(0.5)
    events(session)
    run(session, 1000.0)
    assert session.over
    assert session.get_timer() is None


def test_a_second_far_end_that_takes_the_call_is_told_that_it_is_over() -> None:
    session, far = talking()
    far.answer(session, 0.3, 200, sdp=OTHER, tag="second", contact="<sip:second@192.0.2.8>")
    assert far.methods == ["INVITE", "BYE"]
    assert far.requests[1].to.tag == "second"
    assert str(far.requests[1].uri) == "sip:second@192.0.2.8"
    assert str(far.hops[-1]) == "sip:second@192.0.2.8"
    assert [ack.to.tag for ack in far.acks] == ["them", "second"]
    far.answer(session, 0.5, 200, sdp=OTHER, tag="second", to=0)
    assert [ack.to.tag for ack in far.acks] == ["them", "second", "second"]
    assert far.methods == ["INVITE", "BYE"], "one is enough"
    assert events(session) == []
    assert session.state is SessionState.ESTABLISHED


def test_forks_are_bounded() -> None:
    session, far = calls()
    for number in range(3 * MAX_FORKS):
        far.answer(session, 0.1, 183, sdp=ANSWER, tag=f"early{number}", to=0)
    assert len(session.life.outgoing.early) == MAX_FORKS
    for number in range(3 * MAX_FORKS):
        far.answer(session, 0.2, 200, sdp=ANSWER, tag=f"late{number}", to=0)
    assert len(far.acks) <= MAX_FORKS
    assert len(far.requests) <= MAX_FORKS
    assert session.state is SessionState.ESTABLISHED


def test_the_answer_of_whoever_took_the_call_counts() -> None:
    session, far = calls()
    far.answer(session, 0.1, 183, sdp=ANSWER, tag="one", to=0)
    far.answer(session, 0.2, 183, sdp=OTHER, tag="two", to=0)
    far.answer(session, 0.3, 200, tag="one", to=0)
    assert events(session) == [
        Progress(183, "Session Progress", ANSWER),
        Progress(183, "Session Progress", OTHER),
        Answered(ANSWER),
    ]


def test_early_media_that_the_200_repeats_is_told_once() -> None:
    session, far = calls()
    far.answer(session, 0.1, 183, sdp=ANSWER)
    far.answer(session, 0.2, 183, sdp=ANSWER)
    far.answer(session, 0.3, 200, sdp=ANSWER)
    assert events(session) == [
        Progress(183, "Session Progress", ANSWER),
        Progress(183, "Session Progress", None),
        Answered(None),
    ]


def test_a_200_without_any_answer_is_acknowledged_and_hung_up() -> None:
    session, far = calls()
    far.answer(session, 0.1, 200)
    assert len(far.acks) == 1
    assert far.methods == ["INVITE", "BYE"]
    assert ended(session) == Ended(488, "the far end answered without SDP", "local")


def test_a_call_without_an_offer_gets_theirs_and_answers_in_the_ack() -> None:
    session, far = calls(sdp=None)
    assert far.requests[0].body == b""
    far.answer(session, 0.1, 183, sdp=OTHER)
    far.answer(session, 0.2, 200, sdp=OFFER)
    assert events(session) == [Progress(183, "Session Progress", None), Answered(OFFER)]
    assert far.acks == []
    far.answer(session, 0.7, 200, sdp=OFFER)
    assert far.acks == [], "a repeat waits too"
    session.answer_offer(ANSWER, 0.8)
    assert far.acks[0].body == ANSWER.encode()
    assert session.state is SessionState.ESTABLISHED
    far.answer(session, 0.9, 200, sdp=OFFER)
    assert far.acks[1].body == ANSWER.encode()


def test_hanging_up_instead_of_answering_their_offer_sends_ack_and_bye() -> None:
    session, far = calls(sdp=None)
    far.answer(session, 0.2, 200, sdp=OFFER)
    session.hang_up(0.3)
    assert [len(far.acks), far.methods[-1]] == [1, "BYE"]


def test_a_far_end_that_hangs_up_before_we_answer_its_offer_ends_the_call() -> None:
    session, far = calls(sdp=None)
    far.answer(session, 0.2, 200, sdp=OFFER)
    far.ask(session, 0.3, "BYE")
    session.answer_offer(ANSWER, 0.4)
    assert far.acks == []
    assert ended(session) == Ended(200, "hung up", "remote")
    assert session.over


def test_their_offer_is_not_left_without_an_answer() -> None:
    session, far = calls(sdp=None)
    far.answer(session, 0.2, 200, sdp=OFFER)
    run(session, 30.0)
    assert [len(far.acks), far.methods[-1]] == [1, "BYE"]
    assert ended(session).by == "local"


def test_a_bye_in_an_early_dialog_gives_the_call_up() -> None:
    session, far = calls()
    far.answer(session, 0.1, 180)
    far.ask(session, 0.2, "BYE", ("Reason", 'SIP;cause=480;text="gone"'))
    assert far.statuses == [200]
    assert far.cancelled
    assert ended(session) == Ended(200, "gone", "remote")


def test_ack_and_bye_go_by_the_route_and_to_the_contact_of_the_200() -> None:
    session, far = calls()
    far.answer(session, 0.1, 180, ("Record-Route", "<sip:old;lr>"), contact="<sip:early@h>")
    far.answer(
        session,
        0.2,
        200,
        ("Record-Route", "<sip:p2;lr>, <sip:p1;lr>"),
        sdp=ANSWER,
        contact="<sip:late@h>",
    )
    session.hang_up(1.0)
    for request in (far.acks[0], far.requests[-1]):
        assert str(request.uri) == "sip:late@h"
        assert [str(route.uri) for route in request.routes] == ["sip:p1;lr", "sip:p2;lr"]
    assert str(far.hops[-1]) == "sip:p1;lr"


def test_a_strict_router_gets_what_it_wants() -> None:
    session, far = calls()
    far.answer(session, 0.2, 200, ("Record-Route", "<sip:p2;lr>, <sip:strict>"), sdp=ANSWER)
    session.hang_up(1.0)
    assert str(far.requests[-1].uri) == "sip:strict"
    assert [str(r.uri) for r in far.requests[-1].routes] == ["sip:p2;lr", "sip:them@192.0.2.2"]
    assert str(far.hops[-1]) == "sip:strict"


def test_an_invite_with_a_route_goes_to_the_proxy() -> None:
    _, far = calls(("Route", "<sip:proxy.test;lr>"))
    assert str(far.hops[0]) == "sip:proxy.test;lr"


def test_route_sets_are_bounded() -> None:
    routes = ", ".join(f"<sip:p{number};lr>" for number in range(90))
    _, far = talking(("Record-Route", routes))
    assert len(far.acks[0].routes) == MAX_ROUTES


# --- reliable provisional responses, as the caller ---


def reliably(rseq: int) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("Require", "100rel"), ("RSeq", str(rseq))


def test_reliable_provisional_responses_are_acknowledged_in_their_order() -> None:
    session, far = calls()
    far.answer(session, 0.1, 180, *reliably(5), to=0)
    assert far.requests[1].headers.get("RAck") == "5 1 INVITE"
    assert str(far.requests[1].cseq) == "2 PRACK"
    far.answer(session, 0.2, 180, *reliably(7), to=0)
    far.answer(session, 0.2, 180, *reliably(5), to=0)
    assert far.methods == ["INVITE", "PRACK"], "a repeat, and one that came too early"
    far.answer(session, 0.3, 183, *reliably(6), sdp=ANSWER, to=0)
    assert far.requests[2].headers.get("RAck") == "6 1 INVITE"
    assert events(session) == [
        Progress(180, "Ringing", None),
        Progress(183, "Session Progress", ANSWER),
    ]


def test_an_answer_that_came_reliably_stands() -> None:
    session, far = calls()
    far.answer(session, 0.1, 183, *reliably(5), sdp=ANSWER, to=0)
    far.answer(session, 0.2, 183, *reliably(6), sdp=OTHER, to=0)
    far.answer(session, 0.3, 200, sdp=OTHER, to=0)
    assert events(session) == [
        Progress(183, "Session Progress", ANSWER),
        Progress(183, "Session Progress", None),
        Answered(None),
    ]


def test_an_offer_in_a_reliable_18x_is_answered_in_the_prack() -> None:
    session, far = calls(sdp=None)
    far.answer(session, 0.1, 183, *reliably(5), sdp=OFFER, to=0)
    assert events(session) == [OfferReceived(OFFER), Progress(183, "Session Progress", None)]
    assert far.methods == ["INVITE"]
    session.answer_offer(ANSWER, 0.2)
    assert far.methods == ["INVITE", "PRACK"]
    assert far.requests[1].body == ANSWER.encode()
    far.answer(session, 0.3, 200, to=0)
    assert events(session) == [Answered(None)]
    assert far.acks[0].body == b""


def test_where_we_do_not_acknowledge_a_reliable_18x_is_as_any_other() -> None:
    session, far = calls(settings=SessionSettings(session_seconds=0, reliable=False))
    assert "100rel" not in far.requests[0].supported
    far.answer(session, 0.1, 180, *reliably(5), to=0)
    assert far.methods == ["INVITE"]
    assert events(session) == [Progress(180, "Ringing", None)]


# --- we are called ---


def test_a_call_is_taken_and_confirmed() -> None:
    session, far = called()
    assert session.dialog is not None
    session.ring(0.1)
    session.accept(ANSWER, 1.0)
    ringing, ok = far.responses
    assert (ringing.status, ok.status) == (180, 200)
    assert ringing.to.tag == ok.to.tag == session.local_tag
    assert ok.body == ANSWER.encode()
    assert str(ok.contacts[0].uri) == "sip:us@192.0.2.1"
    assert {"INVITE", "BYE", "UPDATE", "REFER"} <= set(ok.allow)
    far.acknowledge(session, 1.1)
    assert events(session) == [Confirmed(None)]
    assert session.state is SessionState.ESTABLISHED
    assert session.get_timer() is None


def test_the_200_is_repeated_until_the_ack_comes() -> None:
    session, far = called()
    session.accept(ANSWER, 0.0)
    run(session, 8.0)
    assert far.statuses == [200] * 5
    far.acknowledge(session, 8.1)
    run(session, 100.0)
    assert far.statuses == [200] * 5


def test_without_an_ack_the_call_is_hung_up_after_64_t1() -> None:
    session, far = called()
    session.accept(ANSWER, 0.0)
    assert run(session, 31.9) == 31.5
    assert far.statuses == [200] * 11
    run(session, 32.0)
    assert far.methods == ["BYE"]
    assert far.requests[0].headers.get("Reason") == (
        'SIP;cause=408;text="the far end did not confirm the call"'
    )
    assert ended(session) == Ended(408, "the far end did not confirm the call", "timeout")


def test_an_ack_with_another_number_is_not_ours() -> None:
    session, far = called()
    session.accept(ANSWER, 0.0)
    far.acknowledge(session, 0.1, cseq=9)
    assert events(session) == []


@pytest.mark.parametrize("status", [486, 603, 488])
def test_a_call_is_refused(status: int) -> None:
    session, far = called()
    session.refuse(status, "", 0.1, [("Warning", '399 x "why"')])
    assert far.statuses == [status]
    assert far.responses[0].headers.get("Warning") == '399 x "why"'
    assert ended(session).by == "local"
    assert session.over


def test_hanging_up_before_the_answer_refuses() -> None:
    session, far = called()
    session.hang_up(0.1, "closing", 503)
    assert far.statuses == [503]
    assert far.responses[0].headers.get("Reason") == 'SIP;cause=503;text="closing"'
    assert ended(session) == Ended(503, "closing", "local")


def test_hanging_up_never_takes_the_call() -> None:
    session, far = called()
    session.hang_up(0.1, status=200)
    assert far.statuses == [480]


def test_a_caller_who_gives_up_is_answered_487() -> None:
    session, far = called()
    session.ring(0.1)
    assert session.life.incoming is not None
    cancel = made("CANCEL", [("Reason", 'SIP;cause=200;text="Call completed elsewhere"')])
    session.requests.cancelled(session.life.incoming.transaction, 0.2, cancel)
    assert far.statuses == [180, 487]
    assert ended(session) == Ended(487, "Call completed elsewhere", "remote")
    assert session.over


def test_answering_after_the_caller_gave_up_does_nothing() -> None:
    session, far = called()
    assert session.life.incoming is not None
    session.requests.cancelled(session.life.incoming.transaction, 0.2)
    session.accept(ANSWER, 0.3)
    session.ring(0.3)
    session.refuse(486, "", 0.3)
    assert far.statuses == [487]
    assert ended(session) == Ended(487, "cancelled", "remote")


def test_a_cancel_after_the_200_changes_nothing() -> None:
    session, far = called()
    session.accept(ANSWER, 0.1)
    assert session.life.incoming is not None
    session.requests.cancelled(session.life.incoming.transaction, 0.2)
    far.acknowledge(session, 0.3)
    assert events(session) == [Confirmed(None)]


def test_a_bye_before_the_answer_ends_the_call_and_the_invite() -> None:
    session, far = called()
    session.ring(0.1)
    far.ask(session, 0.2, "BYE")
    assert sorted(far.statuses) == [180, 200, 487]
    assert ended(session) == Ended(200, "hung up", "remote")
    assert session.over


def test_a_bye_instead_of_the_ack_ends_the_call() -> None:
    session, far = called()
    session.accept(ANSWER, 0.1)
    far.ask(session, 0.2, "BYE")
    run(session, 100.0)
    assert far.statuses == [200, 200]
    assert ended(session).by == "remote"
    assert session.over


def test_hanging_up_before_the_ack_waits_for_it() -> None:
    session, far = called()
    session.accept(ANSWER, 0.0)
    session.hang_up(0.1, "enough")
    assert ended(session) == Ended(200, "enough", "local")
    assert far.methods == []
    run(session, 0.5)
    assert far.statuses == [200, 200]
    far.acknowledge(session, 0.6)
    assert far.methods == ["BYE"]
    assert far.requests[0].headers.get("Reason") == 'Q.850;cause=16;text="enough"'
    far.answer(session, 0.7, 200)
    assert session.over
    assert session.get_timer() is None


def test_hanging_up_before_an_ack_that_never_comes_sends_the_bye_at_last() -> None:
    session, far = called()
    session.accept(ANSWER, 0.0)
    session.hang_up(0.1, "enough")
    run(session, 32.0)
    assert far.methods == ["BYE"]
    assert far.requests[0].headers.get("Reason") == 'Q.850;cause=16;text="enough"'


def test_nobody_takes_the_call_in_time() -> None:
    session, far = called(settings=SessionSettings(session_seconds=0, ring_seconds=20))
    session.ring(0.1)
    assert run(session, 100.0) == 20.0
    assert far.statuses == [180, 480]
    assert ended(session) == Ended(480, "no answer after 20 s", "timeout")


def test_the_callers_own_limit_counts_too() -> None:
    session, far = called(("Expires", "5"))
    assert run(session, 100.0) == 5.0
    assert far.statuses == [480]


def test_a_call_without_an_offer_gets_ours_in_the_200_and_answers_in_the_ack() -> None:
    session, far = called(sdp=None)
    session.accept(OFFER, 0.1)
    assert far.responses[0].body == OFFER.encode()
    far.acknowledge(session, 0.2, sdp=ANSWER)
    assert events(session) == [Confirmed(ANSWER)]


def test_an_ack_without_the_answer_that_was_due_ends_the_call() -> None:
    session, far = called(sdp=None)
    session.accept(OFFER, 0.1)
    far.acknowledge(session, 0.2)
    assert far.methods == ["BYE"]
    assert ended(session) == Ended(488, "the far end did not answer the offer", "local")


def test_the_connection_of_a_ringing_call_is_lost() -> None:
    session, _ = called()
    assert session.life.incoming is not None
    session.responses.failed(session.life.incoming.transaction, "transport", 1.0)
    assert ended(session) == Ended(503, "the connection is lost", "transport")
    assert session.over


def test_a_caller_of_before_rfc_3261_is_served() -> None:
    session, far = called(sdp=OFFER)
    assert session.state is SessionState.RECEIVED
    request = made("INVITE", [], OFFER.encode(), from_tag="")
    assert request.from_.tag == ""
    other = type(session).incoming(far, arrived(request), request, US, NO_TIMER, 0.0)
    other.accept(ANSWER, 0.1)
    other.requests.receive_ack(made("ACK", [], from_tag="", to_tag=other.local_tag), 0.2)
    other.hang_up(0.3)
    assert str(far.requests[-1].uri) == "sip:them@192.0.2.2"


# --- reliable provisional responses, as the called ---

SUPPORTED = ("Supported", "100rel")
REQUIRED = ("Require", "100rel")


def test_ringing_is_repeated_until_its_prack() -> None:
    session, far = called(SUPPORTED)
    session.ring(0.0)
    run(session, 1.6)
    assert far.statuses == [180] * 3
    rseq = far.responses[0].headers.get("RSeq")
    assert all(r.require == ["100rel"] for r in far.responses)
    far.ask(session, 1.7, "PRACK", ("RAck", f"{rseq} 1 INVITE"))
    assert far.statuses == [180] * 3 + [200]
    run(session, 50.0)
    assert far.statuses == [180] * 3 + [200]


def test_without_a_prack_the_call_is_refused() -> None:
    session, far = called(REQUIRED)
    session.ring(0.0)
    run(session, 32.0)
    assert far.statuses[-1] == 504
    assert ended(session) == Ended(504, "the far end did not acknowledge the ringing", "timeout")


def test_a_prack_for_nothing_that_was_sent_is_refused() -> None:
    session, far = called(SUPPORTED)
    far.ask(session, 0.1, "PRACK", ("RAck", "1 1 INVITE"))
    session.ring(0.2)
    far.ask(session, 0.3, "PRACK", ("RAck", "1 1 INVITE"))
    far.ask(session, 0.4, "PRACK")
    assert far.statuses == [481, 180, 481, 481]


def test_the_200_waits_for_the_prack_of_the_media_before_it() -> None:
    session, far = called(SUPPORTED)
    session.ring(0.0, ANSWER)
    session.accept("ignored", 0.1)
    assert far.statuses == [183]
    assert far.responses[0].body == ANSWER.encode()
    rseq = far.responses[0].headers.get("RSeq")
    far.ask(session, 0.3, "PRACK", ("RAck", f"{rseq} 1 INVITE"))
    assert far.statuses == [183, 200, 200]
    assert far.responses[-1].cseq.method == "INVITE"
    assert far.responses[-1].body == b"", "the answer has been given"


def test_the_200_does_not_wait_for_the_prack_of_mere_ringing() -> None:
    session, far = called(SUPPORTED)
    session.ring(0.0)
    session.accept(ANSWER, 0.1)
    assert far.statuses == [180, 200]
    rseq = far.responses[0].headers.get("RSeq")
    far.ask(session, 0.2, "PRACK", ("RAck", f"{rseq} 1 INVITE"))
    assert far.statuses == [180, 200, 200]


def test_our_offer_in_a_reliable_18x_is_answered_in_the_prack() -> None:
    session, far = called(SUPPORTED, sdp=None)
    session.ring(0.0, OFFER)
    session.accept("ignored", 0.1)
    rseq = far.responses[0].headers.get("RSeq")
    far.ask(session, 0.3, "PRACK", ("RAck", f"{rseq} 1 INVITE"), sdp=ANSWER)
    assert far.statuses == [183, 200, 200]
    far.acknowledge(session, 0.4)
    assert events(session) == [AnswerReceived(ANSWER), Confirmed(None)]


def test_an_offer_is_not_put_where_it_may_get_lost() -> None:
    session, far = called(sdp=None)
    session.ring(0.0, OFFER)
    assert far.statuses == [180]
    assert far.responses[0].body == b""


def test_an_offer_in_a_prack_is_answered_in_its_200() -> None:
    session, far = called(SUPPORTED)
    session.ring(0.0, ANSWER)
    rseq = far.responses[0].headers.get("RSeq")
    far.ask(session, 0.3, "PRACK", ("RAck", f"{rseq} 1 INVITE"), sdp=OTHER)
    assert events(session) == [OfferReceived(OTHER)]
    session.accept("ignored", 0.4)
    assert far.statuses == [183], "first things first"
    session.answer_offer(THIRD, 0.5)
    assert far.statuses == [183, 200, 200]
    assert far.responses[1].body == THIRD.encode()


def test_who_demands_what_we_do_not_speak_is_refused() -> None:
    session, far = called(REQUIRED, settings=SessionSettings(reliable=False))
    assert far.statuses == [420]
    assert far.responses[0].headers.get("Unsupported") == "100rel"
    assert ended(session) == Ended(420, "refused: 420 Bad Extension", "local")
    assert session.over


# --- the end ---


def test_hanging_up_sends_a_bye_and_tells_at_once() -> None:
    session, far = talking()
    session.hang_up(5.0, 'the "caller" left')
    bye = far.requests[-1]
    assert (bye.method, str(bye.cseq)) == ("BYE", "2 BYE")
    assert bye.headers.get("Reason") == 'Q.850;cause=16;text="the \\"caller\\" left"'
    assert ended(session) == Ended(200, 'the "caller" left', "local")
    assert not session.over
    far.answer(session, 5.1, 200)
    assert session.over
    assert session.get_timer() is None


def test_the_far_end_hangs_up_and_says_why() -> None:
    session, far = talking()
    far.ask(session, 5.0, "BYE", ("Reason", 'Q.850;cause=16;text="Normal\tclearing"'))
    assert far.statuses == [200]
    assert ended(session) == Ended(200, "hung up", "remote")
    assert session.over


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("Q.850;cause=16", "hung up"),
        ("q.850 ; cause = 16 ; text = NORMAL_CLEARING", "hung up"),
        ('Q.850;cause=16;text="transferred"', "transferred"),
        ('Q.850;text="Call Rejected";cause=21', "declined"),
        ("Q.850;cause=38", "the network is out of order"),
        ('Q.850;cause=21;text="spam"', "declined: spam"),
        ("Q.850;cause=7", "Q.850 cause 7"),
        ("Q.850;cause=" + "9" * 300, "Q.850 cause " + "9" * 188),
        ("SIP;cause=480", "480 Temporarily Unavailable"),
        ("preemption, Q.850;cause=17", "busy"),
        ('SIP;cause=200;text="a, b", Q.850;cause=17', "a, b"),
        ('SIP;cause=200;text="open', "open"),
        ('SIP;text=""', "hung up"),
        ("", "hung up"),
        ('SIP;cause=600;text="' + "x" * 5000 + '"', "x" * 200),
    ],
)
def test_a_reason_is_kept_as_text_whatever_it_is(reason: str, text: str) -> None:
    session, far = talking()
    far.ask(session, 5.0, "BYE", ("Reason", reason))
    assert ended(session).reason == text


def test_two_byes_that_cross_are_both_answered() -> None:
    session, far = talking()
    session.hang_up(5.0)
    far.ask(session, 5.01, "BYE")
    assert far.statuses == [200]
    assert len([e for e in events(session) if isinstance(e, Ended)]) == 1
    far.answer(session, 5.02, 481)
    assert session.over


@pytest.mark.parametrize("status", [200, 481, 500, 403])
def test_whatever_is_said_to_a_bye_the_call_is_over(status: int) -> None:
    session, far = talking()
    session.hang_up(5.0)
    far.answer(session, 5.1, status)
    assert session.over


def test_a_bye_that_nobody_answers_ends_the_call_too() -> None:
    session, far = talking()
    session.hang_up(5.0)
    session.responses.failed(far.transactions[-1], "timeout", 37.0)
    assert session.over


def test_keys_of_the_media_do_not_show_in_what_is_told() -> None:
    keyed = ANSWER + "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:c2VjcmV0\r\n"
    session, far = calls()
    far.answer(session, 0.1, 200, sdp=keyed)
    assert "c2VjcmV0" not in repr(events(session))


def test_what_is_asked_after_the_end_does_nothing() -> None:
    session, far = talking()
    far.ask(session, 5.0, "BYE")
    events(session)
    sent = len(far.requests), len(far.responses)
    session.hang_up(6.0)
    session.reoffer(OTHER, 6.0)
    session.answer_offer(OTHER, 6.0)
    session.refuse_offer(488, 6.0)
    session.info_dtmf("5", 6.0)
    session.answer_offer(OTHER, 6.0)
    session.refers.accept(6.0)
    session.refers.refuse(603, 6.0)
    session.refers.notify(200, "OK", 6.0)
    assert not session.refer(session.invite.uri, 6.0)
    assert (len(far.requests), len(far.responses)) == sent
    assert events(session) == []


def test_a_bye_of_a_fork_does_not_end_the_call() -> None:
    session, far = calls()
    far.answer(session, 0.1, 180, tag="other", to=0)
    far.answer(session, 0.2, 200, sdp=ANSWER, to=0)
    events(session)
    far.ask(session, 0.3, "BYE", tag="other")
    assert far.statuses == [200]
    assert session.state is SessionState.ESTABLISHED
    assert events(session) == []


def test_a_callee_whose_200_never_arrives_and_its_caller_both_end() -> None:
    network = Network()
    a, b = network.end("a", "192.0.2.1"), network.end("b", "192.0.2.2")
    network.drop = lambda data: data.startswith(b"SIP/2.0 200")
    a.call(b, 0.0)
    network.run(0.5)
    b.accept(network.now)
    network.run(300.0)
    assert a.session is not None
    assert b.session is not None
    assert a.session.over
    assert b.session.over
    assert [e.reason for e in b.ends] == ["the far end did not confirm the call"]


def test_a_lost_ack_is_sent_again_for_the_repeated_200() -> None:
    network = Network()
    a, b = network.end("a", "192.0.2.1"), network.end("b", "192.0.2.2")
    lost = []

    def drop(data: bytes) -> bool:
        if data.startswith(b"ACK") and len(lost) < 3:
            lost.append(data)
            return True
        return False

    network.drop = drop
    a.call(b, 0.0)
    network.run(0.5)
    b.accept(network.now)
    network.run(20.0)
    assert len(lost) == 3
    assert [type(e) for e in b.events] == [Confirmed]
    assert [type(e) for e in a.events] == [Answered]


def test_a_lost_prack_is_sent_again() -> None:
    network = Network()
    a, b = network.end("a", "192.0.2.1"), network.end("b", "192.0.2.2")
    lost = []

    def drop(data: bytes) -> bool:
        if data.startswith(b"PRACK") and len(lost) < 2:
            lost.append(data)
            return True
        return False

    network.drop = drop
    a.call(b, 0.0)
    network.run(0.5)
    b.ring(network.now, early=True)
    b.accept(network.now)
    network.run(10.0)
    assert len(lost) == 2
    assert b.session is not None
    assert b.session.state is SessionState.ESTABLISHED
    assert a.described == b.described[::-1]


def test_a_cancel_that_crosses_the_200_ends_the_call_at_both_ends() -> None:
    network = Network(delay=0.1)
    a, b = network.end("a", "192.0.2.1"), network.end("b", "192.0.2.2")
    a.call(b, 0.0)
    network.run(0.5)
    assert a.session is not None
    assert b.session is not None
    b.accept(network.now)
    a.session.hang_up(network.now)
    network.run(10.0)
    assert a.ends == [Ended(487, "cancelled", "local")]
    assert b.ends == [Ended(200, "hung up", "remote")]
    assert "BYE sip:b@192.0.2.2 SIP/2.0" in network.log
