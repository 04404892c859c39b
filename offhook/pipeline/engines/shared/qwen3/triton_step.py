# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"
"""`attention.self_attention` of a decode step as one Triton kernel, made for an H200 (sm_90).

A program takes one kv head of one row: it norms and turns the new key and the queries that share
it, writes key and value to the cache, and attends to the keys before. So nothing that a launch
writes is read in it. A program is one warp, of which many are on a processor at once: a row's past
is read in a few loads, so that it takes their latency, not their bytes. docs/choices.md compares it
with two launches.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634


class StepTile(NamedTuple):
    """Keys per iteration, warps of a program, and its pipeline stages."""

    keys: int
    warps: int
    stages: int


SHORT = StepTile(16, 1, 1)
"""For pages so short that one iteration sees all keys."""
FEW = StepTile(32, 1, 5)
MANY = StepTile(16, 1, 5)
MANY_ROWS = 128
LEAST_ROWS = 16
"""With fewer, and a long past, `triton_attention` shares the keys of a row over programs."""


def is_faster(rows: int, page_table: Tensor, page_size: int) -> bool:
    """Returns whether `step_attention` is faster than the two launches."""
    return rows >= LEAST_ROWS or page_table.shape[1] * page_size <= SHORT.keys


def choose_tile(rows: int, page_table: Tensor, page_size: int) -> StepTile:
    if page_table.shape[1] * page_size <= SHORT.keys:
        return SHORT
    return MANY if rows >= MANY_ROWS else FEW


def step_attention(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    page_table: Tensor,
    kv_lengths: Tensor,
    scale: float,
    tile: StepTile | None = None,
) -> Tensor:
    """`attention.self_attention` of a decode step. D is a power of two, at least 16."""
    rows, width = qkv.shape
    _, page_size, kv_heads, channels = k_cache.shape
    q_heads = width // channels - 2 * kv_heads
    if tile is None:
        tile = choose_tile(rows, page_table, page_size)
    out = torch.empty((rows, q_heads * channels), dtype=qkv.dtype, device=qkv.device)
    _step_attention[(kv_heads, rows)](
        qkv,
        q_weight,
        k_weight,
        cos,
        sin,
        k_cache,
        v_cache,
        page_table,
        kv_lengths,
        slots,
        out,
        qkv.stride(0),
        cos.stride(0),
        sin.stride(0),
        page_table.stride(0),
        eps,
        scale * LOG2_E,
        KV_HEADS=kv_heads,
        GROUP=q_heads // kv_heads,
        CHANNELS=channels,
        PAGE=page_size,
        ROWS=max(16, triton.next_power_of_2(q_heads // kv_heads)),
        KEYS=min(tile.keys, page_size),
        WHOLE=page_table.shape[1] * page_size <= tile.keys,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


@triton.jit
def _norm_turned(x, partner, weight, partner_weight, cos, sin, eps, CHANNELS: tl.constexpr):
    """Norms rows [R, CHANNELS] and turns each channel with its partner."""
    norm = tl.rsqrt(tl.sum(x * x, 1) / CHANNELS + eps)[:, None]
    return x * norm * weight * cos + partner * norm * partner_weight * sin


@triton.jit
def _load_old(
    cache, pages, start, past, head, KV_HEADS: tl.constexpr, CHANNELS: tl.constexpr,
    PAGE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The keys or values from `start` on; all of them are in one page."""
    slot = tl.load(pages + start // PAGE).to(tl.int64) * PAGE + start % PAGE
    cache += (slot * KV_HEADS + head) * CHANNELS
    key = tl.arange(0, KEYS)
    at = key[:, None] * (KV_HEADS * CHANNELS) + tl.arange(0, CHANNELS)[None, :]
    # What lies past the last token may be anything, and 0 * NaN is NaN.
    return tl.load(cache + at, mask=(start + key < past)[:, None], other=0.0)


@triton.jit
def _attend(q, k, v, start, past, total, top, sum, scale, KEYS: tl.constexpr):
    """One step of the running softmax: the sum of weights, that of values, the greatest score."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    visible = (start + tl.arange(0, KEYS) < past)[None, :]
    scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - new_top[:, None])
    fade = tl.exp2(top - new_top)
    total = total * fade + tl.sum(weights, 1)
    sum = tl.dot(weights.to(v.dtype), v, sum * fade[:, None], input_precision="ieee")
    return total, sum, new_top


@triton.jit
def _step_attention(
    qkv,
    q_weight,
    k_weight,
    cos,
    sin,
    k_cache,
    v_cache,
    page_table,
    kv_lengths,
    slots,
    out,
    qkv_stride,
    cos_stride,
    sin_stride,
    table_stride,
    eps,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    HALF: tl.constexpr = CHANNELS // 2
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    past = tl.load(kv_lengths + row) - 1
    cached = tl.load(slots + row) * (KV_HEADS * CHANNELS) + head * CHANNELS
    query, channel = tl.arange(0, ROWS), tl.arange(0, CHANNELS)
    pages = page_table + row * table_stride
    if WHOLE:  # On their way while the new ones are computed.
        old_k = _load_old(k_cache, pages, 0, past, head, KV_HEADS, CHANNELS, PAGE, KEYS)
        old_v = _load_old(v_cache, pages, 0, past, head, KV_HEADS, CHANNELS, PAGE, KEYS)
    other = (channel + HALF) % CHANNELS
    qkv += row * qkv_stride
    # Rows past the group are zeros.
    q_at = qkv + ((head * GROUP + query) * CHANNELS)[:, None]
    real = (query < GROUP)[:, None]
    q = tl.load(q_at + channel[None, :], mask=real, other=0.0).to(tl.float32)
    q_other = tl.load(q_at + other[None, :], mask=real, other=0.0).to(tl.float32)
    k_at = qkv + (KV_HEADS * GROUP + head) * CHANNELS
    k = tl.load(k_at + channel[None, :]).to(tl.float32)
    k_other = tl.load(k_at + other[None, :]).to(tl.float32)
    v = tl.load(k_at + KV_HEADS * CHANNELS + channel)
    c = tl.load(cos + row * cos_stride + channel)[None, :]
    s = tl.load(sin + row * sin_stride + channel)
    s = tl.where(channel < HALF, -s, s)[None, :]
    w = tl.load(q_weight + channel).to(tl.float32)[None, :]
    w_other = tl.load(q_weight + other).to(tl.float32)[None, :]
    q = _norm_turned(q, q_other, w, w_other, c, s, eps, CHANNELS).to(v.dtype)
    w = tl.load(k_weight + channel).to(tl.float32)[None, :]
    w_other = tl.load(k_weight + other).to(tl.float32)[None, :]
    k = _norm_turned(k, k_other, w, w_other, c, s, eps, CHANNELS).to(v.dtype)
    tl.store(k_cache + cached + channel[None, :], k)
    tl.store(v_cache + cached + channel, v)

    # The running softmax begins with the row's own key, see `triton_attention`.
    top = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
    total = tl.full([ROWS], 1.0, tl.float32)
    sum = tl.zeros([ROWS, CHANNELS], tl.float32) + v.to(tl.float32)[None, :]
    if WHOLE:
        total, sum, top = _attend(q, old_k, old_v, 0, past, total, top, sum, scale, KEYS)
    else:
        for start in tl.range(0, past, KEYS):
            old_k = _load_old(k_cache, pages, start, past, head, KV_HEADS, CHANNELS, PAGE, KEYS)
            old_v = _load_old(v_cache, pages, start, past, head, KV_HEADS, CHANNELS, PAGE, KEYS)
            total, sum, top = _attend(q, old_k, old_v, start, past, total, top, sum, scale, KEYS)
    sum = sum / total[:, None]
    at = out + row * (KV_HEADS * GROUP * CHANNELS) + (head * GROUP + query)[:, None] * CHANNELS
    tl.store(at + channel[None, :], sum.to(out.dtype.element_ty), mask=real)
