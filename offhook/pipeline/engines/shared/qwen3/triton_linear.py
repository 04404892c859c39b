# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"
"""The products of `linear` as Triton kernels, for few rows and made for an H200 (sm_90).

With few rows a product takes as long as its weights take to be read, so every processor must
always be waiting for some. A program takes a few outputs and all inputs. What stands before the
product (a norm) and behind it (gate, sum) is done in the same launch; each program norms the row
again for itself.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


def linear(
    x: Tensor,
    weight: Tensor,
    scales: Tensor | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    add_to: Tensor | None = None,
) -> Tensor:
    """One row x [1, inputs] times a weight [outputs, inputs], outputs a multiple of 16.

    Args:
        weight: of the type of x, or codes of 8 bits, to be multiplied by the scales.
        scales: fp32 [outputs].
        norm: weight of an RMSNorm of x.
        gated: the outputs, gates first, become their `silu_mul`.
        add_to: [1, outputs], gets the sum and is returned.
    """
    outputs, inputs = weight.shape
    columns = 16 if outputs >= 2048 else 8  # 128 programs at least for 132 processors
    out = add_to
    if out is None:
        out = torch.empty((1, outputs // 2 if gated else outputs), dtype=x.dtype, device=x.device)
    _one_row[(outputs // columns,)](
        x,
        weight,
        x if scales is None else scales,
        x if norm is None else norm,
        out,
        eps,
        INPUTS=inputs,
        OUTPUTS=outputs,
        COLUMNS=columns,
        DEPTH=_depth(inputs, 256),
        STEP=_depth(inputs, 4096),
        SCALED=scales is not None,
        NORM=norm is not None,
        GATED=gated,
        ADD=add_to is not None,
        num_warps=8,
        num_stages=1,
    )
    return out


def _depth(inputs: int, most: int) -> int:
    """Returns the largest power of two up to `most` that divides `inputs`."""
    return min(inputs & -inputs, most)


@triton.jit
def _sum_terms(
    x, weight, norm_weight, column, scale, INPUTS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Dot products of one row with some rows of the weight, without tensor cores: fp32
    [COLUMNS]."""
    terms = tl.zeros([COLUMNS, DEPTH], tl.float32)
    for start in tl.static_range(0, INPUTS, DEPTH):
        # x is read as often as there are columns, so that it lies beside the weights.
        channel = tl.broadcast_to(start + tl.arange(0, DEPTH)[None, :], (COLUMNS, DEPTH))
        w = tl.load(weight + column[:, None] * INPUTS + channel, eviction_policy="evict_first")
        y = tl.load(x + channel)
        if NORM:  # rounded as a norm of its own would round it
            z = y.to(tl.float32) * scale * tl.load(norm_weight + channel).to(tl.float32)
            y = z.to(y.dtype)
        terms += w.to(tl.float32) * y.to(tl.float32)
    return tl.sum(terms, 1)


