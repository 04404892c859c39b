"""Details of a caller: what is a value of each kind."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from offhook.web.config.agents import Agent
from offhook.web.config.collect import MAX_CHARS, Detail, Unreadable

CHOICE = {"type": "choice", "choices": ["Monday", "Tuesday"]}
PIN = {"type": "digits", "length": [4, 6]}


@pytest.mark.parametrize(
    ("detail", "given", "noted"),
    [
        ({}, "  Anna \n Lindqvist ", "Anna Lindqvist"),
        ({}, 7, "7"),
        ({"type": "phone"}, "+49 (30) 123-456", "+4930123456"),
        ({"type": "phone"}, "0049 30 123456", "+4930123456"),
        ({"type": "phone"}, "110", "110"),
        ({"type": "email"}, "Anna.B@Example.COM", "Anna.B@example.com"),
        ({"type": "date"}, "2026-12-24", "2026-12-24"),
        ({"type": "time"}, "9:05".zfill(5), "09:05"),
        ({"type": "time"}, "14:30:00", "14:30"),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "number"}, 3, 3.0),
        (PIN, "12 34", "1234"),
        (CHOICE, "monday", "Monday"),
        ({"type": "yes_no"}, False, False),
    ],
)
def test_a_value_is_noted_in_one_form(detail: dict[str, Any], given: Any, noted: Any) -> None:
    assert Detail.model_validate(detail).read(given) == noted


@pytest.mark.parametrize(
    ("detail", "given"),
    [
        *(({}, wrong) for wrong in ("", " ", "x" * (MAX_CHARS + 1), None, [], {}, True)),
        *(({"type": "phone"}, wrong) for wrong in ("12", "+1 800 FLOWERS", "1" * 16, "++49301")),
        *(
            ({"type": "email"}, wrong)
            for wrong in ("anna", "anna@", "a@b", "a b@c.de", "a@b..de", "a@-b.de", "a@b.de@c.de")
        ),
        *(({"type": "date"}, wrong) for wrong in ("tomorrow", "24.12.2026", "2026-02-30")),
        *(({"type": "time"}, wrong) for wrong in ("noon", "25:00")),
        *(({"type": "number"}, wrong) for wrong in ("two", "nan", "inf", "1e999")),
        *((PIN, wrong) for wrong in ("123", "1234567", "12a4", "١٢٣٤")),
        (CHOICE, "Wednesday"),
        ({"type": "yes_no"}, "yes"),
    ],
)
def test_what_is_none_of_its_kind_is_refused_with_a_reason(
    detail: dict[str, Any], given: Any
) -> None:
    with pytest.raises(Unreadable, match="it "):
        Detail.model_validate(detail).read(given)


KINDS = [
    *({"type": kind} for kind in ("text", "phone", "email", "date", "time", "number", "yes_no")),
    *(PIN, CHOICE),
]


@example({"type": "phone"}, 0.004)
@given(
    st.sampled_from(KINDS),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.emails(),
)
def test_whatever_a_model_gives_it_is_read_or_refused_and_its_form_stays(
    table: dict[str, Any], given: Any
) -> None:
    detail = Detail.model_validate(table)
    try:
        noted = detail.read(given)
    except Unreadable:
        return
    assert detail.read(noted) == noted


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"type": "choice"}, "belong together"),
        ({"choices": ["a"]}, "belong together"),
        ({"type": "phone", "length": [3, 4]}, "length is for"),
        ({"type": "digits", "length": [4, 3]}, "fewest, most"),
        ({"type": "card"}, "type"),
    ],
)
def test_tables_that_cannot_work_are_refused(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Detail.model_validate(table)


def test_details_are_for_models_and_their_tool_has_its_name_alone() -> None:
    detail = {"phone": {"type": "phone"}}
    tool = {"name": "note_details", "description": "Notes.", "url": "http://127.0.0.1:1"}
    with pytest.raises(ValidationError, match="collect"):
        Agent.model_validate({"kind": "frontdesk", "collect": detail})
    with pytest.raises(ValidationError, match="two are called note_details"):
        Agent.model_validate({"kind": "openai", "collect": detail, "tools": [tool]})
    with pytest.raises(ValidationError, match="collect"):
        Agent.model_validate({"kind": "openai", "collect": {"a name": {}}})
