"""Scenarios over real lines, words that were really heard, and the time that a caller waits."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offhook.media.leg import CallInfo
from offhook.media.pcm import RATE_IN
from offhook.web.app.cli.eval_io import answer_times
from offhook.web.app.evals.eval_leg_io import EvalLeg
from offhook.web.app.evals.evaluation_io import Outcome, evaluate
from offhook.web.app.evals.line_settings import OVER
from offhook.web.app.evals.scenarios_io import scenarios_in
from offhook.web.app.evals.sounds import Sounds
from offhook.web.config.agents import Agent
from offhook.web.config.config import Config, ConfigError
from tests.pipeline.conversation.phone import calls, model, says
from tests.web.app.cli.test_init import run
from tests.web.app.evals.test_evaluation import cache as cache

STORY = "Once upon a time, there was a bike, " + "and there was a bike, " * 40 + "and it was red."


def scenario(tmp_path: Path, turns: str, **more: str) -> Path:
    """A file with one scenario of these turns."""
    path = tmp_path / "shop.yaml"
    keys = "".join(f"    {key}: {value}\n" for key, value in more.items())
    path.write_text(f"name: shop\nscenarios:\n  - name: one\n{keys}    turns:\n{turns}")
    return path


def agent(url: str, **more: Any) -> Config:
    own = {"kind": "openai", "base_url": url, "model": "m", "think_ahead": False}
    shop = {**own, "greeting": "Hello.", **more}
    return Config(agents={"shop": Agent.model_validate(shop)})


async def tried(path: Path, config: Config, **line: Any) -> Outcome:
    [outcome] = await evaluate(config, "shop", scenarios_in([path], line))
    return outcome


INTERRUPTED = """
      - user: "Tell me a story."
        expect:
          - {event: response, heard: true, text_contains: "Once upon", text_excludes: "it was red"}
      - user: "Stop."
        send_after: {event: llm_started, delay_ms: 1500}
        expect: [{event: response, heard: true, text_contains: "I stop."}]
"""


async def test_what_is_heard_is_what_was_played_before_the_interruption(tmp_path: Path) -> None:
    path = scenario(tmp_path, INTERRUPTED)
    async with model([says(STORY)], [says("I stop.")]) as scripted:
        outcome = await tried(path, agent(scripted.url))
    assert outcome.passed, outcome.failures


async def test_words_that_were_written_and_not_heard_fail(tmp_path: Path) -> None:
    path = scenario(tmp_path, INTERRUPTED.replace("Once upon", "it was red"))
    async with model([says(STORY)], [says("I stop.")]) as scripted:
        outcome = await tried(path, agent(scripted.url))
    assert len(outcome.failures) == 1, outcome.failures
    assert outcome.failures[0].startswith("turn 0 expectation 0 (response): the caller heard 'Once")
    assert outcome.failures[0].endswith("without 'it was red'")


async def test_a_caller_who_does_not_interrupt_hears_the_answer_out(tmp_path: Path) -> None:
    turns = """
      - user: "Tell me a story."
        expect:
          - {event: response, text_contains: "Once"}
          - {event: response, heard: true, text_contains: "it was red", text_excludes: "green"}
"""
    async with model([says(STORY)]) as scripted:
        outcome = await tried(scenario(tmp_path, turns), agent(scripted.url))
    assert outcome.passed, outcome.failures


KEYS = """
      - expect: [{event: response, heard: true, text_contains: "Which order"}]
      - dtmf: "12#"
        expect:
          - {event: function_call, calls: [{name: end_call}]}
          - {event: bot_ended}
"""


@pytest.mark.parametrize("over", OVER)
async def test_keys_go_by_the_line_and_the_agent_hangs_up(tmp_path: Path, over: str) -> None:
    path = scenario(tmp_path, KEYS, line=f"{{over: {over}, jitter: 20}}")
    async with model([says("Thank you, goodbye."), calls("end_call")]) as scripted:
        outcome = await tried(path, agent(scripted.url, greeting="Which order is it?"))
        asked = scripted.requests[0]["messages"][-1]["content"]
    assert outcome.passed, outcome.failures
    assert "12" in asked


async def sent(leg: EvalLeg, level: int, chunks: int) -> None:
    """What a harness sends in chunks of 40 ms."""
    sound = base64.b64encode(np.full(640, level, np.int16).tobytes()).decode()
    data = {"base64Audio": sound, "sampleRate": RATE_IN}
    for _ in range(chunks):
        await leg.receive(json.dumps({"type": "raw-audio", "data": data}))


async def test_a_harness_that_is_late_cuts_no_hole_into_words() -> None:
    leg = EvalLeg("1", CallInfo(edge="eval"), sends_audio=False)
    leg.connect()
    levels: list[int] = []
    leg.listen(lambda heard, said, now: levels.append(int(heard[0])))
    for level, chunks, packets in ((0, 10, 20), (9, 5, 10), (9, 0, 15), (9, 5, 10), (0, 20, 40)):
        await sent(leg, level, chunks)
        for _ in range(packets):
            leg.tick(len(levels) * 0.02)
    assert "".join(map(str, levels)).strip("0") == "9" * 20


SPOKEN = """
      - expect: [{event: response, heard: true, text_contains: "Lighthouse"}]
      - user: "What are your opening hours?"
        expect:
          - {event: response, text_contains: "Monday to Friday", answer_within_ms: 60000}
