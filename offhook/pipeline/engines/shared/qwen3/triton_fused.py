# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"
"""The norms, the rotation and the gate of `attention` as Triton kernels: one pass over memory each.

A program takes one token. Everything is loaded before the first sum, which is in fp32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`attention.rms_norm`."""
    tokens, channels = x.shape
    out = torch.empty((tokens, channels), dtype=x.dtype, device=x.device)
    _rms_norm[(tokens,)](
        x,
        weight,
        out,
        x.stride(0),
        eps,
        CHANNELS=channels,
        BLOCK=triton.next_power_of_2(channels),
        num_warps=4,
    )
    return out


@triton.jit
def _rms_norm(x, weight, out, stride, eps, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    real = channel < CHANNELS
    y = tl.load(x + token * stride + channel, mask=real, other=0.0).to(tl.float32)
    w = tl.load(weight + channel, mask=real, other=0.0).to(tl.float32)
    y = y * tl.rsqrt(tl.sum(y * y, 0) / CHANNELS + eps) * w
    tl.store(out + token * CHANNELS + channel, y.to(out.dtype.element_ty), mask=real)


def qk_norm_rope_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
) -> Tensor:
    """`attention.qk_norm_rope_write`."""
    tokens, q_heads, channels = q.shape
    kv_heads = k.shape[1]
    out = torch.empty((tokens, q_heads, channels), dtype=q.dtype, device=q.device)
    _qk_norm_rope_write[(tokens,)](
        q,
        k,
        v,
        q_weight,
        k_weight,
        cos,
        sin,
        out,
        k_cache,
        v_cache,
        slots,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        cos.stride(0),
        sin.stride(0),
        eps,
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        Q_BLOCK=triton.next_power_of_2(q_heads),
        KV_BLOCK=triton.next_power_of_2(kv_heads),
        HALF=channels // 2,
        num_warps=4,
    )
    return out


@triton.jit
def _norm_rope(
    x,
    head_stride,
    weight,
    cos,
    sin,
    out,
    eps,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
):
    """Norms and turns the heads of one token at x, and stores them dense at out."""
    head = tl.arange(0, BLOCK)
    channel = tl.arange(0, HALF)
    real = (head < HEADS)[:, None]
    at = head[:, None] * head_stride + channel[None, :]
    low = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    high = tl.load(x + at + HALF, mask=real, other=0.0).to(tl.float32)
    norm = tl.rsqrt(tl.sum(low * low + high * high, 1) / (2 * HALF) + eps)[:, None]
    low *= norm * tl.load(weight + channel).to(tl.float32)[None, :]
    high *= norm * tl.load(weight + channel + HALF).to(tl.float32)[None, :]
    turned_low = low * tl.load(cos + channel)[None, :] - high * tl.load(sin + channel)[None, :]
    cos_high, sin_high = tl.load(cos + channel + HALF), tl.load(sin + channel + HALF)
    turned_high = high * cos_high[None, :] + low * sin_high[None, :]
    out += head[:, None] * (2 * HALF) + channel[None, :]
    tl.store(out, turned_low.to(out.dtype.element_ty), mask=real)
    tl.store(out + HALF, turned_high.to(out.dtype.element_ty), mask=real)


@triton.jit
def _qk_norm_rope_write(
    q,
    k,
    v,
    q_weight,
    k_weight,
    cos,
    sin,
    out,
    k_cache,
    v_cache,
    slots,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    cos_stride,
    sin_stride,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    Q_BLOCK: tl.constexpr,
    KV_BLOCK: tl.constexpr,
    HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    cached = tl.load(slots + token) * (KV_HEADS * 2 * HALF)
    head = tl.arange(0, KV_BLOCK)[:, None]
    channel = tl.arange(0, 2 * HALF)[None, :]
    values = tl.load(
        v + token * v_token_stride + head * v_head_stride + channel, mask=head < KV_HEADS
    )
    tl.store(v_cache + cached + head * (2 * HALF) + channel, values, mask=head < KV_HEADS)
    cos += token * cos_stride
    sin += token * sin_stride
    out += token * (Q_HEADS * 2 * HALF)
    _norm_rope(
        q + token * q_token_stride, q_head_stride, q_weight, cos, sin, out, eps,
        Q_HEADS, Q_BLOCK, HALF,
    )  # fmt: skip
    _norm_rope(
        k + token * k_token_stride, k_head_stride, k_weight, cos, sin, k_cache + cached, eps,
        KV_HEADS, KV_BLOCK, HALF,
    )  # fmt: skip


def silu_mul(gate_up: Tensor) -> Tensor:
    """`attention.silu_mul`."""
    tokens, both = gate_up.shape
    channels = both // 2
    out = torch.empty((tokens, channels), dtype=gate_up.dtype, device=gate_up.device)
    _silu_mul[(tokens, triton.cdiv(channels, 1024))](
        gate_up,
        out,
        gate_up.stride(0),
        CHANNELS=channels,
        BLOCK=1024,
        num_warps=4,
    )
    return out


@triton.jit
def _silu_mul(gate_up, out, stride, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = channel < CHANNELS
    gate = tl.load(gate_up + token * stride + channel, mask=real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * stride + CHANNELS + channel, mask=real, other=0.0)
    mixed = gate * tl.sigmoid(gate) * up.to(tl.float32)
    tl.store(out + token * CHANNELS + channel, mixed.to(out.dtype.element_ty), mask=real)
