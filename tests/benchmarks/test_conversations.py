"""The conversations of the benchmark take place, over sockets, and are judged as it says."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from benchmarks.scale import conversation_callers, conversations
from benchmarks.scale.conversation_callers import (
    Conversation,
    Conversations,
    Edge,
    EdgePlan,
    Measured,
    opened,
)
from benchmarks.speech import number_words
from offhook.media.pcm import RATE_IN, RATE_OUT
from offhook.pipeline.engines.shared.synthesis.messages import FRAME_SAMPLES
from offhook.web.workers.worker_io import WorkerSettings
from tests.support.waiting import HANGS_S, until
from tests.web.workers.workers import served

REPLY = "alpha bravo charlie delta echo foxtrot alpha bravo charlie delta"
WORD = RATE_OUT * number_words.WORD_MS // 1000
ONSET = RATE_OUT * number_words.ONSET_MS // 1000


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that are over soon."""
    for name, value in {
        "UTTERANCE_S": (0.9, 1.0),
        "DECIDED_S": 0.05,
        "PAUSE_S": 0.05,
        "TOKEN_S": 0.001,
        "CUT_S": (0.1, 0.1),
        "INTERRUPTED": 0.0,
        "SENTENCES": (REPLY,),
    }.items():
        monkeypatch.setattr(conversation_callers, name, value)


@asynccontextmanager
async def edge() -> AsyncIterator[Edge]:
    settings = WorkerSettings("number-words", "", drain_seconds=0, audio_cache="off")
    async with (
        served(number_words.worker("asr", settings)) as (asr, _),
        served(number_words.worker("tts", settings)) as (tts, _),
    ):
        urls = [str(client.make_url("")) for client in (asr, tts)]
        plan = EdgePlan(urls[0], "", 0, 0, 400, 80, 0.0, 0.0, inf, urls[1])
        async with opened(plan) as found:
            line = ["one", "two", "three", "four"] * 3
            found.speech = number_words.sound(line, RATE_IN)
            yield found


async def one_turn() -> Measured:
    async with edge() as one, asyncio.timeout(HANGS_S):
        one.plan = replace(one.plan, until=time.monotonic() + 0.1)  # the turn takes longer
        await Conversation(0, one).run(time.monotonic())
        return one.measured


async def test_words_are_heard_and_a_reply_is_played_to_its_end() -> None:
    measured = await one_turn()
    told = measured.as_json()
    assert told["failures"] == {}
    assert len(told["finals"]) == len(told["firsts"]) == len(told["shares"]) == 1
    assert told["shares"][0] == pytest.approx(told["finals"][0] + told["firsts"][0])
    assert told["without_text"] == 0
    assert told["updates_due"] == 2  # of 400 ms, in 0.9 s
    assert told["uttered_s"] == pytest.approx(0.92, abs=0.05)
    assert told["frames"] * FRAME_SAMPLES == pytest.approx(ONSET + WORD * len(REPLY.split()))
    assert told["interruptions"] == 0


async def test_an_interruption_cuts_the_reply_and_the_caller_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversation_callers, "INTERRUPTED", 1.0)
    async with edge() as one, asyncio.timeout(HANGS_S):
        conversations = Conversations(one)
        conversations.grow(1, time.monotonic())
        await until(lambda: one.measured.interruptions == 2)
        await conversations.close()
    told = one.measured.as_json()
    assert told["failures"] == {}
    assert len(told["shares"]) >= 1
    assert len(told["finals"]) == 2
    assert told["frames"] * FRAME_SAMPLES < 2 * WORD * len(REPLY.split())


async def test_a_voice_that_fails_is_counted_and_the_conversation_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*arguments: object) -> Any:
        raise conversation_callers.EngineError("no voice")

    monkeypatch.setattr(conversation_callers.AgentReply, "listen", broken)
    monkeypatch.setattr(conversation_callers, "RETRY_S", 0.0)
    async with edge() as one, asyncio.timeout(HANGS_S):
        conversations = Conversations(one)
        conversations.grow(1, time.monotonic())
        await until(lambda: one.measured.failures["no voice"] == 2)
        await conversations.close()


def report(**changed: Any) -> dict[str, Any]:
    measured = Measured(finals=[20.0] * 9, firsts=[40.0] * 9, shares=[60.0] * 9, uttered_s=40.0)
    measured.voices.frames = 500.0
    return {**measured.as_json(), "updates_due": 50, **changed}


def test_conversations_are_held_when_no_frame_is_late_and_turns_are_fast() -> None:
    row = conversations.row(10, 10.0, [report(), report()], 3.0)
    assert row["held"] == "yes"
    assert (row["turns"], row["share_p95"], row["updates_late_%"]) == (18, 60.0, 0.0)
    assert (row["caller_%"], row["agent_%"]) == (80.0, 80.0)
    assert row["conversation_hour"] == pytest.approx(0.3)
    for changed in ({"frames_late": 1}, {"shares": [121.0] * 9}, {"failures": {"full": 1}}):
        assert conversations.row(10, 10.0, [report(**changed)], 3.0)["held"] == "no"
    late = conversations.row(10, 10.0, [report(updates_late=5), report()], 3.0)
    assert late["updates_late_%"] == pytest.approx(5.0)


def test_processes_of_callers_share_the_conversations() -> None:
    edges = conversations.FarEdges([None] * 3, 4)  # type: ignore[list-item]
    assert edges.shares(10) == [4, 3, 3]
    assert np.sum(edges.shares(7)) == 7


@pytest.mark.slow
def test_it_runs_with_workers_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--asr=tiny", "--tts=tiny", "--conversations=1,2", "--seconds=3", "--settle=3"]
    for arrangement in ([], ["--together"], ["--gpus=2", "--kill"]):
        assert conversations.main([*line, "--json", *arrangement]) == 0
        assert capsys.readouterr().out.count('"conversations": ') == 2
