"""The kernels of Nemotron's subsampling against plain torch: on a GPU, or else in the
interpreter."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from offhook.pipeline.engines.nemotron.model import (  # noqa: E402
    model,
    triton_subsampling,
)
from offhook.pipeline.engines.nemotron.model.model import MEL_HISTORY, EncoderConfig  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPE = torch.bfloat16 if GPU else torch.float32
NEAR = {"rtol": 1.6e-2, "atol": 4e-2} if GPU else {"rtol": 1e-5, "atol": 1e-5}
NOISE = 5e-3 if GPU else 1e-6
"""Of the norm: bf16 rounds each of five steps by 1e-3."""
on_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA GPU")


@pytest.fixture(autouse=True)
def _set_up():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


def subsampling(channels, bins):
    """In the type of the device; weights of its size leave the sound about as loud."""
    part = model._Subsampling(EncoderConfig(16, mel_bins=bins, subsampling_channels=channels))
    for parameter in part.parameters():
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 4
        parameter.copy_(torch.randn(parameter.shape) / fan_in**0.5)
    return part.to(DEVICE, DTYPE)


def check(positions, frames, channels, bins):
    part = subsampling(channels, bins)
    count = MEL_HISTORY + 8 * frames - 7
    mel = torch.randn(len(positions), bins, count, device=DEVICE).to(DTYPE).transpose(1, 2)
    position = torch.tensor(positions, device=DEVICE)
    exact = copy.deepcopy(part).to("cpu", torch.float32)
    want = exact.convolve(mel.to("cpu", torch.float32, copy=True), position.cpu())
    # What is before an utterance may be anything.
    for row, first in enumerate(position * 8 - MEL_HISTORY):
        mel[row, : max(0, -int(first))] = float("nan")
    layers = [
        (model._weights(layer.depthwise_conv), model._weights(layer.pointwise_conv))
        for layer in part.layers
    ]
    got = triton_subsampling.subsample(mel, model._weights(part.conv_in), layers, position)
    assert got.dtype == DTYPE
    assert got.shape == (len(positions), frames, part.linear.in_features)
    got = got.float().cpu()
    torch.testing.assert_close(got, want, **NEAR)
    assert (got - want).norm() < NOISE * want.norm()


@pytest.mark.parametrize(("frames", "channels", "bins"), [(1, 24, 10), (3, 16, 16)])
def test_convolutions_from_the_utterances_beginning_on(frames, channels, bins):
    check([0, 1, 2, 100], frames, channels, bins)


@on_gpu
@pytest.mark.parametrize(("count", "frames"), [(1, 1), (1, 14), (40, 2), (512, 1)])
def test_convolutions_at_production_size(count, frames):
    check([0, *range(2, count + 1)], frames, 256, 128)
