import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.message import Request, respond
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.refer import (
    AFTER_END_S,
    FIRST_NOTIFY_S,
    SUBSCRIPTION_S,
    InboundRefer,
    OutboundRefer,
    Replaces,
    fragment,
    refer_headers,
)
from offhook.telephony.sip.sessions.session_events import ReferProgress
from tests.telephony.sip.session_peers import arrived, made

REFER = made("REFER", [])
TARGET = Uri.parse("sip:desk@192.0.2.9")


def notify(body: bytes, state: str = "active;expires=60") -> Request:
    return made("NOTIFY", [("Subscription-State", state)], body, "message/sipfrag")


def accepted() -> OutboundRefer:
    refer = OutboundRefer()
    assert refer.answered(respond(REFER, 202), 0.0) == ReferProgress(202, "Accepted", False)
    return refer


def test_a_transfer_is_told_of_step_by_step() -> None:
    refer = accepted()
    trying = refer.notified(notify(b"SIP/2.0 100 Trying\r\n"), 0.1)
    assert trying == ReferProgress(100, "Trying", False)
    ringing = refer.notified(notify(b"SIP/2.0 180 Ringing\r\n"), 0.2)
    assert ringing == ReferProgress(180, "Ringing", False)
    done = refer.notified(notify(b"SIP/2.0 200 OK\r\n", "terminated;reason=noresource"), 3.0)
    assert done == ReferProgress(200, "OK", True)
    assert not refer.open
    assert refer.get_timer() is None


def test_a_notify_may_overtake_the_202() -> None:
    refer = OutboundRefer()
    done = refer.notified(notify(b"SIP/2.0 200 OK"), 0.1)
    assert done == ReferProgress(200, "OK", True)
    assert refer.answered(respond(REFER, 202), 0.2) is None


@pytest.mark.parametrize(
    ("status", "text"),
    [(603, "declined: 603 Decline"), (403, "refused: 403 Forbidden"), (486, "busy")],
)
def test_a_refused_transfer_says_why(status: int, text: str) -> None:
    refer = OutboundRefer()
    assert refer.answered(respond(REFER, status), 0.1) == ReferProgress(status, text, True)
    assert not refer.open


def test_a_target_that_does_not_answer_is_told_of() -> None:
    refer = accepted()
    progress = refer.notified(notify(b"SIP/2.0 486 Busy Here\r\n"), 0.1)
    assert progress == ReferProgress(486, "Busy Here", True)


def test_a_far_end_that_never_reports_has_taken_the_call() -> None:
    refer = accepted()
    assert refer.get_timer() == FIRST_NOTIFY_S
    assert refer.handle_timer(FIRST_NOTIFY_S - 0.1) is None
    assert refer.handle_timer(FIRST_NOTIFY_S) == ReferProgress(202, "Accepted", True)
    assert not refer.open


def test_a_far_end_that_says_it_will_not_report_has_taken_the_call() -> None:
    refer = OutboundRefer()
    answer = respond(REFER, 202, headers=[("Refer-Sub", "false")])
    assert refer.answered(answer, 0.1) == ReferProgress(202, "Accepted", True)
    assert refer.get_timer() is None


def test_without_a_last_notify_the_transfer_is_given_up_by_name() -> None:
    refer = accepted()
    refer.notified(notify(b"SIP/2.0 100 Trying"), 1.0)
    progress = refer.handle_timer(1.0 + SUBSCRIPTION_S)
    assert progress == ReferProgress(
        408, "the far end did not say how the transfer ended within 180 s", True, is_known=False
    )


def test_the_last_word_may_come_after_the_call() -> None:
    refer = accepted()
    assert refer.call_ended(5.0) is None
    assert refer.get_timer() == 5.0 + AFTER_END_S
    assert refer.notified(notify(b"SIP/2.0 200 OK"), 6.0) == ReferProgress(200, "OK", True)


def test_a_call_that_ends_before_the_transfer_is_accepted_ends_it() -> None:
    refer = OutboundRefer()
    progress = refer.call_ended(1.0)
    assert progress is not None
    assert (progress.status, progress.final) == (487, True)


def test_a_subscription_that_is_terminated_early_is_final() -> None:
    progress = accepted().notified(notify(b"SIP/2.0 100 Trying", "terminated;reason=giveup"), 1.0)
    said = "the far end stopped reporting: reason=giveup"
    assert progress == ReferProgress(408, said, True, is_known=False)


@given(st.binary(max_size=300))
def test_whatever_a_notify_says_it_is_read_or_refused(body: bytes) -> None:
    refer = accepted()
    try:
        progress = refer.notified(notify(body), 0.1)
    except SipError:
        assert refer.open
        return
    assert progress is not None
    assert progress.reason.isprintable()


def test_the_call_to_be_replaced_goes_into_the_target() -> None:
    headers = dict(refer_headers(TARGET, "call@x;to-tag=1;from-tag=2", "<sip:us@192.0.2.1>"))
    assert headers["Refer-To"] == (
        "<sip:desk@192.0.2.9?Replaces=call%40x%3Bto-tag%3D1%3Bfrom-tag%3D2>"
    )
    assert headers["Referred-By"] == "<sip:us@192.0.2.1>"


def asked(refer_to: str, *headers: tuple[str, str]) -> InboundRefer:
    request = made("REFER", [("Refer-To", refer_to), *headers], cseq=44)
    return InboundRefer.of(request, arrived(request), 0.0)


def test_what_we_are_asked_for_is_read() -> None:
    refer = asked(
        "<sip:desk@192.0.2.9;method=INVITE?Replaces=call%40x%3Bto-tag%3D1%3Bfrom-tag%3D2>",
        ("Referred-By", "<sip:them@192.0.2.2>"),
    )
    assert refer.received.target == TARGET
    assert refer.received.replaces == "call@x;to-tag=1;from-tag=2"
    assert refer.received.referred_by == "<sip:them@192.0.2.2>"


@pytest.mark.parametrize("refer_to", ["", "nonsense", "<sip:a@b", "<sip:a@b;method=BYE>"])
def test_a_refer_to_nobody_that_can_be_called_is_refused(refer_to: str) -> None:
    with pytest.raises(SipError):
        asked(refer_to)


def test_two_targets_are_refused() -> None:
    with pytest.raises(SipError):
        asked("<sip:a@b>", ("Refer-To", "<sip:c@d>"))


def test_notifies_name_their_refer_and_the_last_closes_the_subscription() -> None:
    refer = asked("<sip:desk@192.0.2.9>")
    assert refer.accept(0.0) == []
    assert refer.notify_headers(100, 10.0) == [
        ("Event", "refer;id=44"),
        ("Subscription-State", "active;expires=170"),
    ]
    assert refer.notify_headers(200, 20.0)[1][1] == "terminated;reason=noresource"
    assert fragment(200, "OK\r\nX: y") == b"SIP/2.0 200 OK  X: y\r\n"


def test_who_wants_no_notify_is_told_that_none_comes() -> None:
    assert asked("<sip:a@b>", ("Refer-Sub", "false")).accept(0.0) == [("Refer-Sub", "false")]


def test_replaces_is_read() -> None:
    assert Replaces.parse("a@b ; to-tag=1;from-tag=2;early-only") == Replaces("a@b", "1", "2", True)
    for text in ("", "a@b", "a@b;to-tag=1", ";to-tag=1;from-tag=2", "a;to-tag=;from-tag=2"):
        with pytest.raises(SipError):
            Replaces.parse(text)
