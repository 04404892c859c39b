"""The weights of the decoder in 8 bits beside those in bf16, for decode steps of few streams.

Such a step waits for its weights, not for arithmetic, so half the bytes are up to half the time.
Each weight is rounded once, with a scale for each output; activations stay as they are. What has
more rows takes the weights in bf16 as before: above all the check of a draft, which judges each
word again at the next update; the last words of an utterance have no such judge. The price is half
of the layers' memory again, 0.4 GB for the 0.6B.

On an H200, in us, the four products of a layer of the 0.6B (activations in 8 bits: with their
rounding, by `torch._scaled_mm` and by a Triton kernel):

    rows                       1     8    16    32    64   128   512  2048
    bf16                    18.2  24.4  24.9  25.2  25.8  27.3  35.8  97.5
    fp8-weights             13.0     as bf16
    int8-weights            17.2  22.8  22.4     as bf16
    not here:
    fp8 weights             13.0  26.3  25.4
    fp8, activations too    from 38.5 to 40.0                   46.0  83.6
    int8, activations too                        35  30.6  31.7  45.2  113.9
    int8 weights, widened to bf16 ahead of the product: 90 and more

Rounded activations win above a thousand rows alone, and cost the most. Of 28 layers with random
weights and six loud channels the hidden state is off by 0.04 in bf16, by 0.09 with int8-weights and
0.28 with fp8-weights (these two in fp32 otherwise), and by 0.45 and 0.44 where activations are in
int8 and fp8 too.
"""

from typing import Literal

import torch
from torch import Tensor

from offhook.pipeline.engines.qwen3_asr.model.model import Qwen3Asr
from offhook.pipeline.engines.shared.qwen3.linear import Linear

Scheme = Literal["fp8-weights", "int8-weights"]
CODES = {"fp8-weights": torch.float8_e4m3fn, "int8-weights": torch.int8}
LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""Code of a row's largest magnitude; int8 is symmetric."""
SMALLEST_SCALE = 1e-12
"""Scale of a row of zeros."""


def quantize(model: Qwen3Asr, scheme: Scheme) -> None:
    """Adds 8-bit copies of the decoder's linear weights: "fp8-weights" (e4m3) is faster,
    "int8-weights" more accurate."""
    for part in model.decoder.modules():
        if isinstance(part, Linear):
            part.codes = quantize_rows(part.weight, CODES[scheme])


def quantize_rows(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns codes [outputs, inputs] in `dtype`, rounded to nearest, and an fp32 scale per
    output."""
    weight = weight.float()
    scales = weight.abs().amax(1).clamp(min=SMALLEST_SCALE) / LARGEST[dtype]
    codes = weight / scales[:, None]
    return (codes.round() if dtype == torch.int8 else codes).to(dtype), scales
