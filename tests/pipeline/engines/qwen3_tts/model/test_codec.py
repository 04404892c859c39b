"""The codec: as the official one makes sound, whole or cut anyhow."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from safetensors import safe_open  # noqa: E402

from offhook.pipeline.engines.qwen3_tts.model.codec import (  # noqa: E402
    MAX_FRAMES,
    QWEN3_CODEC,
    CausalPast,
    Codec,
    CodecConfig,
)
from offhook.pipeline.engines.qwen3_tts.model.codec_weights import (  # noqa: E402
    load_codec,
    random_codec,
    tensor_shapes,
)
from offhook.pipeline.speech.errors import EngineError  # noqa: E402

torch.set_num_threads(1)

with safe_open(Path(__file__).parent / "data" / "codec.safetensors", "pt") as file:
    TENSORS = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    JSON: dict[str, Any] = json.loads(file.metadata()["config"])
CODES = TENSORS.pop("codes").long()
SOUND = TENSORS.pop("sound")
CONFIG = CodecConfig.from_json(JSON)
SAMPLES = CONFIG.frame_samples


def load(tensors: dict[str, Any] = TENSORS) -> Codec:
    return load_codec(tensors, CONFIG, "cpu", torch.float32)


CODEC = load()
NEAR = {"rtol": 0, "atol": 1e-5}


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def test_golden():
    assert SOUND.abs().mean() > 0.1
    torch.testing.assert_close(CODEC.decode(CODES), SOUND, **NEAR)


def test_bfloat16_is_close():
    sound = load_codec(TENSORS, CONFIG, "cpu", torch.bfloat16).decode(CODES)
    assert sound.dtype == torch.float32
    assert (sound - SOUND).square().mean() < 1e-3 * SOUND.square().mean()


@pytest.mark.parametrize("name", [n for n in sorted(TENSORS) if "input_proj.weight" not in n])
def test_every_tensor_is_heard(name):
    half = {**TENSORS, name: TENSORS[name] * 0.5}
    assert (load(half).decode(CODES) - SOUND).abs().max() > 1e-3


def test_a_frame_attends_to_its_window():
    torch.manual_seed(0)
    layer, frames = CODEC.layers[0], 3 * CONFIG.window
    turn = CODEC.cos[None, :frames], CODEC.sin[None, :frames]

    def attend(x):
        return layer(x, turn, CausalPast(frames, torch.zeros(1, dtype=torch.int64)))

    x = torch.randn(1, frames, CONFIG.hidden_size)
    changed = x.clone()
    changed[:, 4] += 1
    far = (attend(changed) - attend(x)).abs().amax((0, 2)) > 1e-4
    assert far.nonzero().flatten().tolist() == list(range(4, 4 + CONFIG.window))


@st.composite
def calls(draw):
    """For each call how many frames, and for each of its rows a slot and whether a stream begins
    there; slot 0 is padding."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        slots = draw(st.permutations([1, 2, 3]))[: draw(st.integers(1, 3))]
        padding = [0] * draw(st.integers(0, 2))
        rows = draw(st.permutations([*slots, *padding]))
        begins = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
        found.append((draw(st.integers(1, 5)), list(zip(rows, begins, strict=True))))
    return found


