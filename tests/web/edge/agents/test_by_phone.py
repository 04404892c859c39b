"""What a caller hears by phone of what an agent's table says, and of what is wrong with it, and
what its operator reads then."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from aiohttp import web
from loguru import logger

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from tests.pipeline.conversation.phone import Model, calls, model, says
from tests.support.waiting import until
from tests.web.edge.agents.test_four_ways import Phone, Record, serving, shop

GREETING = "Corner Bikes, which order is it?"
PIECE = 1200
"""Samples of 8 kHz: 150 ms."""
NOBODY = "http://127.0.0.1:9"
DOWN = "Our shop is closed for the moment."


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="INFO")
    yield lines
    logger.remove(sink)


class Talk:
    """A call by phone that has been greeted."""

    def __init__(self, caller: Phone, kept: Record) -> None:
        self.caller, self.kept = caller, kept

    def most_like(self, *sayings: tuple[str, str, float]) -> tuple[str, str, float]:
        """What was heard, of sayings as `flite` takes them."""
        heard = np.concatenate(self.caller.leg.heard)
        return max(sayings, key=lambda saying: likeness(heard, flite(*saying)))


def flite(text: str, voice: str = "slt", speed: float = 1.0) -> Pcm:
    return FliteSynthesizer().sound(text.split(), voice, speed).pcm


def likeness(heard: Pcm, said: Pcm) -> float:
    """How alike the pieces of a saying and their likest places in what was heard are: buffers move
    them against one another."""
    line, saying = by_phone(heard), by_phone(said)
    pieces = [saying[at : at + PIECE] for at in range(0, len(saying) - PIECE + 1, PIECE)]
    loud = np.mean(saying**2) / 4
    size = len(line) + PIECE
    spectrum = np.fft.rfft(line, size)
    powers = np.convolve(line**2, np.ones(PIECE), "valid")
    likest = [
        np.max(
            np.fft.irfft(spectrum * np.conj(np.fft.rfft(piece, size)), size)[: len(powers)]
            / np.sqrt(np.maximum(powers, loud) * np.sum(piece**2))
        )
        for piece in pieces
        if np.mean(piece**2) > loud
    ]
    return float(np.mean(likest))


def by_phone(sound: Pcm) -> Any:
    """What of 16 kHz sound goes through a phone, its high tones as loud as its low ones."""
    return np.diff(soxr.resample(sound.astype(np.float64), RATE_IN, RATE_IN // 2))


@asynccontextmanager
async def talking(
    folder: Path, endpoint: Model, backend: str = NOBODY, **tables: str
) -> AsyncIterator[Talk]:
    async with serving(folder, endpoint.url, backend, **tables) as (edge, url):
        caller = Phone(edge, url)
        async with caller.calling():
            await until(lambda: edge.calls)
            kept = Record(edge)
            await until(lambda: kept.says("which order"))
            yield Talk(caller, kept)


AS_WRITTEN = (GREETING, "slt", 1.0)
BY_RMS = (GREETING, "rms", 1.0)
FASTER = (GREETING, "slt", 1.4)
BY_LEXICON = ("Corner Bananas, which order is it?", "slt", 1.0)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", AS_WRITTEN),
        ('voice = "rms"', BY_RMS),
        ("speed = 1.4", FASTER),
        ('lexicon = "words.toml"', BY_LEXICON),
    ],
)
async def test_the_greeting_sounds_as_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, said: tuple[str, str, float]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.toml").write_text('Bikes = "Bananas"\n')
    async with model() as endpoint, talking(tmp_path, endpoint, agent=table) as talk:
        assert talk.most_like(AS_WRITTEN, BY_RMS, FASTER, BY_LEXICON) == said
        [turn] = talk.kept.events("agent_turn")
    assert turn["text"] == GREETING


TOMORROW, MONDAY = ("It comes tomorrow", "slt", 1.0), ("It comes on Monday next", "slt", 1.0)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('It comes <sub alias="on Monday next">tomorrow</sub>.', MONDAY),
        ('It comes <sub alias="on Monday next">tomorrow.', TOMORROW),
        ("It comes <blink>tomorrow</blink>.", TOMORROW),
    ],
)
async def test_an_answer_with_markup_is_said_as_it_means(
    tmp_path: Path, answer: str, said: tuple[str, str, float]
) -> None:
    async with model([says(answer)]) as endpoint, talking(tmp_path, endpoint) as talk:
        await talk.caller.gives_number()
        await until(lambda: talk.kept.says("It comes"))
        assert talk.most_like(TOMORROW, MONDAY) == said


def responds(**response: Any) -> Callable[[], web.Response]:
    return lambda: web.Response(**response)


JSON = "application/json"
FAILURES = {
    "HTML": (responds(text="<b>x</b>", content_type="text/html"), "text/html, not JSON"),
    "huge": (responds(text=json.dumps("x" * 1_000_000), content_type=JSON), "over 256 kB"),
    "silent": (None, "no response within 0.5 s"),
    "gone": (None, "its server cannot be reached"),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_who_needs_a_tool_that_fails_hears_so_and_the_operator_reads_why(
    tmp_path: Path, logged: list[str], failure: str
) -> None:
    response, reason = FAILURES[failure]
    table = f'seconds = 0.5\non_failure = "{DOWN}"'
    async with shop() as (backend, address), model([calls("order_status", number=7)]) as endpoint:
        if response is not None:
            backend.responds = response
        elif failure == "silent":
            backend.answers.clear()
        where = NOBODY if failure == "gone" else address
        async with talking(tmp_path, endpoint, where, tool=table) as talk:
            await talk.caller.gives_number()
            await until(lambda: talk.kept.says(DOWN))
            assert talk.most_like(TOMORROW, (DOWN, "slt", 1.0)) == (DOWN, "slt", 1.0)
            [used] = talk.kept.events("tool_used")
        backend.answers.set()
    assert used["failed"]
    assert reason in used["result"]
    [line] = [line for line in logged if "agent_failed" in line]
    assert "tool_failed" in line
    assert "order_status" in line
    assert reason in line


@pytest.mark.parametrize(
    ("query", "sources"), [("price of a chain", ["prices.md, line 1"]), ("zeppelin", [])]
)
async def test_what_is_found_in_documents_is_in_the_record(
    tmp_path: Path, query: str, sources: list[str]
) -> None:
    papers = tmp_path / "papers"
    papers.mkdir()
    (papers / "prices.md").write_text("A new chain costs 35 euros.\n")
    answers = [calls("search_knowledge", query=query)], [says("It comes tomorrow.")]
    async with (
        model(*answers) as endpoint,
        talking(tmp_path, endpoint, agent=f'knowledge = "{papers}"') as talk,
    ):
        await talk.caller.gives_number()
        await until(lambda: talk.kept.says("tomorrow"))
        found = talk.kept.events("passages_found")
        assert talk.most_like(TOMORROW, MONDAY) == TOMORROW
    assert [event["sources"] for event in found] == [sources]


@pytest.mark.parametrize(
    ("given", "fault", "collected"),
    [
        ("7", None, {"order": "7"}),
        ("seven or so", {"order": "it has 1 to 40 digits and nothing else"}, {}),
    ],
)
async def test_what_is_no_detail_is_not_noted_and_the_model_learns_why(
    tmp_path: Path, given: str, fault: dict[str, str] | None, collected: dict[str, str]
) -> None:
    table = 'collect = {order = {type = "digits", ask = "the number", repeat = false}}'
    answers = [calls("note_details", order=given)], [says("It comes tomorrow.")]
    async with model(*answers) as endpoint, talking(tmp_path, endpoint, agent=table) as talk:
        await talk.caller.gives_number()
        await until(lambda: talk.kept.says("tomorrow"))
        [result] = endpoint.results()
    assert result.get("wrong") == fault
    assert talk.kept.call().get("collected", {}) == collected
