"""A call that is kept becomes a scenario, which the same agent passes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.app.cli.main import main
from offhook.web.records.entries import NOT_KEPT, Happened
from offhook.web.records.scenario import scenario_of
from offhook.web.records.store import CallStore
from tests.web.records.made_calls import HERE, NOON, begun, over, said

USED = {
    "name": "order_status",
    "arguments": json.dumps({"number": 7}),
    "result": json.dumps({"comes": "tomorrow"}),
    "took_ms": 12,
    "failed": False,
}


def tool(position: int, **more: Any) -> Happened:
    return Happened("call", position, 1000 * position, "tool_used", {**USED, **more})


CALL = [
    begun("call"),
    said("call", 0, "agent", "Hello there."),
    said("call", 1, "caller", "Where is order seven?"),
    tool(2),
    said("call", 3, "agent", "It comes tomorrow."),
    said("call", 4, "caller", "And order eight?"),
    tool(5, arguments='{"number": 8}', result='{"error": "no such order"}', failed=True),
    said("call", 6, "agent", 'There is no "order eight".'),
    over("call"),
]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("OFFHOOK_RECORDS_URL")
    path = tmp_path / "offhook.toml"
    path.write_text(f'[records]\nurl = "sqlite:///{tmp_path}/calls.db"\n')
    store = CallStore(f"sqlite:///{tmp_path}/calls.db")
    store.prepare()
    store.write(CALL, HERE, NOON)
    store.write([begun("silent"), over("silent")], HERE, NOON)
    store.close()
    return str(path)


def test_a_call_is_said_again(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--from", "call", "--config", config]) == 0
    out = capsys.readouterr().out
    found = yaml.safe_load(out)
    assert found["stubs"] == {
        "order_status": {
            "answers": [{"result": {"comes": "tomorrow"}}, {"failure": "no such order"}]
        }
    }
    [scenario] = found["scenarios"]
    greeting, first, second = scenario["turns"]
    assert greeting == {"expect": [{"event": "response"}]}
    assert first["user"] == "Where is order seven?"
    assert first["expect"] == [
        {"event": "function_call", "calls": [{"name": "order_status", "args": {"number": 7}}]},
        {"event": "response"},
    ]
    assert second["user"] == "And order eight?"
    assert '# "It comes tomorrow."' in out


@pytest.mark.parametrize(
    ("call", "words"), [("silent", "nothing"), ("nobody", "there is no call nobody")]
)
def test_what_makes_none_is_said(
    config: str, capsys: pytest.CaptureFixture[str], call: str, words: str
) -> None:
    assert main(["eval", "--from", call, "--config", config]) == 1
    assert words in capsys.readouterr().err


def test_without_scenarios_it_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval"]) == 2
    assert "--from" in capsys.readouterr().err


@given(st.text(min_size=1).filter(str.strip), st.text(), st.text())
def test_whatever_was_said_is_yaml(user: str, agent: str, result: str) -> None:
    timeline = [
        {"event": "caller_turn", "text": user},
        {"event": "tool_used", "name": agent, "arguments": result, "result": json.dumps(result)},
        {"event": "agent_turn", "text": agent},
    ]
    [scenario] = yaml.safe_load(scenario_of("x", timeline))["scenarios"]
    assert scenario["turns"][0]["user"] == user


def test_turns_that_were_not_kept_are_said_to_be_missing() -> None:
    timeline = [
        {"at_ms": 0, "event": "caller_turn", "text": "I want to pay."},
        {"at_ms": 1, "event": "agent_turn", "text": "Your number, please."},
        {"at_ms": 2, "event": "caller_turn", "text": NOT_KEPT},
        {"at_ms": 3, "event": "agent_turn", "text": "Thank you."},
        {"at_ms": 4, "event": "caller_turn", "text": NOT_KEPT},
        {"at_ms": 5, "event": "caller_turn", "text": "Bye."},
    ]
    text = scenario_of("x", timeline)
    assert "# 2 turns of the caller's are missing" in text
    said = [line for line in text.splitlines() if "- user:" in line]
    assert [line.strip() for line in said] == [
        '- user: "I want to pay."',
        '# - user: "[not kept]"',
        '# - user: "[not kept]"',
        '- user: "Bye."',
    ]
    [scenario] = yaml.safe_load(text)["scenarios"]
    assert [turn.get("user") for turn in scenario["turns"]] == ["I want to pay.", None, "Bye."]
    assert "missing" not in scenario_of("x", timeline[:2])
    with pytest.raises(ValueError, match="said nothing"):
        scenario_of("x", timeline[2:4])
