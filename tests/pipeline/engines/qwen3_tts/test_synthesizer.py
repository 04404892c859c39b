"""The synthesizer around the engine: threads, replies and their ends, on a tiny checkpoint."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from offhook.media.pcm import Pcm  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.runner import TtsRunner  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.synthesizer_io import Qwen3Speech, Qwen3Synthesizer  # noqa: E402
from offhook.pipeline.engines.shared.synthesis.messages import FRAME_SAMPLES  # noqa: E402
from offhook.pipeline.engines.shared.tts_models import TtsModels  # noqa: E402
from offhook.pipeline.speech.errors import EngineError, EngineFailed, EngineOverloaded  # noqa: E402
from offhook.pipeline.speech.synthesizer import Speech, UnknownVoice, VoiceOptions  # noqa: E402
from offhook.pipeline.speech.voice import audio_cache_io  # noqa: E402
from offhook.pipeline.speech.voice.audio_cache_io import ReplyCache  # noqa: E402
from offhook.pipeline.speech.voice_cloning import Sample  # noqa: E402
from tests.pipeline.engines.qwen3_tts import tiny_tts  # noqa: E402
from tests.pipeline.speech.voice.test_audio_cache import redis_server  # noqa: E402
from tests.support.waiting import HANGS_S  # noqa: E402

SEEDED = VoiceOptions(seed=3, live=False)
"""Not live: it speaks as fast as it can."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tts.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
async def synthesizer(checkpoint: Path, tmp_path: Path) -> AsyncIterator[Qwen3Synthesizer]:
    made = Qwen3Synthesizer(TtsModels(str(checkpoint), "cpu", str(tmp_path)))
    await made.start()
    yield made
    await made.close()


async def spoken(stream: Qwen3Speech) -> list[Speech]:
    async with asyncio.timeout(HANGS_S):
        return [speech async for speech in stream]


def sound(pieces: list[Speech]) -> Pcm:
    return np.concatenate([piece.pcm for piece in pieces])


