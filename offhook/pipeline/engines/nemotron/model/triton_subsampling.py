# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"
"""The convolutions of Nemotron's subsampling as Triton kernels, tuned for an H200 (sm_90).

Between them x is [B, frames, bins, channels], contiguous. The first convolution is a product of
patches of nine values; a separable one computes its depthwise part as the left factor of its
pointwise part. Bias, ReLU and the zeros before the utterance are in the same launch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TAPS = 9
PADDED_BINS = 2
"""Zeros below the lowest bin."""
FEW_POINTS = 2112
"""16 for each multiprocessor of an H200; programs of more points are for more than these."""

Weights = tuple[Tensor, Tensor]
"""Weight and bias of a convolution."""


class Start(NamedTuple):
    """Number of the first frame of a tensor in its utterance: `scale` times the position less
    `back`. Frames with negative numbers are 0."""

    scale: int
    back: int


STARTS = (Start(8, 14), Start(4, 6), Start(2, 2), Start(1, 0))
"""Of the mel and of the convolutions' outputs; see `model.HISTORY`."""


def convolve_mel(mel: Tensor, conv: Weights, position: Tensor) -> Tensor:
    """3x3 convolution of stride two of one channel, and ReLU: [B, (F - 1) // 2, bins // 2 + 1, C].

    Args:
        mel: [B, F, bins].
        conv: [C, 1, 3, 3] and [C].
        position: int64 [B], encoder frames of the utterance before the chunk.
    """
    weight, bias = conv
    streams, in_frames, in_bins = mel.shape
    frames, bins, channels = (in_frames - 1) // 2, in_bins // 2 + 1, len(bias)
    out = torch.empty((streams, frames, bins, channels), dtype=mel.dtype, device=mel.device)
    points = streams * frames * bins
    block = min(128, max(16, triton.next_power_of_2(channels)))
    _convolve_mel[(triton.cdiv(points, 64), triton.cdiv(channels, block))](
        mel,
        weight,
        bias,
        position,
        out,
        points,
        frames,
        *mel.stride(),
        IN_BINS=in_bins,
        BINS=bins,
        CHANNELS=channels,
        BELOW=PADDED_BINS,
        TAPS=TAPS,
        BEFORE=STARTS[0],
        START=STARTS[1],
        POINTS=64,
        BLOCK=block,
        num_warps=4,
    )
    return out


@triton.jit
def _relu_since(y, bias, frame, position, START: tl.constexpr):
    """ReLU of y [points, channels] and the bias, 0 in frames before the utterance."""
    begun = frame + position * START[0] >= START[1]
    return tl.where(begun[:, None], tl.maximum(y + bias[None, :], 0.0), 0.0)


