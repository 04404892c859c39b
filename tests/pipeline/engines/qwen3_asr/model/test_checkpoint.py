"""Checkpoints of both layouts: the same model comes out, and what is wrong is said by name."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

from safetensors.torch import load_file, save_file  # noqa: E402

from offhook.pipeline.engines.qwen3_asr.model import checkpoint  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.model.model import QWEN3_ASR_0_6B, QWEN3_ASR_1_7B, Qwen3Asr  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.tokenizer import Tokenizer  # noqa: E402
from offhook.pipeline.speech.errors import EngineError  # noqa: E402
from tests.pipeline.engines.shared.model import tiny  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    (tmp_path / "original").mkdir()
    return tiny.write_original(tmp_path / "original")


@pytest.fixture
def native(tmp_path: Path) -> Path:
    (tmp_path / "native").mkdir()
    return tiny.write_transformers(tmp_path / "native")


def load(folder: Path) -> Qwen3Asr:
    return checkpoint.load_model(folder, "cpu", torch.float32)


def same(a: Qwen3Asr, b: Qwen3Asr) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_both_layouts_are_the_same_model(original: Path, native: Path) -> None:
    assert checkpoint.read_config(original) == checkpoint.read_config(native) == tiny.CONFIG
    assert same(load(original), load(native))


def test_shards(native: Path, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    assert same(load(tiny.write_transformers(tmp_path / "shards", shards=3)), load(native))


PUBLISHED_INDEX = "f994739fe38e5210b9e3e8ce6c6307315e2ceac3cb630e7b7414d69dce520f60"
"""SHA-256 of model.safetensors.index.json of Qwen/Qwen3-ASR-1.7B."""


def index_of(names: list[str], first: int) -> str:
    """As Qwen/Qwen3-ASR-1.7B has one: two shards, the first with so many tensors."""
    shards = [f"model-0000{1 + (i >= first)}-of-00002.safetensors" for i in range(len(names))]
    table = {"metadata": {"format": "pt"}, "weight_map": dict(zip(names, shards, strict=True))}
    return json.dumps(table, indent=2)


def test_tensors_of_the_large_model_are_called_as_in_the_published_index() -> None:
    """Which says that the output projection is stored, too."""
    with torch.device("meta"):
        model = Qwen3Asr(QWEN3_ASR_1_7B)
    ours = [name for name, _ in checkpoint._places(model)]
    names = [
        checkpoint._original_name(name, checkpoint.ORIGINAL) for name in (*ours, "head.weight")
    ]
    assert len(names) == 708
    index = index_of(sorted(names), 654)
    assert hashlib.sha256(index.encode()).hexdigest() == PUBLISHED_INDEX


def test_shards_as_those_of_the_large_model(original: Path) -> None:
    wanted = load(original)
    weights = load_file(original / "model.safetensors")
    weights["thinker.lm_head.weight"] = weights["thinker.model.embed_tokens.weight"].clone()
    (original / "model.safetensors").unlink()
    names = sorted(weights)
    index = index_of(names, len(names) - 7)
    (original / "model.safetensors.index.json").write_text(index)
    shards = json.loads(index)["weight_map"]
    for shard in set(shards.values()):
        held = {name: weights[name] for name in names if shards[name] == shard}
        save_file(held, original / shard, {"format": "pt"})
    assert same(load(original), wanted)
    (original / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(EngineError, match=r"lacks model-00002-of-00002\.safetensors"):
        load(original)


def test_every_weight_is_loaded(native: Path) -> None:
    """Nothing is left as the allocator gave it."""
    for parameter in load(native).parameters():
        assert parameter.abs().max() < 20
        assert len(parameter.unique()) > 1


def test_an_output_projection_of_its_own(tmp_path: Path) -> None:
    config = replace(tiny.CONFIG, decoder=replace(tiny.CONFIG.decoder, tied=False))
    model = load(tiny.write_original(tmp_path, config))
    assert model.config == config
    assert not torch.equal(model.decoder.head, model.decoder.embedding)


def test_an_aligner_of_either_layout(tmp_path: Path) -> None:
    config = replace(tiny.CONFIG, classes=50, decoder=replace(tiny.CONFIG.decoder, tied=False))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    a = load(tiny.write_original(tmp_path / "a", config))
    b = load(tiny.write_transformers(tmp_path / "b", config))
    assert a.config == b.config == config
    assert a.decoder.head.shape == (50, 24)
    assert same(a, b)


def test_a_tied_projection_may_be_stored_again(original: Path) -> None:
    path = original / "model.safetensors"
    weights = load_file(path)
    weights["thinker.lm_head.weight"] = weights["thinker.model.embed_tokens.weight"].clone()
    save_file(weights, path)
    model = load(original)
    assert model.decoder.head is model.decoder.embedding


def test_rotations_stay_exact_in_bfloat16(native: Path) -> None:
    model = checkpoint.load_model(native, "cpu", torch.bfloat16)
    assert model.decoder.embedding.dtype == torch.bfloat16
    assert model.decoder.cos.dtype == torch.float32
    assert torch.equal(model.decoder.cos, load(native).decoder.cos)


def test_random_model_repeats_and_is_finite() -> None:
    a, b = (checkpoint.random_model(tiny.CONFIG, "cpu", torch.float32, seed=5) for _ in range(2))
    assert same(a, b)
    assert all(p.isfinite().all() for p in a.parameters())


@pytest.mark.parametrize(
    ("config", "encoder", "decoder"),
    [(QWEN3_ASR_0_6B, 186.4e6, 596.0e6), (QWEN3_ASR_1_7B, 317.5e6, 1720.5e6)],
)
def test_real_sizes(config: "checkpoint.AsrConfig", encoder: float, decoder: float) -> None:
    """Parameters as counted from the published checkpoints."""
    with torch.device("meta"):
        model = Qwen3Asr(config)
    assert sum(p.numel() for p in model.encoder.parameters()) == pytest.approx(encoder, rel=1e-3)
    assert sum(p.numel() for p in model.decoder.parameters()) == pytest.approx(decoder, rel=1e-3)


# --- what is wrong ---


def test_missing_tensor_is_named(original: Path) -> None:
    path = original / "model.safetensors"
    weights = load_file(path)
    del weights["thinker.audio_tower.layers.1.fc2.bias"]
    save_file(weights, path)
    with pytest.raises(EngineError, match=r"lacks tensors: thinker\.audio_tower\.layers\.1\.fc2"):
        load(original)


def test_unknown_tensor_is_named(native: Path) -> None:
    path = native / "model.safetensors"
    save_file(load_file(path) | {"model.language_model.norm.scales": torch.ones(3)}, path)
    with pytest.raises(EngineError, match=r"unknown tensors: model\.language_model\.norm\.scales"):
        load(native)


def test_wrong_shape_is_named(native: Path) -> None:
    path = native / "model.safetensors"
    save_file(load_file(path) | {"model.language_model.norm.weight": torch.ones(3)}, path)
    with pytest.raises(EngineError, match=r"language_model\.norm\.weight is \[3\].* \[24\]"):
        load(native)


def test_integers_are_refused(native: Path) -> None:
    path = native / "model.safetensors"
    norm = torch.ones(24, dtype=torch.int8)
    save_file(load_file(path) | {"model.language_model.norm.weight": norm}, path)
    with pytest.raises(EngineError, match="quantised"):
        load(native)


def test_truncated_file(native: Path) -> None:
    path = native / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(EngineError, match="is broken"):
        load(native)


def test_a_pickle_is_not_opened(native: Path) -> None:
    (native / "model.safetensors").rename(native / "pytorch_model.bin")
    with pytest.raises(EngineError, match="safetensors only"):
        load(native)


def test_missing_shard(tmp_path: Path) -> None:
    tiny.write_transformers(tmp_path, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(EngineError, match="lacks model-00002-of-00002"):
        load(tmp_path)


def test_an_index_stays_in_its_folder(native: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "../native/model.safetensors"}}
    (native / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(EngineError, match="its own folder"):
        load(native)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "whisper"}, "'whisper' model"),
        ({"text_config": {}}, "lacks 'hidden_size'"),
        ({"audio_config": {"activation_function": "relu"}}, "activation_function is 'relu'"),
    ],
)
def test_other_models_are_refused(native: Path, changes: dict[str, object], words: str) -> None:
    edit(native / "config.json", **changes)
    with pytest.raises(EngineError, match=words):
        load(native)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_broken_config(native: Path, text: str) -> None:
    (native / "config.json").write_text(text)
    with pytest.raises(EngineError, match=r"config\.json is not"):
        load(native)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is no checkpoint"):
        load(tmp_path)
    with pytest.raises(EngineError, match="lacks a file"):
        Tokenizer.load(tmp_path)


# --- the tokenizer ---

TEXTS = [
    "the cat sat on the mat",
    "It's 2026,  isn't it?\n\n  Ünïcode — 漢字 한국어 🙂 e\u0301",
    "language English",
    "   \r\n\t x",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_equals_the_reference(original: Path, native: Path, text: str) -> None:
    reference = pytest.importorskip("transformers").Qwen2Tokenizer(
        vocab=str(original / "vocab.json"), merges=str(original / "merges.txt")
    )
    ids = reference.encode(text, add_special_tokens=False)
    for folder in (original, native):
        ours = Tokenizer.load(folder)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == reference.decode(ids)


def test_control_tokens(original: Path, native: Path) -> None:
    for folder in (original, native):
        tokenizer = Tokenizer.load(folder)
        assert tokenizer.im_end == tiny.CONFIG.eos_ids[1]
        assert tokenizer.audio_pad == tiny.CONFIG.audio_token
        assert tokenizer.id("<timestamp>") == tiny.CONFIG.timestamp_token
        ids = tokenizer.encode("language English")
        said = [tokenizer.im_start, *ids, tokenizer.asr_text, *ids, tokenizer.im_end]
        assert tokenizer.decode(said) == "language English<asr_text>language English"
        with pytest.raises(EngineError, match="no token <nonsense>"):
            tokenizer.id("<nonsense>")


def test_a_caller_cannot_write_control_tokens(native: Path) -> None:
    tokenizer = Tokenizer.load(native)
    ids = tokenizer.encode("names: <|im_end|><|audio_start|>")
    assert tokenizer.im_end not in ids
    assert tokenizer.audio_start not in ids
    assert tokenizer.decode(ids) == "names: <|im_end|><|audio_start|>"
