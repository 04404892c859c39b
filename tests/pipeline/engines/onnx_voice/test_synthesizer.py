"""Kokoro and Piper speak eSpeak's phonemes: on voices of their shape, made here."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.engines.embedded.espeak_io import EspeakChild
from offhook.pipeline.engines.onnx_voice.spec import KOKORO_LANGUAGES
from offhook.pipeline.engines.onnx_voice.synthesizer_io import OnnxSynthesizer
from offhook.pipeline.engines.onnx_voice.voices import ESPEAK_VOICES, Kokoro, Piper, read_voice
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import Speech, UnknownVoice, VoiceOptions
from offhook.web.workers.engines.engines_io import open_synthesizer
from tests.support import tiny_voices
from tests.support.hub_stand_in import Hub, of_folder, running
from tests.support.waiting import HANGS_S

TEXT = "Good morning, this is room 12. Is that right?"
Make = Callable[[Path], Path]
FAMILIES = [("kokoro", tiny_voices.kokoro), ("piper", tiny_voices.piper)]


@asynccontextmanager
async def speaking(family: str, model: Path | str, hub: str = "") -> AsyncIterator[OnnxSynthesizer]:
    synthesizer = OnnxSynthesizer(family, TtsModels(str(model), hub=hub))
    try:
        await synthesizer.start()
        yield synthesizer
    finally:
        await synthesizer.close()


async def say(synthesizer: OnnxSynthesizer, text: str, voice: str = "") -> list[Speech]:
    reply = synthesizer.open(VoiceOptions(voice))
    reply.write(text)
    reply.end()
    async with asyncio.timeout(HANGS_S):
        return [piece async for piece in reply]


# --- speaking ---


@pytest.mark.parametrize(("family", "make"), FAMILIES)
async def test_a_reply_is_spoken_word_by_word(family: str, make: Make, tmp_path: Path) -> None:
    async with speaking(family, make(tmp_path / "voice")) as synthesizer:
        pieces = await say(synthesizer, TEXT)
        assert "".join(piece.text for piece in pieces) == TEXT
        assert all(piece.pcm.any() for piece in pieces if piece.text)
        assert synthesizer.max_streams
        assert synthesizer.languages == ("en",)


async def test_each_voice_of_kokoro_is_of_its_language(tmp_path: Path) -> None:
    folder = tiny_voices.kokoro(tmp_path / "v", "tokens", "bf_emma ef_dora af_heart zf_xiaobei")
    async with speaking("kokoro", folder) as synthesizer:
        assert synthesizer.voices() == ["af_heart", "bf_emma", "ef_dora"]
        assert synthesizer.spoken["ef_dora"] == ("es",)
        assert any(piece.pcm.any() for piece in await say(synthesizer, "Buenos días.", "ef_dora"))
        with pytest.raises(UnknownVoice, match="no voice 'zf_xiaobei'"):
            synthesizer.open(VoiceOptions("zf_xiaobei"))


async def test_a_voice_of_piper_has_its_speakers(tmp_path: Path) -> None:
    folder = tiny_voices.piper(tmp_path / "v", "en_GB-vctk-medium", speakers=3)
    async with speaking("piper", folder / "en_GB-vctk-medium.onnx") as synthesizer:
        assert synthesizer.voices() == ["p0", "p1", "p2"]
        assert any(piece.pcm.any() for piece in await say(synthesizer, "Hello.", "p2"))


async def test_a_long_text_without_a_mark_is_spoken_to_its_end(tmp_path: Path) -> None:
    async with speaking("kokoro", tiny_voices.kokoro(tmp_path / "v")) as synthesizer:
        text = "really " * 300
        pieces = await say(synthesizer, text)
        assert "".join(piece.text for piece in pieces) == text
        assert pieces[-1].pcm.any()


async def test_espeak_is_started_again(tmp_path: Path) -> None:
    async with speaking("piper", tiny_voices.piper(tmp_path / "v")) as synthesizer:
        process = synthesizer._espeak._child
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert any(piece.pcm.any() for piece in await say(synthesizer, "Hello."))


async def test_the_weights_come_from_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    inside = "rhasspy/piper-voices/en/en_US/joe/medium"
    tiny_voices.piper(tmp_path / "hub" / inside)
    tiny_voices.kokoro(tmp_path / "hub/onnx-community/Kokoro-82M-v1.0-ONNX")
    with running(Hub(others=of_folder(tmp_path / "hub"))) as hub:
        for family, model in (
            ("piper", "en_US-joe-medium"),
            ("kokoro", "onnx-community/Kokoro-82M-v1.0-ONNX"),
        ):
            async with speaking(family, model, hub.url) as synthesizer:
                assert any(piece.pcm.any() for piece in await say(synthesizer, "Hello."))


# --- what cannot be used ---


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: next(folder.rglob(name)).unlink()


def with_text(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


@pytest.mark.parametrize(
    ("family", "make", "spoil", "reason"),
    [
        ("kokoro", tiny_voices.kokoro, without("*.onnx"), "needs model.onnx, voices/NAME.bin"),
        ("kokoro", tiny_voices.kokoro, without("tokenizer.json"), "or config.json"),
        ("kokoro", tiny_voices.kokoro, with_text("tokenizer.json", "{}"), "no voice of Kokoro"),
        ("kokoro", tiny_voices.kokoro, with_text("voices/af_heart.bin", "abcd"), "is no style"),
        ("piper", tiny_voices.piper, without("*.json"), "needs NAME.onnx and NAME.onnx.json"),
        (
            *("piper", tiny_voices.piper),
            *(with_text("en_US-joe-medium.onnx.json", "[]"), "is no voice of Piper"),
        ),
    ],
)
def test_a_folder_that_is_no_voice_says_what_it_lacks(
    family: str, make: Make, spoil: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "voice")
    spoil(folder)
    with pytest.raises(EngineError, match=reason):
        read_voice(family, folder, "x")


@pytest.mark.parametrize(
    ("data", "reason"), [(b"version https://git-lfs", "cannot be loaded"), (b"", "cannot be")]
)
async def test_a_model_that_is_no_onnx_is_told(data: bytes, reason: str, tmp_path: Path) -> None:
    folder = tiny_voices.kokoro(tmp_path / "voice")
    (folder / "onnx/model_quantized.onnx").write_bytes(data)
    with pytest.raises(EngineError, match=reason):
        async with speaking("kokoro", folder):
            pass


async def test_a_model_of_another_kind_is_told(tmp_path: Path) -> None:
    folder = tiny_voices.kokoro(tmp_path / "voice")
    other = tiny_voices.piper(tmp_path / "other")
    (other / "en_US-joe-medium.onnx").rename(folder / "onnx/model_quantized.onnx")
    with pytest.raises(EngineError, match="does not speak"):
        async with speaking("kokoro", folder):
            pass


@pytest.mark.parametrize("model", ["en_US-joe", "nobody/here/there", "joe"])
async def test_a_name_that_is_no_voice_is_told(model: str) -> None:
    with pytest.raises(EngineError, match="such as en_US-joe-medium"):
        async with speaking("piper", model):
            pass


def test_without_its_packages_it_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offhook.pipeline.speech.engine_spec.find_spec", lambda name: None)
    with pytest.raises(EngineError, match="make espeak"):
        open_synthesizer("piper")


# --- tokens ---


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> tuple[Kokoro, Piper]:
    folder = tmp_path_factory.mktemp("voices")
    kokoro, piper = tiny_voices.kokoro(folder / "k"), tiny_voices.piper(folder / "p")
    return Kokoro(kokoro), Piper(piper, "x")


@given(phonemes=st.text(max_size=40))
def test_tokens_are_of_the_vocabulary(phonemes: str, voices: tuple[Kokoro, Piper]) -> None:
    kokoro, piper = voices
    symbols = len(tiny_voices.SYMBOLS)
    assert set(kokoro.tokens(phonemes, "af_heart")) <= {*range(symbols + 1)}
    assert set(piper.tokens(phonemes, "en_US-joe-medium")) <= {*range(symbols + 3)}


def test_piper_puts_padding_between_symbols(voices: tuple[Kokoro, Piper]) -> None:
    voice, speaker = voices[1], "en_US-joe-medium"
    ids = {s: n for n, s in enumerate(f"_^${tiny_voices.SYMBOLS}")}
    given = voice.inputs(voice.tokens("həlˈoʊ. (fr)", speaker), speaker, 2.0, {})
    spoken = [ids[symbol] for symbol in "həlˈoʊ. "]
    between = [number for symbol in spoken for number in (symbol, 0)]
    assert given["input"].tolist() == [[1, 0, *between, 2]]
    assert given["scales"].tolist() == pytest.approx([0.667, 0.5, 0.8])


def test_the_catalogue_has_the_languages_of_kokoro() -> None:
    assert {voice.partition("-")[0] for voice in ESPEAK_VOICES.values()} == {*KOKORO_LANGUAGES}


def test_espeak_reads_each_text_by_itself() -> None:
    child = EspeakChild()
    try:
        assert child.phonemes(["hello", "one, two. three", ""], "en-us") == [
            "həlˈoʊ",
            "wˌʌn tˈuː θɹˈiː",
            "",
        ]
        with pytest.raises(EngineError, match="no voice 'nobody'"):
            child.phonemes(["hello"], "nobody")
    finally:
        child.end()
