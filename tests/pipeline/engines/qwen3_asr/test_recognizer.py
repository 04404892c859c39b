"""The recogniser around the engine: threads, streams and their ends, on a tiny checkpoint."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.qwen3_asr.loading_io import CPU_STREAMS
from offhook.pipeline.engines.qwen3_asr.recognizer_io import Qwen3Recognizer
from offhook.pipeline.engines.qwen3_asr.runner import Runner
from offhook.pipeline.engines.shared.asr_models import AsrModels, Precision
from offhook.pipeline.engines.shared.recognition.streams_io import EngineStream
from offhook.pipeline.speech.errors import (
    EngineError,
    EngineFailed,
    EngineOverloaded,
    UnsupportedRequest,
)
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions
from tests.pipeline.engines.shared.model import tiny
from tests.support.waiting import HANGS_S


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_original(tmp_path_factory.mktemp("tiny"), seed=4)


def sound(seconds: float) -> Pcm:
    rng = np.random.default_rng(1)
    pcm: Pcm = (rng.standard_normal(int(16000 * seconds)) * 3000).astype(np.int16)
    return pcm


async def until_final(stream: EngineStream) -> list[Partial | Final]:
    events: list[Partial | Final] = []
    async for event in stream.events():
        events.append(event)
        if isinstance(event, Final):
            return events
    raise AssertionError("the stream ended without a final")


async def test_it_hears_and_closes(checkpoint: Path) -> None:
    told: list[tuple[float, str]] = []
    recognizer = Qwen3Recognizer(
        AsrModels(str(checkpoint), "cpu"), lambda f, what: told.append((f, what))
    )
    await recognizer.start()
    assert told[-1][0] == 1.0
    assert [f for f, _ in told] == sorted(f for f, _ in told)
    stream = await recognizer.open(StreamOptions(update_ms=200, language="en"))
    for i in range(0, 32000, 1600):
        stream.feed(sound(2)[i : i + 1600])
        await asyncio.sleep(0.01)
    stream.finish()
    events = await asyncio.wait_for(until_final(stream), HANGS_S)
    assert any(isinstance(e, Partial) for e in events)
    assert events[-1].audio_ms == 2000
    # The next utterance begins at nothing.
    stream.feed(sound(1))
    stream.finish()
    events = await asyncio.wait_for(until_final(stream), HANGS_S)
    assert events[-1].audio_ms == 1000
    assert isinstance(events[-1], Final)
    assert events[-1].language == "en"
    # A cancelled one says nothing; what follows it does.
    stream.feed(sound(1))
    stream.mailbox.put(Partial("unread", 0, 1000))
    stream.cancel()
    stream.feed(sound(0.6))
    stream.finish()
    events = await asyncio.wait_for(until_final(stream), HANGS_S)
    assert "unread" not in [event.text for event in events]
    assert events[-1].audio_ms == 600
    await stream.close()
    assert [e async for e in stream.events()] == []
    await recognizer.close()


async def test_more_streams_than_there_is_room_for_are_refused(checkpoint: Path) -> None:
    recognizer = Qwen3Recognizer(AsrModels(str(checkpoint), "cpu"))
    await recognizer.start()
    assert recognizer.max_streams == recognizer.max_open_streams == CPU_STREAMS
    streams = [await recognizer.open() for _ in range(CPU_STREAMS)]
    with pytest.raises(EngineOverloaded, match="open"):
        await recognizer.open()
    await streams[0].close()
    await (await recognizer.open()).close()
    with pytest.raises(EngineError, match="xx"):
        await recognizer.open(StreamOptions(language="xx"))
    await recognizer.close()


async def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"config\.json"):
        await Qwen3Recognizer(AsrModels(str(tmp_path), "cpu")).start()


async def test_two_streams_do_not_disturb_each_other(checkpoint: Path) -> None:
    recognizer = Qwen3Recognizer(AsrModels(str(checkpoint), "cpu"))
    await recognizer.start()

    async def heard(other: bool) -> str:
        first = await recognizer.open(StreamOptions(update_ms=400))
        second = await recognizer.open(StreamOptions(update_ms=80))
        pcm = sound(1.5)
        for i in range(0, len(pcm), 800):
            first.feed(pcm[i : i + 800])
            if other:
                second.feed(pcm[-i - 800 :][:800])
        first.finish()
        events = await asyncio.wait_for(until_final(first), HANGS_S)
        await first.close()
        await second.close()
        return events[-1].text

    assert await heard(False) == await heard(True)
    await recognizer.close()


@pytest.fixture(scope="module")
def others(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsrModels:
    """Another model for final texts, and an aligner."""
    final, aligner = (tmp_path_factory.mktemp(name) for name in ("final", "aligner"))
    tiny.write_original(final, seed=9)
    untied = replace(tiny.CONFIG.decoder, tied=False)
    tiny.write_original(aligner, replace(tiny.CONFIG, classes=60, decoder=untied))
    return AsrModels(str(checkpoint), "cpu", str(final), str(aligner))


async def test_two_models_and_an_aligner(others: AsrModels) -> None:
    told: list[float] = []
    both = Qwen3Recognizer(others, lambda fraction, what: told.append(fraction))
    alone = Qwen3Recognizer(replace(others, model=others.final_model, final_model=""))
    await both.start()
    await alone.start()
    assert told == sorted(told)
    assert told[-1] == 1.0
    options = StreamOptions(language="en", words=True)
    first, second = await both.open(options), await alone.open(options)
    for i in range(2):
        pcm = sound(2)[8000 * i :]
        finals = []
        for stream in (first, second):
            stream.feed(pcm)
            stream.finish()
            finals.append((await asyncio.wait_for(until_final(stream), HANGS_S))[-1])
        assert finals[0] == finals[1]
        assert isinstance(finals[0], Final)
        assert finals[0].words
        assert " ".join(w.text for w in finals[0].words) == " ".join(finals[0].text.split())
        times = [time for w in finals[0].words for time in (w.start_ms, w.end_ms)]
        assert times == sorted(times)
        begin = (0, 2000)[i]
        assert begin <= times[0] <= times[-1] <= begin + len(pcm) // 16
    await both.close()
    await alone.close()


@pytest.mark.parametrize("precision", ["int8-weights", "fp8-weights"])
async def test_weights_in_8_bits(checkpoint: Path, precision: Precision) -> None:
    recognizer = Qwen3Recognizer(AsrModels(str(checkpoint), "cpu", precision=precision))
    await recognizer.start()
    stream = await recognizer.open()
    stream.feed(sound(1))
    stream.finish()
    assert (await asyncio.wait_for(until_final(stream), HANGS_S))[-1].audio_ms == 1000
    await recognizer.close()


async def test_a_known_text_is_aligned(others: AsrModels) -> None:
    recognizer = Qwen3Recognizer(replace(others, final_model=""))
    await recognizer.start()
    words = await recognizer.align(sound(3), "the cat sat", "en")
    assert [word.text for word in words] == ["the", "cat", "sat"]
    with pytest.raises(UnsupportedRequest, match="cannot be aligned"):
        await recognizer.align(sound(3), "hej", "sv")
    await recognizer.close()
    alone = Qwen3Recognizer(replace(others, final_model="", aligner=""))
    with pytest.raises(UnsupportedRequest, match="aligns no text"):
        await alone.align(sound(3), "the cat sat", "en")
    await alone.close()


async def test_no_partial_text_is_promised_where_another_model_writes_the_final_one(
    others: AsrModels,
) -> None:
    both = Qwen3Recognizer(replace(others, aligner=""))
    await both.start()
    stream = await both.open(StreamOptions(language="en", update_ms=80))
    stream.feed(sound(8))
    stream.finish()
    *partials, _ = await asyncio.wait_for(until_final(stream), HANGS_S)
    assert partials
    assert {partial.stable_chars for partial in partials} == {0}
    await stream.close()
    await both.close()


async def test_models_that_do_not_go_together_are_refused(others: AsrModels) -> None:
    with pytest.raises(EngineError, match="is a forced aligner"):
        await Qwen3Recognizer(AsrModels(others.aligner, "cpu")).start()
    with pytest.raises(EngineError, match="is no Qwen3-ForcedAligner"):
        await Qwen3Recognizer(AsrModels(others.model, "cpu", aligner=others.model)).start()


async def test_a_device_that_breaks_is_told_to_all(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recognizer = Qwen3Recognizer(AsrModels(str(checkpoint), "cpu"))
    await recognizer.start()
    streams = [await recognizer.open() for _ in range(2)]
    late: list[asyncio.Task[EngineStream]] = []
    broken = asyncio.Event()
    loop = asyncio.get_running_loop()

    def prefill(runner: Runner, passes: object) -> None:
        loop.call_soon_threadsafe(lambda: late.append(asyncio.create_task(recognizer.open())))
        loop.call_soon_threadsafe(broken.set)
        time.sleep(0.05)  # an open is ordered, and not yet carried out
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Runner, "prefill", prefill)
    streams[0].feed(sound(1))
    streams[0].finish()
    await asyncio.wait_for(broken.wait(), HANGS_S)
    for stream in streams:
        with pytest.raises(EngineFailed, match="illegal memory access"):
            await asyncio.wait_for(until_final(stream), HANGS_S)
    for opening in (late[0], recognizer.open()):
        with pytest.raises(EngineFailed):
            await asyncio.wait_for(opening, HANGS_S)
    for stream in streams:
        await stream.close()
    await recognizer.close()
