"""Pocket TTS checkpoints as on the hub, and clear words for all others."""

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

from safetensors.torch import load_file, save_file  # noqa: E402

from offhook.pipeline.engines.pocket.model import voices  # noqa: E402
from offhook.pipeline.engines.pocket.model.checkpoint import (  # noqa: E402
    UNUSED,
    load_model,
    random_network,
)
from offhook.pipeline.engines.pocket.model.model import PocketModel, PocketNetwork  # noqa: E402
from offhook.pipeline.engines.pocket.model.published import SIZES, random_model  # noqa: E402
from offhook.pipeline.engines.pocket.model.sizes import PocketSizes  # noqa: E402
from offhook.pipeline.engines.shared.model.int8 import Int8Linear, instructions  # noqa: E402
from offhook.pipeline.speech.errors import EngineError  # noqa: E402
from offhook.pipeline.speech.synthesizer import UnknownVoice  # noqa: E402
from tests.support import pocket_checkpoint  # noqa: E402

torch.set_num_threads(1)

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pocket_checkpoint.write(tmp_path)


def edit(path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def words(folder: Path, change: Callable[[Tensors], object]) -> str:
    """Returns the error of a checkpoint with other weights."""
    edit(folder / "model.safetensors", change)
    with pytest.raises(EngineError) as error:
        load_model(folder)
    return str(error.value)


# --- weights ---


def test_sizes_are_read_from_the_tensors(folder: Path) -> None:
    tiny, sizes = pocket_checkpoint.LARGE, load_model(folder).network.sizes
    assert (sizes.lm.layers, sizes.lm.layer.width, sizes.lm.layer.ffn) == (2, tiny.width, tiny.ffn)
    assert sizes.decoder.samples == 1920


def test_a_missing_tensor_is_named(folder: Path) -> None:
    name = "flow_lm.transformer.layers.1.norm2.bias"
    assert f"lacks tensors: {name}" in words(folder, lambda tensors: tensors.pop(name))


def test_a_missing_tensor_that_decides_a_size_is_named(folder: Path) -> None:
    name = "mimi.upsample.convtr.convtr.weight"
    assert f"lacks the tensor {name}" in words(folder, lambda tensors: tensors.pop(name))


def test_an_unknown_tensor_is_named(folder: Path) -> None:
    more = {"flow_lm.guidance.weight": torch.ones(2)}
    assert "has unknown tensors: flow_lm.guidance" in words(folder, lambda t: t.update(more))


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    name = "mimi.decoder.model.3.block.3.conv.bias"
    assert f"{name} is [5]" in words(folder, lambda t: t.update({name: torch.ones(5)}))


def test_a_flow_head_of_many_steps_is_refused(folder: Path) -> None:
    def without_second_time(tensors: Tensors) -> None:
        for name in [n for n in tensors if "time_embed.1" in n]:
            del tensors[name]

    assert "takes many steps" in words(folder, without_second_time)


def test_a_folder_of_another_name_lists_the_models(folder: Path) -> None:
    other = folder.rename(folder.with_name("klingon"))
    with pytest.raises(EngineError, match=r"'klingon' is no Pocket TTS model.*english_2m_refl"):
        load_model(other)


def test_a_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    name = "flow_lm.conditioner.embed.weight"
    assert "not of the same model" in words(folder, lambda t: t.update({name: t[name][:-9]}))


def test_damaged_weights_are_an_error(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(EngineError, match="is broken"):
        load_model(folder)


# --- voices ---


def test_voices_that_may_not_be_used_commercially_are_not_listed(folder: Path) -> None:
    model = load_model(folder)
    assert list(model.voices) == ["alba", "marius", "estelle"]
    assert model.longest_voice == pocket_checkpoint.VOICES["alba"]
    with pytest.raises(UnknownVoice, match="no voice 'jean'; there are alba"):
        model.voice("jean")
    assert model.voice() is model.voice("alba")  # read once


def test_voices_used_long_ago_are_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voices, "KEPT", 2)
    model = load_model(folder)
    alba, marius = model.voice("alba"), model.voice("marius")
    model.voice("alba")
    model.voice("estelle")
    assert model.voice("alba") is alba
    assert model.voice("marius") is not marius


def test_a_file_that_is_no_voice_is_an_error(folder: Path) -> None:
    for name, shape in (("other", (3,)), (CACHE.replace("1", "0"), (3,))):
        save_file({name: torch.zeros(shape)}, folder / "embeddings/marius.safetensors")
        with pytest.raises(EngineError, match=r"marius.safetensors is no voice"):
            load_model(folder)


def test_the_first_voice_is_native(tmp_path: Path) -> None:
    assert load_model(pocket_checkpoint.write(tmp_path, "french")).voice().name == "estelle"


def voice_error(folder: Path, change: Callable[[Tensors], object]) -> str:
    edit(folder / "embeddings/marius.safetensors", change)
    model = load_model(folder)
    with pytest.raises(EngineError) as error:
        model.voice("marius")
    return str(error.value)


CACHE = "transformer.layers.1.self_attn/cache"
OFFSET = "transformer.layers.1.self_attn/offset"


def test_a_voice_of_fewer_layers_is_an_error(folder: Path) -> None:
    assert f"lacks the tensor {CACHE}" in voice_error(folder, lambda t: t.pop(CACHE))


def test_a_voice_of_more_layers_is_an_error(folder: Path) -> None:
    more = CACHE.replace("1", "2")
    error = voice_error(folder, lambda t: t.update({more: t[CACHE].clone()}))
    assert "more than 2 layers" in error


def test_a_voice_of_another_size_is_an_error(folder: Path) -> None:
    error = voice_error(folder, lambda t: t.update({CACHE: torch.zeros(2, 1, 6, 2, 32)}))
    assert "is [2, 1, 6, 2, 32], the model makes it [2, 1, positions, 2, 64]" in error


def test_a_voice_longer_than_its_tensors_is_an_error(folder: Path) -> None:
    error = voice_error(folder, lambda t: t.update({OFFSET: torch.tensor([7])}))
    assert "offset is 7, of 6 positions" in error


def test_a_voice_with_unwritten_values_is_an_error(folder: Path) -> None:
    assert "not finite" in voice_error(folder, lambda t: t[CACHE][:, :, -1].fill_(torch.nan))


def test_the_length_of_older_voices_is_that_of_a_tensor(folder: Path) -> None:
    def older(tensors: Tensors) -> None:
        for layer in range(2):
            name = f"transformer.layers.{layer}.self_attn"
            tensors[f"{name}/cache"][:, :, 4:] = torch.nan
            tensors[f"{name}/current_end"] = torch.zeros(4)
            del tensors[f"{name}/offset"]

    edit(folder / "embeddings/marius.safetensors", older)
    assert load_model(folder).voice("marius").positions == 4


def test_a_folder_without_voices_is_an_error(folder: Path) -> None:
    for path in (folder / "embeddings").iterdir():
        if path.stem != "jean":
            path.unlink()
    with pytest.raises(EngineError, match="has none of the voices alba"):
        load_model(folder)


# --- models of the real sizes ---


def test_the_tensors_of_published_models_are_those_of_the_package() -> None:
    """Their sizes are ours, and each has its place or is known not to be used."""
    pytest.importorskip("pocket_tts")
    from pocket_tts.models import flow_lm as theirs
    from pocket_tts.models.mimi import build_mimi
    from pocket_tts.models.tts_model import TTSModel  # noqa: F401 - it imports in this order only
    from pocket_tts.utils.config import CONFIGS_DIR, load_config

    from offhook.pipeline.engines.pocket.model.config import CONFIGS

    class Conditioner(torch.nn.Module):
        def __init__(self, n_bins: int, dim: int, rank: int | None = None, **_: object) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(n_bins + 1, rank or dim)
            self.proj = torch.nn.Linear(rank, dim, bias=False) if rank else None

    with pytest.MonkeyPatch.context() as patch, torch.device("meta"):
        patch.setattr(theirs, "LUTConditioner", Conditioner)
        for name, sizes in SIZES.items():
            c = load_config(CONFIGS_DIR / f"{name}.yaml")
            lm = theirs.FlowLMModel.from_pydantic_config(c.flow_lm, 32, True)
            modules = {"flow_lm": lm, "mimi": build_mimi(c.mimi)}
            shapes = {
                f"{part}.{n}": list(tensor.shape)
                for part, module in modules.items()
                for n, tensor in module.state_dict().items()
            }
            assert PocketSizes.read(shapes, CONFIGS[name]) == sizes, name
            parts = PocketNetwork(sizes).parts()
            ours = {f"{part}.{n}" for part, module in parts for n, _ in module.named_parameters()}
            assert ours == {n for n in shapes if not UNUSED.fullmatch(n)}, name


def test_large_layers_of_the_language_model_are_in_8_bits() -> None:
    sizes = SIZES["english"]
    layer = sizes.lm.layer._replace(width=768, heads=12, kv_heads=12, ffn=768)
    small = PocketSizes(sizes.lm._replace(layers=1, layer=layer, vocabulary=9), sizes.decoder)
    network = random_network(small, int8=instructions())
    of_8_bits = [name for name, m in network.named_modules() if isinstance(m, Int8Linear)]
    names = ("self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2")
    assert of_8_bits == [f"flow_lm.transformer.layers.0.{name}" for name in names]


def test_a_random_model_is_complete() -> None:
    model: PocketModel = random_model("english_2m_refl_2026-10")
    assert list(model.voices) == ["random"]
    assert model.tokenizer.encode("hello")
