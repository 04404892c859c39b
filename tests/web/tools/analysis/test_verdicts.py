"""What a model is asked of a call, and which of its answers are believed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.config.language_models.analysis import Analysis
from offhook.web.tools.analysis.transcript import MAX_CALL_CHARS, transcript_of
from offhook.web.tools.analysis.verdicts import (
    MAX_REASON_CHARS,
    MAX_SUMMARY_CHARS,
    Misfit,
    question,
    read,
    schema_of,
)

ANALYSIS = Analysis.model_validate(
    {
        "success": {"booked": "The caller has an appointment.", "polite": "The agent was polite."},
        "extract": {
            "day": {"type": "date", "ask": "day of the appointment"},
            "reason": {"type": "choice", "choices": ["check-up", "pain"]},
        },
    }
)
TIMELINE: list[dict[str, Any]] = [
    {"at_ms": 0, "event": "call_started"},
    {"at_ms": 900, "event": "agent_turn", "turn": 0, "text": "Hello.", "interrupted": True},
    {"at_ms": 2000, "event": "caller_turn", "turn": 1, "text": "I need an appointment."},
    {"at_ms": 2100, "event": "tool_used", "name": "book", "arguments": "{}", "result": "full"},
    {"at_ms": 4000, "event": "agent_turn", "turn": 1, "text": "We are full.", "interrupted": False},
    {"at_ms": 5000, "event": "dtmf", "digit": "*"},
    {"at_ms": 6000, "event": "call_ended", "reason": "the caller hung up"},
]
CALL = transcript_of(TIMELINE)
GOOD: dict[str, Any] = {
    "summary": "The caller wanted an appointment; there was none.",
    "criteria": {
        "polite": {"verdict": "success", "reason": "It was.", "n": None},
        "booked": {"verdict": "failure", "reason": "Everything is full.", "n": 3},
    },
    "details": {"day": None, "reason": "PAIN"},
}


def changed(**parts: Any) -> str:
    return json.dumps({**GOOD, **parts})


def judged(verdict: str, n: int) -> dict[str, Any]:
    return {**GOOD["criteria"], "booked": {"verdict": verdict, "reason": "", "n": n}}


def test_a_call_is_told_as_numbered_lines() -> None:
    lines = [json.loads(line) for line in CALL.text.splitlines()]
    assert lines == [
        {"n": 1, "who": "agent", "says": "Hello.", "was_interrupted": True},
        {"n": 2, "who": "caller", "says": "I need an appointment."},
        {"n": 3, "tool": "book", "arguments": "{}", "result": "full"},
        {"n": 4, "who": "agent", "says": "We are full."},
        {"n": 5, "ended": "the caller hung up"},
    ]


@pytest.mark.parametrize("around", ["{}", "Here it is:\n```json\n{}\n```", "  {}\n\n"])
def test_an_answer_is_read(around: str) -> None:
    found = read(around.replace("{}", json.dumps(GOOD)), ANALYSIS, CALL)
    assert found.summary.startswith("The caller wanted")
    assert [(one.name, one.verdict, one.at_ms, one.turn) for one in found.criteria] == [
        ("booked", "failure", 2100, 1),
        ("polite", "success", None, None),
    ]
    assert found.criteria[0].criterion == "The caller has an appointment."
    assert found.extracted == {"day": None, "reason": "pain"}
    assert found.outcome == "failure"


@pytest.mark.parametrize(
    ("booked", "polite", "outcome"),
    [
        ("success", "success", "success"),
        ("success", "unknown", "unknown"),
        ("unknown", "failure", "failure"),
    ],
)
def test_all_criteria_make_a_success(booked: str, polite: str, outcome: str) -> None:
    criteria = {
        "booked": {"verdict": booked, "reason": "so", "n": 1},
        "polite": {"verdict": polite, "reason": "so", "n": 1},
    }
    assert read(changed(criteria=criteria), ANALYSIS, CALL).outcome == outcome


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("", "JSON"),
        ("I think it was a success.", "JSON"),
        ("[]", "JSON"),
        (changed(verdict="success"), "verdict"),
        (changed(summary=""), "summary: is missing"),
        (changed(summary=7), "summary"),
        (changed(criteria={"booked": GOOD["criteria"]["booked"]}), "polite: is missing"),
        (changed(criteria={**GOOD["criteria"], "extra": GOOD["criteria"]["booked"]}), "not asked"),
        (
            changed(
                criteria={**GOOD["criteria"], "booked": {"verdict": "yes", "reason": "", "n": 1}}
            ),
            "criteria.booked.verdict",
        ),
        (changed(details={"day": "tomorrow", "reason": None}), "details.day: it is no date"),
        (changed(details={"day": None, "reason": "noise"}), "details.reason: it is one of"),
        (changed(details={"day": None}), "details.reason: is missing"),
        ('{"a":' * 5000, ""),
        ("{" + " " * 200_000 + "}", "too long"),
    ],
)
def test_an_answer_that_fits_nothing_is_not_believed(answer: str, fault: str) -> None:
    with pytest.raises(Misfit) as error:
        read(answer, ANALYSIS, CALL)
    assert fault in str(error.value)


def test_long_texts_of_a_model_are_cut() -> None:
    criteria = {name: {**one, "reason": "so " * 999} for name, one in GOOD["criteria"].items()}
    found = read(changed(summary="word " * 999, criteria=criteria), ANALYSIS, CALL)
    assert len(found.summary) <= MAX_SUMMARY_CHARS
    assert all(len(one.reason) <= MAX_REASON_CHARS for one in found.criteria)


def test_what_is_not_wanted_is_not_asked_for() -> None:
    only = Analysis.model_validate({"success": "The caller has an appointment.", "summary": False})
    system, _ = question(only, CALL)
    assert "Summarize" not in system["content"]
    assert "- success: The caller has an appointment." in system["content"]
    assert list(schema_of(only)["properties"]) == ["criteria"]
    one = {"criteria": {"success": {"verdict": "unknown", "reason": "", "n": None}}}
    assert read(json.dumps(one), only, CALL).outcome == "unknown"
    summary = Analysis.model_validate({})
    assert read('{"summary": "So."}', summary, CALL).outcome == "done"


@given(st.text())
def test_no_words_of_a_caller_leave_their_line(words: str) -> None:
    """Whatever is said is data of one line, and never a part of the instructions."""
    said = {"at_ms": 1, "event": "caller_turn", "turn": 1, "text": f'"}}\n{words}\n{{"n": 9'}
    call = transcript_of([said, *TIMELINE])
    system, user = question(ANALYSIS, call)
    assert system == question(ANALYSIS, CALL)[0]
    lines = [json.loads(line) for line in user["content"].split("\n")]
    assert [line["n"] for line in lines] == list(range(1, 7))
    assert set(lines[0]) == {"n", "who", "says"}


def test_the_middle_of_a_long_call_is_left_out_and_that_is_said() -> None:
    said = [
        {"at_ms": n, "event": "caller_turn", "turn": n, "text": f"{n} " + "words " * 100}
        for n in range(400)
    ]
    call = transcript_of(said)
    assert len(call.text) < MAX_CALL_CHARS + 1000
    lines = [json.loads(line) for line in call.text.splitlines()]
    assert (lines[0]["n"], lines[-1]["n"]) == (1, 400)
    [gap] = [line for line in lines if "left_out" in line]
    assert gap["left_out"].startswith(f"{call.left_out} lines")
    assert call.left_out == 400 - (len(lines) - 1)
    before, after = lines.index(gap), len(lines) - lines.index(gap) - 1
    assert before < after
    assert call.line(200) is not None


def test_one_endless_result_of_a_tool_leaves_room_for_the_rest() -> None:
    endless = {**TIMELINE[3], "result": "x" * 100_000}
    call = transcript_of([*TIMELINE[:3], endless, *TIMELINE[4:]])
    assert call.left_out == 0
    assert "We are full." in call.text


def test_a_line_that_is_not_there_costs_no_more_than_the_place() -> None:
    invented = {"verdict": "success", "reason": "", "n": 99}
    found = read(changed(criteria={**GOOD["criteria"], "booked": invented}), ANALYSIS, CALL)
    booked = next(one for one in found.criteria if one.name == "booked")
    assert (booked.verdict, booked.at_ms) == ("success", None)