@triton.jit
def _one_row(
    x,
    weight,
    scales,
    norm_weight,
    out,
    eps,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STEP: tl.constexpr,
    SCALED: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
):
    output = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    column = output
    if GATED:  # A gate and its factor are neighbours.
        column = output // 2 + output % 2 * (OUTPUTS // 2)
    scale = 1.0
    if NORM:
        squares = tl.zeros([STEP], tl.float32)
        for start in tl.static_range(0, INPUTS, STEP):
            y = tl.load(x + start + tl.arange(0, STEP)).to(tl.float32)
            squares += y * y
        scale = tl.rsqrt(tl.sum(squares, 0) / INPUTS + eps)
    sum = _sum_terms(x, weight, norm_weight, column, scale, INPUTS, COLUMNS, DEPTH, NORM)
    if SCALED:
        sum *= tl.load(scales + column)
    if GATED:
        gate, up = tl.split(tl.reshape(sum.to(x.dtype.element_ty), [COLUMNS // 2, 2]))
        gate = gate.to(tl.float32)
        sum = gate * tl.sigmoid(gate) * up.to(tl.float32)
        output = tl.program_id(0) * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    if ADD:
        sum += tl.load(out + output).to(tl.float32)
    tl.store(out + output, sum.to(out.dtype.element_ty))


def few_rows(x: Tensor, codes: Tensor, scales: Tensor, add_to: Tensor | None = None) -> Tensor:
    """Up to 16 rows x [rows, inputs], inputs a multiple of 512, times codes int8 [outputs, inputs],
    outputs a multiple of 32, times scales fp32 [outputs]; added to `add_to` [rows, outputs], which
    is then returned."""
    rows, inputs = x.shape
    outputs = len(codes)
    # 16 are the least a tensor core takes; with 32, half as many programs read the same x.
    columns = 32 if outputs >= 6144 else 16
    out = add_to
    if out is None:
        out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    _few_rows[(outputs // columns,)](
        x,
        codes,
        scales,
        out,
        rows,
        INPUTS=inputs,
        OUTPUTS=outputs,
        ROWS=16,
        COLUMNS=columns,
        DEPTH=128,
        WAYS=4,
        ADD=add_to is not None,
        num_warps=4,
        num_stages=4,
    )
    return out


@triton.jit(do_not_specialize=["rows"])
def _few_rows(
    x,
    codes,
    scales,
    out,
    rows,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    WAYS: tl.constexpr,
    ADD: tl.constexpr,
):
    """Weights are the left factor, widened in registers. Each warp sums its own part of the inputs
    (the first axis), so that few outputs still keep many loads under way."""
    way = tl.arange(0, WAYS)[:, None, None] * DEPTH
    output = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    w_at = codes + output[None, :, None] * INPUTS + way + tl.arange(0, DEPTH)[None, None, :]
    x_at = x + row[None, None, :] * INPUTS + way + tl.arange(0, DEPTH)[None, :, None]
    sums = tl.zeros([WAYS, COLUMNS, ROWS], tl.float32)
    for start in tl.range(0, INPUTS, WAYS * DEPTH):
        w = tl.load(w_at + start)
        y = tl.load(x_at + start, mask=row[None, None, :] < rows, other=0.0)
        sums = tl.dot(w.to(y.dtype), y, sums, input_precision="ieee")
    sum = tl.sum(sums, 0) * tl.load(scales + output)[:, None]
    at = out + row[None, :] * OUTPUTS + output[:, None]
    real = row[None, :] < rows
    if ADD:
        sum += tl.load(at, mask=real, other=0.0).to(tl.float32)
    tl.store(at, sum.to(out.dtype.element_ty), mask=real)


class ArgmaxTile(NamedTuple):
    """Rows, outputs and inputs per program and iteration; its warps, and its pipeline stages."""

    rows: int
    """1: plain arithmetic; more: tensor cores."""
    columns: int
    depth: int
    warps: int
    stages: int


# For a vocabulary; the first that has the rows.
ARGMAX_TILES = (
    ArgmaxTile(1, 32, 256, 8, 1),
    ArgmaxTile(16, 64, 128, 4, 4),
    ArgmaxTile(32, 64, 128, 4, 4),
)


def argmax_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`linear.argmax_linear` of up to 32 rows."""
    rows, inputs = x.shape
    outputs = len(weight)
    tile = next(tile for tile in ARGMAX_TILES if rows <= tile.rows)
    tiles = triton.cdiv(outputs, tile.columns)
    best = torch.empty((rows, tiles), dtype=torch.float32, device=x.device)
    at = torch.empty((rows, tiles), dtype=torch.int32, device=x.device)
    out = torch.empty(rows, dtype=torch.int64, device=x.device)
    _tile_argmax[(tiles,)](
        x,
        weight,
        best,
        at,
        rows,
        INPUTS=inputs,
        OUTPUTS=outputs,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=_depth(inputs, tile.depth),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    block = triton.next_power_of_2(tiles)
    _argmax[(rows,)](best, at, out, TILES=tiles, BLOCK=block, num_warps=8)
    return out


@triton.jit(do_not_specialize=["rows"])
def _tile_argmax(
    x,
    weight,
    best,
    at,
    rows,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The largest output of each row among those of this program, and the first that is as large.

    Outputs are rounded to the type of x, as they would be in memory.
    """
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    if OUTPUTS % COLUMNS != 0:  # Those past the end repeat the last, and of equals the first counts
        column = tl.minimum(column, OUTPUTS - 1)
    if ROWS == 1:
        sum = _sum_terms(x, weight, x, column, 1.0, INPUTS, COLUMNS, DEPTH, False)[None, :]
    else:
        sum = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in tl.range(0, INPUTS, DEPTH):
            channel = start + tl.arange(0, DEPTH)[None, :]
            w = tl.load(weight + column[:, None] * INPUTS + channel, eviction_policy="evict_first")
            y = tl.load(x + row[:, None] * INPUTS + channel, mask=row[:, None] < rows, other=0.0)
            sum = tl.dot(y, tl.trans(w), sum, input_precision="ieee")
    y = sum.to(x.dtype.element_ty).to(tl.float32)
    largest, first = tl.max(y, 1, return_indices=True)
    place = row * tl.num_programs(0) + tl.program_id(0)
    tl.store(best + place, largest, mask=row < rows)
    tl.store(at + place, tl.program_id(0) * COLUMNS + first, mask=row < rows)


@triton.jit
def _argmax(best, at, out, TILES: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    tile = tl.arange(0, BLOCK)
    value = tl.load(best + row * TILES + tile, mask=tile < TILES, other=float("-inf"))
    # Tiles are in the order of their outputs: the first of the largest holds the lowest index.
    _, first = tl.max(value, 0, return_indices=True)
    tl.store(out + row, tl.load(at + row * TILES + first).to(tl.int64))
