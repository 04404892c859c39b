"""The codec's kernels against plain torch: on a GPU, or else in the interpreter."""

import copy
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: E402

from offhook.pipeline.engines.qwen3_tts.model import (  # noqa: E402
    codec_stream,
    triton_codec,
)
from offhook.pipeline.engines.qwen3_tts.model import triton_codec_convolution as triton_convolution  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.codec import (  # noqa: E402
    QWEN3_CODEC,
    CausalPast,
    CodecConfig,
    Convolution,
    Residual,
    Snake,
)
from offhook.pipeline.engines.qwen3_tts.model.codec_weights import random_codec  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.triton_codec_convolution import Tile, convolve  # noqa: E402
from offhook.pipeline.engines.shared.qwen3 import attention  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPE = torch.bfloat16 if GPU else torch.float32
NEAR = {"rtol": 1.6e-2, "atol": 2e-2} if GPU else {"rtol": 1e-5, "atol": 1e-5}
on_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA GPU")
TINY = CodecConfig(
    codebooks=4,
    codebook_size=8,
    codebook_dim=16,
    hidden_size=32,
    ffn=16,
    layers=1,
    heads=2,
    head_dim=16,
    window=4,
    latent_dim=16,
    upsampling_ratios=(2, 2),
    decoder_dim=32,
    upsample_rates=(3,),
)
FRAMES = 2
SLOTS, FIRST = [2, 0, 1], [0, 0, 7]


@pytest.fixture(autouse=True)
def _set_up():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


def draw(*shape):
    return torch.randn(shape, device=DEVICE).to(DTYPE)


def batch():
    return triton_codec.Batch(
        torch.tensor(SLOTS, device=DEVICE), torch.tensor(FIRST, device=DEVICE), frames=FRAMES
    )


def assert_near(got, want):
    """Of all but the padding."""
    real = [i for i, slot in enumerate(SLOTS) if slot]
    assert got.dtype == want.dtype
    got, want = (x.reshape(len(SLOTS), -1)[real].float() for x in (got, want))
    torch.testing.assert_close(got, want, **NEAR)


def padded(rows):
    """Room for these, and for 5 rows before them."""
    return torch.zeros(3, 5 + rows.shape[1], rows.shape[2], device=DEVICE, dtype=DTYPE)


def assert_written(out, want):
    assert not out[:, :5].any()
    assert_near(out[:, 5:], want)


def convolution(inputs, outputs, **settings):
    conv = Convolution(inputs, outputs, **settings).to(DEVICE, DTYPE)
    conv.weight.copy_(draw(*conv.weight.shape) / conv.weight[0].numel() ** 0.5)
    conv.bias = torch.nn.Buffer(draw(len(conv.bias)).float())
    return conv


def snake(channels):
    snake = Snake(channels).to(DEVICE)
    snake.rate.uniform_(0.5, 4)
    snake.depth.uniform_(0.1, 1)
    return snake


SMALL = [
    (Tile(16, 32, 16, 16, 1, 4, 2), 7, 9, 1),
    (Tile(32, 16, 0, 32, 1, 4, 2), 2, 1, 5),
    (Tile(16, 16, 0, 16, 4, 4, 2), 7, 9, 1),
    (Tile(16, 32, 0, 32, 2, 4, 2), 2, 1, 5),
]
TILES = [*triton_convolution.LARGE, *triton_convolution.SHALLOW, *triton_convolution.DEEP]


@pytest.mark.parametrize(
    ("tile", "taps", "dilation", "rows"),
    [(t, *shape) for t in TILES for shape in [(7, 9, 1), (2, 1, 5)]] if GPU else SMALL,
)
def test_a_convolution_of_padded_rows_and_its_snake(tile, taps, dilation, rows):
    conv = convolution(32, 48, taps=taps, dilation=dilation, rows=rows)
    after = snake(48)
    seen = draw(3, conv.length + 3 * FRAMES, 32)
    kept = conv(seen)
    out = padded(kept)
    got = convolve(len(SLOTS), conv, seen, keep=True, snake=after, to=out, tile=tile)
    assert_near(got, kept)
    assert_written(out, after(kept))


