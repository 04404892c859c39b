"""The codec's kernels against plain torch: on a GPU, or else in the interpreter."""

import copy
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: E402

from offhook.pipeline.models.qwen3 import attention  # noqa: E402
from offhook.pipeline.models.qwen3_tts import (  # noqa: E402
    codec_stream,
    triton_codec,
)
from offhook.pipeline.models.qwen3_tts import triton_codec_convolution as triton_convolution  # noqa: E402
from offhook.pipeline.models.qwen3_tts.codec import (  # noqa: E402
    QWEN3_CODEC,
    CausalPast,
    CodecConfig,
    Convolution,
    Residual,
    Snake,
)
from offhook.pipeline.models.qwen3_tts.codec_weights import random_codec  # noqa: E402
from offhook.pipeline.models.qwen3_tts.triton_codec_convolution import Batch, Tile, convolve  # noqa: E402

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
    return Batch(
        torch.tensor(SLOTS, device=DEVICE), torch.tensor(FIRST, device=DEVICE), frames=FRAMES
    )


def past(batch, *rings):
    return CausalPast(batch.frames, batch.first, batch.slots, rings)


def assert_near(got, want):
    """Of all but the padding."""
    real = [i for i, slot in enumerate(SLOTS) if slot]
    assert got.dtype == want.dtype
    got, want = (x.reshape(len(SLOTS), -1)[real].float() for x in (got, want))
    torch.testing.assert_close(got, want, **NEAR)


def assert_same_rings(got, want):
    torch.testing.assert_close(got[1:].float(), want[1:].float(), **NEAR)


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
def test_a_convolution_of_rings_and_its_snake(tile, taps, dilation, rows):
    """Rings have room for the rows before and the new ones, and not for one more."""
    call, rate = batch(), 3
    conv = convolution(32, 48, taps=taps, dilation=dilation, rows=rows)
    after = snake(48)
    ring = draw(3, conv.length + rate * FRAMES, 32)
    new = draw(3, rate * FRAMES, 32)
    seen = past(call, ring).extend(new, conv.length)  # which puts the new rows into the ring
    kept = conv(seen)
    out = torch.zeros(3, (5 + rate * FRAMES) * rows, 48, device=DEVICE, dtype=DTYPE)
    want = out.clone()
    past(call, want).extend(after(kept), 0)
    got = convolve(call, conv, ring, rate, keep=True, snake=after, to=out, tile=tile)
    assert_near(got, kept)
    assert_same_rings(out, want)


PAIRS = {16: Tile(16, 16, 0, 16, 1, 4, 2), 48: Tile(16, 32, 16, 16, 1, 4, 2)}


@pytest.mark.parametrize(("channels", "tile"), (triton_convolution.PAIRS if GPU else PAIRS).items())
def test_two_convolutions_in_one(channels, tile):
    call, rate = batch(), 3
    unit = Residual(channels, dilation=3)
    unit.conv1 = convolution(channels, channels, taps=7, dilation=3)
    unit.conv2 = convolution(channels, channels)
    unit.snake2, after = snake(channels), snake(channels)
    ring = draw(3, unit.conv1.length + rate * FRAMES, channels)
    x, new = (draw(3, rate * FRAMES, channels) for _ in range(2))
    seen = past(call, ring).extend(new, unit.conv1.length)
    # The kernel does not round what is between the two.
    exact = copy.deepcopy(unit).float()
    kept = (x + exact.conv2(exact.snake2(exact.conv1(seen.float())))).to(DTYPE)
    out = torch.zeros(3, 5 + rate * FRAMES, channels, device=DEVICE, dtype=DTYPE)
    want = out.clone()
    past(call, want).extend(after(kept), 0)
    got = convolve(
        call, unit.conv1, ring, rate, between=unit.snake2, second=unit.conv2,
        add=x.flatten(0, 1), keep=True, snake=after, to=out, tile=tile,
    )  # fmt: skip
    assert_near(got, kept)
    assert_same_rings(out, want)


@pytest.mark.parametrize("tile", TILES if GPU else [SMALL[0][0], SMALL[3][0]])
def test_a_product_and_what_is_added(tile):
    call, rate = batch(), 2
    conv = convolution(48, 32)
    x, add = draw(3 * rate * FRAMES, 48), draw(3, rate * FRAMES, 32)
    want = conv(x.view(3, -1, 48)) + add
    got = convolve(call, conv, x, rate, add=add.flatten(0, 1), tile=tile)
    assert_near(got, want)
    ring = torch.zeros(3, 9, 32, device=DEVICE, dtype=DTYPE)
    past(call, ring).extend(add, 0)
    assert_near(convolve(call, conv, x, rate, add=ring, tile=tile), want)
    got = convolve(call, conv, x, rate, gelu=True, tile=tile)
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
    added = layer(x, tuple(y[positions] for y in turn), past(call, *want)) - x
    y = attention.rms_norm_reference(x, layer.attention_norm, TINY.rms_eps)
    got = triton_codec.attend(call, layer.qkv(y).flatten(0, 1), turn, rings, 2, window)
    assert_near(got.view_as(added), added)
    for ours, theirs in zip(rings, want, strict=True):
        assert_same_rings(ours, theirs)


def test_streams():
    """Two of them in slots that others left, cut into pieces, beside padding."""
    codec = random_codec(TINY, DEVICE, DTYPE)
    state = codec.new_state(3, frames=3)
    for ring in state.rings[1:]:
        ring.fill_(float("nan"))
        ring[0] = 0  # whatever goes through it, padding stays finite
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
