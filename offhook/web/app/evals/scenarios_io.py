"""Reads files of scenarios: for Pipecat's harness what it knows, and the rest for us."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipecat.evals.scenario import EvalExpectation, EvalScenarioFile, is_scenario_file

from offhook.web.app.evals.checks import ANSWER, Check, check_of
from offhook.web.app.evals.criteria import criteria_of
from offhook.web.app.evals.line_settings import NO_LINE, LineSettings, line_of
from offhook.web.app.evals.scenario_keys import read_table
from offhook.web.app.evals.stubs import Stub, stubs_of
from offhook.web.app.evals.whole import Expected, expected_of
from offhook.web.config.config import ConfigError

ANSWERS = ("llm_response", "response")
"""Events with what the agent has answered, as text or as it was heard."""
SPEAKS = EvalExpectation(event="bot_started_speaking", check_from="turn_start")
"""The agent speaks, or has in this turn."""
NOTHING: Mapping[str, Any] = {}
SERVICES = "offhook.web.app.evals.services_io"
VOICE = {"factory": f"{SERVICES}.caller_voice"}
"""With what the caller speaks on a line, unless the scenario says."""
MODEL = {"factory": f"{SERVICES}.chat_model"}
"""What asks a model on a server with OpenAI's chat API: Pipecat's own asks only that of OpenAI."""


@dataclass(frozen=True)
class Scenario:
    """One conversation, and what is expected of it."""

    script: Any
    """As Pipecat's harness reads it: turns, or a persona."""
    line: LineSettings = NO_LINE
    checks: tuple[Check, ...] = ()
    """What is checked when the conversation is over."""
    numbers: tuple[tuple[int, ...], ...] = ()
    """By turn, the numbers in the file of the expectations that the harness has."""
    expected: tuple[Expected, ...] = ()
    """What is expected of the whole conversation, if a model plays the caller."""
    stubs: Mapping[str, Stub] = field(default_factory=dict)
    """What answers tools in their place, by the tools' names."""
    criteria: tuple[str, ...] = ()
    """Names of the criteria of the agent's analysis that have to be met."""

    @property
    def name(self) -> str:
        return str(self.script.name)

    @property
    def is_played(self) -> bool:
        """Whether a model plays the caller."""
        return not hasattr(self.script, "turns")

    @property
    def runs(self) -> int:
        """How often the file wants it to be run."""
        return int(getattr(self.script, "runs", 1))

    @property
    def waits_matter(self) -> bool:
        """Whether it is about how long the caller waits, too."""
        checks = (*self.checks, *(one.check for one in self.expected if one.check is not None))
        return bool(self.line.over) or any(check.answer_within_ms for check in checks)

    def sends_message(self, turn: int) -> bool:
        """Returns whether a turn is sent as a message: a text, or keys."""
        one = self.script.turns[turn]
        return one.dtmf is not None or (one.user is not None and not self.script.user_audio)

    def is_counted(self, turn: int) -> bool:
        """Returns whether a call counts a turn among those of the caller: if that is not typed."""
        one = self.script.turns[turn]
        return one.dtmf is not None or self.speaks(turn)

    def speaks(self, turn: int) -> bool:
        """Returns whether the caller speaks in a turn."""
        return bool(self.script.user_audio and self.script.turns[turn].user is not None)


def scenarios_in(paths: Iterable[Path], line: Mapping[str, Any] = NOTHING) -> list[Scenario]:
    """Returns the scenarios of files, and of folders' files; keys of `line` take the place of those
    of their own lines. Raises ConfigError."""
    found: list[Scenario] = []
    for path in paths:
        files = [path]
        if path.is_dir():
            yaml = sorted((*path.rglob("*.yaml"), *path.rglob("*.yml")))
            files = [file for file in yaml if is_scenario_file(file)]
            if not files:
                raise ConfigError(f"{path}: no scenario is there (YAML with turns or a persona)")
        for file in files:
            try:
                found += _read(file, line)
            except OSError as error:
                raise ConfigError(f"{file}: {error.strerror}") from error
            except Exception as error:  # ValueError, YAML's
                words = str(error).removeprefix(f"{file}: ")
                raise ConfigError(f"{file}: {words}") from error
    return found


