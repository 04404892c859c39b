"""The authors' package as a recogniser, with a random model of a few kilobytes: run in the
environment that `make qwen-asr-official` makes; elsewhere skipped."""

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

if find_spec("qwen_asr") is None:
    pytest.skip("qwen-asr is not installed here", allow_module_level=True)

from offhook.media.pcm import RATE_IN
from offhook.pipeline.engines.official import recognizer_io as official_asr_io
from offhook.pipeline.engines.official.recognizer_io import OfficialRecognizer
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions
from tests.pipeline.engines.shared.model import tiny
from tests.support.waiting import HANGS_S

FILE = StreamOptions(live=False)
NOISE = np.random.default_rng(0).normal(0, 3000, 2 * RATE_IN).astype(np.int16)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}"
    "{% else %}<|audio_start|><|audio_pad|><|audio_end|>{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def checkpoint(folder: Path) -> str:
    """As Qwen/Qwen3-ASR-*, with what the package wants beside what our engine reads."""
    tiny.write_original(folder)
    names = {"audio_token": "<|audio_pad|>", "audio_bos_token": "<|audio_start|>"}
    names["audio_eos_token"] = "<|audio_end|>"
    path = folder / "tokenizer_config.json"
    tokenizer = json.loads(path.read_text())
    tokenizer |= {
        "tokenizer_class": "Qwen2Tokenizer",
        "extra_special_tokens": names,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    path.write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    mel = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128}
    mel |= {"sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 30}
    mel |= {"return_attention_mask": True, "processor_class": "Qwen3ASRProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(mel))
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model finds no end."""
    monkeypatch.setattr(official_asr_io, "MAX_TOKENS", 12)


async def started(model: str, **how: Any) -> OfficialRecognizer:
    told: list[float] = []
    recognizer = OfficialRecognizer(
        AsrModels(model, "cpu", **how), lambda fraction, doing: told.append(fraction)
    )
    await recognizer.start()
    assert told == sorted(told)
    return recognizer


async def heard(recognizer: OfficialRecognizer, options: StreamOptions) -> list[Partial | Final]:
    stream = await recognizer.open(options)
    try:
        for at in range(0, len(NOISE), RATE_IN // 5):
            stream.feed(NOISE[at : at + RATE_IN // 5])
        stream.finish()
        events: list[Partial | Final] = []
        async with asyncio.timeout(HANGS_S):
            async for event in stream.events():
                events.append(event)
                if isinstance(event, Final):
                    break
        return events
    finally:
        await stream.close()


async def test_an_utterance_is_what_the_package_says_it_is(model: str) -> None:
    recognizer = await started(model)
    (final,) = await heard(recognizer, StreamOptions(language="de", context="Müller", live=False))
    sound = NOISE.astype(np.float32) / 32768
    (theirs,) = recognizer._model.transcribe((sound, RATE_IN), context="Müller", language="German")
    assert final == Final(theirs.text, 2000, language="de")
    assert final.text
    await recognizer.close()


async def test_utterances_come_in_order_also_those_too_short_to_be_heard(model: str) -> None:
    recognizer = await started(model)
    stream = await recognizer.open(FILE)
    for samples in (RATE_IN, 0, 100):
        stream.feed(NOISE[:samples])
        stream.finish()
    finals = []
    async with asyncio.timeout(HANGS_S):
        async for event in stream.events():
            finals.append(event.audio_ms)
            if len(finals) == 3:
                break
    assert finals == [1000, 0, 6]
    await stream.close()
    await recognizer.close()


async def test_what_it_cannot_do_is_said(model: str) -> None:
    recognizer = await started(model)
    with pytest.raises(EngineError, match="language 'xx'"):
        await recognizer.open(StreamOptions(language="xx"))
    with pytest.raises(EngineError, match="need a forced aligner"):
        await recognizer.open(StreamOptions(words=True))
    await recognizer.close()
    with pytest.raises(EngineError, match="one model"):
        OfficialRecognizer(AsrModels(model, final_model=model), lambda *_: None)


async def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="qwen3-asr-official"):
        await started(str(tmp_path / "nothing"))


async def test_it_streams_as_the_package_does_where_vllm_is(model: str) -> None:
    recognizer = await started(model)
    whole = recognizer._model
    asked: list[tuple[str, int]] = []

    def generate(inputs: list[Any], **_: Any) -> list[Any]:
        """What vLLM would: a word for each second of the sound so far, after what is forced."""
        (given,) = inputs
        seconds = len(given["multi_modal_data"]["audio"][0]) // RATE_IN
        asked.append((given["prompt"], seconds))
        text = "language English<asr_text>" + " ".join("abcdefgh"[:seconds])
        forced = given["prompt"].rpartition("assistant\n")[2]
        assert text.startswith(forced)
        return [SimpleNamespace(outputs=[SimpleNamespace(text=text[len(forced) :])])]

    whole.backend, whole.model = "vllm", SimpleNamespace(generate=generate)
    stream = await recognizer.open(StreamOptions(context="Müller"))
    events: list[Partial | Final] = []

    async def read() -> None:
        async for event in stream.events():
            events.append(event)

    reading = asyncio.create_task(read())
    async with asyncio.timeout(HANGS_S):
        for partials in (1, 2):
            stream.feed(NOISE)
            while len(events) < partials:
                await asyncio.sleep(0.01)
        stream.feed(NOISE[:RATE_IN])
        stream.finish()
        while not isinstance(events[-1], Final):
            await asyncio.sleep(0.01)
    reading.cancel()
    await stream.close()
    await recognizer.close()
    assert [seconds for _, seconds in asked] == [2, 4, 5]
    assert all("Müller" in prompt for prompt, _ in asked)
    assert events[-1] == Final("a b c d e", 5000, language="en")
    assert isinstance(events[0], Partial)
    assert (events[0].text, events[0].audio_ms) == ("a b", 2000)