"""


@pytest.mark.parametrize("line", [{"over": "webrtc", "loss": 2}, {"over": "sip", "level": -6}])
async def test_a_scenario_is_spoken_by_a_real_call(tmp_path: Path, line: dict[str, Any]) -> None:
    [outcome] = await evaluate(Config(), "", scenarios_in([scenario(tmp_path, SPOKEN)], line))
    assert outcome.passed, outcome.failures
    assert len(outcome.answers_ms) == 1


async def test_two_callers_at_once_are_not_mixed_up(tmp_path: Path) -> None:
    turns = """
      - expect: [{event: response, heard: true, text_contains: "Which order"}]
      - dtmf: "7#"
        expect: [{event: response, heard: true, text_contains: "pressed"}]
"""
    path = scenario(tmp_path, turns, line="{over: sip}")
    async with model([says("You pressed it.")], [says("You pressed it.")]) as scripted:
        config = agent(scripted.url, greeting="Which order is it?")
        outcomes = await evaluate(config, "shop", scenarios_in([path]), runs=2, at_once=2)
    assert [outcome.failures for outcome in outcomes] == [[], []]


FIRST = """
      - user: "What are your opening hours?"
        expect:
          - {event: response, heard: true, text_contains: "Monday", text_excludes: "Welcome"}
          - {event: response, answer_within_ms: 800}
"""


@pytest.mark.parametrize("line", [{}, {"over": "webrtc"}])
async def test_a_greeting_is_no_answer_to_what_comes_first(
    tmp_path: Path, line: dict[str, Any]
) -> None:
    async def late() -> None:
        await asyncio.sleep(1)

    async with model([says("From Monday to Friday.")]) as scripted:
        scripted.on_last = late
        config = agent(scripted.url, greeting="Welcome to the shop.")
        outcome = await tried(scenario(tmp_path, FIRST), config, **line)
    # The greeting came at once, and was no answer. A busy machine may cut holes into what is heard.
    too_late = "turn 0 expectation 1 (response): answered after"
    assert any(failure.startswith(too_late) for failure in outcome.failures), outcome.failures


async def test_a_greeting_that_goes_on_over_the_caller_is_no_answer(tmp_path: Path) -> None:
    turns = """
      - user: "Skip that."
        send_after: {delay_ms: 300}
        expect:
          - {event: response, heard: true, text_contains: "Skipped.", text_excludes: "pleased"}
          - {event: response, answer_within_ms: 800}
"""
    long = {"greeting": "We are pleased. " * 30, "greeting_interruptible": False}
    async with model([says("Skipped.")]) as scripted:
        outcome = await tried(scenario(tmp_path, turns), agent(scripted.url, **long))
    [failure] = outcome.failures  # the rest of the greeting comes first
    assert failure.startswith("turn 0 expectation 1 (response): answered after"), failure


SLOW = """
      - expect: [{event: response, heard: true, text_contains: "Hello"}]
      - user: "Where is my order?"
        expect: [{event: response, LIMIT: 300}]
