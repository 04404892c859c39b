"""The codec's kernels for Hopper GPUs against plain torch."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from offhook.pipeline.engines.qwen3_tts.model import (  # noqa: E402
    codec_stream,
    cuda_residual_unit,
)
from offhook.pipeline.engines.qwen3_tts.model.codec import (  # noqa: E402
    QWEN3_CODEC,
    TAPS,
    Convolution,
    Residual,
    Snake,
)
from offhook.pipeline.engines.qwen3_tts.model.codec_weights import random_codec  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available()
    or torch.cuda.get_device_capability() != cuda_residual_unit.HOPPER,
    reason="needs a Hopper GPU",
)
DEVICE = "cuda"
NEAR = {"rtol": 1.6e-2, "atol": 2e-2}
STREAMS = 5


@pytest.fixture(autouse=True)
def _set_up():
    torch.manual_seed(1)
    with torch.inference_mode():
        yield


def draw(*shape):
    return torch.randn(shape, device=DEVICE).to(torch.bfloat16)


def convolution(channels, taps, dilation=1):
    conv = Convolution(channels, channels, taps, dilation).to(DEVICE, torch.bfloat16)
    conv.weight.copy_(draw(*conv.weight.shape) / conv.weight[0].numel() ** 0.5)
    conv.bias = torch.nn.Buffer(torch.randn(channels, device=DEVICE))
    return conv


def snake(channels):
    snake = Snake(channels).to(DEVICE)
    snake.rate.uniform_(0.5, 4)
    snake.depth.uniform_(0.1, 1)
    return snake


@pytest.mark.parametrize("keep", [True, False])
# Less than a tile, a little more, several tiles.
@pytest.mark.parametrize("rows", [6, 130, 600])
@pytest.mark.parametrize("dilation", [1, 9])
@pytest.mark.parametrize("channels", [96, 192])
def test_a_residual_unit(channels, dilation, rows, keep):
    unit, after = Residual(channels, dilation), snake(channels)
    unit.conv1, unit.conv2 = convolution(channels, TAPS, dilation), convolution(channels, 1)
    unit.snake2 = snake(channels)
    x, seen = (draw(STREAMS, n, channels) for n in (rows, unit.conv1.length + rows))
    # The kernel rounds what the second convolution reads, and nothing else.
    exact = copy.deepcopy(unit).float()
    inner = exact.snake2(exact.conv1(seen.float())).to(torch.bfloat16)
    kept = x + exact.conv2(inner.float())
    out = torch.zeros(STREAMS, 7 + rows, channels, device=DEVICE, dtype=torch.bfloat16)
    got = cuda_residual_unit.residual_unit(
        unit, seen, add=x.flatten(0, 1), keep=keep, snake=after, to=out
    )
    assert not out[:, :7].any()
    want = after(kept).to(torch.bfloat16)
    torch.testing.assert_close(out[:, 7:].float(), want.float(), **NEAR)
    if keep:
        torch.testing.assert_close(got.view_as(kept).float(), kept, **NEAR)
    else:
        assert not len(got)


def test_sound_in_any_segmentation(monkeypatch):
    """At the size of the model, with these kernels however few rows there are."""
    for channels in (96, 192):
        monkeypatch.setitem(cuda_residual_unit.LEAST_ROWS, channels, 0)
    codec = random_codec(QWEN3_CODEC, DEVICE, torch.bfloat16)
    codes = torch.randint(2048, (3, 16, 24), device=DEVICE)
    state, slots = codec.new_state(3), torch.tensor([2, 0, 1], device=DEVICE)
    at, sound = 0, []
    for frames in (1, 8, 3, 8, 4):
        first = torch.tensor([at, 0, at], device=DEVICE)
        sound.append(codec_stream.stream(codec, codes[..., at : at + frames], slots, first, state))
        at += frames
    got, want = torch.cat(sound, 1)[[0, 2]], codec.decode(codes)[[0, 2]]
    noise = (got - want).square().sum(-1)
    assert (10 * torch.log10(want.square().sum(-1) / noise)).min() > 20
