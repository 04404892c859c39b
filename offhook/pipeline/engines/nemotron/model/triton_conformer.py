# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"
"""The operations of `fast_conformer` as Triton kernels, made for an H200 (sm_90).

Each is one launch that reads and writes its tensors once. The attention is in
`triton_ring_attention`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from offhook.pipeline.engines.nemotron.model.triton_ring_attention import (
    ring_attention as ring_attention,
)

MOST_TAPS = 9


def glu_conv(
    x: Tensor,
    cache: Tensor,
    slots: Tensor,
    position: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
) -> Tensor:
    """`fast_conformer.glu_conv`; K is at most 9.

    x is contiguous. The weight is read fastest if it lies tap by tap: `weight.t()` contiguous.
    """
    streams, frames, both = x.shape
    channels, taps = weight.shape
    assert both == 2 * channels
    assert taps <= MOST_TAPS
    out = torch.empty((streams, frames, channels), dtype=x.dtype, device=x.device)
    _glu_conv[(streams,)](
        x,
        cache,
        out,
        slots,
        position,
        weight,
        bias,
        norm_weight,
        norm_bias,
        *cache.stride()[:2],
        *weight.stride(),
        eps,
        FRAMES=frames,
        CHANNELS=channels,
        BLOCK=triton.next_power_of_2(channels),
        MISSING=MOST_TAPS - taps,
        HAS_BIAS=bias is not None,
        num_warps=8,
    )
    return out


@triton.jit
def _load_row(start, row: tl.constexpr, stride, real):
    if row < 0:
        return tl.zeros(real.shape, start.dtype.element_ty)
    return tl.load(start + row * stride, mask=real, other=0.0)


@triton.jit
def _glu_conv(
    x,
    cache,
    out,
    slots,
    positions,
    weight,
    bias,
    norm_weight,
    norm_bias,
    slot_stride,
    row_stride,
    channel_stride,
    tap_stride,
    eps,
    FRAMES: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    MISSING: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """One stream, frame by frame; the nine frames under the taps stay in registers.

    A kernel of fewer taps has weights and frames of 0 in front.
    """
    number = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    real = channel < CHANNELS
    x += number * (FRAMES * 2 * CHANNELS) + channel
    value = tl.load(x, mask=real, other=0.0)
    gate = tl.load(x + CHANNELS, mask=real, other=0.0)
    slot = tl.load(slots + number)
    position = tl.load(positions + number).to(tl.int32) + tl.zeros_like(channel)
    begun = real & (position > 0)
    cache += slot * slot_stride + channel
    g0 = _load_row(cache, 0 - MISSING, row_stride, begun)
    g1 = _load_row(cache, 1 - MISSING, row_stride, begun)
    g2 = _load_row(cache, 2 - MISSING, row_stride, begun)
    g3 = _load_row(cache, 3 - MISSING, row_stride, begun)
    g4 = _load_row(cache, 4 - MISSING, row_stride, begun)
    g5 = _load_row(cache, 5 - MISSING, row_stride, begun)
    g6 = _load_row(cache, 6 - MISSING, row_stride, begun)
    g7 = _load_row(cache, 7 - MISSING, row_stride, begun)
    weight += channel * channel_stride
    w0 = _load_row(weight, 0 - MISSING, tap_stride, real).to(tl.float32)
    w1 = _load_row(weight, 1 - MISSING, tap_stride, real).to(tl.float32)
    w2 = _load_row(weight, 2 - MISSING, tap_stride, real).to(tl.float32)
    w3 = _load_row(weight, 3 - MISSING, tap_stride, real).to(tl.float32)
    w4 = _load_row(weight, 4 - MISSING, tap_stride, real).to(tl.float32)
    w5 = _load_row(weight, 5 - MISSING, tap_stride, real).to(tl.float32)
    w6 = _load_row(weight, 6 - MISSING, tap_stride, real).to(tl.float32)
    w7 = _load_row(weight, 7 - MISSING, tap_stride, real).to(tl.float32)
    w8 = _load_row(weight, 8 - MISSING, tap_stride, real).to(tl.float32)
    norm_w = tl.load(norm_weight + channel, mask=real, other=0.0).to(tl.float32)
    norm_b = tl.load(norm_bias + channel, mask=real, other=0.0).to(tl.float32)
    if HAS_BIAS:
        b = tl.load(bias + channel, mask=real, other=0.0).to(tl.float32)
    # No warp may store to the cache before all have loaded from it.
    tl.debug_barrier()

    out += number * (FRAMES * CHANNELS) + channel
    for frame in range(FRAMES):
        # Rounded as in the cache, so that the next chunk sees the same values.
        gated = value.to(tl.float32) * tl.sigmoid(gate.to(tl.float32))
        g8 = gated.to(cache.dtype.element_ty)
        # Prefetches the next frame while this one is processed (after the last: the last again).
        ahead = x + tl.minimum(frame + 1, FRAMES - 1) * (2 * CHANNELS)
        value = tl.load(ahead, mask=real, other=0.0)
        gate = tl.load(ahead + CHANNELS, mask=real, other=0.0)
        y = g0.to(tl.float32) * w0 + g1.to(tl.float32) * w1 + g2.to(tl.float32) * w2
        y += g3.to(tl.float32) * w3 + g4.to(tl.float32) * w4 + g5.to(tl.float32) * w5
        y += g6.to(tl.float32) * w6 + g7.to(tl.float32) * w7 + g8.to(tl.float32) * w8
        if HAS_BIAS:
            y += b
        y = _norm(y, norm_w, norm_b, real, eps, CHANNELS)
        y = y * tl.sigmoid(y)
        tl.store(out + frame * CHANNELS, y.to(out.dtype.element_ty), mask=real)
        g0, g1, g2, g3, g4, g5, g6, g7 = g1, g2, g3, g4, g5, g6, g7, g8
    _store_row(cache, 0 - MISSING, row_stride, g0, real)
    _store_row(cache, 1 - MISSING, row_stride, g1, real)
    _store_row(cache, 2 - MISSING, row_stride, g2, real)
    _store_row(cache, 3 - MISSING, row_stride, g3, real)
    _store_row(cache, 4 - MISSING, row_stride, g4, real)
    _store_row(cache, 5 - MISSING, row_stride, g5, real)
    _store_row(cache, 6 - MISSING, row_stride, g6, real)
    _store_row(cache, 7 - MISSING, row_stride, g7, real)


@triton.jit
def _store_row(start, row: tl.constexpr, stride, value, real):
    if row >= 0:
        tl.store(start + row * stride, value, mask=real)


@triton.jit
def _norm(y, weight, bias, real, eps, CHANNELS: tl.constexpr):
    """Layer norm of one row; y, weight and bias are 0 where `real` is false."""
    y = tl.where(real, y - tl.sum(y, 0) / CHANNELS, 0.0)
    return y * tl.rsqrt(tl.sum(y * y, 0) / CHANNELS + eps) * weight + bias


def add_norm(
    residual: Tensor, y: Tensor, scale: float, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """`fast_conformer.add_norm`, of contiguous tensors."""
    total, normed = torch.empty_like(residual), torch.empty_like(residual)
    channels = residual.shape[-1]
    _add_norm[(residual.numel() // channels,)](
        residual,
        y,
        weight,
        bias,
        weight,
        bias,
        total,
        normed,
        scale,
        eps,
        CHANNELS=channels,
        BLOCK=triton.next_power_of_2(channels),
        TWICE=False,
        num_warps=4,
    )
    return total, normed


def add_norm_norm(
    residual: Tensor,
    y: Tensor,
    scale: float,
    weight: Tensor,
    bias: Tensor,
    next_weight: Tensor,
    next_bias: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """`fast_conformer.add_norm_norm`, of contiguous tensors."""
    normed, again = torch.empty_like(residual), torch.empty_like(residual)
    channels = residual.shape[-1]
    _add_norm[(residual.numel() // channels,)](
        residual,
        y,
        weight,
        bias,
        next_weight,
        next_bias,
        normed,
        again,
        scale,
        eps,
        CHANNELS=channels,
        BLOCK=triton.next_power_of_2(channels),
        TWICE=True,
        num_warps=4,
    )
    return normed, again


@triton.jit
def _add_norm(
    residual,
    y,
    weight,
    bias,
    next_weight,
    next_bias,
    first,
    second,
    scale,
    eps,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    TWICE: tl.constexpr,
):
    """One row: the sum and its norm, or with TWICE the norm of the sum and the next norm of that.

    Each is rounded before the next step, as where the steps are apart.
    """
    at = tl.program_id(0).to(tl.int64) * CHANNELS
    channel = tl.arange(0, BLOCK)
    real = channel < CHANNELS
    x = tl.load(residual + at + channel, mask=real, other=0.0).to(tl.float32)
    more = tl.load(y + at + channel, mask=real, other=0.0).to(tl.float32)
    w = tl.load(weight + channel, mask=real, other=0.0).to(tl.float32)
    b = tl.load(bias + channel, mask=real, other=0.0).to(tl.float32)
    if TWICE:
        next_w = tl.load(next_weight + channel, mask=real, other=0.0).to(tl.float32)
        next_b = tl.load(next_bias + channel, mask=real, other=0.0).to(tl.float32)
    x = (x + scale * more).to(first.dtype.element_ty)
    if TWICE:
        x = _norm(x.to(tl.float32), w, b, real, eps, CHANNELS).to(first.dtype.element_ty)
        w, b = next_w, next_b
    tl.store(first + at + channel, x, mask=real)
    x = _norm(x.to(tl.float32), w, b, real, eps, CHANNELS)
    tl.store(second + at + channel, x.to(second.dtype.element_ty), mask=real)
