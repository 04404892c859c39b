# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"
"""The convolutions of `codec` as one Triton kernel, made for an H200 (sm_90).

A convolution is a product over taps and channels whose left factor is read in place, row by row,
from the padded input. What stands behind it (bias, residual, snake, GELU) is done in the same
launch, and what comes out is written where the next one has its input. docs/choices.md has what
each takes. Those of many rows of 192 and 96 channels are faster in `cuda_residual_unit`.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from offhook.pipeline.engines.qwen3_tts.model.codec import Convolution, Snake


class Tile(NamedTuple):
    """The work of one program per iteration."""

    rows: int
    columns: int
    """Outputs."""
    beside: int
    """Additional outputs, or 0: 96 is 64 and 32."""
    depth: int
    """Inputs."""
    ways: int
    """Number of ways in which the warps split the inputs."""
    warps: int
    stages: int
    """Pipeline stages of loads."""


# The first tile that yields enough programs for 132 multiprocessors, else the last. With few rows,
# many inputs are best split over the warps.
LARGE = (
    Tile(128, 128, 0, 64, 1, 4, 3),
    Tile(128, 64, 32, 64, 1, 4, 3),
    Tile(128, 64, 0, 64, 1, 4, 3),
    Tile(64, 64, 0, 64, 1, 4, 4),
)
SHALLOW = (
    Tile(64, 32, 0, 64, 1, 4, 4),
    Tile(32, 32, 0, 64, 1, 4, 4),
    Tile(16, 16, 0, 64, 4, 4, 4),
)
DEEP = (
    Tile(32, 32, 0, 64, 4, 4, 3),
    Tile(16, 32, 0, 128, 4, 4, 3),
    Tile(16, 16, 0, 128, 4, 4, 3),
)
PAIRS = {96: Tile(128, 64, 32, 32, 1, 4, 3), 192: Tile(64, 128, 64, 64, 1, 4, 3)}
"""Tiles for two consecutive convolutions, by their channels, all of which are in one tile."""
PAIR_ROWS = {96: 12_000, 192: 40_000}
"""Minimum rows for which the fused pair is faster than two launches."""


def choose_tile(rows: int, outputs: int, inputs: int) -> Tile:
    deep = inputs >= 1536
    for tile in LARGE + (DEEP if deep else SHALLOW):
        wide = tile.columns + tile.beside
        programs = triton.cdiv(rows, tile.rows) * (outputs // wide)
        enough = 100 if tile in LARGE else 90 if deep else 60
        if programs >= enough and outputs % wide == 0 and tile.rows <= max(16, rows):
            break
    return tile


def choose_pair_tile(x: Tensor) -> Tile | None:
    """Returns the tile for the two convolutions of a residual unit of x; None: launch them
    separately."""
    rows, channels = x.shape
    if x.dtype == torch.float32 or rows < PAIR_ROWS.get(channels, rows + 1):
        return None  # In fp32 it would not fit into the registers.
    return PAIRS[channels]


def convolve(
    streams: int,
    conv: Convolution,
    x: Tensor,
    *,
    between: "Snake | None" = None,
    second: "Convolution | None" = None,
    add: Tensor | None = None,
    keep: bool = False,
    snake: "Snake | None" = None,
    gelu: bool = False,
    to: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """`conv` of x, plus `add`, through `snake` or GELU.

    Args:
        streams: those of the call.
        x: packed, or padded by as many rows as `conv` looks back.
        between, second: what follows `conv` before the sum, of one tap and the same channels.
        add: packed, or padded by any number of rows.
        to: padded likewise: where what comes out is written.
        keep: what there is before the snake is returned.

    Returns: packed, what comes out if there is no `to`, or what is kept.
    """
    outputs, taps, channels = conv.weight.shape
    rows = x.shape[1] - conv.length if x.ndim == 3 else len(x) // streams
    total = streams * rows
    tile = tile or choose_tile(total, outputs, taps * channels)
    packed = x.new_empty(total if keep or to is None else 0, outputs)
    nothing = conv.bias
    wide = tile.columns + tile.beside
    assert second is None or wide == outputs
    assert max(x.numel(), total * outputs, 0 if to is None else to.numel()) < 1 << 31
    _convolve[(triton.cdiv(outputs, wide) * triton.cdiv(total, tile.rows),)](
        x,
        conv.weight,
        conv.bias,
        nothing if between is None else between.rate,
        nothing if between is None else between.depth,
        x if second is None else second.weight,
        nothing if second is None else second.bias,
        x if add is None else add,
        packed,
        packed if to is None else to,
        nothing if snake is None else snake.rate,
        nothing if snake is None else snake.depth,
        total,
        rows,
        x.shape[1] if x.ndim == 3 else rows,
        add.shape[1] if add is not None and add.ndim == 3 else rows,
        rows * conv.rows if to is None else to.shape[1],
        channels,
        taps * channels,
        outputs,
        outputs // conv.rows,
        conv.rows,
        conv.dilation,
        SECOND=second is not None,
        ADD=add is not None,
        KEEP=keep,
        SNAKE=snake is not None,
        GELU=gelu,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        BESIDE=tile.beside,
        DEPTH=min(tile.depth, channels & -channels),
        WAYS=tile.ways,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return packed.view(len(packed) * conv.rows, outputs // conv.rows)


@triton.jit
def _snake(x, rate, depth):
    """x + sin(x * rate)^2 * depth, with the sine in half turns and its square as a polynomial in
    the squared fraction, exact to 2e-7."""
    turns = x * (rate * 0.3183098861837907)
    # Adding and subtracting 1.5 * 2^23 rounds.
    turns -= (turns + 12582912.0) - 12582912.0
    z = turns * turns
    y = 12.98989200592041 - 3.2717056274414062 * z
    y = y * z - 30.085744857788086
    y = y * z + 42.72536087036133
    y = y * z - 32.469581604003906
    y = y * z + 9.869603157043457
    return x + y * z * depth


@triton.jit
def _snake_of(x, rates, depths, channel):
    return _snake(x, tl.load(rates + channel)[None, :], tl.load(depths + channel)[None, :])


@triton.jit(
    # Must not be specialized when they are 1 or divisible by 16.
    do_not_specialize=[
        "total", "rows", "x_rows", "add_rows", "out_rows", "row_outputs", "dilation"
    ]
)  # fmt: skip
def _convolve(
    x,
    weight,
    bias,
    between_rate,
    between_depth,
    second_weight,
    second_bias,
    add,
    kept,
    out,
    snake_rate,
    snake_depth,
    total,
    rows,
    x_rows,
    add_rows,
    out_rows,
    channels,
    inputs,
    outputs,
    out_channels,
    row_outputs,
    dilation,
    SECOND: tl.constexpr,
    ADD: tl.constexpr,
    KEEP: tl.constexpr,
    SNAKE: tl.constexpr,
    GELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BESIDE: tl.constexpr,
    DEPTH: tl.constexpr,
    WAYS: tl.constexpr,
):
    """`x_rows`, `add_rows`, `out_rows`: rows of a stream, those before the new ones included.
    `row_outputs`: rows that come out for each.

    Places are offsets of 32 bits: pointers of each row take registers that the sums need, and a
    twentieth of the time."""
    tiles = tl.cdiv(outputs, COLUMNS + BESIDE)
    start = tl.program_id(0) % tiles * (COLUMNS + BESIDE)
    row = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)
    real = row < total
    row = tl.minimum(row, total - 1)  # Those past the end repeat the last.
    number, inner = row // rows, row % rows
    x_at = (number * x_rows + inner) * channels
    column = start + tl.arange(0, COLUMNS)
    column_beside = start + COLUMNS + tl.arange(0, BESIDE if BESIDE else 1)
    w_at = tl.minimum(column, outputs - 1) * inputs
    beside_at = tl.minimum(column_beside, outputs - 1) * inputs
    if WAYS == 1:
        sum, beside = _sum(
            x, x_at, weight, w_at, beside_at, channels, inputs, dilation,
            ROWS, COLUMNS, BESIDE, DEPTH,
        )  # fmt: skip
    else:
        sum = _sum_ways(
            x, x_at, weight, w_at, channels, inputs, dilation, ROWS, COLUMNS, DEPTH, WAYS
        )  # fmt: skip
    if SECOND:
        y = _snake_of(sum + tl.load(bias + column)[None, :], between_rate, between_depth, column)
        y = y.to(x.dtype.element_ty)
        sum = _second(y, second_weight, column, column, outputs)
        if BESIDE:
            z = beside + tl.load(bias + column_beside)[None, :]
            z = _snake_of(z, between_rate, between_depth, column_beside).to(y.dtype)
            sum += _second(z, second_weight, column, column_beside, outputs)
            beside = _second(y, second_weight, column_beside, column, outputs)
            beside += _second(z, second_weight, column_beside, column_beside, outputs)
        bias = second_bias
    add_at = (number * add_rows + add_rows - rows + inner) * outputs
    out_at = (number * out_rows + out_rows - rows * row_outputs) * out_channels + inner * outputs
    _put(
        sum, column, real, outputs, out_channels, bias, add, add_at, kept, row * outputs, out,
        out_at, snake_rate, snake_depth, ADD, KEEP, SNAKE, GELU,
    )  # fmt: skip
    if BESIDE:
        _put(
            beside, column_beside, real, outputs, out_channels, bias, add, add_at, kept,
            row * outputs, out, out_at, snake_rate, snake_depth, ADD, KEEP, SNAKE, GELU,
        )  # fmt: skip


@triton.jit
def _second(y, weight, column, seen, inputs):
    w = tl.load(weight + column[None, :] * inputs + seen[:, None])
    return tl.dot(y, w, input_precision="ieee")


@triton.jit
def _put(
    y, column, real, outputs, out_channels, bias, add, add_at, kept, kept_at, out, out_at, rates,
    depths, ADD: tl.constexpr, KEEP: tl.constexpr, SNAKE: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """The operations after the product; `add_at`, `kept_at` and `out_at` are of each row."""
    there = column < outputs
    real = real[:, None] & there[None, :]
    y += tl.load(bias + column, mask=there, other=0.0)[None, :]
    if ADD:
        y += tl.load(add + (add_at[:, None] + column[None, :]), mask=real, other=0.0)
    if KEEP:
        at = kept_at[:, None] + column[None, :]
        tl.store(kept + at, y.to(kept.dtype.element_ty), mask=real)
    if SNAKE:
        y = _snake_of(y, rates, depths, tl.where(there, column, 0) % out_channels)
    if GELU:
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    tl.store(out + (out_at[:, None] + column[None, :]), y.to(out.dtype.element_ty), mask=real)


@triton.jit
def _sum(
    x, x_at, weight, w_at, beside_at, channels, inputs, dilation,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BESIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Multiplies rows of x by outputs of the weight, and by those beside them."""
    depth = tl.arange(0, DEPTH)
    sum = tl.zeros([ROWS, COLUMNS], tl.float32)
    beside = tl.zeros([ROWS, BESIDE if BESIDE else 1], tl.float32)
    channel, seen = 0, 0
    for start in tl.range(0, inputs, DEPTH):
        y = tl.load(x + (x_at[:, None] + (seen + depth)[None, :]))
        w = tl.load(weight + (w_at[None, :] + (start + depth)[:, None]))
        sum = tl.dot(y, w, sum, input_precision="ieee")
        if BESIDE:
            w = tl.load(weight + (beside_at[None, :] + (start + depth)[:, None]))
            beside = tl.dot(y, w, beside, input_precision="ieee")
        channel += DEPTH
        over = channel == channels
        seen += DEPTH + tl.where(over, (dilation - 1) * channels, 0)
        channel = tl.where(over, 0, channel)
    return sum, beside


@triton.jit
def _sum_ways(
    x, x_at, weight, w_at, channels, inputs, dilation,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    """`_sum` with the inputs split over the warps (the first axis): with few rows the sum is bound
    by latency, not by its operands."""
    depth = tl.arange(0, DEPTH)
    sum = tl.zeros([WAYS, ROWS, COLUMNS], tl.float32)
    for start in tl.range(0, inputs, WAYS * DEPTH):
        first = start + tl.arange(0, WAYS) * DEPTH
        there = (first < inputs)[:, None, None]
        seen = first // channels * dilation * channels + first % channels
        at = x_at[None, :, None] + (seen[:, None] + depth[None, :])[:, None, :]
        y = tl.load(x + at, mask=there, other=0.0)
        at = w_at[None, None, :] + (first[:, None] + depth[None, :])[:, :, None]
        w = tl.load(weight + at, mask=there, other=0.0)
        sum = tl.dot(y, w, sum, input_precision="ieee")
    return tl.sum(sum, 0)
