"""Which prompt a reply speaks with."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from offhook.pipeline.engines.qwen3_tts import prompts  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.config import TtsConfig  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.model import Qwen3Tts  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.replies_io import (  # noqa: E402
    VoiceRequest,
    request_voice,
    voice_store,
)
from offhook.pipeline.engines.qwen3_tts.synthesizer_io import MAX_CLONES, ClonesOnDevice  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.voices import Clone, Voice, VoiceStore  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.tokenizer import TextTokenizer  # noqa: E402
from offhook.pipeline.engines.shared.tts_models import TtsModels  # noqa: E402
from offhook.pipeline.speech.synthesizer import UnknownVoice, VoiceOptions  # noqa: E402
from tests.pipeline.engines.qwen3_tts import tiny_tts  # noqa: E402
from tests.pipeline.engines.shared.model import tiny  # noqa: E402

CONFIG = replace(tiny_tts.CONFIG, size="1b7")
BASE = replace(CONFIG, kind="base", speakers={}, dialects={})
DESIGN = replace(CONFIG, kind="voice_design", speakers={}, dialects={})
TOKENIZER = TextTokenizer(tiny.tokenizer())
HIDDEN = CONFIG.talker.hidden_size


def store(folder: Path, config: TtsConfig) -> VoiceStore:
    return voice_store(TtsModels("tiny", "cpu", str(folder)), config)


def asked(folder: Path, config: TtsConfig, **options: str) -> VoiceRequest:
    return request_voice(store(folder, config), config, TOKENIZER, VoiceOptions(**options))  # type: ignore[arg-type]


def clone(seed: int = 0, frames: int = 5) -> Clone:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 64, (frames, 16)).astype(np.int16)
    return Clone(rng.standard_normal(HIDDEN, np.float32), codes)


def test_the_first_speaker_is_the_usual_one(tmp_path: Path) -> None:
    found = asked(tmp_path, CONFIG)
    assert found.prompt == prompts.named_voice(CONFIG, TOKENIZER, "ann")
    assert found.language == ""
    with_aiden = replace(CONFIG, speakers={**CONFIG.speakers, "aiden": 82})
    assert store(tmp_path, with_aiden).voices()[0].name == "aiden"


def test_a_speaker_by_name(tmp_path: Path) -> None:
    found = asked(tmp_path, CONFIG, voice="Eric", language="en", instructions="whisper")
    assert found.prompt == prompts.named_voice(CONFIG, TOKENIZER, "eric", "en", "whisper")
    assert found.language == "en"
    with pytest.raises(UnknownVoice):
        asked(tmp_path, CONFIG, voice="nobody")
    with pytest.raises(ValueError, match="'de'"):
        asked(tmp_path, CONFIG, language="de")


def test_a_voice_described(tmp_path: Path) -> None:
    found = asked(tmp_path, DESIGN, instructions="an old man")
    assert found.prompt == prompts.described_voice(DESIGN, TOKENIZER, "an old man")
    store(tmp_path, DESIGN).design("grandpa", "an old man", created="", language="en")
    named = asked(tmp_path, DESIGN, voice="grandpa", instructions="angry")
    described = prompts.described_voice(DESIGN, TOKENIZER, "an old man\nangry", "en")
    assert named.prompt == described
    assert named.language == "en"


def test_a_voice_cloned(tmp_path: Path) -> None:
    with pytest.raises(UnknownVoice, match="clone one"):
        asked(tmp_path, BASE)
    made = clone()
    voice = Voice("me", "clone", 64 * "a", text="the cat", consent=True)
    store(tmp_path, BASE).storage.save(voice, made)
    found = asked(tmp_path, BASE)
    model = tiny_tts.model(tiny_tts.write(tmp_path, BASE))
    on_device = ClonesOnDevice(model)
    prompt = on_device.complete(found)
    assert prompt.rows == found.prompt.rows
    assert made.codes is not None
    codes = torch.from_numpy(made.codes).long()
    assert torch.equal(prompt.reference, codes)
    assert torch.equal(prompt.vectors[0], torch.from_numpy(made.embedding))
    assert torch.allclose(prompt.vectors[1:], model.embed_frames(codes))
    assert max(row.vector for row in (*prompt.rows, *prompt.open)) == len(codes) - 1
    # Once on the device it stays the same tensor, by which the runner knows it.
    assert on_device.complete(found).reference is prompt.reference


def test_clones_on_the_device_are_bounded(tmp_path: Path) -> None:
    model: Qwen3Tts = tiny_tts.model(tiny_tts.write(tmp_path, BASE))
    on_device = ClonesOnDevice(model)
    bare = prompts.Clone("key", None)
    prompt = prompts.cloned_voice(BASE, TOKENIZER, bare)
    all_asked = [VoiceRequest(prompt, "", clone(seed), str(seed)) for seed in range(MAX_CLONES + 1)]
    first = [on_device.complete(one) for one in all_asked]
    assert len(on_device._known) == MAX_CLONES
    assert on_device.complete(all_asked[-1]).vectors is first[-1].vectors
    assert on_device.complete(all_asked[0]).vectors is not first[0].vectors
