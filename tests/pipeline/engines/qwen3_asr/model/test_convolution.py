"""The kernels around the convolutions against plain torch: on a GPU, or else in the interpreter."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: E402

from offhook.pipeline.engines.qwen3_asr.model import (  # noqa: E402
    convolution,
    triton_convolution,
)

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPE = torch.bfloat16 if GPU else torch.float32
NEAR = {"rtol": 1.6e-2, "atol": 1e-2} if GPU else {"rtol": 1e-5, "atol": 1e-5}
SIZES = [(1, 6, 9, 5), (3, 16, 10, 40)]
LARGE = [(1, 128, 100, 480), (9, 128, 100, 480)] if GPU else []


def draw(*shape):
    return torch.randn(shape, device=DEVICE).to(DTYPE)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(1)
    torch.set_num_threads(1)


@pytest.mark.parametrize(("count", "bins", "frames", "channels"), SIZES + LARGE)
def test_convolve_mel(count, bins, frames, channels):
    mel, weight, bias = draw(count, bins, frames), draw(channels, 1, 3, 3), draw(channels)
    want = F.gelu(F.conv2d(mel.float()[:, None], weight.float(), bias.float(), stride=2, padding=1))
    for convolve in (triton_convolution.convolve_mel, convolution.convolve_mel_reference):
        got = convolve(mel, weight, bias)
        assert got.dtype == DTYPE
        assert got.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(got.float(), want, **NEAR)


@pytest.mark.parametrize(("count", "bins", "frames", "channels"), SIZES + LARGE)
def test_bias_gelu(count, bins, frames, channels):
    x = draw(count, bins, frames, channels).permute(0, 3, 1, 2)
    bias = draw(channels)
    want = F.gelu(x.float() + bias.float()[:, None, None])
    for bias_gelu_ in (triton_convolution.bias_gelu_, convolution.bias_gelu_reference_):
        y = x.clone(memory_format=torch.preserve_format)
        assert bias_gelu_(y, bias) is y
        torch.testing.assert_close(y.float(), want, **NEAR)