async def test_it_speaks_what_is_written(checkpoint: Path, tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    synthesizer = Qwen3Synthesizer(
        TtsModels(str(checkpoint), "cpu", str(tmp_path)), lambda f, what: told.append((f, what))
    )
    await synthesizer.start()
    assert told[-1][0] == 1.0
    assert [f for f, _ in told] == sorted(f for f, _ in told)
    assert synthesizer.voices() == ["ann", "eric"]
    stream = synthesizer.open(SEEDED)
    text = "The cat sat, $5!\n\nIsn't  it? 😀 "
    for letter in text:
        stream.write(letter)
        await asyncio.sleep(0)
    stream.end()
    pieces = await spoken(stream)
    assert "".join(piece.text for piece in pieces) == text
    assert len(sound(pieces)) > 24000
    assert sound(pieces).dtype == np.int16
    await synthesizer.close()


async def test_the_same_seed_gives_the_same_sound(synthesizer: Qwen3Synthesizer) -> None:
    async def say(options: VoiceOptions) -> Pcm:
        stream = synthesizer.open(options)
        stream.write("the cat sat on")
        stream.end()
        return sound(await spoken(stream))

    first = await say(SEEDED)
    assert np.array_equal(first, await say(SEEDED))
    together = await asyncio.gather(say(SEEDED), say(replace(SEEDED, seed=4)))
    assert np.array_equal(first, together[0])
    assert not np.array_equal(first, together[1])
    assert not np.array_equal(first, await say(replace(SEEDED, voice="eric")))


@pytest.mark.parametrize("live", [False, True])
async def test_a_whole_text_is_spoken_in_a_layout_of_its_own(
    synthesizer: Qwen3Synthesizer, live: bool
) -> None:
    async def say(text: str, whole: bool) -> list[Speech]:
        stream = synthesizer.open(replace(SEEDED, live=live, whole_text=whole))
        stream.write(text)
        stream.end()
        return await spoken(stream)

    short = "the cat sat"
    streamed, whole = [sound(await say(short, whole)) for whole in (False, True)]
    assert not np.array_equal(streamed, whole)
    # Neither is played from the cache for the other.
    assert np.array_equal(sound(await say(short, False)), streamed)
    assert np.array_equal(sound(await say(short, True)), whole)
    long = "the cat sat on the mat, and it sat there. " * 12
    assert "".join(piece.text for piece in await say(long, True)) == long


async def test_without_text_it_holds_and_goes_on(synthesizer: Qwen3Synthesizer) -> None:
    stream = synthesizer.open(SEEDED)
    stream.write("the cat ")
    heard = asyncio.create_task(spoken(stream))
    await asyncio.sleep(0.5)
    assert not heard.done()
    stream.write("sat on the mat")
    stream.end()
    assert "".join(piece.text for piece in await heard) == "the cat sat on the mat"


async def test_a_short_reply_said_again_is_not_made_again(
    synthesizer: Qwen3Synthesizer,
) -> None:
    async def say(text: str) -> list[Speech]:
        stream = synthesizer.open(SEEDED)
        for letter in text:
            stream.write(letter)
        stream.end()
        return await spoken(stream)

    first = await say("the cat sat")
    assert synthesizer._engine.counters.early_ends < 4  # or it would not be kept
    frames = synthesizer._engine.counters.frames
    again = await say("the cat sat")
    assert [piece.text for piece in again] == [piece.text for piece in first]
    assert np.array_equal(sound(again), sound(first))
    assert synthesizer._engine.counters.frames == frames
    await say("the cat sits")
    assert synthesizer._engine.counters.frames > frames


@pytest.mark.parametrize("always", [False, True])
async def test_what_is_not_to_be_kept_is_made_again(
    checkpoint: Path, tmp_path: Path, always: bool
) -> None:
    options = SEEDED if always else replace(SEEDED, cache=False)
    models = TtsModels(str(checkpoint), "cpu", str(tmp_path), "off" if always else "")
    synthesizer = Qwen3Synthesizer(models)
    await synthesizer.start()

    async def frames_for(options: VoiceOptions) -> int:
        before = synthesizer._engine.counters.frames
        stream = synthesizer.open(options)
        stream.write("the cat sat")
        stream.end()
        await spoken(stream)
        return synthesizer._engine.counters.frames - before

    assert await frames_for(options)
    assert not len(synthesizer.cache)
    assert await frames_for(SEEDED)
    assert bool(len(synthesizer.cache)) is not always
    assert await frames_for(options)
    await synthesizer.close()


async def test_what_the_voice_of_a_recording_says_is_not_kept(
    synthesizer: Qwen3Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nameless:
        async def nameless(self, sample: Sample) -> str:
            return "a voice"

    opened: list[VoiceOptions] = []
    monkeypatch.setattr(synthesizer, "cloning", Nameless())
    monkeypatch.setattr(synthesizer, "open_with", lambda options, voice: opened.append(options))
    await synthesizer.open_clone(Sample(b"", "", True), SEEDED)
    assert opened == [replace(SEEDED, cache=False)]


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("redis")
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


async def test_what_another_worker_said_is_not_made_again(
    checkpoint: Path, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "the cat sat"
    models = TtsModels(str(checkpoint), "cpu", str(tmp_path), redis_url)
    one, other = Qwen3Synthesizer(models), Qwen3Synthesizer(models)

    async def say(worker: Qwen3Synthesizer) -> list[Speech]:
        stream = worker.open(SEEDED)
        stream.write(text)
        stream.end()
        return await spoken(stream)

    await one.start()
    first = await say(one)
    await one.close()  # which ends when Redis has it
    assert (one.cache.shared_hits, one.cache.failures) == (0, 0)
    step, stepped = TtsRunner.step, []

    def slow(runner: TtsRunner, steps: object) -> object:
        stepped.append(steps)
        time.sleep(0.2)
        return step(runner, steps)  # type: ignore[arg-type]

    await other.start()
    monkeypatch.setattr(audio_cache_io, "ANSWER_S", 60)
    monkeypatch.setattr(TtsRunner, "step", slow)
    again = await say(other)
    assert [piece.text for piece in again] == [piece.text for piece in first]
    assert np.array_equal(sound(again), sound(first))
    frames = len(sound(first)) // FRAME_SAMPLES
    assert len(stepped) < frames  # what was begun while Redis was asked
    assert other.cache.shared_hits == 1
    assert not other._thread._listeners
    await say(other)
    assert other.cache.shared_hits == 1  # now its own
    await other.close()


async def test_a_shared_cache_that_answers_late_is_not_waited_for(
    checkpoint: Path, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = asyncio.Event()

    async def fetch(cache: ReplyCache, key: str) -> list[Speech]:
        await answer.wait()
        return [Speech(np.ones(2400, np.int16), "the cat")]

    monkeypatch.setattr(ReplyCache, "fetch", fetch)
    made = Qwen3Synthesizer(TtsModels(str(checkpoint), "cpu", str(tmp_path), redis_url))
    await made.start()
    stream = made.open(SEEDED)
    stream.write("the cat")
    stream.end()
    pieces = []
    async with asyncio.timeout(HANGS_S):
        async for piece in stream:
            pieces.append(piece)
            answer.set()
            await asyncio.sleep(0.01)
    assert "".join(piece.text for piece in pieces) == "the cat"
    assert not any((piece.pcm == 1).all() and len(piece.pcm) == 2400 for piece in pieces)
    assert not made.asking
    await made.close()


async def test_nothing_to_say(synthesizer: Qwen3Synthesizer) -> None:
    stream = synthesizer.open()
    stream.end()
    assert await spoken(stream) == []
    stream = synthesizer.open()
    stream.write(" 😀\n")
    stream.end()
    pieces = await spoken(stream)
    assert "".join(piece.text for piece in pieces) == " 😀\n"


async def test_cancelled_it_is_silent_and_its_place_is_free(synthesizer: Qwen3Synthesizer) -> None:
    for _ in range(3):
        streams = [synthesizer.open() for _ in range(4)]
        for stream in streams:
            stream.write("the cat sat on the mat " * 20)
        async with asyncio.timeout(HANGS_S):
            await anext(aiter(streams[0]))
        for stream in streams:
            stream.cancel()
            stream.write("more")
            assert await spoken(stream) == []
    stream = synthesizer.open(SEEDED)
    stream.write("the end")
    stream.end()
    assert len(sound(await spoken(stream)))


async def test_more_than_there_is_room_for_are_refused(synthesizer: Qwen3Synthesizer) -> None:
    assert synthesizer.max_streams == 4
    streams = [synthesizer.open() for _ in range(5)]
    streams[4].write("one too many")
    with pytest.raises(EngineOverloaded, match="4 streams"):
        await spoken(streams[4])
    for stream in streams:
        stream.cancel()


async def test_what_the_model_cannot_do_is_refused(synthesizer: Qwen3Synthesizer) -> None:
    with pytest.raises(UnknownVoice, match="nobody"):
        synthesizer.open(VoiceOptions(voice="nobody"))
    with pytest.raises(ValueError, match="'ko'"):
        synthesizer.open(VoiceOptions(language="ko"))


async def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"config\.json|tokenizer"):
        await Qwen3Synthesizer(TtsModels(str(tmp_path), "cpu")).start()


async def test_the_engine_waits_for_whoever_takes_the_sound(
    synthesizer: Qwen3Synthesizer,
) -> None:
    stream = synthesizer.open(SEEDED)
    stream._reply._most_tokens, stream._reply._most_samples = 4, 1
    stream.write("the cat sat on the mat")
    stream.end()
    async with asyncio.timeout(HANGS_S):
        while not stream._reply._pieces:
            await asyncio.sleep(0.01)
    assert not stream._reply.end_of_text
    pieces = await spoken(stream)
    assert "".join(piece.text for piece in pieces) == "the cat sat on the mat"


async def test_a_model_that_ends_again_and_again_ends_the_reply(
    synthesizer: Qwen3Synthesizer,
) -> None:
    stream = synthesizer.open(SEEDED)
    stream.write("the cat sat on the mat " * 100)
    stream.end()
    pieces = await spoken(stream)
    assert "".join(piece.text for piece in pieces) == "the cat sat on the mat " * 100
    assert len(sound(pieces)) < 24000 * 60


async def test_a_device_that_breaks_is_told_to_all(
    synthesizer: Qwen3Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(runner: TtsRunner, steps: object) -> None:
        time.sleep(0.05)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    streams = [synthesizer.open() for _ in range(2)]
    monkeypatch.setattr(TtsRunner, "step", step)
    streams[0].write("the cat sat")
    for stream in streams:
        with pytest.raises(EngineFailed, match="illegal memory access"):
            await spoken(stream)
    with pytest.raises(EngineFailed):
        synthesizer.open()
    for stream in streams:
        stream.write("more")
        stream.cancel()
