"""Samples codes from logits: the filters, and the random numbers.

The rules are those of transformers' `generate`, in its order: repetition penalty, suppressed codes,
temperature, top-k. A sample is the argmax of logit / temperature + Gumbel noise among the codes
kept (Gumbel-max), which is distributed like a sample from the softmax but needs no sum or sort.

Random numbers are counter-based: each is a hash of the stream's seed, the frame, the codebook and
the code. So a stream's samples do not depend on its batch or device, and are equal in this plain
torch and in the Triton kernels of `triton_sampling`: the noise uses integers and operations that
IEEE 754 defines exactly.

Nothing waits for the device, so calls can be captured in a CUDA graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from offhook.pipeline.engines.shared.qwen3.config import CODEBOOKS

MIN_FRAMES = 2
"""Number of frames before which a stream cannot end."""
RESERVED = 1024
"""Codes at the end of the talker's vocabulary that are inputs only, except for the end-of-stream
code."""

# SplitMix64 (Steele, Lea, Flood 2014) derives a draw's key: the step of its counter and the two
# factors of its mixing. A two-round 32-bit mix ("lowbias32", Wellons 2018) derives the numbers of a
# key, half of which enters between the rounds.
KEY_STEP = 0x9E3779B97F4A7C15
KEY_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
STEP = 0x9E3779B9
FACTORS = (0x7FEB352D, 0x846CA68B)
LOW = 0xFFFFFFFF
ROOT_HALF_BITS = 0x3F3504F3
"""Bits of the fp32 nearest to the square root of 1/2."""
LN_2 = 0.6931471805599453


@dataclass
class Draw:
    """Sampling parameters of one frame of B streams. Temperatures are positive; top_k 0 keeps all
    codes, 1 only the largest logit."""

    seeds: Tensor
    """int64 [B], seed of each stream."""
    frames: Tensor
    """int64 [B], frame number in the stream."""
    temperature: Tensor
    """fp32 [B]."""
    top_k: Tensor
    """int64 [B]."""
    penalty: Tensor
    """fp32 [B], repetition penalty of first codes."""
    seen: Tensor
    """bool [B, codes], first codes that the stream has already produced."""
    predictor_temperature: Tensor
    """fp32 [B], for codes after the first."""
    predictor_top_k: Tensor
    """int64 [B], for codes after the first."""


def sample_first_reference(logits: Tensor, draw: Draw, end: int) -> Tensor:
    """Samples first codes, int64 [B], from logits [B, codes] (fp32 or bf16). `end` is the
    end-of-stream code; see MIN_FRAMES and RESERVED."""
    count = logits.shape[1]
    values, penalty = logits.float(), draw.penalty[:, None]
    penalised = torch.where(values < 0, values * penalty, values / penalty)
    values = torch.where(draw.seen, penalised, values)
    code = torch.arange(count, device=logits.device)
    never = (code >= count - RESERVED) & (code != end)
    early = (code == end) & (draw.frames < MIN_FRAMES)[:, None]
    values = values.masked_fill(never | early, -torch.inf)
    return _draw(values, draw.seeds, draw.frames, 0, draw.temperature, draw.top_k)


def sample_reference(logits: Tensor, draw: Draw, codebook: int) -> Tensor:
    """Samples codes of a later codebook, int64 [B], from logits [B, codes] (fp32 or bf16)."""
    of = (draw.predictor_temperature, draw.predictor_top_k)
    return _draw(logits.float(), draw.seeds, draw.frames, codebook, *of)


def _draw(
    values: Tensor, seeds: Tensor, frames: Tensor, codebook: int, temperature: Tensor, top_k: Tensor
) -> Tensor:
    count = values.shape[1]
    k = torch.where((top_k > 0) & (top_k < count), top_k, count)
    least = values.sort(1, descending=True).values.gather(1, k[:, None] - 1)
    # Values equal to the k-th are kept as well.
    scores = values / temperature[:, None] + gumbel(uniform(seeds, frames, codebook, count))
    return scores.masked_fill(values < least, -torch.inf).argmax(1)


def gumbel(numbers: Tensor) -> Tensor:
    """Converts uniform random numbers to Gumbel noise, fp32."""
    return -log(-log(numbers))


def log(x: Tensor) -> Tensor:
    """Natural logarithm of normal positive fp32 numbers, accurate to a few ulp and bit-identical on
    every device, unlike the devices' own libraries."""
    bits = x.view(torch.int32)
    exponent = (bits - ROOT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).view(torch.float32) - 1  # for numbers between 1/√2 and √2
    s = f / (f + 2)  # ln(1 + f) = 2 artanh(s)
    z = s * s
    series = z * (z * (z * (z * (1 / 9) + 1 / 7) + 1 / 5) + 1 / 3) + 1
    return s * 2 * series + exponent.float() * LN_2


def uniform(seeds: Tensor, frames: Tensor, codebook: int, count: int) -> Tensor:
    """Returns `count` random numbers per stream for a frame and codebook, fp32 [B, count], odd
    multiples of 2^-24 in (0, 1). seeds, frames: int64 [B]."""
    key = seeds + (frames * CODEBOOKS + (codebook + 1)) * _signed(KEY_STEP)
    for shift, factor in zip((30, 27), KEY_FACTORS, strict=True):
        key = (key ^ _shifted(key, shift)) * _signed(factor)
    key = (key ^ _shifted(key, 31))[:, None]
    x = ((key & LOW) + torch.arange(count, device=seeds.device) * STEP) & LOW
    x = ((x ^ (x >> 16)) * FACTORS[0]) & LOW
    x = x ^ (x >> 15) ^ _shifted(key, 32)
    x = (x * FACTORS[1]) & LOW
    x = x ^ (x >> 16)
    return ((x >> 9) * 2 + 1).float() * 2**-24


def _signed(value: int) -> int:
    """Converts an unsigned 64-bit number to torch's int64; products wrap around."""
    return value - (1 << 64) if value >> 63 else value


def _shifted(x: Tensor, by: int) -> Tensor:
    """Shifts right logically."""
    return (x >> by) & ((1 << (64 - by)) - 1)