@settings(max_examples=settings.default.max_examples // 6)
@given(calls(), st.integers(0, 2**30))
def test_cut_anyhow_the_sound_is_that_of_the_whole(calls, seed):
    generator = torch.Generator().manual_seed(seed)
    state = CODEC.new_state(3, frames=5)
    streams = {slot: [] for slot in range(4)}
    over = []
    for frames, rows in calls:
        codes = torch.randint(
            CONFIG.codebook_size, (len(rows), CONFIG.codebooks, frames), generator=generator
        )
        for slot, begins in rows:
            if begins:
                over.append(streams[slot])
                streams[slot] = []
        slots = torch.tensor([slot for slot, _ in rows])
        first = torch.tensor([sum(c.shape[1] for c, _ in streams[slot]) for slot, _ in rows])
        sound = CODEC.stream(codes, slots, first, state)
        for slot, *piece in zip(slots.tolist(), codes, sound, strict=True):
            if slot:
                streams[slot].append(piece)
    for pieces in filter(None, [*over, *streams.values()]):
        codes, sound = (torch.cat(parts, -1) for parts in zip(*pieces, strict=True))
        torch.testing.assert_close(sound, CODEC.decode(codes[None])[0], **NEAR)


def test_a_stream_as_long_as_there_are_positions():
    torch.manual_seed(0)
    codes = torch.randint(CONFIG.codebook_size, (1, CONFIG.codebooks, MAX_FRAMES))
    state, slot = CODEC.new_state(1, frames=64), torch.tensor([1])
    sound = [
        CODEC.stream(codes[..., at : at + 64], slot, torch.tensor([at]), state)
        for at in range(0, MAX_FRAMES, 64)
    ]
    torch.testing.assert_close(torch.cat(sound, 1), CODEC.decode(codes), **NEAR)


def test_what_is_left_in_a_slot_is_not_heard():
    state = CODEC.new_state(1)
    for kept in state.tensors[1:]:
        kept.fill_(float("nan"))
    sound = CODEC.stream(CODES[:1, :, :5], torch.tensor([1]), torch.tensor([0]), state)
    torch.testing.assert_close(sound, SOUND[:1, : 5 * SAMPLES], **NEAR)


def test_memory_of_a_slot():
    state = CODEC.new_state(7, frames=2)
    assert state.bytes_per_slot * 8 == sum(kept.nbytes for kept in state.tensors)


# --- checkpoints ---


def test_the_published_configuration():
    decoder = JSON["decoder_config"] | {
        "codebook_dim": 512,
        "codebook_size": 2048,
        "decoder_dim": 1536,
        "head_dim": 64,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "latent_dim": 1024,
        "num_attention_heads": 16,
        "num_hidden_layers": 8,
        "num_key_value_heads": 16,
        "num_quantizers": 16,
        "sliding_window": 72,
        "upsample_rates": [8, 5, 4, 3],
    }
    assert CodecConfig.from_json({**JSON, "decoder_config": decoder}) == QWEN3_CODEC
    assert QWEN3_CODEC.frame_samples == 1920
    sizes = [torch.Size(shape).numel() for _, shape in tensor_shapes(QWEN3_CODEC)]
    assert sum(sizes) == pytest.approx(114.3e6, rel=1e-3)


@pytest.mark.parametrize(
    ("top", "decoder", "words"),
    [
        ({"model_type": "mimi"}, {}, "'mimi' model"),
        ({}, {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({}, {"attention_bias": True}, "attention_bias is True"),
        ({}, {"num_key_value_heads": 1}, "num_key_value_heads is 1"),
    ],
)
def test_other_models_are_refused(top, decoder, words):
    config = {**JSON, **top, "decoder_config": {**JSON["decoder_config"], **decoder}}
    with pytest.raises(EngineError, match=words):
        CodecConfig.from_json(config)


@pytest.mark.parametrize("name", ["latent_dim", "num_attention_heads"])
def test_an_incomplete_configuration_is_refused(name):
    decoder = {key: value for key, value in JSON["decoder_config"].items() if key != name}
    with pytest.raises(EngineError, match=f"lacks '{name}'"):
        CodecConfig.from_json({**JSON, "decoder_config": decoder})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decoder.decoder.0.conv.bias": None}, r"lacks tensors: decoder\.decoder\.0\.conv\.bias"),
        ({"decoder.pre_conv.scales": torch.ones(1)}, r"unknown tensors: decoder\.pre_conv\.scales"),
        ({"decoder.decoder.0.conv.bias": torch.ones(3)}, r"conv\.bias is \[3\], .* \[64\]"),
        ({"decoder.decoder.0.conv.bias": torch.ones(64, dtype=torch.int8)}, "quantised"),
    ],
)
def test_what_is_wrong_with_the_weights_is_said(changes, words):
    tensors = {name: t for name, t in (TENSORS | changes).items() if t is not None}
    with pytest.raises(EngineError, match=words):
        load(tensors)


def test_the_encoder_is_left_alone():
    load({**TENSORS, "encoder.downsample.conv.weight": torch.ones(1)})


def test_random_weights_sound():
    a, b = (random_codec(CONFIG, "cpu", torch.float32, seed=3).decode(CODES) for _ in range(2))
    assert torch.equal(a, b)
    assert 0.01 < a.std() < 0.9
