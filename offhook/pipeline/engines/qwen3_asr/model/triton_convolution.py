# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"
"""The functions of `convolution` as Triton kernels: one pass over memory each."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def convolve_mel(mel: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`convolution.convolve_mel`."""
    mel = mel.contiguous()
    count, bins, frames = mel.shape
    channels = len(bias)
    high, wide = (bins + 1) // 2, (frames + 1) // 2
    out = torch.empty((count, high, wide, channels), dtype=mel.dtype, device=mel.device)
    points = count * high * wide
    _convolve_mel[(triton.cdiv(points, 64), triton.cdiv(channels, 128))](
        mel,
        weight,
        bias,
        out,
        points,
        BINS=bins,
        FRAMES=frames,
        HIGH=high,
        WIDE=wide,
        CHANNELS=channels,
        POINTS=64,
        BLOCK=128,
        num_warps=8,
    )
    return out.permute(0, 3, 1, 2)


@triton.jit
def _gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit(do_not_specialize=["points"])
def _convolve_mel(
    mel,
    weight,
    bias,
    out,
    points,
    BINS: tl.constexpr,
    FRAMES: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    POINTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    point = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tap = tl.arange(0, 16)  # nine taps, padded to a tensor core product
    plane = (point // (HIGH * WIDE))[:, None]
    row = (point // WIDE % HIGH * 2 - 1)[:, None] + (tap // 3)[None, :]
    column = (point % WIDE * 2 - 1)[:, None] + (tap % 3)[None, :]
    real = (point < points)[:, None] & (tap < 9)[None, :]
    real = real & (row >= 0) & (row < BINS) & (column >= 0) & (column < FRAMES)
    patches = tl.load(mel + (plane * BINS + row) * FRAMES + column, mask=real, other=0.0)
    real = (tap < 9)[:, None] & (channel < CHANNELS)[None, :]
    taps = tl.load(weight + channel[None, :] * 9 + tap[:, None], mask=real, other=0.0)
    b = tl.load(bias + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)
    sum = tl.dot(patches, taps, input_precision="ieee") + b[None, :]
    y = _gelu(sum.to(out.dtype.element_ty).to(tl.float32)).to(out.dtype.element_ty)
    real = (point < points)[:, None] & (channel < CHANNELS)[None, :]
    tl.store(out + point.to(tl.int64)[:, None] * CHANNELS + channel[None, :], y, mask=real)


def bias_gelu_(x: Tensor, bias: Tensor) -> Tensor:
    """`convolution.bias_gelu_`."""
    assert x.is_contiguous(memory_format=torch.channels_last)
    channels = len(bias)
    points = x.numel() // channels
    _bias_gelu[(triton.cdiv(points, 8),)](
        x,
        bias,
        points,
        CHANNELS=channels,
        POINTS=8,
        BLOCK=triton.next_power_of_2(channels),
        num_warps=4,
    )
    return x


@triton.jit(do_not_specialize=["points"])
def _bias_gelu(
    x,
    bias,
    points,
    CHANNELS: tl.constexpr,
    POINTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    point = tl.program_id(0) * POINTS + tl.arange(0, POINTS)[:, None]
    channel = tl.arange(0, BLOCK)[None, :]
    real = (point < points) & (channel < CHANNELS)
    at = point.to(tl.int64) * CHANNELS + channel
    y = tl.load(x + at, mask=real, other=0.0)
    b = tl.load(bias + channel, mask=channel < CHANNELS, other=0.0)
    z = (y.to(tl.float32) + b.to(tl.float32)).to(y.dtype).to(tl.float32)
    tl.store(x + at, _gelu(z).to(y.dtype), mask=real)
