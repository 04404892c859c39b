"""What is known of the details of a caller: the table of `collected.py`, row by row."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from offhook.media.leg import Collected
from offhook.web.config.collect import Detail
from offhook.web.tools.collected import ASK, Details, instructions

PHONE = Detail(type="phone", ask="where to call back", required=True)
NAME = Detail(required=True)
NOTE = Detail(type="choice", choices=("a", "b"))
ALL = {"phone": PHONE, "name": NAME, "kind": NOTE}


def asked(value: str) -> str:
    return f"{value}: {ASK}"


def test_a_detail_that_is_not_repeated_is_noted_at_once() -> None:
    known: Collected = {}
    details = Details(ALL, known)
    noted, told = details.give({"name": " Anna "}, 1)
    assert noted == known == {"name": "Anna"}
    assert told == {"noted": {"name": "Anna"}, "missing": {"phone": "where to call back"}}


def test_one_that_is_repeated_is_noted_once_the_caller_has_spoken_to_it() -> None:
    details = Details(ALL, known := {"name": "Anna"})
    number = {"phone": "030 123 456"}
    assert details.give(number, 1)[1]["repeat"] == {"phone": asked("030123456")}
    assert details.give(number, 1)[0] == {}  # the model has not waited
    assert details.give({"phone": "030 123 457"}, 2)[0] == {}  # another value is asked about anew
    assert details.give({"phone": "030-123-457"}, 3)[0] == {"phone": "030123457"}
    assert known == {"name": "Anna", "phone": "030123457"}
    assert details.give({"phone": "030123457"}, 3) == ({}, {"noted": {}})
    assert details.give({"phone": "030123458"}, 4)[1]["repeat"] == {"phone": asked("030123458")}
    assert known["phone"] == "030123457"  # until the caller agrees to the other


def test_what_is_wrong_is_said_and_changes_nothing() -> None:
    details = Details(ALL, known := {})
    details.give({"phone": "030123456"}, 1)
    noted, told = details.give({"phone": "twelve", "kind": "c", "shoe": 44, "name": None}, 2)
    assert noted == known == {}
    assert told["wrong"] == {
        "phone": "it is no telephone number: those have 3 to 15 digits",
        "kind": "it is one of a, b",
        "shoe": "there is no such detail; there are phone, name, kind",
    }
    assert told["missing"] == {"phone": "where to call back", "name": ""}
    assert details.give({"phone": "030123456"}, 2)[0] == {"phone": "030123456"}


VALUES = st.sampled_from(["030123456", "030 123457", "no", "a", "b", None, 7])
GIVEN = st.dictionaries(st.sampled_from([*ALL, "other"]), VALUES, max_size=4)


@given(st.lists(st.tuples(GIVEN, st.integers(0, 2)), max_size=12))
def test_nothing_is_noted_that_was_not_agreed_to(steps: list[tuple[dict[str, Any], int]]) -> None:
    details, turns = Details(ALL, known := {}), 0
    given_before: set[tuple[str, int]] = set()
    for values, spoken in steps:
        turns += spoken
        before = dict(known)
        noted, told = details.give(values, turns)
        assert {**before, **noted} == known
        assert set(told.get("missing", {})) == {"phone", "name"} - known.keys()
        if "phone" in noted:  # it was given before the caller's last turn
            assert any(value == noted["phone"] and at < turns for value, at in given_before)
        if values.get("phone"):
            given_before.add((str(values["phone"]).replace(" ", ""), turns))


def test_the_model_is_told_what_to_find_out_and_what_is_known() -> None:
    words = instructions(ALL, {"name": "Anna"}, "note_details").splitlines()[1:]
    assert words == [
        "- phone (required): where to call back",
        "- name: known already, Anna",
        "- kind",
    ]