"""


@pytest.mark.parametrize(
    ("limit", "says_so"), [("answer_within_ms", "answered after"), ("silence_under_ms", "silent")]
)
async def test_a_late_answer_fails(tmp_path: Path, limit: str, says_so: str) -> None:
    async def late() -> None:
        await asyncio.sleep(1.5)

    path = scenario(tmp_path, SLOW.replace("LIMIT", limit))
    async with model([says("Tomorrow.")]) as scripted:
        scripted.on_last = late
        outcome = await tried(path, agent(scripted.url))
    [failure] = outcome.failures
    assert failure.startswith(f"turn 1 expectation 0 (response): {says_so}"), failure
    assert failure.endswith("not within 300 ms")


def test_how_long_a_caller_waits_is_counted_from_the_last_sound() -> None:
    sounds = Sounds()
    sounds.begin_turn(0.0, by_message=False, spoken=False)  # the greeting
    sounds.agent.note(0.5, 2.0)
    sounds.begin_turn(3.0, by_message=False, spoken=True)
    sounds.caller.note(3.1, 3.6)
    sounds.caller.note(3.9, 5.0)  # after a pause
    sounds.agent.note(5.8, 6.5)
    sounds.agent.note(8.0, 9.0)  # a tool took its time
    sounds.begin_turn(10.0, by_message=False, spoken=True)
    sounds.caller.note(10.2, 11.0)
    assert [sounds.answer_ms(turn) for turn in range(3)] == [500, 800, None]
    assert [sounds.silence_ms(turn) for turn in range(3)] == [500, 1500, None]
    assert sounds.answers_ms() == [800]


def test_an_interruption_is_not_answered_by_what_it_interrupts() -> None:
    sounds = Sounds()
    sounds.begin_turn(0.0, by_message=False, spoken=True)
    sounds.caller.note(0.1, 1.0)
    sounds.agent.note(2.0, 5.4)
    sounds.begin_turn(5.0, by_message=False, spoken=True)
    sounds.caller.note(5.0, 6.0)
    sounds.agent.note(6.7, 8.0)
    assert sounds.answers_ms() == [1000, 700]


def test_an_answer_begins_behind_what_the_agent_was_given() -> None:
    sounds = Sounds()
    sounds.begin_turn(0.0, by_message=False, spoken=True)
    sounds.caller.note(0.2, 1.0)
    sounds.agent.note(1.1, 1.9)  # the greeting, which was late
    sounds.give(2.0)
    sounds.agent.note(2.02, 3.0)
    assert (sounds.answer_ms(0), sounds.silence_ms(0)) == (1020, 120)
    sounds.give(3.2)  # the caller said more
    assert not sounds.answered
    sounds.agent.note(3.9, 4.0)
    assert sounds.answered
    assert sounds.answer_ms(0) == 2900


def test_answers_are_summed_up_by_scenario() -> None:
    def outcome(name: str, *answers_ms: int) -> Outcome:
        return Outcome(name, 1, passed=True, answers_ms=list(answers_ms))

    found = answer_times([outcome("a", 100, 200), outcome("a", 300), outcome("b"), outcome("c", 7)])
    assert found == {
        "a": {"p50": 200, "p95": 290, "answers": 3},
        "c": {"p50": 7, "p95": 7, "answers": 1},
    }


@pytest.mark.parametrize(
    ("turns", "line", "says_so"),
    [
        ("heard: 1", "", "turn 0: expect: heard: 1 is neither true nor false"),
        ("heard: true", "", "turn 0: expect: heard: needs text_contains or text_excludes"),
        ("answer_within_ms: -1", "", "answer_within_ms: -1 is no number of milliseconds above 0"),
        ("silence_under_ms: soon", "", "silence_under_ms: 'soon' is no number"),
        ("answer_within: 9", "", "did you mean answer_within_ms?"),
        ("absent: true, answer_within_ms: 9", "", "is only for an expectation of event: response"),
        ("within_ms: 9", "{over: smoke}", "line: over: 'smoke' is none of webrtc, sip, twilio"),
        ("within_ms: 9", "{loss: 3}", "line: over: is missing"),
        ("within_ms: 9", "{over: sip, los: 3}", "line: there is no key los (did you mean loss?)"),
        ("within_ms: 9", "{over: sip, loss: 99}", "line: loss: 99 is not from 0 to 50"),
        ("within_ms: 9", "{over: sip, noise: loud}", "line: noise: 'loud' is no number"),
        ("within_ms: 9", "{over: twilio, loss: 3}", "line: loss: Twilio's streams lose nothing"),
        ("within_ms: 9", "sip", "line: has to be a table"),
    ],
)
def test_misuse_is_said_with_file_and_key(
    tmp_path: Path, turns: str, line: str, says_so: str
) -> None:
    expected = f"      - user: hi\n        expect: [{{event: response, {turns}}}]\n"
    path = scenario(tmp_path, expected, **({"line": line} if line else {}))
    with pytest.raises(ConfigError) as fault:
        scenarios_in([path])
    assert str(fault.value).startswith(f"{path}: scenario one: ")
    assert says_so in str(fault.value)


@pytest.mark.slow
def test_the_command_calls_over_a_line_and_tells_how_long_answers_took(tmp_path: Path) -> None:
    scenario(tmp_path, SPOKEN)
    asked = ("eval", "shop.yaml", "--over", "webrtc", "--noise", "-60")
    spoken = run(tmp_path, *asked, "--json")
    assert spoken.returncode == 0, spoken.stdout
    *_, last = spoken.stdout.splitlines()
    assert json.loads(last)["passed"] == 1
    assert json.loads(last)["answers_ms"]["shop/one"]["answers"] == 1
    refused = run(tmp_path, *asked, "--loss", "70")
    assert refused.returncode == 1
    assert "--loss: 70 is not from 0 to 50" in refused.stderr
