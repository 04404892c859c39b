"""The synthesizer around the engine of Pocket TTS, on a tiny checkpoint."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from offhook.media.pcm import RATE_OUT, Pcm  # noqa: E402
from offhook.pipeline.engines.pocket.loading_io import affordable_rows, all_steps, found  # noqa: E402
from offhook.pipeline.engines.pocket.runner import PocketRunner  # noqa: E402
from offhook.pipeline.engines.pocket.synthesizer_io import (  # noqa: E402
    PocketSpeech,
    PocketSynthesizer,
)
from offhook.pipeline.engines.shared.tts_models import TtsModels  # noqa: E402
from offhook.pipeline.speech.errors import EngineError, EngineFailed, EngineOverloaded  # noqa: E402
from offhook.pipeline.speech.synthesizer import Speech, UnknownVoice, VoiceOptions  # noqa: E402
from tests.support import pocket_checkpoint  # noqa: E402
from tests.support.waiting import HANGS_S  # noqa: E402

SEEDED = VoiceOptions(seed=3, cache=False)
TEXT = "Hello there, how are you? I am fine, thank you."


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pocket_checkpoint.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
async def synthesizer(checkpoint: Path) -> AsyncIterator[PocketSynthesizer]:
    made = PocketSynthesizer(TtsModels(str(checkpoint), "cpu"))
    await made.start()
    yield made
    await made.close()


async def spoken(stream: PocketSpeech) -> list[Speech]:
    async with asyncio.timeout(HANGS_S):
        return [speech async for speech in stream]


def sound(pieces: list[Speech]) -> Pcm:
    return np.concatenate([piece.pcm for piece in pieces])


async def say(
    synthesizer: PocketSynthesizer, text: str, options: VoiceOptions = SEEDED
) -> list[Speech]:
    stream = synthesizer.open(options)
    stream.write(text)
    stream.end()
    return await spoken(stream)


async def test_it_says_how_many_replies_it_takes(synthesizer: PocketSynthesizer) -> None:
    assert synthesizer.max_streams
    replies = [synthesizer.open() for _ in range(synthesizer.max_streams + 1)]
    replies[-1].write("one too many")
    with pytest.raises(EngineOverloaded, match=f": {len(replies) - 1} streams"):
        await spoken(replies[-1])
    for reply in replies:
        reply.cancel()


async def test_it_speaks_what_is_written(checkpoint: Path) -> None:
    told: list[tuple[float, str]] = []
    synthesizer = PocketSynthesizer(
        TtsModels(str(checkpoint), "cpu"), lambda f, what: told.append((f, what))
    )
    await synthesizer.start()
    assert [f for f, _ in told] == sorted(f for f, _ in told)
    assert synthesizer.voices()[0] == "alba"
    assert "jean" not in synthesizer.voices()
    known = {voice.name: voice for voice in await synthesizer.known_voices()}
    assert known["marius"].licence == "CC0-1.0"
    assert known["alba"].languages == ("en",)
    stream = synthesizer.open(SEEDED)
    text = "The cat sat, $5!\n\nIsn't  it? 😀 "
    for letter in text:
        stream.write(letter)
        await asyncio.sleep(0)
    stream.end()
    pieces = await spoken(stream)
    assert "".join(piece.text for piece in pieces) == text
    assert len(sound(pieces)) > RATE_OUT // 2
    assert sound(pieces).dtype == np.int16
    await synthesizer.close()


async def test_two_replies_at_once_are_each_as_alone(
    synthesizer: PocketSynthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [replace(SEEDED, seed=4), replace(SEEDED, voice="marius"), SEEDED]
    texts = [TEXT, TEXT, "The cat sat on the mat, and it sat there for a long time."]
    alone = [
        sound(await say(synthesizer, text, options))
        for text, options in zip(texts, others, strict=True)
    ]
    engine, written = synthesizer._engine, threading.Event()
    frames, steps, turn = engine.counters.frames, engine.counters.steps, engine.turn

    def begins_with_all(clock: Callable[[], float]) -> bool:
        assert written.wait(HANGS_S)
        return turn(clock)

    monkeypatch.setattr(engine, "turn", begins_with_all)
    streams = [synthesizer.open(options) for options in others]
    for stream, text in zip(streams, texts, strict=True):
        stream.write(text)
        stream.end()
    together = [asyncio.ensure_future(spoken(stream)) for stream in streams]
    await asyncio.sleep(0)
    written.set()
    for one, heard in zip(alone, together, strict=True):
        assert np.array_equal(one, sound(await heard))
    assert engine.counters.frames - frames > engine.counters.steps - steps
    assert not np.array_equal(alone[0], sound(await say(synthesizer, TEXT, SEEDED)))


async def test_with_a_seed_the_sound_does_not_depend_on_how_the_text_came(
    synthesizer: PocketSynthesizer,
) -> None:
    text = "Yes. I can help you with that, of course."
    stream = synthesizer.open(SEEDED)
    for word in text.split(" "):
        stream.write(f"{word} ")
        await asyncio.sleep(0.1 if word != "Yes." else 0.5)
    stream.end()
    slow = await spoken(stream)
    assert np.array_equal(sound(slow), sound(await say(synthesizer, f"{text} ")))


async def test_a_short_sentence_is_not_held_for_long(synthesizer: PocketSynthesizer) -> None:
    stream = synthesizer.open(VoiceOptions(cache=False))
    stream.write("Okay. ")
    pieces = aiter(stream)
    async with asyncio.timeout(HANGS_S):
        first = await anext(pieces)
    assert len(first.pcm)
    stream.write("Here it is.")
    stream.end()
    rest = [piece async for piece in pieces]
    assert "".join(piece.text for piece in [first, *rest]) == "Okay. Here it is."


async def test_cancelling_ends_a_reply_at_once(synthesizer: PocketSynthesizer) -> None:
    stream = synthesizer.open(replace(SEEDED, live=False))
    stream.write(f"{TEXT} " * 40)
    stream.end()
    pieces = []
    async with asyncio.timeout(HANGS_S):
        async for piece in stream:
            pieces.append(piece)
            if len(pieces) == 3:
                stream.cancel()
    assert len(pieces) == 3
    assert np.array_equal(sound(await say(synthesizer, TEXT)), sound(await say(synthesizer, TEXT)))
    frames = synthesizer._engine.counters.frames
    await asyncio.sleep(0.3)
    assert synthesizer._engine.counters.frames == frames
    assert synthesizer._engine.open_streams == 0


async def test_speed_keeps_all_words_and_changes_the_length(
    synthesizer: PocketSynthesizer,
) -> None:
    usual, fast, slow = [
        await say(synthesizer, TEXT, replace(SEEDED, speed=speed)) for speed in (1.0, 2.0, 0.5)
    ]
    for pieces in (usual, fast, slow):
        assert "".join(piece.text for piece in pieces) == TEXT
    assert len(sound(fast)) == pytest.approx(len(sound(usual)) / 2, rel=0.2)
    assert len(sound(slow)) == pytest.approx(len(sound(usual)) * 2, rel=0.2)


async def test_a_reply_ends_with_its_last_word(synthesizer: PocketSynthesizer) -> None:
    pieces = await say(synthesizer, TEXT)
    assert pieces[-1].text
    words = [piece.text for piece in pieces if piece.text]
    assert len(words) > 1


async def test_a_broken_voice_hurts_only_the_reply_that_asked_for_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    folder = pocket_checkpoint.write(tmp_path, seed=2)
    synthesizer = PocketSynthesizer(TtsModels(str(folder), "cpu"))
    await synthesizer.start()
    path = folder / "embeddings" / "marius.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    broken = synthesizer.open(replace(SEEDED, voice="marius"))
    broken.write(TEXT)
    good = synthesizer.open(SEEDED)
    good.write(TEXT)
    for stream in (broken, good):
        stream.end()
    with pytest.raises(EngineError, match="marius"):
        await spoken(broken)
    assert "".join(piece.text for piece in await spoken(good)) == TEXT
    await synthesizer.close()


async def test_a_clause_that_fails_hurts_only_its_reply(
    synthesizer: PocketSynthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = sound(await say(synthesizer, TEXT))
    begin = PocketRunner.begin

    def fails(runner: PocketRunner, row: int, voice: object, *rest: object) -> None:
        if getattr(voice, "name", "") == "marius":
            raise RuntimeError("there is no room")
        begin(runner, row, voice, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(PocketRunner, "begin", fails)
    broken = say(synthesizer, TEXT, replace(SEEDED, voice="marius"))
    good, failed = await asyncio.gather(say(synthesizer, TEXT), broken, return_exceptions=True)
    assert isinstance(failed, EngineError)
    assert not isinstance(failed, EngineFailed)
    assert isinstance(good, list)
    assert np.array_equal(sound(good), alone)


async def test_a_short_reply_said_again_is_not_made_again(checkpoint: Path, tmp_path: Path) -> None:
    folder = pocket_checkpoint.write(tmp_path)
    synthesizer = PocketSynthesizer(TtsModels(str(folder), "cpu"))
    await synthesizer.start()
    options = replace(SEEDED, cache=True)
    first = await say(synthesizer, TEXT, options)
    frames = synthesizer._engine.counters.frames
    again = await say(synthesizer, TEXT, options)
    assert np.array_equal(sound(again), sound(first))
    assert synthesizer._engine.counters.frames == frames
    await synthesizer.close()


@pytest.mark.parametrize("text", ["", " ", "...", "— ?!", "😀", "你好", "\n\n"])
async def test_nothing_to_say(synthesizer: PocketSynthesizer, text: str) -> None:
    pieces = await say(synthesizer, text)
    assert "".join(piece.text for piece in pieces) == text
    assert not any(len(piece.pcm) for piece in pieces)


async def test_what_it_cannot_do_is_said(synthesizer: PocketSynthesizer) -> None:
    with pytest.raises(UnknownVoice, match="no voice 'bob', only alba"):
        synthesizer.open(VoiceOptions("bob"))
    with pytest.raises(UnknownVoice):
        synthesizer.open(VoiceOptions("jean"))
    with pytest.raises(ValueError, match="speaks 'en' only, not 'de'"):
        synthesizer.open(VoiceOptions(language="de"))
    synthesizer.open(VoiceOptions(language="en")).cancel()


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (TtsModels("klingon"), "no Pocket TTS of that name: english"),
        (TtsModels("english", "cuda"), "runs on a CPU"),
        (TtsModels("english", precision="bf16"), "auto, fp32, int8, not bf16"),
    ],
)
async def test_a_wrong_setting_is_said(models: TtsModels, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        await PocketSynthesizer(models).start()


async def test_a_folder_that_is_no_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="must be named as on the hub"):
        await PocketSynthesizer(TtsModels(str(tmp_path))).start()
    (tmp_path / "english").mkdir()
    with pytest.raises(EngineError, match=r"model\.safetensors"):
        await PocketSynthesizer(TtsModels(str(tmp_path / "english"))).start()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
async def test_both_precisions_speak(checkpoint: Path, precision: str) -> None:
    models = TtsModels(str(checkpoint), precision=precision)  # type: ignore[arg-type]
    synthesizer = PocketSynthesizer(models)
    await synthesizer.start()
    assert len(sound(await say(synthesizer, TEXT)))
    await synthesizer.close()


def test_what_is_downloaded_is_one_language(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def find(model: str, progress: object, hub: str, files: list[str]) -> Path:
        asked.append((model, hub, files))
        return Path("cache")

    monkeypatch.setattr("offhook.pipeline.engines.hub.hub_io.find", find)
    assert found("french@abc", hub="mirror") == Path("cache/languages/french")
    ((model, hub, files),) = asked
    assert (model, hub) == ("kyutai/pocket-tts-without-voice-cloning@abc", "mirror")
    assert all(name.startswith("languages/french/") for name in files)
    assert not any("jean" in name or "cosette" in name for name in files)


def test_streams_follow_from_the_measured_cost() -> None:
    measured = [(1, 20.0), (2, 24.0), (4, 32.0), (8, 48.0)]
    assert affordable_rows(measured) == 10  # 56 ms of 80
    assert all_steps(measured, 10)[2:4] == [(3, 28.0), (4, 32.0)]
    assert all_steps(measured, 10)[-1] == (10, 56.0)
    assert affordable_rows([(1, 100.0), (8, 200.0)]) == 1
