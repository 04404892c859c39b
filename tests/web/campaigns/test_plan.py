"""Who is called again after which outcome, and when; and what is made of the record of a call."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from offhook.web.campaigns.errors import WrongState
from offhook.web.campaigns.outcomes import OUTCOMES, RETRIED, Outcome, outcome_of
from offhook.web.campaigns.plan import MAX_AFTER_MINUTES, CampaignPlan
from offhook.web.campaigns.states import (
    CAMPAIGN,
    RECIPIENT,
    RECIPIENT_STATES,
    CampaignEvent,
    CampaignState,
    before,
    changed,
)
from tests.web.records.made_calls import RECORD

NOW = 1_790_000_000.0


def plan(**fields: Any) -> CampaignPlan:
    return CampaignPlan.model_validate(fields)


def test_by_default_the_busy_are_called_three_times_with_longer_pauses() -> None:
    when = plan()
    assert when.again_at("busy", 1, "UTC", NOW) == NOW + 15 * 60
    assert when.again_at("busy", 2, "UTC", NOW) == NOW + 30 * 60
    assert when.again_at("busy", 3, "UTC", NOW) is None


@pytest.mark.parametrize("outcome", ["answered", "message_left", "refused", "unknown"])
def test_some_are_never_called_again(outcome: Outcome) -> None:
    assert plan().again_at(outcome, 1, "UTC", NOW) is None


def test_those_who_may_have_been_called_are_called_again_if_that_is_wanted() -> None:
    when = plan(retries={"unknown": {"times": 1, "after_minutes": 0}})
    assert when.again_at("unknown", 1, "UTC", NOW) == NOW
    assert when.again_at("unknown", 2, "UTC", NOW) is None


@given(
    st.sampled_from(OUTCOMES),
    st.integers(1, 25),
    st.integers(0, 20),
    st.floats(0, MAX_AFTER_MINUTES),
)
def test_a_repeat_is_within_a_window_and_not_too_early(
    outcome: Outcome, attempts: int, times: int, after_minutes: float
) -> None:
    retries = {name: {"times": times, "after_minutes": after_minutes} for name in RETRIED}
    when = plan(retries=retries, windows=["Mon-Fri 09:00-18:00"], time_zone="Europe/Berlin")
    again = when.again_at(outcome, attempts, "Europe/Berlin", NOW)
    assert (again is None) == (outcome not in RETRIED or attempts > times)
    if again is not None:
        assert again >= NOW + after_minutes * 60
        assert when.opening.are_open(again, "Europe/Berlin")


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"windows": ["Mon-Fri 9-18"], "time_zone": "UTC"}, "is no time of the week"),
        ({"windows": ["daily 09:00-18:00"]}, "time_zone: windows and holidays need one"),
        ({"time_zone": "Europe/Nowhere"}, "is no time zone"),
        ({"holidays": ["25.12."], "time_zone": "UTC"}, "is no date"),
        ({"at_once": 0}, "greater than or equal to 1"),
        ({"per_second": 1000}, "less than or equal to 50"),
        ({"retries": {"answered": {"times": 1}}}, "'machine', 'busy'"),
        ({"retries": {"busy": {"times": 1, "every": 3}}}, "Extra inputs"),
        ({"name": "a\0b"}, "cannot be printed"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        plan(**fields)


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"answered_by": "human"}, "answered"),
        ({}, "answered"),
        ({"answered_by": "screening"}, "answered"),
        ({"answered_by": "machine_end"}, "machine"),
        ({"answered_by": "fax"}, "machine"),
        ({"answered_by": "machine_end", "message_left": True}, "message_left"),
        ({"answered": None, "status": 486}, "busy"),
        ({"answered": None, "status": 480}, "no_answer"),
        ({"answered": None, "status": 408, "end_reason": "no answer after 60 s"}, "no_answer"),
        ({"answered": None, "status": 408, "end_reason": "no response after 32 s"}, "failed"),
        ({"answered": None, "status": 603}, "refused"),
        ({"answered": None, "status": 404}, "refused"),
        ({"answered": None, "status": 503}, "failed"),
        ({"answered": None, "status": 0}, "failed"),
    ],
)
def test_outcomes_of_records(fields: dict[str, Any], outcome: str) -> None:
    assert outcome_of(replace(RECORD, direction="outbound", **fields)) == outcome


def test_all_that_is_not_in_the_table_is_refused() -> None:
    states: set[CampaignState] = {"running", "paused", "completed", "cancelled"}
    events: set[CampaignEvent] = {"pause", "resume", "append", "cancel", "finish"}
    for state in states:
        for event in events:
            if (state, event) in CAMPAIGN:
                assert changed(state, event) in states
            else:
                with pytest.raises(WrongState, match=f"{state}: it cannot {event}"):
                    changed(state, event)


def test_whoever_is_done_blocked_or_cancelled_is_not_called_any_more() -> None:
    final = set(RECIPIENT_STATES) - {state for state, _ in RECIPIENT}
    assert final == {"done", "blocked", "cancelled"}
    assert before("dial") == ("waiting",)
