"""Checkpoints of Qwen3-TTS: everything in its place, and what is wrong is said by name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch.nn.functional as F  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from offhook.pipeline.engines.qwen3_tts.model import checkpoint as tts_checkpoint  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.model import Qwen3Tts  # noqa: E402
from offhook.pipeline.speech.errors import EngineError  # noqa: E402
from tests.pipeline.engines.qwen3_tts.model import tiny_tts  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_tts.write(tmp_path, tiny_tts.WIDE)


def load(folder: Path) -> Qwen3Tts:
    return tts_checkpoint.load_model(folder, "cpu", torch.float32)


def edit(path: Path, *keys: str, **changes: object) -> None:
    """Of the object that `keys` lead to; None takes one out."""
    whole = json.loads(path.read_text())
    part = whole
    for key in keys:
        part = part[key]
    for name, value in changes.items():
        if value is None:
            del part[name]
        else:
            part[name] = value
    path.write_text(json.dumps(whole))


# --- what is read ---


@pytest.mark.parametrize("kind", ["base", "custom_voice", "voice_design"])
def test_every_kind_is_what_was_written(tmp_path: Path, kind) -> None:
    config = replace(tiny_tts.WIDE, kind=kind)
    model = load(tiny_tts.write(tmp_path, config))
    assert model.config == config


def test_a_generation_config_may_be_missing(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    generation = tts_checkpoint.read_config(folder).generation
    assert (generation.temperature, generation.top_k, generation.penalty) == (0.9, 50, 1.05)


def test_shards(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    shards = tiny_tts.write(tmp_path / "shards", tiny_tts.WIDE, shards=3)
    ours, theirs = load(shards).state_dict(), load(folder).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_text_is_projected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunk by chunk; the whole of it is told to progress."""
    monkeypatch.setattr(tts_checkpoint, "TEXT_ROWS", 100)
    told: list[tuple[int, int]] = []
    model = tts_checkpoint.load_model(folder, "cpu", torch.float32, lambda *of: told.append(of))
    w = tiny_tts.tensors(tiny_tts.WIDE)
    p = "talker.text_projection.linear_fc"
    x = F.silu(w["talker.model.text_embedding.weight"] @ w[f"{p}1.weight"].T + w[f"{p}1.bias"])
    torch.testing.assert_close(model.text.data, x @ w[f"{p}2.weight"].T + w[f"{p}2.bias"])
    assert told == [(100, 312), (200, 312), (300, 312), (312, 312)]


def test_codes_are_projected_for_the_predictor(folder: Path) -> None:
    model = load(folder)
    w = tiny_tts.tensors(tiny_tts.WIDE)
    p = "talker.code_predictor"
    first, others = model.cut(model.predictor_tables)
    for rows, name in (
        (first, "talker.model.codec_embedding.weight"),
        (others[0], f"{p}.model.codec_embedding.0.weight"),
        (others[14], f"{p}.model.codec_embedding.14.weight"),
    ):
        want = w[name] @ w[f"{p}.small_to_mtp_projection.weight"].T
        want += w[f"{p}.small_to_mtp_projection.bias"]
        torch.testing.assert_close(rows[:-1], want)


def test_one_table_is_kept_where_the_widths_are_one(tmp_path: Path) -> None:
    model = load(tiny_tts.write(tmp_path, tiny_tts.CONFIG))
    assert model.projection is None
    assert model.predictor_tables is model.embeddings


def test_random_model_repeats_and_nothing_is_nothing() -> None:
    a, b = (
        tts_checkpoint.random_model(tiny_tts.WIDE, "cpu", torch.float32, seed=5) for _ in range(2)
    )
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert all(p.isfinite().all() for p in a.parameters())
    assert torch.equal(a.predictor_tables, b.predictor_tables)
    assert (a.embed_frames(a.nothing[None]) == 0).all()
    assert (a.embed_frames(torch.zeros(1, 16, dtype=torch.int64)) != 0).all()


# --- what is wrong ---


@pytest.mark.parametrize(
    "name",
    [
        "talker.code_predictor.lm_head.14.weight",
        "talker.code_predictor.small_to_mtp_projection.bias",
        "talker.model.layers.1.self_attn.q_norm.weight",
        "talker.model.text_embedding.weight",
        "talker.text_projection.linear_fc2.bias",
    ],
)
def test_a_tensor_that_is_missing_too_many_or_of_another_size_is_named(
    folder: Path, name: str
) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    tensor = weights.pop(name)
    save_file(weights, path)
    with pytest.raises(EngineError, match=f"lacks tensors: {name}"):
        load(folder)
    save_file(weights | {name: torch.cat([tensor, tensor])}, path)
    with pytest.raises(EngineError, match=f"{name} is .*, config.json makes it"):
        load(folder)
    save_file(weights | {name: tensor, "talker.more": tensor.clone()}, path)
    with pytest.raises(EngineError, match=r"has unknown tensors: talker\.more"):
        load(folder)


def test_quantised_text_is_refused(folder: Path) -> None:
    path, name = folder / "model.safetensors", "talker.model.text_embedding.weight"
    weights = load_file(path)
    save_file(weights | {name: weights[name].to(torch.int8)}, path)
    with pytest.raises(EngineError, match=r"text_embedding\.weight is torch\.int8; quantised"):
        load(folder)


@pytest.mark.parametrize(
    ("keys", "changes", "said"),
    [
        ((), {"model_type": "qwen3_asr"}, "is of a 'qwen3_asr' model, not of Qwen3-TTS"),
        ((), {"tokenizer_type": "qwen3_tts_tokenizer_25hz"}, "only 'qwen3_tts_tokenizer_12hz'"),
        ((), {"tts_model_type": "singing"}, "tts_model_type 'singing' is not known"),
        ((), {"talker_config": None}, "lacks 'talker_config'"),
        (("talker_config",), {"codec_eos_token_id": None}, "lacks 'codec_eos_token_id'"),
        (("talker_config",), {"num_code_groups": 32}, "num_code_groups is 32; only 16"),
        (("talker_config",), {"attention_bias": True}, "attention_bias is True; only False"),
        (
            ("talker_config", "code_predictor_config"),
            {"use_sliding_window": True},
            "use_sliding_window is True; only False",
        ),
    ],
)
def test_a_config_of_something_else_is_refused(
    folder: Path, keys: tuple[str, ...], changes: dict[str, object], said: str
) -> None:
    edit(folder / "config.json", *keys, **changes)
    with pytest.raises(EngineError, match=said):
        load(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"top_p": 0.8},
        {"subtalker_top_p": 0.8},
        {"do_sample": False},
        {"subtalker_dosample": False},
    ],
)
def test_ways_of_drawing_that_are_not_there_are_refused(
    folder: Path, changes: dict[str, object]
) -> None:
    edit(folder / "generation_config.json", **changes)
    (name,) = changes
    with pytest.raises(EngineError, match=f"generation_config.json: {name} is"):
        load(folder)
