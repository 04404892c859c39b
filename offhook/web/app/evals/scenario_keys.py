"""The keys of scenario files. Pipecat's loader passes over a misspelt one, and the scenario then
passes without having asked anything."""

import difflib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml
from pipecat.utils.yaml import include_loader

from offhook.web.app.evals.checks import CHECK_KEYS
from offhook.web.app.evals.line_settings import LINE_KEYS
from offhook.web.app.evals.stubs import ANSWER_KEYS, STUB_KEYS
from offhook.web.app.evals.whole import WHOLE_KEYS

SCENARIO = (
    *(
        "line",
        "stubs",
        "criteria",
        "expect",
        "name",
        "user",
        "judge",
        "context",
        "turns",
        "stop_on_failure",
        "trigger_disconnect",
    ),
    *("persona", "goal", "success", "metrics", "simulator", "runs"),
    *("max_turns", "max_duration_s", "max_silence_s"),
)
TURN = ("user", "dtmf", "audio", "image", "send_after", "expect")
SEND_AFTER = ("event", "delay_ms")
EXPECTATION = (
    *("event", "within_ms", "text_contains", "text_excludes", "eval", "absent", "check_from"),
    *("calls", "name", "args", "marker", "marker_first", "markers", "text_after"),
    *CHECK_KEYS,
)
CALL = ("name", "args")
EVENTS = (
    *("user_started_speaking", "user_stopped_speaking", "user_transcription", "user_backchannel"),
    *("vad_user_started_speaking", "vad_user_stopped_speaking"),
    *("bot_started_speaking", "bot_stopped_speaking", "bot_interrupted", "bot_backchannel"),
    *("llm_started", "llm_response", "llm_marker", "tts_response", "response"),
    *("function_call", "function_call_stopped", "image", "bot_ended"),
)
"""What an expectation may wait for."""


def read_table(file: Path) -> Any:
    """Returns what a file of scenarios says. Raises ValueError for a key or an event that a
    scenario does not have, OSError, and YAML's errors."""
    with file.open(encoding="utf-8") as opened:
        table = yaml.load(opened, include_loader(file.parent, base=yaml.SafeLoader))
    faults = list(_faults(table))
    if faults:
        raise ValueError("; ".join(faults))
    return table


def _faults(table: Any) -> Iterator[str]:
    yield from _unknown(table, (*SCENARIO, "scenarios"), "")
    yield from _of_scenario(table, "")
    scenarios = table.get("scenarios") if isinstance(table, dict) else None
    for number, scenario in enumerate(scenarios if isinstance(scenarios, list) else ()):
        name = scenario.get("name", number) if isinstance(scenario, dict) else number
        yield from _unknown(scenario, SCENARIO, f"scenario {name}: ")
        yield from _of_scenario(scenario, f"scenario {name}: ")


def _of_scenario(scenario: Any, where: str) -> Iterator[str]:
    if not isinstance(scenario, dict):
        return
    yield from _unknown(scenario.get("line"), LINE_KEYS, f"{where}line: ")
    stubs = scenario.get("stubs")
    for name, stub in stubs.items() if isinstance(stubs, dict) else ():
        yield from _unknown(stub, STUB_KEYS, f"{where}stubs: {name}: ")
        answers = stub.get("answers") if isinstance(stub, dict) else None
        for answer in answers if isinstance(answers, list) else ():
            yield from _unknown(answer, ANSWER_KEYS, f"{where}stubs: {name}: answers: ")
    yield from _of_expected(scenario, WHOLE_KEYS, where)
    yield from _of_turns(scenario, where)


def _of_turns(scenario: Any, where: str) -> Iterator[str]:
    turns = scenario.get("turns") if isinstance(scenario, dict) else None
    for number, turn in enumerate(turns if isinstance(turns, list) else ()):
        place = f"{where}turn {number}: "
        yield from _unknown(turn, TURN, place)
        if not isinstance(turn, dict):
            continue
        yield from _unknown(turn.get("send_after"), SEND_AFTER, f"{place}send_after: ")
        yield from _of_expected(turn, EXPECTATION, place)


def _of_expected(table: dict[str, Any], keys: Collection[str], place: str) -> Iterator[str]:
    expected = table.get("expect")
    for expectation in expected if isinstance(expected, list) else ():
        yield from _unknown(expectation, keys, f"{place}expect: ")
        if not isinstance(expectation, dict):
            continue
        event = expectation.get("event")
        if isinstance(event, str) and event not in EVENTS:
            yield f"{place}there is no event {event}{_meant(event, EVENTS)}"
        calls = expectation.get("calls")
        for call in calls if isinstance(calls, list) else ():
            yield from _unknown(call, CALL, f"{place}calls: ")


def _unknown(table: Any, known: Collection[str], where: str) -> Iterator[str]:
    for key in table if isinstance(table, dict) else ():
        if key not in known:
            yield f"{where}there is no key {key}{_meant(str(key), known)}"


def _meant(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""
