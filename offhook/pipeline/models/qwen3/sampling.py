"""How a code is drawn from logits: what is kept of them, and the random numbers.

The rules are those of transformers' `generate`, in its order: repetition penalty, codes that may
not come yet or ever, temperature, top-k. A draw is the largest of logit / temperature + Gumbel
noise among what is kept (Gumbel-max), which is distributed as a draw from the softmax; it needs no
sum and no sort.

Random numbers are counted, not kept: each is a hash of the stream's seed, the frame, the codebook
and the code it is for. So a stream draws the same whatever batch it is in, on every device, in this
plain torch and in the Triton kernels of `triton_sampling`, which a GPU runs: noise is computed of
integers and of sums, products and quotients that IEEE 754 defines to the last bit.

Nothing waits for the device: calls can be captured in a CUDA graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MIN_FRAMES = 2
"""Before these many frames a stream does not end."""
RESERVED = 1024
"""Codes at the end of the talker's vocabulary that are said to it and never by it, but for the
end."""
CODEBOOKS = 16
"""Of a frame; random numbers of its codebooks are counted with room for as many."""

# SplitMix64 (Steele, Lea, Flood 2014) makes the key of a draw: the step of its counter and the two
# factors of its mixing. A 32-bit mixing of two rounds ("lowbias32", Wellons 2018) makes the numbers
# of a key, half of which comes between the rounds.
KEY_STEP = 0x9E3779B97F4A7C15
KEY_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
STEP = 0x9E3779B9
FACTORS = (0x7FEB352D, 0x846CA68B)
LOW = 0xFFFFFFFF
ROOT_HALF_BITS = 0x3F3504F3
"""Of the fp32 next to the root of 1/2."""
LN_2 = 0.6931471805599453


@dataclass
class Draw:
    """How the codes of one frame of B streams are drawn. Temperatures are above 0; a top_k of 0
    keeps all, of 1 the largest logit alone."""

    seeds: Tensor
    """int64 [B], of each stream."""
    frames: Tensor
    """int64 [B], number of the frame in its stream."""
    temperature: Tensor
    """fp32 [B]."""
    top_k: Tensor
    """int64 [B]."""
    penalty: Tensor
    """fp32 [B], of the repetition of a first code."""
    seen: Tensor
    """bool [B, codes], which first codes the stream has had."""
    predictor_temperature: Tensor
    """fp32 [B], of the codes after the first."""
    predictor_top_k: Tensor
    """int64 [B]."""


def sample_first_reference(logits: Tensor, draw: Draw, end: int) -> Tensor:
    """The first codes, int64 [B], of logits [B, codes], fp32 or bf16. end: the code that ends a
    stream; see MIN_FRAMES and RESERVED."""
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
    """The codes of a codebook after the first, int64 [B], of logits [B, codes], fp32 or bf16."""
    of = (draw.predictor_temperature, draw.predictor_top_k)
    return _draw(logits.float(), draw.seeds, draw.frames, codebook, *of)


def _draw(
    values: Tensor, seeds: Tensor, frames: Tensor, codebook: int, temperature: Tensor, top_k: Tensor
) -> Tensor:
    count = values.shape[1]
    k = torch.where((top_k > 0) & (top_k < count), top_k, count)
    least = values.sort(1, descending=True).values.gather(1, k[:, None] - 1)
    # What is as large as the k-th is kept as well.
    scores = values / temperature[:, None] + gumbel(uniform(seeds, frames, codebook, count))
    return scores.masked_fill(values < least, -torch.inf).argmax(1)


def gumbel(numbers: Tensor) -> Tensor:
    """Gumbel noise of uniform random numbers, fp32."""
    return -log(-log(numbers))


def log(x: Tensor) -> Tensor:
    """The natural logarithm of normal positive numbers, fp32, to a few units in the last place: of
    operations that come out the same everywhere, which those of the devices' libraries do not."""
    bits = x.view(torch.int32)
    exponent = (bits - ROOT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).view(torch.float32) - 1  # of what is within 1/√2 and √2
    s = f / (f + 2)  # ln(1 + f) = 2 artanh(s)
    z = s * s
    series = z * (z * (z * (z * (1 / 9) + 1 / 7) + 1 / 5) + 1 / 3) + 1
    return s * 2 * series + exponent.float() * LN_2


def uniform(seeds: Tensor, frames: Tensor, codebook: int, count: int) -> Tensor:
    """`count` random numbers for each stream's frame and one of its codebooks, fp32 [B, count],
    odd multiples of 2^-24 between 0 and 1. seeds, frames: int64 [B]."""
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
    """An unsigned number of 64 bits as torch takes it; products wrap around."""
    return value - (1 << 64) if value >> 63 else value


def _shifted(x: Tensor, by: int) -> Tensor:
    """To the right, as if unsigned."""
    return (x >> by) & ((1 << (64 - by)) - 1)