def _read(file: Path, line: Mapping[str, Any]) -> Iterator[Scenario]:
    table = read_table(file)
    scripts = EvalScenarioFile.load(file).scenarios
    listed = table.get("scenarios") or [{}]
    for script, own in zip(scripts, listed, strict=True):
        try:
            yield _scenario(script, {**table, **own}, line)
        except ValueError as error:
            where = f"scenario {own['name']}: " if "name" in own else ""
            raise ValueError(f"{where}{error}") from error


def _scenario(script: Any, table: dict[str, Any], given: Mapping[str, Any]) -> Scenario:
    """Takes out of the script what the harness does not know. Raises ValueError."""
    line, stubs = line_of(table.get("line"), given), stubs_of(table.get("stubs"))
    criteria = criteria_of(table.get("criteria"))
    if line.over:
        script.user_audio = True
        script.user_speech = script.user_speech or VOICE
    script.judge = _with_our_service(script.judge)
    if "turns" not in table:
        script.simulator = _with_our_service(script.simulator)
        listed = enumerate(table.get("expect") or ())
        expected = tuple(expected_of(number, one) for number, one in listed)
        return Scenario(script, line, expected=expected, stubs=stubs, criteria=criteria)
    if table.get("expect"):
        raise ValueError("expect: stands in a turn, or beside a persona")
    checks: list[Check] = []
    for number, turn in enumerate(table["turns"]):
        for place, expectation in enumerate(turn.get("expect") or ()):
            try:
                check = check_of(number, place, expectation)
            except ValueError as error:
                raise ValueError(f"turn {number}: expect: {error}") from error
            if check is not None:
                checks.append(check)
    heard = {(check.turn, check.expectation) for check in checks if check.heard}
    numbers = tuple(_remove_checks(script, turn, heard) for turn in range(len(script.turns)))
    if script.user_audio and not script.bot_audio:
        numbers = tuple(
            _wait_for_speech(script, turn, numbers[turn]) for turn in range(len(numbers))
        )
    return Scenario(script, line, tuple(checks), numbers, stubs=stubs, criteria=criteria)


def _with_our_service(model: Any) -> dict[str, Any]:
    """Returns how a model is asked, where the file has it on a server with OpenAI's chat API."""
    asked = dict(model or {})
    if isinstance(asked.get("explainer"), dict):
        asked["explainer"] = _with_our_service(asked["explainer"])
    return asked | MODEL if asked.get("service") == "openai" else asked


def _remove_checks(script: Any, number: int, heard: set[tuple[int, int]]) -> tuple[int, ...]:
    """Leaves to the harness of what is to be heard only that the agent speaks, or nothing if the
    answer is waited for anyway, or is not, as the next turn interrupts it. Returns the numbers of
    the expectations that stay."""
    turn, following = script.turns[number], script.turns[number + 1 : number + 2]
    interrupted = any(after.send_after is not None for after in following)
    ours = [place for place in range(len(turn.expect)) if (number, place) in heard]
    waited = any(
        one.event in (ANSWER, *ANSWERS) and place not in ours
        for place, one in enumerate(turn.expect)
    )
    gone = ours if interrupted or waited else ours[1:]
    for place in ours:
        turn.expect[place] = replace(SPEAKS, within_ms=turn.expect[place].within_ms)
    stay = tuple(place for place in range(len(turn.expect)) if place not in gone)
    turn.expect = [turn.expect[place] for place in stay]
    return stay


def _wait_for_speech(script: Any, number: int, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Has the harness wait for the sound of an answer before the caller speaks again: it knows the
    words sooner, and would have the caller talk over them. Returns `numbers` with what was
    added."""
    turn, following = script.turns[number], script.turns[number + 1 : number + 2]
    goes_on = any(after.send_after is None and after.user is not None for after in following)
    if not (goes_on and turn.expect and turn.expect[-1].event in ANSWERS):
        return numbers
    if turn.expect[-1].absent:
        return numbers
    turn.expect.append(SPEAKS)
    return (*numbers, numbers[-1])
