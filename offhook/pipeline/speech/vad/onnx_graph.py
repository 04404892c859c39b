"""Reads and extends an ONNX file without the package `onnx`, which weighs 100 MB.

An ONNX file is a ModelProto in protobuf's wire format
(https://protobuf.dev/programming-guides/encoding/).
"""

import mmap
from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""
GRAPH = 7
"""Field of ModelProto."""
NODE, OUTPUT = 1, 12
"""Fields of GraphProto."""
NODE_INPUT, NODE_OUTPUT, NODE_OPERATOR = 1, 2, 4
"""Fields of NodeProto."""
NAME, TYPE = 1, 2
"""Fields of ValueInfoProto."""
TENSOR_TYPE, ELEMENT_TYPE, INT64 = 1, 1, 7
"""Fields of TypeProto and TypeProto.Tensor, and a value of TensorProto.DataType."""


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
