"""Checkpoints of Nemotron streaming as transformers writes them, and clear words for all others."""

import json
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
transformers = pytest.importorskip("transformers")
# A transformers that knows no Nemotron does not do.
tiny_nemotron = pytest.importorskip(
    "tests.pipeline.engines.nemotron.model.tiny", exc_type=ImportError
)

from safetensors.torch import load_file, save_file  # noqa: E402

from offhook.pipeline.engines.nemotron.model import checkpoint as nemotron_checkpoint  # noqa: E402
from offhook.pipeline.engines.nemotron.model.model import Nemotron, NemotronConfig  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.model import checkpoint as asr_checkpoint  # noqa: E402
from offhook.pipeline.speech.engine_spec import FILES  # noqa: E402
from offhook.pipeline.speech.errors import EngineError  # noqa: E402
from tests.pipeline.engines.shared.model import tiny  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_nemotron.write(tmp_path)


@pytest.fixture
def multilingual(tmp_path: Path) -> Path:
    return tiny_nemotron.write(tmp_path, tiny_nemotron.MULTILINGUAL)


def load(folder: Path) -> Nemotron:
    return nemotron_checkpoint.load_model(folder, "cpu", torch.float32)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


def same(a: Nemotron, b: Nemotron) -> bool:
    ours, theirs = dict(a.named_parameters()), dict(b.named_parameters())
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


# --- what is right ---


@pytest.mark.parametrize("config", [tiny_nemotron.ENGLISH, tiny_nemotron.MULTILINGUAL])
def test_every_weight_is_the_checkpoints(tmp_path: Path, config: NemotronConfig) -> None:
    """By name, and after `prepare` those that were joined too."""
    weights = load_file(tiny_nemotron.write(tmp_path, config) / "model.safetensors")
    model = load(tmp_path)
    with torch.device("meta"):
        wanted = dict(Nemotron(config).named_parameters())
    assert wanted.keys() == weights.keys()
    unchanged = {n: p for n, p in model.named_parameters() if n in weights}
    assert len(unchanged) > len(weights) // 2
    for name, parameter in unchanged.items():
        assert torch.equal(parameter, weights[name]), name
    block = model.encoder.layers[1]
    parts = [weights[f"encoder.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(block.self_attn.qkv.weight, torch.cat(parts))


def test_the_configuration_is_read(folder: Path) -> None:
    assert nemotron_checkpoint.read_config(folder) == tiny_nemotron.ENGLISH
    assert load(folder).config == tiny_nemotron.ENGLISH


@pytest.mark.parametrize(
    "changes", [{"attention_bias": True}, {"convolution_bias": True}, {"scale_input": True}]
)
def test_variants_of_the_encoder(tmp_path: Path, changes: dict[str, bool]) -> None:
    english = tiny_nemotron.ENGLISH
    config = replace(english, encoder=replace(english.encoder, **changes))
    assert load(tiny_nemotron.write(tmp_path, config)).config == config


def test_several_languages(multilingual: Path) -> None:
    config = nemotron_checkpoint.read_config(multilingual)
    languages = dict(config.languages)
    assert replace(config, languages={}) == tiny_nemotron.MULTILINGUAL
    known = {"en": 0, "zh": 4, "pt": 13, "es": 3, "th": 32, "haw": 97}
    assert languages.items() >= known.items()
    norwegian = {"no": 103, "nb": 103, "nn": 104}
    assert languages.items() >= norwegian.items()
    regions = {"pt-BR": 12, "en-GB": 1, "es-ES": 2, "fr-CA": 100, "zh-TW": 5}
    assert {tag: prompt for tag, prompt in languages.items() if "-" in tag} == regions
    assert not {"auto", "enGB"} & languages.keys()


def test_names_of_prompts_that_are_no_locales_are_passed_over(tmp_path: Path) -> None:
    prompts = {"xx-TW": 5, "xx-CN": 4, "False": 27, "auto": 101}
    config = replace(tiny_nemotron.MULTILINGUAL, languages=prompts)
    tiny_nemotron.write(tmp_path, config)
    assert nemotron_checkpoint.read_config(tmp_path).languages == {"xx": 4, "xx-TW": 5}


def test_filters_that_were_rounded(tmp_path: Path) -> None:
    config = replace(tiny_nemotron.ENGLISH, mel_in_bf16=True)
    assert nemotron_checkpoint.read_config(tiny_nemotron.write(tmp_path, config)) == config


def test_weights_in_bfloat16(folder: Path) -> None:
    model = nemotron_checkpoint.load_model(folder, "cpu", torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    exact = load(folder).joint.scores.weight
    assert torch.equal(model.joint.scores.weight, exact.bfloat16())


def test_a_random_model_repeats_and_is_complete() -> None:
    config = tiny_nemotron.MULTILINGUAL
    a, b, c = (
        nemotron_checkpoint.random_model(config, "cpu", torch.float32, seed=seed)
        for seed in (5, 5, 6)
    )
    assert same(a, b)
    assert not same(a, c)
    assert not any(p.isnan().any() for p in a.parameters())


def test_real_sizes() -> None:
    """Parameters as counted from the published checkpoint of the model of 40 locales."""
    with torch.device("meta"):
        model = Nemotron(nemotron_checkpoint.NEMOTRON_3_5_0_6B)
    assert sum(p.numel() for p in model.parameters()) == 637_997_088
    assert len(list(model.parameters())) == 655


def test_neither_nemo_nor_gguf_files_are_downloaded() -> None:
    """Both lie in the same repositories."""

    def wanted(name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in FILES)

    repository = "nemotron-speech-streaming-en-0.6b"
    others = (f"{repository}.nemo", f"{repository}.q8_0.gguf", "README.md")
    assert not any(map(wanted, others))
    ours = ("config.json", "processor_config.json", "tokenizer.json", "model.safetensors")
    assert all(map(wanted, ours))


# --- what is wrong ---


def test_a_folder_with_a_nemo_file_only(tmp_path: Path) -> None:
    (tmp_path / "nemotron-speech-streaming-en-0.6b.nemo").write_bytes(b"a tar of pickles")
    with pytest.raises(EngineError, match=r"has only nemotron-.*\.nemo, which is not opened"):
        load(tmp_path)


def test_a_nemo_file_beside_the_rest_does_no_harm(folder: Path) -> None:
    (folder / "model.nemo").write_bytes(b"a tar of pickles")
    assert load(folder).config == tiny_nemotron.ENGLISH


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("parakeet_rnnt", "'parakeet_rnnt' model, not of Nemotron streaming: Parakeet hears whole"),
        ("parakeet_ctc", "Parakeet hears whole recordings"),
        ("whisper", "'whisper' model, not of Nemotron streaming$"),
        ("nemotron_h", "'nemotron_h' model, not of Nemotron streaming$"),
    ],
)
def test_other_models_are_refused(folder: Path, kind: str, words: str) -> None:
    edit(folder / "config.json", lambda table: table.update(model_type=kind))
    with pytest.raises(EngineError, match=words):
        load(folder)


@pytest.mark.parametrize("write", [tiny.write_original, tiny.write_transformers])
def test_a_folder_of_qwen3_asr_is_for_its_engine(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    with pytest.raises(EngineError, match=r"'qwen3_asr' model.*the engine qwen3-asr reads it"):
        load(write(tmp_path))


def test_qwen3_asr_refuses_this_one(folder: Path) -> None:
    with pytest.raises(EngineError, match=r"'nemotron_asr_streaming' model, not of Qwen3-ASR"):
        asr_checkpoint.load_model(folder, "cpu", torch.float32)


def test_a_whole_config_of_whisper(tmp_path: Path) -> None:
    transformers.WhisperConfig().save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="'whisper' model"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "processor_config.json"])