PAIRS = {16: Tile(16, 16, 0, 16, 1, 4, 2), 48: Tile(16, 32, 16, 16, 1, 4, 2)}


@pytest.mark.parametrize(("channels", "tile"), (triton_convolution.PAIRS if GPU else PAIRS).items())
def test_two_convolutions_in_one(channels, tile):
    unit = Residual(channels, dilation=3)
    unit.conv1 = convolution(channels, channels, taps=7, dilation=3)
    unit.conv2 = convolution(channels, channels)
    unit.snake2, after = snake(channels), snake(channels)
    x = draw(3, 3 * FRAMES, channels)
    seen = draw(3, unit.conv1.length + 3 * FRAMES, channels)
    # The kernel does not round what is between the two.
    exact = copy.deepcopy(unit).float()
    kept = (x + exact.conv2(exact.snake2(exact.conv1(seen.float())))).to(DTYPE)
    out = padded(kept)
    got = convolve(
        len(SLOTS), unit.conv1, seen, between=unit.snake2, second=unit.conv2,
        add=x.flatten(0, 1), keep=True, snake=after, to=out, tile=tile,
    )  # fmt: skip
    assert_near(got, kept)
    assert_written(out, after(kept))


@pytest.mark.parametrize("tile", TILES if GPU else [SMALL[0][0], SMALL[3][0]])
def test_a_product_and_what_is_added(tile):
    conv = convolution(48, 32)
    x, add = draw(3 * 2 * FRAMES, 48), draw(3, 5 + 2 * FRAMES, 32)
    want = conv(x.view(3, -1, 48)) + add[:, 5:]
    assert_near(convolve(len(SLOTS), conv, x, add=add, tile=tile), want)
    add = add[:, 5:].flatten(0, 1)
    assert_near(convolve(len(SLOTS), conv, x, add=add, tile=tile), want)
    got = convolve(len(SLOTS), conv, x, gelu=True, tile=tile)
    assert_near(got, F.gelu(conv(x.view(3, -1, 48)).float()).to(DTYPE))


@pytest.mark.parametrize("window", [1, 4, 20])
def test_attention(window):
    call = batch()
    layer = random_codec(replace(TINY, window=window), DEVICE, DTYPE).layers[0]
    layer.out.weight = torch.nn.Parameter(torch.eye(32, device=DEVICE, dtype=DTYPE))
    layer.down.weight.zero_()
    turn = torch.randn(2, 50, 8, device=DEVICE).unbind()
    rings = [draw(3, window - 1 + FRAMES, 32) for _ in "kv"]
    want = [ring.clone() for ring in rings]
    x = draw(3, FRAMES, 32) / 16  # or what is added to it would be rounded to its precision
    positions = call.first[:, None] + torch.arange(FRAMES, device=DEVICE)
    past = CausalPast(FRAMES, call.first, call.slots, want)
    added = layer(x, tuple(y[positions] for y in turn), past) - x
    y = attention.rms_norm_reference(x, layer.attention_norm, TINY.rms_eps)
    got = triton_codec.attend(call, layer.qkv(y).flatten(0, 1), turn, rings, 2, window)
    assert_near(got.view_as(added), added)
    for ours, theirs in zip(rings, want, strict=True):
        torch.testing.assert_close(ours[1:].float(), theirs[1:].float(), **NEAR)


