"""A call that another server continues: the re-INVITE, and what comes of it."""

from dataclasses import replace

import pytest

from offhook.media.end_reason import End
from offhook.telephony.sip.media.media_plan import SavedMedia
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.saved_dialog import CSEQ_GAP, SavedDialog
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import AnswerReceived, Ended, OfferRefused
from offhook.telephony.sip.sessions.session_table import SessionState
from tests.telephony.sip.session_peers import (
    ANSWER,
    NO_TIMER,
    OTHER,
    THIRD,
    FarEnd,
    events,
    run,
    talked_to,
    talking,
)

HERE = Uri("sip", host="192.0.2.7", port=5070)
ROUTES = ("Record-Route", "<sip:192.0.2.3;lr>")


def continued(session: Session) -> tuple[Session, FarEnd]:
    """The session at another server."""
    assert session.dialog is not None
    saved = SavedDialog.of(session.dialog, session.we_called, "UDP", SavedMedia(""))
    far = FarEnd()
    dialog = saved.dialog(HERE)
    return Session.restored(far, dialog, saved.we_called, NO_TIMER, 100.0, random=lambda: 0.5), far


@pytest.mark.parametrize("make", [talking, talked_to])
def test_it_goes_on_in_the_same_dialog(make):
    old, before = make(ROUTES)
    session, far = continued(old)
    assert session.get_timer() is None
    session.reoffer(THIRD, 100.0)
    (reinvite,) = far.requests
    (first,) = before.requests or [None]
    assert reinvite.call_id == old.call_id
    assert reinvite.from_.tag == old.local_tag
    assert reinvite.to.tag == "them"
    assert reinvite.cseq.number == (1 if first else 0) + CSEQ_GAP + 1
    assert [str(route) for route in reinvite.routes] == ["<sip:192.0.2.3;lr>"]
    assert reinvite.contacts[0].uri == HERE
    assert str(reinvite.uri) == "sip:them@192.0.2.2"
    assert far.hops[0].host == "192.0.2.3"
    far.answer(session, 100.1, 200, sdp=OTHER)
    assert events(session) == [AnswerReceived(OTHER)]
    assert far.acks[0].cseq.number == reinvite.cseq.number
    far.ask(session, 101.0, "BYE")
    assert isinstance(events(session)[0], Ended)
    assert session.over


@pytest.mark.parametrize(
    ("status", "state", "methods"),
    [
        (481, SessionState.ENDED, ["INVITE"]),
        (408, SessionState.ENDING, ["INVITE", "BYE"]),
        (488, SessionState.ESTABLISHED, ["INVITE"]),
    ],
)
def test_it_is_refused(status, state, methods):
    session, far = continued(talking()[0])
    session.reoffer(THIRD, 100.0)
    far.answer(session, 100.1, status)
    (event,) = events(session)
    assert isinstance(event, (Ended, OfferRefused))
    assert event.status == status
    assert session.state is state
    assert far.methods == methods


def test_glare_is_tried_once_more():
    session, far = continued(talked_to()[0])
    session.reoffer(THIRD, 100.0)
    far.answer(session, 100.1, 491)
    run(session, 104.0)
    assert far.methods == ["INVITE", "INVITE"]
    far.answer(session, 104.0, 200, sdp=ANSWER)
    assert events(session) == [AnswerReceived(ANSWER)]


@pytest.mark.parametrize("make", [talking, talked_to])
def test_the_server_that_had_it_leaves_without_a_word(make):
    session, far = make()
    sent = far.methods
    session.leave(10.0, End.CONTINUED_ELSEWHERE)
    (end,) = events(session)
    assert isinstance(end, Ended)
    assert end.reason == End.CONTINUED_ELSEWHERE
    assert far.methods == sent
    session.hang_up(10.1)
    assert far.methods == sent
    assert session.over
    far.ask(session, 10.2, "INFO")
    assert far.statuses[-1] == 481


def test_without_a_proxy_requests_go_to_the_far_end_itself():
    session, _ = talking()
    assert session.dialog is not None
    saved = SavedDialog.of(session.dialog, True, "TCP", SavedMedia(""))
    assert saved.next_hop().host == "192.0.2.2"
    assert replace(saved, route_set=("<sip:192.0.2.3;lr>",)).next_hop().host == "192.0.2.3"
