"""The aligner against transformers' own, on a tiny random checkpoint, fp32 on the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers.models.qwen3_asr import processing_qwen3_asr  # noqa: E402

from offhook.media.pcm import RATE_IN  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.model import aligner as aligner_module  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.model.aligner import (  # noqa: E402
    MAX_SAMPLES,
    AlignmentInput,
    ForcedAligner,
)
from offhook.pipeline.engines.qwen3_asr.model.alignment import (  # noqa: E402
    LANGUAGES,
    AlignmentError,
    repair,
    split,
)
from offhook.pipeline.speech.errors import EngineError  # noqa: E402
from offhook.pipeline.speech.recognizer import Word  # noqa: E402
from tests.pipeline.engines.qwen3_asr.model.test_alignment import TEXTS, TIMES  # noqa: E402
from tests.pipeline.engines.shared.model import tiny  # noqa: E402
from tests.pipeline.engines.shared.model.test_mel import sound  # noqa: E402

torch.set_num_threads(1)
CONFIG = replace(tiny.CONFIG, classes=60, decoder=replace(tiny.CONFIG.decoder, tied=False))
SAID = [
    AlignmentInput(sound(int(3.3 * RATE_IN), 1), "The cat sat on the mat, isn't it?", "en"),
    AlignmentInput(sound(int(10.7 * RATE_IN), 2), "他说：“你好，world。”", "zh"),
    AlignmentInput(sound(int(0.3 * RATE_IN), 3), "« Oui ! »", "fr"),
    AlignmentInput(sound(int(17.9 * RATE_IN), 4), "und der Hund " * 40, "de"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that tells times of some spread; with a random head it says one everywhere."""
    folder = tiny.write_transformers(tmp_path_factory.mktemp("tiny"), CONFIG)
    raw = ForcedAligner.load(folder, "cpu", torch.float32)
    logits = raw._logits([raw._prompt(said) for said in SAID])
    hidden = torch.linalg.lstsq(raw._model.decoder.head, logits.T).solution.T
    mean = hidden.mean(0)
    _, sizes, directions = torch.linalg.svd(hidden - mean)
    # x . one is about 1 and x . bin a number of mean 20 and deviation 10: class k is given
    # k bin - k^2 / 2, the most where k is nearest to that number.
    one = mean / mean.square().sum()
    bin = 20 * one + directions[0] * 10 * len(hidden) ** 0.5 / sizes[0]
    k = torch.arange(CONFIG.classes)[:, None]
    write_head(folder, "score.weight", (k * bin - k**2 / 2 * one) / 100)
    return folder


def write_head(folder: Path, name: str, head: Tensor) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | {name: head}, path, {"format": "pt"})


@pytest.fixture(scope="module")
def aligner(folder: Path) -> ForcedAligner:
    return ForcedAligner.load(folder, "cpu", torch.float32)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    kind = transformers.Qwen3ASRForTokenClassification
    model, loading = kind.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not any(loading.values()), loading
    return model.eval()


@pytest.fixture(scope="module")
def processor(folder: Path) -> Any:
    control = {"audio_token": "<|audio_pad|>", "audio_bos_token": "<|audio_start|>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        pad_token="<|endoftext|>",
        extra_special_tokens={**control, "audio_eos_token": "<|audio_end|>"},
    )
    features = transformers.Qwen3ASRFeatureExtractor(feature_size=128)
    return transformers.Qwen3ASRProcessor(features, tokenizer)


def prepare(processor: Any, said: AlignmentInput) -> tuple[Any, list[str]]:
    """The model's inputs by the reference, and its words."""
    words = processor.split_words_for_alignment(said.text, said.language)
    text = "<|audio_start|><|audio_pad|><|audio_end|>"
    text += "".join(f"{word}<timestamp><timestamp>" for word in words)
    audio = said.pcm / np.float32(32768)
    inputs = processor(text=[text], audio=[audio], sampling_rate=RATE_IN, return_tensors="pt")
    return inputs, words


@given(text=TEXTS, language=st.sampled_from(sorted(LANGUAGES - {"ja", "ko"})))
def test_words_equal_the_reference(text: str, language: str) -> None:
    theirs = transformers.Qwen3ASRProcessor.split_words_for_alignment(None, text, language)
    assert [unit.spoken for unit in split(text, language)] == theirs


