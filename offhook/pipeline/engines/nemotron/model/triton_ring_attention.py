# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"
"""The attention of `fast_conformer` as Triton kernels, tuned for an H200 (sm_90).

A program processes one head of one stream: it reads its keys and values once, all at the same time,
and writes the new ones, which it has from the projection, into the ring. No program waits for
another.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634
MANY_PROGRAMS = 512
"""Minimum programs with one frame each that are faster with one warp: 512 streams in 46 us instead
of 61."""
DISTANCE_STRIDES = ["distance_head_stride", "distance_stream_stride", "distance_frame_stride"]
"""Strides that change with the batch and must not trigger a recompilation."""


def ring_attention(
    qkv: Tensor,
    bias_u: Tensor,
    by_distance: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    position: Tensor,
    left: int,
) -> Tensor:
    """`fast_conformer.ring_attention`.

    D is a power of two, at least 16. The last dimension of by_distance is dense; it may be longer.
    """
    streams, frames, _, heads, channels = qkv.shape
    ring = keys.shape[1]
    assert ring >= left + frames
    out = torch.empty((streams, frames, heads * channels), dtype=qkv.dtype, device=qkv.device)
    kernel, least = (_attend_one, 1) if frames == 1 else (_attend, 16)
    near, far = split_past(left, least)
    kernel[(heads, streams)](
        qkv,
        bias_u,
        by_distance,
        keys,
        values,
        out,
        slots,
        position,
        *by_distance.stride()[:3],
        *keys.stride()[:3],
        *values.stride()[:3],
        channels**-0.5 * LOG2_E,
        FRAMES=frames,
        HEADS=heads,
        CHANNELS=channels,
        RING=ring,
        LEFT=left,
        NEAR=near,
        FAR=far,
        num_warps=1 if frames == 1 and heads * streams >= MANY_PROGRAMS else 4,
    )
    return out


def split_past(left: int, least: int) -> tuple[int, int]:
    """Returns the frames of the two blocks in which `left` frames are read, powers of two; the
    second may be 0.

    One block for 70 frames would have 128 rows; these have 64 and 8 (or 16).
    """
    near = max(least, 1 << max(left, 1).bit_length() - 1)
    return near, max(least, triton.next_power_of_2(left - near)) if left > near else 0


@triton.jit
def _past(position, first, COUNT: tl.constexpr, LEFT: tl.constexpr, RING: tl.constexpr):
    """For COUNT frames before the chunk, latest first and without the first `first`, returns their
    distance from 0, their rows in the ring, and a mask of those that exist."""
    back = first + tl.arange(0, COUNT)
    row = position % RING - 1 - back
    return back, tl.where(row < 0, row + RING, row), (back < LEFT) & (back < position)


@triton.jit
def _load_rows(start, row, stride, channel, seen):
    at = start + row[:, None] * stride + channel[None, :]
    return tl.load(at, mask=seen[:, None], other=0.0)


@triton.jit(do_not_specialize=DISTANCE_STRIDES)
def _attend_one(
    qkv,
    bias_u,
    by_distance,
    keys,
    values,
    out,
    slots,
    positions,
    distance_head_stride,
    distance_stream_stride,
    distance_frame_stride,
    k_slot_stride,
    k_row_stride,
    k_head_stride,
    v_slot_stride,
    v_row_stride,
    v_head_stride,
    scale,
    FRAMES: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    RING: tl.constexpr,
    LEFT: tl.constexpr,
    NEAR: tl.constexpr,
    FAR: tl.constexpr,
):
    """One head of one stream whose chunk is one frame: sums instead of matrix products."""
    head, number = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + number)
    position = tl.load(positions + number).to(tl.int32)
    channel = tl.arange(0, CHANNELS)
    qkv += (number * 3 * HEADS + head) * CHANNELS + channel
    by_distance += head.to(tl.int64) * distance_head_stride + number * distance_stream_stride
    keys += slot * k_slot_stride + head * k_head_stride
    values += slot * v_slot_stride + head * v_head_stride
    q = tl.load(qkv)
    bias = tl.load(bias_u + head * CHANNELS + channel)
    k = tl.load(qkv + HEADS * CHANNELS)
    v = tl.load(qkv + 2 * HEADS * CHANNELS)
    added = tl.load(by_distance).to(tl.float32)
    back, row, seen = _past(position, 0, NEAR, LEFT, RING)
    near_k = _load_rows(keys, row, k_row_stride, channel, seen)
    near_v = _load_rows(values, row, v_row_stride, channel, seen)
    near_added = tl.load(by_distance + 1 + back, mask=seen, other=0.0).to(tl.float32)
    if FAR > 0:
        back, row, far_seen = _past(position, NEAR, FAR, LEFT, RING)
        far_k = _load_rows(keys, row, k_row_stride, channel, far_seen)
        far_v = _load_rows(values, row, v_row_stride, channel, far_seen)
        far_added = tl.load(by_distance + 1 + back, mask=far_seen, other=0.0).to(tl.float32)

    q = (q.to(tl.float32) + bias.to(tl.float32)).to(k.dtype).to(tl.float32)
    own = (tl.sum(q * k.to(tl.float32), 0) + added) * scale
    near = (tl.sum(q[None, :] * near_k.to(tl.float32), 1) + near_added) * scale
    near = tl.where(seen, near, float("-inf"))
    top = tl.maximum(tl.max(near, 0), own)
    if FAR > 0:
        far = (tl.sum(q[None, :] * far_k.to(tl.float32), 1) + far_added) * scale
        far = tl.where(far_seen, far, float("-inf"))
        top = tl.maximum(tl.max(far, 0), top)
    own = tl.exp2(own - top)
    near = tl.exp2(near - top)
    total = tl.sum(near, 0) + own
    heard = tl.sum(near[:, None] * near_v.to(tl.float32), 0) + own * v.to(tl.float32)
    if FAR > 0:
        far = tl.exp2(far - top)
        total += tl.sum(far, 0)
        heard += tl.sum(far[:, None] * far_v.to(tl.float32), 0)
    out += (number * HEADS + head) * CHANNELS + channel
    tl.store(out, (heard / total).to(out.dtype.element_ty))
    # This row is not among those read: the ring is longer than the attention span.
    tl.store(keys + position % RING * k_row_stride + channel, k)
    tl.store(values + position % RING * v_row_stride + channel, v)


@triton.jit(do_not_specialize=DISTANCE_STRIDES)
def _attend(
    qkv,
    bias_u,
    by_distance,
    keys,
    values,
    out,
    slots,
    positions,
    distance_head_stride,
    distance_stream_stride,
    distance_frame_stride,
    k_slot_stride,
    k_row_stride,
    k_head_stride,
    v_slot_stride,
    v_row_stride,
    v_head_stride,
    scale,
    FRAMES: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    RING: tl.constexpr,
    LEFT: tl.constexpr,
    NEAR: tl.constexpr,
    FAR: tl.constexpr,
):
    """One head of one stream: the new keys from qkv, the older ones from the ring."""
    NEW: tl.constexpr = 16
    head, number = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + number)
    position = tl.load(positions + number).to(tl.int32)
    new, channel = tl.arange(0, NEW), tl.arange(0, CHANNELS)
    real = new < FRAMES
    there, at = real[:, None], channel[None, :]
    qkv += ((number * FRAMES + new) * (3 * HEADS) + head)[:, None] * CHANNELS + at
    by_distance += head.to(tl.int64) * distance_head_stride + number * distance_stream_stride
    # From here the distance counts from the query itself.
    by_distance += new[:, None] * distance_frame_stride + FRAMES - 1 + new[:, None]
    keys += slot * k_slot_stride + head * k_head_stride
    values += slot * v_slot_stride + head * v_head_stride
    q = tl.load(qkv, mask=there, other=0.0)
    bias = tl.load(bias_u + head * CHANNELS + channel)
    k = tl.load(qkv + HEADS * CHANNELS, mask=there, other=0.0)
    v = tl.load(qkv + 2 * HEADS * CHANNELS, mask=there, other=0.0)
    added = tl.load(by_distance - new[None, :], mask=there & real[None, :], other=0.0)
    back, row, seen = _past(position, 0, NEAR, LEFT, RING)
    near_k = _load_rows(keys, row, k_row_stride, channel, seen)
    near_v = _load_rows(values, row, v_row_stride, channel, seen)
    near_seen = seen[None, :]
    near_added = tl.load(by_distance + 1 + back[None, :], mask=there & near_seen, other=0.0)
    if FAR > 0:
        back, row, seen = _past(position, NEAR, FAR, LEFT, RING)
        far_k = _load_rows(keys, row, k_row_stride, channel, seen)
        far_v = _load_rows(values, row, v_row_stride, channel, seen)
        far_seen = seen[None, :]
        far_added = tl.load(by_distance + 1 + back[None, :], mask=there & far_seen, other=0.0)

    q = (q.to(tl.float32) + bias.to(tl.float32)[None, :]).to(k.dtype)
    own = tl.dot(q, tl.trans(k), input_precision="ieee") + added.to(tl.float32)
    own = tl.where(real[None, :], own * scale, float("-inf"))
    near = tl.dot(q, tl.trans(near_k), input_precision="ieee") + near_added.to(tl.float32)
    near = tl.where(near_seen, near * scale, float("-inf"))
    top = tl.maximum(tl.max(own, 1), tl.max(near, 1))
    if FAR > 0:
        far = tl.dot(q, tl.trans(far_k), input_precision="ieee") + far_added.to(tl.float32)
        far = tl.where(far_seen, far * scale, float("-inf"))
        top = tl.maximum(tl.max(far, 1), top)
    own = tl.exp2(own - top[:, None])
    near = tl.exp2(near - top[:, None])
    total = tl.sum(own, 1) + tl.sum(near, 1)
    heard = tl.dot(near.to(v.dtype), near_v, input_precision="ieee")
    heard = tl.dot(own.to(v.dtype), v, heard, input_precision="ieee")
    if FAR > 0:
        far = tl.exp2(far - top[:, None])
        total += tl.sum(far, 1)
        heard = tl.dot(far.to(v.dtype), far_v, heard, input_precision="ieee")
    heard = heard / total[:, None]
    out += ((number * FRAMES + new) * HEADS + head)[:, None] * CHANNELS + at
    tl.store(out, heard.to(out.dtype.element_ty), mask=there)
    # These rows are not among those read: the ring is longer than the attention span.
    row = ((position + new) % RING)[:, None]
    tl.store(keys + row * k_row_stride + at, k, mask=there)
    tl.store(values + row * v_row_stride + at, v, mask=there)
