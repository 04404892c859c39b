"""A voice that several workers can speak, as processes that die, hang and drain in mid-reply."""

import asyncio
import signal
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from benchmarks.processes.node import node
from benchmarks.speech.number_words import LETTERS, WordCounter, level_of
from offhook.media.pcm import RATE_OUT
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSpeech, RemoteSynthesizer
from offhook.pipeline.speech.synthesizer import Speech
from tests.support.waiting import HANGS_S, until
from tests.web.workers.workers import needs_node, number_workers

WORDS = 16
MOMENT_S = 1.2


def line(chance: Random) -> list[str]:
    words = [chance.choice(LETTERS) for _ in range(WORDS)]
    return [word for word, before in zip(words, ["", *words[:-1]], strict=True) if word != before]


async def spoken_through(
    synthesizer: RemoteSynthesizer, words: list[str], disturb: Callable[[str], None]
) -> str:
    """Speaks the words, written one by one; after a third of them `disturb` gets the address of
    the worker that speaks. Returns that of the one that spoke the last word."""
    reply = synthesizer.open()
    writing = asyncio.create_task(write(reply, words))
    heard: list[Speech] = []
    marked, speaker, is_disturbed = 0, "", False
    async with asyncio.timeout(HANGS_S):
        async for piece in reply:
            heard.append(piece)
            marked += bool(piece.text)
            if reply._attempt is not None:
                speaker = reply._attempt.connection.worker.url
            if marked == len(words) // 3 and not is_disturbed:
                is_disturbed = True
                disturb(speaker)
        await writing
    assert "".join(piece.text for piece in heard) == "".join(f"{word} " for word in words)
    counter = WordCounter(RATE_OUT)
    counter.feed(np.concatenate([piece.pcm for piece in heard]))
    assert only_one_repeated(counter.levels, [level_of(word) for word in words])
    return speaker


async def write(reply: RemoteSpeech, words: list[str]) -> None:
    for word in words:
        reply.write(f"{word} ")
        await asyncio.sleep(0.02)
    reply.end()


def only_one_repeated(heard: list[int], words: list[int]) -> bool:
    """Whether all words are heard in order, the one under way perhaps twice."""
    return heard == words or any(
        heard == [*words[: at + 1], *words[at:]] for at in range(len(words))
    )


@pytest.mark.parametrize("several", [False, True])
def test_repetition_is_told_from_loss(several: bool) -> None:
    assert only_one_repeated([1, 2, 2, 3] if several else [1, 2, 3], [1, 2, 3])
    assert not only_one_repeated([1, 3] if several else [1, 2, 1, 2, 3], [1, 2, 3])


async def test_a_worker_that_hangs_drains_or_dies_in_mid_reply_costs_no_word() -> None:
    chance = Random(1)
    async with number_workers("tts", 3) as processes:
        synthesizer = RemoteSynthesizer(list(processes))
        await synthesizer.start()
        undisturbed = await spoken_through(synthesizer, line(chance), lambda url: None)
        assert undisturbed in processes
        gone: set[str] = set()
        for how in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
            first: list[str] = []

            def disturb(url: str, how: signal.Signals = how, first: list[str] = first) -> None:
                assert url not in gone
                first.append(url)
                processes[url].send_signal(how)

            last = await spoken_through(synthesizer, line(chance), disturb)
            (disturbed,) = first
            gone.add(disturbed)
            assert (last == disturbed) == (how == signal.SIGTERM), "a drain lets replies end"
            following = await spoken_through(synthesizer, line(chance), lambda url: None)
            assert following not in gone
            if how == signal.SIGSTOP:
                processes[disturbed].send_signal(signal.SIGCONT)
                gone.clear()  # it is used again as soon as it answers
            if how == signal.SIGTERM:
                await until(lambda url=disturbed: processes[url].returncode == 0)  # type: ignore[misc]
        await synthesizer.close()


@pytest.mark.slow
@needs_node
async def test_a_machine_that_vanishes_and_comes_back_costs_no_word() -> None:
    chance = Random(2)
    async with node() as other, number_workers("tts", 2, on=other) as processes:
        there, here = processes
        synthesizer = RemoteSynthesizer(list(processes))
        await synthesizer.start()
        changes: list[asyncio.Task[None]] = []

        def change_link(state: str) -> None:
            changes.append(asyncio.create_task(other.set_link(state)))

        async def spoken_until_it_is_down(moment: bool) -> str:
            """Returns the address of the worker that spoke the last word."""
            await until(lambda: synthesizer.workers.counts()["ready"] == 2)
            before = len(changes)

            def disturb(url: str) -> None:
                if url == there:
                    change_link("down")
                    if moment:
                        asyncio.get_running_loop().call_later(MOMENT_S, change_link, "up")

            while len(changes) == before:
                last = await spoken_through(synthesizer, line(chance), disturb)
            return last

        for _ in range(2):
            assert await spoken_until_it_is_down(moment=False) == here
            assert await spoken_through(synthesizer, line(chance), lambda url: None) == here
            await until(lambda: synthesizer.workers.counts()["gone"])
            change_link("up")
        for _ in range(3):
            await spoken_until_it_is_down(moment=True)
            await spoken_through(synthesizer, line(chance), lambda url: None)
        await asyncio.gather(*changes)
        assert processes[there].returncode is None
        await synthesizer.close()
