# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"
"""The draws of `sampling` as Triton kernels: a program a row, and `draw_code` for other kernels.

The k-th largest is found without a sort: the bits of a float, a little changed, are an integer of
the same order, and each round counts how many logits are at least as large as three candidates for
its next two bits. Logits that come in bf16 and have no penalty differ in the upper 16 bits alone.

The same code comes out as from torch as long as products and sums are rounded one by one: kernels
that use `draw_code` are to be launched with enable_fp_fusion=False, or a logarithm may be off by
its last bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from offhook.pipeline.engines.shared.qwen3 import config, sampling
from offhook.pipeline.engines.shared.qwen3.sampling import Draw

WARPS = 4
FIRST_WARPS = 8
"""For first codes, which are more and compared in 32 bits: 512 rows in 47 us instead of 65."""


def sample_first(logits: Tensor, draw: Draw, end: int) -> Tensor:
    """`sampling.sample_first_reference`."""
    of = (draw.temperature, draw.top_k)
    return _launch(logits, draw, 0, *of, first=True, end=end, bits=32)


def sample(logits: Tensor, draw: Draw, codebook: int) -> Tensor:
    """`sampling.sample_reference`."""
    of = (draw.predictor_temperature, draw.predictor_top_k)
    bits = 16 if logits.dtype == torch.bfloat16 else 32
    return _launch(logits, draw, codebook, *of, first=False, end=0, bits=bits)


def _launch(
    logits: Tensor,
    draw: Draw,
    codebook: int,
    temperature: Tensor,
    top_k: Tensor,
    *,
    first: bool,
    end: int,
    bits: int,
) -> Tensor:
    rows, count = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _sample[(rows,)](
        logits,
        draw.seeds,
        draw.frames,
        temperature,
        top_k,
        draw.penalty,
        draw.seen,
        out,
        logits.stride(0),
        codebook,
        end,
        COUNT=count,
        BLOCK=triton.next_power_of_2(count),
        BITS=bits,
        FIRST=first,
        num_warps=FIRST_WARPS if first else WARPS,
        enable_fp_fusion=False,
    )
    return out


KEY_STEP = tl.constexpr(sampling.KEY_STEP)
KEY_FACTOR_1 = tl.constexpr(sampling.KEY_FACTORS[0])
KEY_FACTOR_2 = tl.constexpr(sampling.KEY_FACTORS[1])
STEP = tl.constexpr(sampling.STEP)
FACTOR_1 = tl.constexpr(sampling.FACTORS[0])
FACTOR_2 = tl.constexpr(sampling.FACTORS[1])
ROOT_HALF_BITS = tl.constexpr(sampling.ROOT_HALF_BITS)
LN_2 = tl.constexpr(sampling.LN_2)
CODEBOOKS = tl.constexpr(config.CODEBOOKS)
MIN_FRAMES = tl.constexpr(sampling.MIN_FRAMES)
RESERVED = tl.constexpr(sampling.RESERVED)


@triton.jit
def draw_code(
    values, seed, frame, codebook, temperature, top_k, COUNT: tl.constexpr, BITS: tl.constexpr
):
    """The code drawn from a row of logits, fp32, a power of two of them, those past COUNT -inf.

    seed, frame: int64. BITS: 16 when all logits are numbers of bf16, or else 32.
    """
    code = tl.arange(0, values.shape[0])
    k = tl.where((top_k > 0) & (top_k < COUNT), top_k, COUNT)
    order = _order(values)
    kept = order >= _kth_largest(order, k, BITS)
    scores = tl.div_rn(values, tl.zeros_like(values) + temperature)
    scores += _gumbel(_uniform(seed, frame, codebook, code))
    return tl.argmax(tl.where(kept, scores, float("-inf")), 0).to(tl.int64)


@triton.jit
def _order(values):
    """uint32 in the order of the values; the upper 16 bits are enough for numbers of bf16."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0
    return (bits ^ ((bits >> 31) | -2147483648)).to(tl.uint32, bitcast=True)


@triton.jit
def _kth_largest(order, k, BITS: tl.constexpr):
    """The k-th largest; its lower 32 - BITS bits, in which the numbers do not differ, are left 0,
    and it is then at most as large as the number that it stands for."""
    found = tl.zeros_like(tl.max(order, 0))
    for round in tl.static_range(BITS // 2):
        one = tl.full([], 1 << (30 - 2 * round), tl.uint32)
        # Three counts in one sum.
        counts = (order >= found + one).to(tl.int64)
        counts += (order >= found + 2 * one).to(tl.int64) << 20
        counts += (order >= found + 3 * one).to(tl.int64) << 40
        counted = tl.sum(counts, 0)
        steps = ((counted & 0xFFFFF) >= k).to(tl.uint32)
        steps += (((counted >> 20) & 0xFFFFF) >= k).to(tl.uint32)
        steps += ((counted >> 40) >= k).to(tl.uint32)
        found += steps * one
    return found


@triton.jit
def _uniform(seed, frame, codebook, code):
    """`sampling.uniform`."""
    key = seed.to(tl.uint64) + (frame * CODEBOOKS + codebook + 1).to(tl.uint64) * KEY_STEP
    key = (key ^ (key >> 30)) * KEY_FACTOR_1
    key = (key ^ (key >> 27)) * KEY_FACTOR_2
    key ^= key >> 31
    x = key.to(tl.uint32) + code.to(tl.uint32) * STEP
    x = (x ^ (x >> 16)) * FACTOR_1
    x = x ^ (x >> 15) ^ (key >> 32).to(tl.uint32)
    x *= FACTOR_2
    x ^= x >> 16
    return ((x >> 9) * 2 + 1).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _gumbel(numbers):
    """`sampling.gumbel`."""
    return -_log(-_log(numbers))


@triton.jit
def _log(x):
    """`sampling.log`."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - ROOT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    s = tl.div_rn(f, f + 2.0)
    z = s * s
    series = z * (z * (z * (z * (1 / 9) + 1 / 7) + 1 / 5) + 1 / 3) + 1.0
    return s * 2.0 * series + exponent.to(tl.float32) * LN_2


@triton.jit
def _sample(
    logits,
    seeds,
    frames,
    temperatures,
    top_ks,
    penalties,
    seen,
    out,
    stride,
    codebook,
    end,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
    FIRST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    code = tl.arange(0, BLOCK)
    real = code < COUNT
    values = tl.load(logits + row * stride + code, mask=real, other=float("-inf")).to(tl.float32)
    frame = tl.load(frames + row)
    if FIRST:
        penalty = tl.zeros_like(values) + tl.load(penalties + row)
        penalised = tl.where(values < 0, values * penalty, tl.div_rn(values, penalty))
        had = tl.load(seen + row * COUNT + code, mask=real, other=0) != 0
        values = tl.where(had, penalised, values)
        banned = (code >= COUNT - RESERVED) & (code != end)
        banned |= (code == end) & (frame < MIN_FRAMES)
        values = tl.where(banned, float("-inf"), values)
    drawn = draw_code(
        values, tl.load(seeds + row), frame, codebook,
        tl.load(temperatures + row), tl.load(top_ks + row), COUNT, BITS,
    )  # fmt: skip
    tl.store(out + row, drawn)