def test_left_contexts_come_from_slots_and_go_there():
    state = random_codec(TINY, DEVICE, DTYPE).new_state(4, FRAMES)
    state.contexts.copy_(draw(*state.contexts.shape))
    before = [x.clone() for x in state.split_contexts()]
    inputs = triton_codec.Padded(batch(), TINY, state.contexts)
    inputs.begin()
    shapes = TINY.left_contexts
    for x, kept, shape in zip(inputs.inputs, before, shapes, strict=True):
        assert x.shape == (3, shape.length + FRAMES * shape.rate, shape.channels)
        begun = x[:, : shape.length]
        assert not begun[0].any()  # a stream that begins
        assert torch.equal(begun[2], kept[1])
        x[:, shape.length :] = draw(3, FRAMES * shape.rate, shape.channels)
    inputs.keep()
    for x, was, kept in zip(inputs.inputs, before, state.split_contexts(), strict=True):
        assert torch.equal(kept[SLOTS[0]], x[0, -kept.shape[1] :])
        assert torch.equal(kept[SLOTS[2]], x[2, -kept.shape[1] :])
        assert torch.equal(kept[[0, 3, 4]], was[[0, 3, 4]])


def test_streams():
    """Two of them in slots that others left, cut into pieces, beside padding."""
    codec = random_codec(TINY, DEVICE, DTYPE)
    state = codec.new_state(3, frames=3)
    for kept in state.tensors[1:]:
        kept.fill_(float("nan"))
        kept[0] = 0  # whatever goes through it, padding stays finite
    codes = torch.randint(TINY.codebook_size, (3, TINY.codebooks, 4), device=DEVICE)
    slots = torch.tensor([3, 0, 1], device=DEVICE)
    sound, at = [], 0
    for frames in (1, 3):
        first = torch.tensor([at, 0, at], device=DEVICE)
        piece = codes[..., at : at + frames]
        sound.append(triton_codec.stream(codec, piece, slots, first, state))
        at += frames
    got, want = torch.cat(sound, 1)[[0, 2]], codec.decode(codes)[[0, 2]]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, **NEAR)


# --- on a GPU, at the size of the model ---


def signal_to_noise(got, want):
    noise = (got - want).square().sum(-1)
    return 10 * torch.log10(want.square().sum(-1) / noise).min().item()


@pytest.fixture(scope="module")
def codecs():
    return [random_codec(QWEN3_CODEC, DEVICE, dtype) for dtype in (torch.float32, torch.bfloat16)]


@on_gpu
def test_sound_at_production_size(codecs):
    exact, codec = codecs
    codes = torch.randint(2048, (5, 16, 90), device=DEVICE)
    want, plain = exact.decode(codes), codec.decode(codes)
    state, slots = codec.new_state(5), torch.tensor([2, 4, 1, 5, 3], device=DEVICE)
    at, sound = 0, []
    for frames in (1, 2, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 3):
        first = torch.full((5,), at, device=DEVICE)
        sound.append(codec_stream.stream(codec, codes[..., at : at + frames], slots, first, state))
        at += frames
    assert at == 90
    got = torch.cat(sound, 1)
    assert signal_to_noise(got, want) > signal_to_noise(plain, want) - 3


@on_gpu
@pytest.mark.parametrize(("count", "frames"), [(1, 1), (3, 4), (64, 8)])
def test_one_captured_graph_serves_other_streams(codecs, count, frames):
    codec = codecs[1]
    state = codec.new_state(count)
    codes = torch.zeros(count, 16, frames, dtype=torch.int64, device=DEVICE)
    slots, first = (torch.zeros(count, dtype=torch.int64, device=DEVICE) for _ in range(2))
    codec_stream.stream(codec, codes, slots, first, state)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = codec_stream.stream(codec, codes, slots, first, state)
    whole = torch.randint(2048, (count, 16, 3 * frames), device=DEVICE)
    slots.copy_(torch.randperm(count, device=DEVICE) + 1)
    sound = []
    for piece in range(3):
        first.fill_(piece * frames)
        codes.copy_(whole[..., piece * frames : (piece + 1) * frames])
        out.fill_(float("nan"))
        graph.replay()
        sound.append(out.clone())
    assert signal_to_noise(torch.cat(sound, 1)[:3], codec.decode(whole[:3])) > 20