@triton.jit(do_not_specialize=["points", "frames"])
def _convolve_mel(
    mel,
    weight,
    bias,
    positions,
    out,
    points,
    frames,
    stream_stride,
    frame_stride,
    bin_stride,
    IN_BINS: tl.constexpr,
    BINS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BELOW: tl.constexpr,
    TAPS: tl.constexpr,
    BEFORE: tl.constexpr,
    START: tl.constexpr,
    POINTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    point = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tap = tl.arange(0, 16)  # nine taps, padded to a tensor core product
    there, named = point < points, channel < CHANNELS
    frame, stream = point // BINS % frames, point // (BINS * frames)
    row = (frame * 2)[:, None] + (tap // 3)[None, :]
    column = (point % BINS * 2 - BELOW)[:, None] + (tap % 3)[None, :]
    position = tl.load(positions + stream, mask=there, other=0).to(tl.int32)
    begun = row + (position * BEFORE[0])[:, None] >= BEFORE[1]
    real = there[:, None] & (tap < TAPS)[None, :] & begun & (column >= 0) & (column < IN_BINS)
    at = stream.to(tl.int64)[:, None] * stream_stride + row * frame_stride + column * bin_stride
    patches = tl.load(mel + at, mask=real, other=0.0)
    real = (tap < TAPS)[:, None] & named[None, :]
    taps = tl.load(weight + channel[None, :] * TAPS + tap[:, None], mask=real, other=0.0)
    b = tl.load(bias + channel, mask=named, other=0.0).to(tl.float32)
    y = tl.dot(patches, taps, input_precision="ieee")
    y = _relu_since(y, b, frame, position, START)
    at = out + point.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    tl.store(at, y.to(out.dtype.element_ty), mask=there[:, None] & named[None, :])


def convolve_separably(
    x: Tensor, depthwise: Weights, pointwise: Weights, position: Tensor, start: Start, last: bool
) -> Tensor:
    """Depthwise 3x3 convolution of stride two, pointwise one and ReLU: [B, (F - 1) // 2, bins // 2
    + 1, C], or of the `last` layer [B, (F - 1) // 2, C, bins // 2 + 1].

    Args:
        x: [B, F, bins, C], contiguous.
        depthwise: [C, 1, 3, 3] and [C].
        pointwise: [C, C, 1, 1] and [C].
        position: as in `convolve_mel`.
        start: of the result.
    """
    streams, in_frames, in_bins, channels = x.shape
    frames, bins = (in_frames - 1) // 2, in_bins // 2 + 1
    shape = (streams, frames, channels, bins) if last else (streams, frames, bins, channels)
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    points = streams * frames * bins
    rows = 64 if points > FEW_POINTS else 16
    _convolve_separably[(triton.cdiv(points, rows),)](
        x,
        *depthwise,
        *pointwise,
        position,
        out,
        points,
        in_frames,
        frames,
        IN_BINS=in_bins,
        BINS=bins,
        CHANNELS=channels,
        BELOW=PADDED_BINS,
        START=start,
        POINTS=rows,
        DEPTH=min(32 if rows == 64 else 64, max(16, triton.next_power_of_2(channels))),
        BLOCK=max(16, triton.next_power_of_2(channels)),
        LAST=last,
        num_warps=8 if channels >= 128 else 4,
        num_stages=2,
    )
    return out


@triton.jit(do_not_specialize=["points", "in_frames", "frames"])
def _convolve_separably(
    x,
    taps,
    taps_bias,
    weight,
    bias,
    positions,
    out,
    points,
    in_frames,
    frames,
    IN_BINS: tl.constexpr,
    BINS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BELOW: tl.constexpr,
    START: tl.constexpr,
    POINTS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    LAST: tl.constexpr,
):
    point = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    output = tl.arange(0, BLOCK)
    there, named = point < points, output < CHANNELS
    frame, stream = point // BINS % frames, point // (BINS * frames)
    column = point % BINS * 2 - BELOW
    at = x + ((stream * in_frames + frame * 2).to(tl.int64) * IN_BINS + column) * CHANNELS
    sum = tl.zeros([POINTS, BLOCK], tl.float32)
    for start in tl.range(0, CHANNELS, DEPTH):
        channel = start + tl.arange(0, DEPTH)
        known = channel < CHANNELS
        y = tl.load(taps_bias + channel, mask=known, other=0.0).to(tl.float32)[None, :]
        y += tl.zeros([POINTS, DEPTH], tl.float32)
        for tap in tl.static_range(9):
            seen = there & (column + tap % 3 >= 0) & (column + tap % 3 < IN_BINS)
            place = (tap // 3 * IN_BINS + tap % 3) * CHANNELS + channel
            value = tl.load(
                at[:, None] + place[None, :], mask=seen[:, None] & known[None, :], other=0.0
            )
            of_tap = tl.load(taps + channel * 9 + tap, mask=known, other=0.0).to(tl.float32)
            y += value.to(tl.float32) * of_tap[None, :]
        w = tl.load(
            weight + output[None, :] * CHANNELS + channel[:, None],
            mask=known[:, None] & named[None, :],
            other=0.0,
        )
        sum = tl.dot(y.to(w.dtype), w, sum, input_precision="ieee")
    b = tl.load(bias + output, mask=named, other=0.0).to(tl.float32)
    position = tl.load(positions + stream, mask=there, other=0).to(tl.int32)
    y = _relu_since(sum, b, frame, position, START)
    if LAST:
        place = (point // BINS).to(tl.int64) * (CHANNELS * BINS) + point % BINS
        place = place[:, None] + output[None, :] * BINS
    else:
        place = point.to(tl.int64)[:, None] * CHANNELS + output[None, :]
    tl.store(out + place, y.to(out.dtype.element_ty), mask=there[:, None] & named[None, :])


def subsample(
    mel: Tensor, conv: Weights, layers: Sequence[tuple[Weights, Weights]], position: Tensor
) -> Tensor:
    """The convolutions of `model._Subsampling`: [B, T, channels * bins].

    mel: [B, F, bins]. layers: the depthwise and pointwise convolution of each after the first.
    position: as in `convolve_mel`.
    """
    x = convolve_mel(mel, conv, position)
    for (depthwise, pointwise), start in zip(layers, STARTS[2:], strict=True):
        last = start is STARTS[-1]
        x = convolve_separably(x, depthwise, pointwise, position, start, last)
    return x.flatten(2)
