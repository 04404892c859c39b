"""Routes by lists of callers, by time and by share, and those that refuse calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.leg import CallInfo
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.trunks.routes import NoConditions, Route, place_of, route

CALL = CallInfo(caller="+49301234", called="100")


class Asked(NoConditions):
    """Some hours are open, and some lists have everybody."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def is_within(self, hours: str) -> bool:
        return hours in self.names

    def is_listed(self, callers: str, caller: str) -> bool:
        return callers in self.names


DAY = (
    Route(callers="blocked", refuse=603),
    Route("vip", callers="vip"),
    Route("desk", hours="office"),
    Route("closed"),
)


@pytest.mark.parametrize(
    ("names", "agent", "refuse"),
    [
        (("blocked", "vip", "office"), "", 603),
        (("vip", "office"), "vip", 0),
        (("office",), "desk", 0),
        ((), "closed", 0),
    ],
)
def test_lists_and_hours_choose_in_order(names: tuple[str, ...], agent: str, refuse: int) -> None:
    found = route(DAY, CALL, Asked(*names))
    assert found is not None
    assert (found.agent, found.refuse) == (agent, refuse)


def test_without_answers_no_route_that_asks_matches() -> None:
    assert route(DAY[:3], CALL) is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"share": 0}, "share is a percentage over 0, up to 100, not 0"),
        ({"share": 101}, "share is a percentage"),
        ({"share": float("nan")}, "share is a percentage"),
        ({"refuse": 200}, "refuse is a status from 400 to 699, not 200"),
        ({"refuse": 700}, "refuse is a status"),
        ({"refuse": 486, "agent": "desk"}, "goes nowhere, but it names 'desk'"),
    ],
)
def test_a_route_that_cannot_work_is_refused_in_words(settings: dict, says: str) -> None:
    with pytest.raises(SipError, match=says):
        Route(**settings)


@given(st.text(min_size=1, max_size=20), st.floats(0.01, 100))
def test_a_caller_always_has_the_same_agent(caller: str, share: float) -> None:
    routes = (Route("trial", share=share), Route("usual"))
    call = CallInfo(caller=caller)
    found = {route(routes, call) for _ in range(3)}
    assert len(found) == 1
    larger = (Route("trial", share=min(100.0, share + 5)), Route("usual"))
    if found == {routes[0]}:  # whoever had it keeps it when more get it
        assert route(larger, call) is larger[0]


@given(st.text(max_size=20), st.text(max_size=20))
def test_every_caller_has_a_place(caller: str, agent: str) -> None:
    assert 0 <= place_of(caller, agent) < 100


@pytest.mark.parametrize("share", [1, 10, 50, 90])
def test_shares_are_as_large_as_they_say(share: float) -> None:
    routes = (Route("trial", share=share), Route("usual"))
    calls = [CallInfo(caller=f"+4930{number}") for number in range(10_000)]
    chosen = sum(route(routes, call) is routes[0] for call in calls)
    assert abs(chosen - 100 * share) < 4 * (100 * share * (1 - share / 100)) ** 0.5


def test_trials_of_two_agents_have_different_callers() -> None:
    callers = [f"+4930{number}" for number in range(2_000)]
    one, two = ({c for c in callers if place_of(c, agent) < 50} for agent in ("a", "b"))
    assert 350 < len(one & two) < 650


def test_callers_without_a_number_are_in_no_trial() -> None:
    routes = (Route("trial", share=99.9), Route("usual"))
    assert route(routes, CallInfo(caller="")) is routes[1]
