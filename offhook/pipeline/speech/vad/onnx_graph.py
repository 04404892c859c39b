"""Reads and extends an ONNX file without the package `onnx`, which weighs 100 MB.

An ONNX file is a ModelProto in protobuf's wire format
(https://protobuf.dev/programming-guides/encoding/).
"""

import mmap
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""
GRAPH = 7
"""Field of ModelProto."""
NODE, INITIALIZER, OUTPUT = 1, 5, 12
"""Fields of GraphProto."""
NODE_INPUT, NODE_OUTPUT, NODE_OPERATOR, NODE_ATTRIBUTE = 1, 2, 4, 5
"""Fields of NodeProto."""
TENSOR, SUBGRAPH = 5, 6
"""Fields of AttributeProto."""
DIMENSION, DATA_TYPE, TENSOR_NAME, RAW_DATA, FLOAT = 1, 2, 8, 9, 1
"""Fields of TensorProto, and a value of TensorProto.DataType."""
NAME, TYPE = 1, 2
"""Fields of ValueInfoProto."""
TENSOR_TYPE, ELEMENT_TYPE, INT64 = 1, 1, 7
"""Fields of TypeProto and TypeProto.Tensor, and a value of TensorProto.DataType."""


Floats = npt.NDArray[np.float32]


class WireField(NamedTuple):
    number: int
    value: int
    """Of a number; of bytes, their first position."""
    end: int
    """Of bytes, the position after them."""


def wire_fields(data: bytes | mmap.mmap, at: int, end: int) -> Iterator[WireField]:
    """Yields the fields of a message. Raises IndexError if it is cut short or malformed."""
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        value, begin = at, at
        if kind == VARINT:
            value, at = _varint(data, at)
        elif kind == BYTES:
            size, value = _varint(data, at)
            at = value + size
        elif kind in (FIXED32, FIXED64):
            at += 4 if kind == FIXED32 else 8
        else:
            raise IndexError(begin)
        if at > end:
            raise IndexError(begin)
        yield WireField(tag >> 3, value, at)


def wire_text(data: bytes | mmap.mmap, message: WireField, number: int) -> str:
    """Returns the first of a message's texts with this number, empty if there is none."""
    for part in wire_fields(data, message.value, message.end):
        if part.number == number:
            return data[part.value : part.end].decode()
    return ""


def weights(model: bytes) -> dict[str, Floats]:
    """Returns the 32-bit float tensors stored in a model, by the names that its nodes know them by:
    initializers and constants, also of the branches of an `If`.

    Raises IndexError if it is not an ONNX model or not all of one.
    """
    return dict(
        weight
        for graph in wire_fields(model, 0, len(model))
        if graph.number == GRAPH
        for weight in _weights(model, graph)
    )


def _weights(model: bytes, graph: WireField) -> Iterator[tuple[str, Floats]]:
    for item in wire_fields(model, graph.value, graph.end):
        if item.number == INITIALIZER:
            if (floats := _floats(model, item)) is not None:
                yield wire_text(model, item, TENSOR_NAME), floats
        elif item.number == NODE:
            for attribute in wire_fields(model, item.value, item.end):
                if attribute.number == NODE_ATTRIBUTE:
                    for part in wire_fields(model, attribute.value, attribute.end):
                        if part.number == SUBGRAPH:
                            yield from _weights(model, part)
                        elif part.number == TENSOR and (found := _floats(model, part)) is not None:
                            yield wire_text(model, item, NODE_OUTPUT), found


def _floats(model: bytes, tensor: WireField) -> Floats | None:
    """Returns None for a tensor of another type, and one that is not stored as raw data."""
    shape: list[int] = []
    kind, raw = 0, None
    for part in wire_fields(model, tensor.value, tensor.end):
        if part.number == DIMENSION:
            shape.append(part.value)
        elif part.number == DATA_TYPE:
            kind = part.value
        elif part.number == RAW_DATA:
            raw = model[part.value : part.end]
    return np.frombuffer(raw, "<f4").reshape(shape) if kind == FLOAT and raw else None


def unfused(model: bytes, operator: str) -> bytes:
    """Returns the model in which ONNX Runtime does not fuse an operator with the quantization
    around it. Its results get a second reader, which costs nothing: their shapes are further
    outputs.

    Raises IndexError if it is not an ONNX model.
    """
    added = bytearray()
    for graph in wire_fields(model, 0, len(model)):
        if graph.number == GRAPH:
            for node in wire_fields(model, graph.value, graph.end):
                if node.number == NODE and wire_text(model, node, NODE_OPERATOR) == operator:
                    added += _shape_output(wire_text(model, node, NODE_OUTPUT))
    # Messages of a field that occurs once are merged, so that a graph can be added to.
    return model + _message(GRAPH, bytes(added))


def _shape_output(tensor: str) -> bytes:
    """Returns the fields of a graph that make the shape of a tensor an output."""
    name = f"{tensor}_shape".encode()
    node = _message(NODE_INPUT, tensor.encode()) + _message(NODE_OUTPUT, name)
    kind = _message(TENSOR_TYPE, bytes((ELEMENT_TYPE << 3 | VARINT, INT64)))
    return _message(NODE, node + _message(NODE_OPERATOR, b"Shape")) + _message(
        OUTPUT, _message(NAME, name) + _message(TYPE, kind)
    )


def _message(number: int, content: bytes) -> bytes:
    head = bytearray((number << 3 | BYTES,))
    size = len(content)
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content


def _varint(data: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    """Returns a number of up to 64 bits and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise IndexError(at)
