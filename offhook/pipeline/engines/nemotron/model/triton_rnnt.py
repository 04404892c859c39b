# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"
"""The operations of `rnnt` between matrix products as Triton kernels, one launch each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from offhook.pipeline.engines.nemotron.model.model import NemotronConfig

BLOCK = 256


def joined(heard: Tensor, predicted: Tensor, slots: Tensor, at: Tensor) -> Tensor:
    """`rnnt.joined`; heard and predicted are contiguous."""
    streams, channels = predicted.shape
    out = torch.empty_like(predicted)
    _joined[(streams, triton.cdiv(channels, BLOCK))](
        heard,
        predicted,
        slots,
        at,
        out,
        heard.shape[1],
        CHANNELS=channels,
        BLOCK=BLOCK,
        num_warps=2,
    )
    return out


@triton.jit
def _joined(heard, predicted, slots, at, out, frames, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = channel < CHANNELS
    frame = tl.minimum(tl.load(at + row), frames - 1)
    place = (tl.load(slots + row) * frames + frame) * CHANNELS + channel
    x = tl.load(heard + place, mask=real, other=0.0).to(tl.float32)
    y = tl.load(predicted + row * CHANNELS + channel, mask=real, other=0.0).to(tl.float32)
    total = (x + y).to(out.dtype.element_ty)
    tl.store(out + row * CHANNELS + channel, tl.maximum(total, 0.0), mask=real)


def advance(
    label: Tensor,
    at: Tensor,
    said: Tensor,
    until: Tensor,
    c: NemotronConfig,
    out: Tensor,
    step: int,
) -> Tensor:
    """`rnnt.advance`; out is contiguous."""
    streams = len(label)
    new = torch.empty_like(label)
    _advance[(triton.cdiv(streams, BLOCK),)](
        label,
        at,
        said,
        until,
        out,
        new,
        streams,
        step,
        out.stride(0),
        BLANK=c.blank,
        VOCABULARY=c.vocab_size,
        MOST=c.max_symbols,
        BLOCK=BLOCK,
        num_warps=4,
    )
    return new


@triton.jit(do_not_specialize=["streams", "step"])
def _advance(
    label,
    at,
    said,
    until,
    out,
    new,
    streams,
    step,
    stride,
    BLANK: tl.constexpr,
    VOCABULARY: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = row < streams
    one = tl.load(label + row, mask=real, other=BLANK)
    frame = tl.load(at + row, mask=real, other=0)
    count = tl.load(said + row, mask=real, other=0)
    going = frame < tl.load(until + row, mask=real, other=0)
    says = going & (one != BLANK)
    told = tl.where(says, frame * VOCABULARY + one, -1)
    tl.store(out + row.to(tl.int64) * stride + step, told, mask=real)
    tl.store(new + row, says.to(tl.int64), mask=real)
    count += says.to(tl.int64)
    moves = going & ((one == BLANK) | (count >= MOST))
    tl.store(at + row, frame + moves.to(tl.int64), mask=real)
    tl.store(said + row, tl.where(moves, 0, count), mask=real)


def lstm_step(
    gates: Tensor,
    of_labels: Tensor | None,
    label: Tensor,
    new: Tensor,
    hidden: Tensor,
    cell: Tensor,
) -> None:
    """`rnnt.lstm_step`; gates and of_labels are contiguous, hidden and cell dense in N."""
    streams, channels = hidden.shape
    _lstm_step[(streams, triton.cdiv(channels, BLOCK))](
        gates,
        of_labels,
        label,
        new,
        hidden,
        cell,
        hidden.stride(0),
        cell.stride(0),
        CHANNELS=channels,
        HAS_LABELS=of_labels is not None,
        BLOCK=BLOCK,
        num_warps=2,
    )


@triton.jit
def _lstm_step(
    gates,
    of_labels,
    label,
    new,
    hidden,
    cell,
    hidden_stride,
    cell_stride,
    CHANNELS: tl.constexpr,
    HAS_LABELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = channel < tl.where(tl.load(new + row) != 0, CHANNELS, 0)
    gates += row * (4 * CHANNELS) + channel
    i = tl.load(gates, mask=real, other=0.0).to(tl.float32)
    f = tl.load(gates + CHANNELS, mask=real, other=0.0).to(tl.float32)
    g = tl.load(gates + 2 * CHANNELS, mask=real, other=0.0).to(tl.float32)
    o = tl.load(gates + 3 * CHANNELS, mask=real, other=0.0).to(tl.float32)
    if HAS_LABELS:
        of_labels += tl.load(label + row) * (4 * CHANNELS) + channel
        i += tl.load(of_labels, mask=real, other=0.0).to(tl.float32)
        f += tl.load(of_labels + CHANNELS, mask=real, other=0.0).to(tl.float32)
        g += tl.load(of_labels + 2 * CHANNELS, mask=real, other=0.0).to(tl.float32)
        o += tl.load(of_labels + 3 * CHANNELS, mask=real, other=0.0).to(tl.float32)
    cell += row * cell_stride + channel
    before = tl.load(cell, mask=real, other=0.0).to(tl.float32)
    now = tl.sigmoid(f) * before + tl.sigmoid(i) * _tanh(g)
    tl.store(cell, now.to(cell.dtype.element_ty), mask=real)
    hidden += row * hidden_stride + channel
    tl.store(hidden, (tl.sigmoid(o) * _tanh(now)).to(hidden.dtype.element_ty), mask=real)


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0
