"""The authors' package as a synthesizer, with a random model of a few thousand weights: run in the
environment that `make qwen-tts-official` makes; elsewhere skipped."""

import asyncio
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

if find_spec("qwen_tts") is None:
    pytest.skip("qwen-tts is not installed here", allow_module_level=True)

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.engines.official.synthesizer_io import OfficialSynthesizer
from offhook.pipeline.engines.qwen3_tts.runner import Launch, TtsRunner
from offhook.pipeline.engines.qwen3_tts.synthesizer_io import Qwen3Synthesizer
from offhook.pipeline.engines.shared.synthesis.messages import Step
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import Speech, UnknownVoice, VoiceOptions
from tests.pipeline.engines.qwen3_tts import tiny_tts
from tests.pipeline.engines.qwen3_tts.model import tiny_tts as tiny_talker
from tests.pipeline.engines.qwen3_tts.model.make_model_golden import drawing
from tests.pipeline.engines.shared.model import tiny
from tests.support.waiting import HANGS_S

FRAME = 1920
TEXT = "The cat sat. On the mat."


def checkpoint(folder: Path) -> str:
    """As Qwen/Qwen3-TTS-*-CustomVoice, with what the package wants beside what our engine reads."""
    tiny_tts.write(folder)
    tokenizer = {"tokenizer_class": "Qwen2Tokenizer", "pad_token": "<|endoftext|>"}
    tokenizer["eos_token"] = "<|im_end|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    bpe = tiny.tokenizer()
    bpe.model.save(str(folder))
    # The package takes it that the role before a text is three tokens.
    bpe.add_tokens(["<tts_pad>", "<tts_bos>", "<tts_eos>", "assistant"])
    assert bpe.token_to_id("<tts_pad>") == tiny_talker.CONFIG.tts_pad
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"processor_class": "Qwen3TTSProcessor"})
    )
    codec = folder / "speech_tokenizer"
    (codec / "preprocessor_config.json").write_text(
        json.dumps({"feature_extractor_type": "EncodecFeatureExtractor", "sampling_rate": 24000})
    )
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return checkpoint(tmp_path_factory.mktemp("tiny"))


async def started(model: str) -> OfficialSynthesizer:
    synthesizer = OfficialSynthesizer(TtsModels(model, "cpu"), lambda fraction, doing: None)
    await synthesizer.start()
    return synthesizer


async def spoken(synthesizer: OfficialSynthesizer, options: VoiceOptions) -> list[Speech]:
    stream = synthesizer.open(options)
    stream.write(TEXT)
    stream.end()
    async with asyncio.timeout(HANGS_S):
        return [piece async for piece in stream]


async def test_text_is_spoken_and_marked(model: str) -> None:
    synthesizer = await started(model)
    assert set(synthesizer.voices()) == set(tiny_talker.CONFIG.speakers)
    options = VoiceOptions("eric", "en", seed=3)
    pieces = await spoken(synthesizer, options)
    assert "".join(piece.text for piece in pieces) == TEXT
    samples = sum(len(piece.pcm) for piece in pieces if piece.text)
    assert samples
    assert samples % FRAME == 0
    assert all(piece.pcm.dtype == np.int16 for piece in pieces)
    again = await spoken(synthesizer, options)
    assert all(np.array_equal(a.pcm, b.pcm) for a, b in zip(pieces, again, strict=True))
    await synthesizer.close()


async def test_what_it_cannot_do_is_said(model: str) -> None:
    synthesizer = await started(model)
    with pytest.raises(UnknownVoice, match="no voice 'bob', only ann, eric"):
        synthesizer.open(VoiceOptions("bob"))
    with pytest.raises(ValueError, match="speak 'xx'"):
        synthesizer.open(VoiceOptions(language="xx"))
    with pytest.raises(ValueError, match="own speed"):
        synthesizer.open(VoiceOptions(speed=1.5))
    assert RATE_OUT == 24_000
    await synthesizer.close()


async def test_a_whole_text_has_the_codes_of_the_package(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it speaks unless otherwise said: the text before the sound. From the words to the first
    codes of all frames."""
    seed, most = 5, 24
    oracle = await started(model)
    drawn: list[int] = []
    with patch("torch.multinomial", drawing(seed, drawn)):
        oracle._model.generate_custom_voice(TEXT, "eric", "english", max_new_tokens=most)
    await oracle.close()
    step, said = TtsRunner.step, []

    def told(runner: TtsRunner, steps: Sequence[Step]) -> Launch[list[int]]:
        launch = step(runner, steps)
        codes = launch()
        said.extend(codes)
        return Launch([], lambda: codes)

    ours = Qwen3Synthesizer(TtsModels(model, "cpu", str(tmp_path)))
    await ours.start()  # which measures with steps of its own
    monkeypatch.setattr(TtsRunner, "step", told)
    stream = ours.open(
        VoiceOptions("eric", "en", normalise=False, live=False, seed=seed, whole_text=True)
    )
    stream.write(TEXT)
    stream.end()
    async with asyncio.timeout(HANGS_S):
        async for _ in stream:
            if len(said) >= most:
                break
    await ours.close()
    frames = min(len(said), len(drawn) // 16)
    assert frames > 8
    assert said[:frames] == drawn[::16][:frames]


async def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="qwen3-tts-official"):
        await started(str(tmp_path / "nothing"))
