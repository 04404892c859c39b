"""An ONNX graph computed in torch, operator by operator (https://onnx.ai/onnx/operators).

It is for models published in 8 bits whose results must be those of the file, on a GPU too: integer
weights are restored to floats as the file says, and what lies between products is rounded to the
steps of its scales.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from offhook.pipeline.speech.vad import onnx_graph
from offhook.pipeline.speech.vad.onnx_graph import Floats, Node, Numbers

Attributes = Mapping[str, Any]


class Step(NamedTuple):
    run: Callable[..., Tensor]
    inputs: tuple[str, ...]
    output: str
    read_last: tuple[str, ...]
    """Values that no later step reads."""


class OnnxProgram:
    """The graph of `model` from its input to one of its outputs, in `dtype` on a device. Raises
    ValueError if it is no ONNX model, or has an operator that is not among OPERATORS."""

    def __init__(
        self,
        model: bytes,
        ends: tuple[str, str],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`ends`: the names of the input and of the output."""
        try:
            nodes, stored = onnx_graph.nodes(model), onnx_graph.tensors(model)
        except IndexError as error:
            raise ValueError("it is not ONNX, or not all of it is here") from error
        unknown = {node.operator for node in nodes} - OPERATORS.keys() - _EIGHT_BITS
        if unknown or not any(ends[1] in node.outputs for node in nodes):
            raise ValueError(f"its graph is another one: {', '.join(sorted(unknown))}")
        self._input, self._output = ends
        restored = {
            node.outputs[0]: _restored(node, stored)
            for node in nodes
            if node.operator == "DequantizeLinear" and node.inputs[0] in stored
        }
        nodes = [node for node in nodes if node.outputs[0] not in restored]
        last = {name: at for at, node in enumerate(nodes) for name in _operands(node)}
        self._constants = {
            # Shapes are computed on the CPU, so that nothing waits for the device.
            name: torch.tensor(value)
            if value.dtype == np.int64
            else torch.tensor(value, dtype=dtype, device=device)
            for name, value in (stored | restored).items()
            if name in last
        }
        self._steps = [
            Step(
                _function(node, stored),
                _operands(node),
                node.outputs[0],
                tuple(n for n in last if last[n] == at and n not in self._constants),
            )
            for at, node in enumerate(nodes)
        ]

    def __call__(self, value: Tensor) -> Tensor:
        """Returns the output for an input of the device and dtype."""
        values = {**self._constants, self._input: value}
        for step in self._steps:
            values[step.output] = step.run(*(values[name] for name in step.inputs))
            for name in step.read_last:
                del values[name]
        return values[self._output]


def _operands(node: Node) -> tuple[str, ...]:
    """Returns the inputs of a node that are computed with; scales are numbers."""
    return node.inputs[:1] if node.operator in _EIGHT_BITS else node.inputs


def _function(node: Node, stored: Mapping[str, Numbers]) -> Callable[..., Tensor]:
    if node.operator == "QuantizeLinear":
        return rounding(stored[node.inputs[1]], stored[node.inputs[2]])
    if node.operator == "DequantizeLinear":
        return _same  # rounding has already given floats
    return partial(OPERATORS[node.operator], node.attributes)


# --- 8 bits ---

_EIGHT_BITS = {"QuantizeLinear", "DequantizeLinear"}


def _same(value: Tensor) -> Tensor:
    return value


def rounding(scale: Numbers, zero: Numbers) -> Callable[[Tensor], Tensor]:
    """Returns the function that rounds a tensor to what its integers are restored to."""
    range_ = np.iinfo(zero.dtype)
    step = float(scale), int(zero), int(range_.min), int(range_.max)
    return lambda value: torch.fake_quantize_per_tensor_affine(value, *step)


def _restored(node: Node, stored: Mapping[str, Numbers]) -> Floats:
    """Returns the floats that a node restores from integers."""
    integers, scale, zero = (stored[name] for name in node.inputs)
    shape = [1] * integers.ndim
    if scale.size > 1:
        shape[node.attributes.get("axis", 1)] = -1
    centred = integers.astype(np.float32) - zero.reshape(shape)
    return np.asarray(centred * scale.reshape(shape), np.float32)


# --- operators: a node's attributes and its inputs to its output ---


def _convolution(of: Attributes, value: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    before, _ = of["pads"]
    return F.conv1d(value, weight, bias, of["strides"], before)


def _linear(of: Attributes, value: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(value, weight if of["transB"] else weight.T, bias)


def _normed(of: Attributes, value: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(value, value.shape[-1:], weight, bias, float(of["epsilon"]))


def _sum(of: Attributes, value: Tensor, axes: Tensor) -> Tensor:
    return value.sum(axes.tolist(), keepdim=bool(of["keepdims"]))


def _shape(of: Attributes, value: Tensor) -> Tensor:
    return torch.tensor(value.shape[of.get("start", 0) : of.get("end")])


def _slice(of: Attributes, value: Tensor, start: Tensor, end: Tensor) -> Tensor:
    # Where it is open, the ends are those of 64-bit integers.
    return value[max(int(start), -len(value)) : min(int(end), len(value))]


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "Add": lambda of, one, other: one + other,
    "Concat": lambda of, *values: torch.cat(values, of["axis"]),
    "Conv": _convolution,
    "Div": lambda of, value, by: value / by,
    "Erf": lambda of, value: value.erf(),
    "Gather": lambda of, value, where: value.index_select(of["axis"], where),
    "Gemm": _linear,
    "LayerNormalization": _normed,
    "MatMul": lambda of, one, other: one @ other,
    "Mul": lambda of, one, other: one * other,
    "ReduceSum": _sum,
    "Reshape": lambda of, value, shape: value.reshape(shape.tolist()),
    "Shape": _shape,
    "Sigmoid": lambda of, value: value.sigmoid(),
    "Slice": _slice,
    "Softmax": lambda of, value: value.softmax(of["axis"]),
    "Tanh": lambda of, value: value.tanh(),
    "Transpose": lambda of, value: value.permute(of["perm"]),
}
"""Those that our models have, in the cases that they need: convolutions of one dimension, slices of
shapes."""