@given(times=TIMES.filter(bool))
def test_repair_equals_the_reference(times: list[int]) -> None:
    """But for a ms that the reference loses in rounding at times."""
    theirs = processing_qwen3_asr._fix_timestamps(np.array(times, np.float32))
    assert all(0 <= a - b <= 1 for a, b in zip(repair(times), theirs, strict=True))


@torch.inference_mode()
def test_classes_equal_the_reference(
    aligner: ForcedAligner, reference: Any, processor: Any
) -> None:
    """All packed in one forward here, each alone there."""
    prompts = [aligner._prompt(said) for said in SAID]
    together = aligner._logits(prompts)
    assert len(together.argmax(-1).unique()) > 15
    ours = together.split([2 * len(p.units) for p in prompts])
    for said, prompt, logits in zip(SAID, prompts, ours, strict=True):
        inputs, _ = prepare(processor, said)
        assert prompt.ids == inputs["input_ids"][0].tolist()
        theirs = reference(**inputs).logits[0]
        rows = inputs["input_ids"][0] == CONFIG.timestamp_token
        torch.testing.assert_close(logits, theirs[rows], atol=2e-4, rtol=1e-4)


@torch.inference_mode()
def test_times_equal_the_reference(aligner: ForcedAligner, reference: Any, processor: Any) -> None:
    for said, words in zip(SAID, aligner.align_all(SAID), strict=True):
        inputs, spoken = prepare(processor, said)
        logits = reference(**inputs).logits
        ids = inputs["input_ids"]
        (theirs,) = processor.decode_forced_alignment(
            logits, ids, [spoken], CONFIG.timestamp_token, aligner_module.BIN_MS
        )
        audio_ms = len(said.pcm) * 1000 // RATE_IN
        ours = [t for w in words for t in (w.start_ms, w.end_ms)]
        expected = [round(1000 * w[at]) for w in theirs for at in ("start_time", "end_time")]
        # The reference does not stop at the end of the sound, and loses a ms in rounding at times.
        assert all(0 <= a - min(b, audio_ms) <= 1 for a, b in zip(ours, expected, strict=True))
        assert len(set(ours)) > 1
        assert "".join(w.text for w in words).replace(" ", "") == said.text.replace(" ", "")


def test_together_as_alone(aligner: ForcedAligner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether one forward takes all or each takes as much as it may."""
    nothing = AlignmentInput(SAID[0].pcm, " ... ", "en")
    said = [nothing, *SAID, nothing]
    alone = [aligner.align(s.pcm, s.text, s.language) for s in said]
    assert alone[0] == alone[-1] == ()
    assert aligner.align_all(said) == alone
    monkeypatch.setattr(aligner_module, "MAX_SAMPLES", 18 * RATE_IN)
    assert aligner.align_all(said) == alone
    assert aligner.align_all([]) == []


def test_both_layouts_align_alike(aligner: ForcedAligner, tmp_path: Path) -> None:
    tiny.write_original(tmp_path, CONFIG)
    write_head(tmp_path, "thinker.lm_head.weight", aligner._model.decoder.head)
    original = ForcedAligner.load(tmp_path, "cpu", torch.float32)
    assert original.align_all(SAID) == aligner.align_all(SAID)


def test_no_sound_at_all(aligner: ForcedAligner) -> None:
    assert aligner.align(sound(0), "word", "en") == (Word("word", 0, 0),)


def test_the_longest_utterance(aligner: ForcedAligner) -> None:
    words = aligner.align(sound(MAX_SAMPLES), "the cat sat on the mat " * 9, "en")
    assert len(words) == 54
    with pytest.raises(AlignmentError, match=r"180\.1 s long, not at most 180"):
        aligner.align(sound(MAX_SAMPLES + RATE_IN // 10), "word", "en")


def test_too_much_text(aligner: ForcedAligner) -> None:
    with pytest.raises(AlignmentError, match=r"tokens, not at most 8192"):
        aligner.align(sound(RATE_IN), "word " * 3000, "en")


def test_a_recogniser_is_no_aligner(tmp_path: Path) -> None:
    tiny.write_transformers(tmp_path)
    with pytest.raises(EngineError, match="it is no Qwen3-ForcedAligner"):
        ForcedAligner.load(tmp_path, "cpu", torch.float32)
