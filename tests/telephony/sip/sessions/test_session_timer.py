import pytest

from offhook.telephony.sip.messages.message import Request, Response, respond
from offhook.telephony.sip.sessions.session_timer import Due, SessionExpires, SessionTimer
from tests.telephony.sip.session_peers import Header, made

TIMER = ("Supported", "timer")


def request(*headers: Header) -> Request:
    return made("INVITE", list(headers))


def response(status: int, *headers: Header) -> Response:
    return respond(request(), status, to_tag="them", headers=headers)


@pytest.mark.parametrize(
    ("text", "seconds", "refresher"),
    [
        ("1800", 1800, None),
        ("1800;refresher=uac", 1800, "uac"),
        (" 90 ; Refresher = UAS ;x", 90, "uas"),
        ("1800;refresher=nobody", 1800, None),
        ("99999999999999999999999", 86_400, None),
    ],
)
def test_session_expires_is_read(text: str, seconds: int, refresher: str | None) -> None:
    assert SessionExpires.of(request(("Session-Expires", text))) == SessionExpires(
        seconds,
        refresher,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("text", ["", "soon", "-5", "1e3", "٣٠٠", ";refresher=uac"])
def test_session_expires_that_is_none_is_as_if_it_were_not_there(text: str) -> None:
    assert SessionExpires.of(request(("x", text))) is None


def test_the_caller_refreshes_at_half_the_time_when_that_is_agreed() -> None:
    timer = SessionTimer(1800, 90)
    assert timer.request_headers() == [("Session-Expires", "1800")]
    timer.accepted(response(200, ("Session-Expires", "600;refresher=uac")), 100.0)
    assert timer.we_refresh
    assert timer.get_timer() == 400.0
    assert timer.handle_timer(400.0) is Due.REFRESH
    assert timer.request_headers() == [("Session-Expires", "600;refresher=uac")]
    timer.accepted(response(200, ("Session-Expires", "600;refresher=uac")), 400.1)
    assert timer.get_timer() == 700.1


def test_the_caller_refreshes_where_the_answer_does_not_say_who() -> None:
    timer = SessionTimer(1800, 90)
    timer.accepted(response(200, ("Session-Expires", "600")), 100.0)
    assert timer.we_refresh
    assert timer.handle_timer(400.0) is Due.REFRESH


def test_who_does_not_refresh_ends_the_call_a_little_before_its_time() -> None:
    timer = SessionTimer(1800, 90)
    timer.accepted(response(200, ("Session-Expires", "600;refresher=uas")), 100.0)
    assert not timer.we_refresh
    assert timer.get_timer() == 100.0 + 600 - 32
    assert timer.handle_timer(667.9) is None
    assert timer.handle_timer(668.0) is Due.EXPIRED
    assert timer.get_timer() is None


def test_a_short_call_ends_a_third_before_its_time() -> None:
    timer = SessionTimer(90, 90)
    timer.accepted(response(200, ("Session-Expires", "90;refresher=uas")), 0.0)
    assert timer.get_timer() == 60.0


def test_a_far_end_that_knows_no_timers_leaves_none() -> None:
    timer = SessionTimer(1800, 90)
    timer.accepted(response(200), 0.0)
    assert timer.get_timer() is None
    assert timer.seconds is None


def test_a_422_is_answered_with_the_time_it_wants_and_only_so_often() -> None:
    timer = SessionTimer(100, 90)
    assert timer.too_short(response(422, ("Min-SE", "300")))
    assert timer.request_headers() == [("Session-Expires", "300"), ("Min-SE", "300")]
    assert not timer.too_short(response(422, ("Min-SE", "300")))
    assert timer.too_short(response(422, ("Min-SE", "400")))
    assert not timer.too_short(response(422, ("Min-SE", "500")))


def test_a_422_to_a_refresh_lengthens_what_was_agreed() -> None:
    timer = SessionTimer(100, 90)
    timer.accepted(response(200, ("Session-Expires", "100;refresher=uac")), 0.0)
    assert timer.too_short(response(422, ("Min-SE", "300")))
    assert timer.seconds == 300
    assert timer.request_headers() == [
        ("Session-Expires", "300;refresher=uac"),
        ("Min-SE", "300"),
    ]


def test_who_does_not_refresh_has_no_refresh_to_fail() -> None:
    timer = SessionTimer(1800, 90)
    timer.accepted(response(200, ("Session-Expires", "600;refresher=uas")), 100.0)
    timer.refresh_failed(200.0)
    assert timer.get_timer() == 100.0 + 600 - 32


def test_a_422_without_a_time_is_not_asked_again() -> None:
    assert not SessionTimer(100, 90).too_short(response(422))


def test_a_caller_that_can_learn_better_is_told_our_least_time() -> None:
    timer = SessionTimer(1800, 120)
    asked = ("Session-Expires", "100")
    assert timer.refusal(request(asked, TIMER)) == [("Min-SE", "120")]
    assert timer.refusal(request(asked)) is None, "a proxy put it there"
    assert timer.refusal(request(("Session-Expires", "120"), TIMER)) is None
    assert timer.refusal(request()) is None


def test_the_called_end_lets_the_caller_refresh_where_it_can() -> None:
    timer = SessionTimer(1800, 90)
    headers = timer.answer(request(("Session-Expires", "1000"), TIMER), 0.0)
    assert headers == [("Session-Expires", "1000;refresher=uac"), ("Require", "timer")]
    assert not timer.we_refresh


def test_the_called_end_keeps_the_role_that_was_asked_for() -> None:
    timer = SessionTimer(1800, 90)
    headers = timer.answer(request(("Session-Expires", "1000;refresher=uas"), TIMER), 0.0)
    assert headers == [("Session-Expires", "1000;refresher=uas")]
    assert timer.get_timer() == 500.0


def test_the_called_end_refreshes_itself_for_a_caller_that_knows_no_timers() -> None:
    timer = SessionTimer(1800, 90)
    assert timer.answer(request(), 0.0) == [("Session-Expires", "1800;refresher=uas")]
    assert timer.we_refresh


def test_the_called_end_takes_the_shorter_time_but_not_below_the_callers_least() -> None:
    timer = SessionTimer(600, 90)
    asked = [("Session-Expires", "3600;refresher=uas"), ("Min-SE", "900"), TIMER]
    assert timer.answer(request(*asked), 0.0) == [("Session-Expires", "900;refresher=uas")]


def test_without_timers_of_ours_the_callers_wish_is_served() -> None:
    timer = SessionTimer(0, 90)
    assert timer.request_headers() == []
    assert timer.answer(request(), 0.0) == []
    timer.answer(request(("Session-Expires", "1000;refresher=uas"), TIMER), 0.0)
    assert timer.request_headers() == [("Session-Expires", "1000;refresher=uac")]


def test_a_refresh_that_is_refused_is_tried_again_until_the_end() -> None:
    timer = SessionTimer(1800, 90)
    timer.accepted(response(200, ("Session-Expires", "100;refresher=uac")), 0.0)
    due = []
    now = 0.0
    while (at := timer.get_timer()) is not None:
        now = at
        due.append(timer.handle_timer(now))
        if due[-1] is Due.REFRESH:
            timer.refresh_failed(now)
    assert due[-1] is Due.EXPIRED
    assert 3 <= len(due) <= 12
    assert now == pytest.approx(100 - 32)


def test_a_far_end_cannot_make_us_refresh_all_the_time() -> None:
    timer = SessionTimer(1800, 90)
    timer.accepted(response(200, ("Session-Expires", "0;refresher=uac")), 0.0)
    assert timer.get_timer() == 45.0
