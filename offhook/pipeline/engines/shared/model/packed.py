"""Linear layers in fp32 on a CPU, with weights packed once for oneDNN.

BLAS packs the weights of a product at each call, which takes longer than the product if there are
few rows: packed weights made the products of Pocket TTS two to four times faster. A row's result
does not depend on the rows beside it, since oneDNN adds up the products of a row in the same order
for any number of rows.
"""

import torch
from torch import Tensor

from offhook.pipeline.engines.shared.qwen3.linear import Linear


class PackedLinear(torch.nn.Module):
    """A linear layer: fp32 [..., inputs] -> fp32 [..., outputs]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """`weight` is [outputs, inputs]; it is not kept."""
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            *(x, self._weight, self._bias, "none", [], "")
        )
        return out


def packs(device: torch.device) -> bool:
    """Returns whether the layers of this device can be packed."""
    return device.type == "cpu" and torch.backends.mkldnn.is_available()


def pack(module: torch.nn.Module) -> None:
    """Replaces the linear layers inside a module."""
    for name, child in module.named_children():
        if isinstance(child, Linear):
            setattr(module, name, PackedLinear(child.weight, child.bias))
        else:
            pack(child)
