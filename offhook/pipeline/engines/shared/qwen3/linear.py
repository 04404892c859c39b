"""Products with a weight of the decoder, and what stands right before and behind them in a layer.

One row on a GPU, the decode step of one stream, takes as long as its weights take to be read: then
each function is one Triton kernel (`triton_linear`). With more rows, or anywhere else, it is the
product of torch with the operations of `attention` around it; docs/choices.md compares the two. The
encoder has tens of rows at least and is plain torch.

x is [T, inputs], contiguous. Floats are fp32 or bf16; norms, sums and activations are in fp32.
Nothing waits for the device: calls can be captured in a CUDA graph once they have run outside one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.pipeline.engines.shared.qwen3 import attention

ARGMAX_ROWS = 32
"""Maximum rows for which the argmax is computed without storing logits: 83 us versus 87 with one
row, 92 versus 101 with 32. Reading the head's weight takes 72 us."""
CODE_ROWS = {torch.float8_e4m3fn: 1, torch.int8: 16}
"""Rows up to which 8-bit weights are faster than 16-bit ones, by the type of the codes."""


class Linear(nn.Linear):
    """nn.Linear without random initialization, which would take long; its weights are loaded."""

    codes: tuple[Tensor, Tensor] | None = None
    """Optional 8-bit copy of the weight: codes [outputs, inputs] and fp32 scales [outputs]; see
    `qwen3_asr.quantize`."""

    def reset_parameters(self) -> None:
        pass


def norm_linear(x: Tensor, norm_weight: Tensor, eps: float, layer: Linear) -> Tensor:
    """Returns `attention.rms_norm` of x times the weight, [T, outputs]."""
    if not (x.is_cuda and len(x) == 1):
        return _product(attention.rms_norm(x, norm_weight, eps), layer)
    from offhook.pipeline.engines.shared.qwen3 import triton_linear

    return triton_linear.linear(x, *_least(layer), norm=norm_weight, eps=eps)


def norm_silu_linear(x: Tensor, norm_weight: Tensor, eps: float, layer: Linear) -> Tensor:
    """Returns `norm_linear` followed by `attention.silu_mul`, [T, outputs / 2]."""
    if not (x.is_cuda and len(x) == 1):
        return attention.silu_mul(norm_linear(x, norm_weight, eps, layer))
    from offhook.pipeline.engines.shared.qwen3 import triton_linear

    return triton_linear.linear(x, *_least(layer), norm=norm_weight, eps=eps, gated=True)


def add_linear_(residual: Tensor, x: Tensor, layer: Linear) -> Tensor:
    """Adds x times the weight to the residual [T, outputs] in place and returns it."""
    if not (x.is_cuda and len(x) == 1):
        return _product(x, layer, residual)
    from offhook.pipeline.engines.shared.qwen3 import triton_linear

    return triton_linear.linear(x, *_least(layer), add_to=residual)


def _least(layer: Linear) -> tuple[Tensor, Tensor | None]:
    """Returns the weight with the fewest bits available, and its scales."""
    return layer.codes or (layer.weight, None)


def _product(x: Tensor, layer: Linear, add_to: Tensor | None = None) -> Tensor:
    weight = layer.weight
    if layer.codes is not None and len(x) <= CODE_ROWS[layer.codes[0].dtype]:
        codes, scales = layer.codes
        if x.is_cuda:
            from offhook.pipeline.engines.shared.qwen3 import triton_linear

            return triton_linear.few_rows(x, codes, scales, add_to)
        weight = (codes.float() * scales[:, None]).to(x.dtype)
    if add_to is None:
        return F.linear(x, weight)
    return add_to.addmm_(x, weight.t())  # One launch, and one rounding less.


def argmax_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Returns the index of the largest output of each row, int64 [T], the lowest among equals.
    Outputs are rounded to the type of x before comparison. `weight` is [outputs, inputs],
    contiguous."""
    if not (x.is_cuda and len(x) <= ARGMAX_ROWS):
        return torch.argmax(F.linear(x, weight), -1)
    from offhook.pipeline.engines.shared.qwen3 import triton_linear

    return triton_linear.argmax_linear(x, weight)
