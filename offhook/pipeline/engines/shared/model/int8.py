"""Matrix products in 8 bits on a CPU.

Weights are rounded once, with a scale for each output; inputs at each product, with a scale for
each row. The sums are of integers and thus exact, so the result of a row does not depend on the
rows beside it: what a stream says never depends on its company in a batch.

A product of few rows takes as long as its weights take to be read from memory, so a quarter of the
bytes is up to a quarter of the time, more where the CPU also multiplies 8-bit numbers faster.
"""

import torch
from torch import Tensor

from offhook.pipeline.engines.shared.model.instructions import Instructions as Instructions
from offhook.pipeline.engines.shared.model.instructions import instructions_of
from offhook.pipeline.engines.shared.qwen3.linear import Linear

LARGEST_WEIGHT = 127
SMALLEST_SCALE = 1e-12
"""Scale of a row of zeros."""
MIN_WEIGHTS = 500_000
"""Smaller weights stay as they are: they are in the CPU's cache, and rounding rows costs more than
it saves."""


def instructions() -> Instructions:
    """Returns what oneDNN uses on this CPU."""
    return instructions_of(torch.cpu.get_capabilities())


class Int8Linear(torch.nn.Module):
    """A linear layer with 8-bit weights: fp32 [..., inputs] -> fp32 [..., outputs]."""

    def __init__(self, weight: Tensor, bias: Tensor | None, by: Instructions) -> None:
        """`weight` is [outputs, inputs]; it is not kept."""
        super().__init__()
        weight = weight.detach().float()
        self._outputs = len(weight)
        self._bias = None if bias is None else bias.detach().float()
        scales = (weight.abs().amax(1) / LARGEST_WEIGHT).clamp(min=SMALLEST_SCALE)
        self._by = by
        if by is Instructions.OTHER:
            self._pack_for_qnnpack(weight, scales)
            return
        codes = (weight / scales[:, None]).round().to(torch.int8)
        self._codes = torch.ops.onednn.qlinear_prepack(codes, None)
        self._scales, self._zeros = scales, torch.zeros(len(scales), dtype=torch.int32)
        self._largest = 127 if by is Instructions.VNNI else 63
        self._zero = self._largest + 1
        self._rounding = torch.tensor(self._zero + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scales = rows.abs().amax(1, keepdim=True).clamp_(min=SMALLEST_SCALE)
        out = self._packed(rows, scales) if self._by is Instructions.OTHER else None
        if out is None:
            scales /= self._largest
            # Rounds to nearest: what is converted is positive, and conversion rounds down.
            codes = (rows * scales.reciprocal()).add_(self._rounding).to(torch.uint8)
            out = torch.ops.onednn.qlinear_pointwise(
                *(codes, 1.0, self._zero, self._codes, self._scales, self._zeros, None),
                *(1.0, 0, torch.float32, "none", [], ""),
            )
        out *= scales
        if self._bias is not None:
            out += self._bias
        return out.view(*x.shape[:-1], self._outputs)

    # --- QNNPACK, which finds one scale for all rows ---

    def _pack_for_qnnpack(self, weight: Tensor, scales: Tensor) -> None:
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        codes = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
        torch.backends.quantized.engine = "qnnpack"
        self._codes = torch.ops.quantized.linear_prepack(codes, None)

    def _packed(self, rows: Tensor, scales: Tensor) -> Tensor:
        """Returns the product of each row divided by its scale. A further row spans [-1, 1], so
        that the range of all rows, from which QNNPACK takes its scale, is always the same."""
        count, inputs = rows.shape
        scaled = rows.new_zeros(count + 1, inputs)
        torch.div(rows, scales, out=scaled[:count])
        scaled[count, 0], scaled[count, 1] = -1.0, 1.0
        product: Tensor = torch.ops.quantized.linear_dynamic(scaled, self._codes)
        return product[:count]


def quantize(module: torch.nn.Module, by: Instructions) -> None:
    """Replaces the linear layers inside a module that are large enough to gain from it."""
    for name, child in module.named_children():
        if not isinstance(child, Linear):
            quantize(child, by)
        elif child.weight.numel() >= MIN_WEIGHTS:
            setattr(module, name, Int8Linear(child.weight, child.bias, by))