@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_broken_files(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(EngineError, match=rf"{name} is not"):
        load(folder)
    (folder / name).unlink()
    with pytest.raises(EngineError, match=rf"is no checkpoint: it has no {name}"):
        load(folder)


@pytest.mark.parametrize(
    ("file", "path", "value", "words"),
    [
        ("config", "hidden_act", "tanh", "hidden_act is 'tanh'; only 'relu'"),
        ("config", "encoder_config.hidden_act", "gelu", "hidden_act is 'gelu'; only 'silu'"),
        ("config", "encoder_config.subsampling_factor", 4, "subsampling_factor is 4; only 8"),
        ("config", "encoder_config.num_attention_heads", 5, "5 heads do not share 32 channels"),
        ("config", "encoder_config.sliding_window", None, "lacks 'sliding_window'"),
        ("config", "encoder_config", None, "lacks 'encoder_config'"),
        ("config", "blank_token_id", None, "lacks 'blank_token_id'"),
        ("processor_config", "feature_extractor.hop_length", 200, "hop_length is 200; only 160"),
        ("processor_config", "feature_extractor.feature_size", 80, "feature_size is 80; only 128"),
        ("processor_config", "supported_num_lookahead_tokens", [], "tokens is "),
        ("processor_config", "supported_num_lookahead_tokens", [2], "chunks of 3 frames do not"),
        ("processor_config", "supported_num_lookahead_tokens", None, "lacks 'supported_num_look"),
    ],
)
def test_what_cannot_be_computed_is_named(
    folder: Path, file: str, path: str, value: object, words: str
) -> None:
    *tables, last = path.split(".")

    def change(table: dict[str, Any]) -> None:
        for name in tables:
            table = table[name]
        if value is None:
            del table[last]
        else:
            table[last] = value

    edit(folder / f"{file}.json", change)
    with pytest.raises(EngineError, match=words):
        load(folder)


def test_a_prompt_beyond_those_of_the_model(multilingual: Path) -> None:
    edit(multilingual / "processor_config.json", lambda t: t["prompt_dictionary"].update(de=128))
    with pytest.raises(EngineError, match="the prompt of 'de' is 128, of 128"):
        load(multilingual)


def test_wrong_tensors_are_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = "encoder.layers.1.norm_out.weight"

    def words(changed: dict[str, torch.Tensor]) -> str:
        save_file(changed, path)
        with pytest.raises(EngineError) as error:
            load(folder)
        return str(error.value)

    less = {key: value for key, value in weights.items() if key != name}
    assert f"lacks tensors: {name}" in words(less)
    assert "has unknown tensors: ctc.weight" in words(weights | {"ctc.weight": torch.ones(3)})
    assert f"{name} is [3], config.json makes it [32]" in words(weights | {name: torch.ones(3)})
    assert "quantised" in words(weights | {name: torch.ones(32, dtype=torch.int8)})


def test_a_pickle_is_not_opened(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(EngineError, match="safetensors only"):
        load(folder)
