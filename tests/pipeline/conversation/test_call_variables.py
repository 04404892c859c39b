"""Variables in an agent's texts."""

import json
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from offhook.media.leg import CallInfo
from offhook.pipeline.conversation.call_variables import filled, unknown_names

NOW = datetime(2026, 11, 29, 14, 5)


def test_names_become_what_is_known_of_the_call() -> None:
    info = CallInfo(
        caller="+4930555123",
        called="100",
        headers={"X-Department": "service"},
        variables={"plan": "gold", "order": {"id": 7}, "other": "unseen"},
    )
    declared = {"plan": "basic", "order": "", "city": "Bremen"}
    text = (
        "{{caller}} calls {{ called }} ({{caller_name}}), {{header.x-department}}, {{plan}}, "
        "{{order}}, {{city}}, {{header.X-None}}; {{weekday}} {{date}} {{time}}; {{now}}"
    )
    assert filled(text, info, declared, NOW) == (
        '+4930555123 calls 100 (), service, gold, {"id": 7}, Bremen, ; Sunday 2026-11-29 14:05; '
        "Sunday, 29 November 2026, 14:05"
    )


def test_a_call_sets_only_variables_that_the_agent_declares() -> None:
    info = CallInfo(variables={"caller": "forged", "plan": "gold"})
    assert filled("{{caller}}|", info, {}, NOW) == "|"
    assert unknown_names("{{caller}} {{plan}} {{plan}} {{n.a}}", {}) == ["plan", "n.a"]
    assert unknown_names("{{plan}} {{header.X-Any}}", {"plan": ""}) == []
    assert unknown_names("{{header.}} {{header.X Foo}} {{a b}}", {}) == [
        "header.",
        "header.X Foo",
        "a b",
    ]


def test_other_braces_stay() -> None:
    text = 'Answer as JSON: {"a": {"b": 1}}, {{ }}, {{1}}, {{"x"}}'
    assert unknown_names(text, {}) == []
    assert filled(text, CallInfo(), {}, NOW) == text


@given(st.text(max_size=500))
def test_a_value_is_one_line_of_limited_length_and_names_in_it_stay(value: str) -> None:
    info = CallInfo(caller_name=value, caller="+49")
    inside = filled("[{{caller_name}}]", info, {}, NOW)[1:-1]
    assert len(inside) <= 201
    assert inside.isprintable()
    assert filled("{{caller_name}}", CallInfo(caller_name="{{caller}}", caller="1"), {}, NOW) == (
        "{{caller}}"
    )
    assert json.dumps(inside)
