"""Reads and extends an ONNX file without the package `onnx`, which weighs 100 MB.

An ONNX file is a ModelProto in protobuf's wire format
(https://protobuf.dev/programming-guides/encoding/).
"""

import mmap
from collections.abc import Iterator
from typing import Any, NamedTuple

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
ATTRIBUTE_NAME, NUMBER, INTEGER, TENSOR, SUBGRAPH, INTEGERS = 1, 2, 3, 5, 6, 8
"""Fields of AttributeProto."""
DIMENSION, DATA_TYPE, FLOAT_DATA, INT32_DATA, TENSOR_NAME, RAW_DATA = 1, 2, 4, 5, 8, 9
"""Fields of TensorProto."""
DATA_TYPES = {1: "<f4", 2: "u1", 3: "i1", 6: "<i4", 7: "<i8"}
"""Values of TensorProto.DataType, as numpy has them."""
NAME, TYPE = 1, 2
"""Fields of ValueInfoProto."""
TENSOR_TYPE, ELEMENT_TYPE, INT64 = 1, 1, 7
"""Fields of TypeProto and TypeProto.Tensor, and a value of TensorProto.DataType."""


Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[Any]


class Node(NamedTuple):
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    """Those that are integers, lists of integers or numbers."""


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


def nodes(model: bytes) -> list[Node]:
    """Returns the nodes of a model's graph in order, without those of the branches of an `If`.
    Raises IndexError if it is not an ONNX model or not all of one."""
    return [
        _node(model, item)
        for graph in wire_fields(model, 0, len(model))
        if graph.number == GRAPH
        for item in wire_fields(model, graph.value, graph.end)
        if item.number == NODE
    ]


def _node(model: bytes, node: WireField) -> Node:
    operator, inputs, outputs, attributes = "", list[str](), list[str](), dict[str, Any]()
    for part in wire_fields(model, node.value, node.end):
        if part.number == NODE_INPUT:
            inputs.append(model[part.value : part.end].decode())
        elif part.number == NODE_OUTPUT:
            outputs.append(model[part.value : part.end].decode())
        elif part.number == NODE_OPERATOR:
            operator = model[part.value : part.end].decode()
        elif part.number == NODE_ATTRIBUTE:
            name = wire_text(model, part, ATTRIBUTE_NAME)
            for value in wire_fields(model, part.value, part.end):
                if value.number == NUMBER:
                    (attributes[name],) = np.frombuffer(model[value.end - 4 : value.end], "<f4")
                elif value.number == INTEGER:
                    attributes[name] = _signed(value.value)
                elif value.number == INTEGERS:
                    attributes.setdefault(name, []).append(_signed(value.value))
    return Node(operator, tuple(inputs), tuple(outputs), attributes)


def weights(model: bytes) -> dict[str, Floats]:
    """Returns the 32-bit float tensors among `tensors`."""
    return {name: found for name, found in tensors(model).items() if found.dtype == np.float32}


def tensors(model: bytes) -> dict[str, Numbers]:
    """Returns the tensors of DATA_TYPES stored in a model, by the names that its nodes know them
    by: initializers and constants, also of the branches of an `If`.

    Raises IndexError if it is not an ONNX model or not all of one.
    """
    return dict(
        tensor
        for graph in wire_fields(model, 0, len(model))
        if graph.number == GRAPH
        for tensor in _tensors(model, graph)
    )


def _tensors(model: bytes, graph: WireField) -> Iterator[tuple[str, Numbers]]:
    for item in wire_fields(model, graph.value, graph.end):
        if item.number == INITIALIZER:
            if (found := _tensor(model, item)) is not None:
                yield wire_text(model, item, TENSOR_NAME), found
        elif item.number == NODE:
            for attribute in wire_fields(model, item.value, item.end):
                if attribute.number == NODE_ATTRIBUTE:
                    for part in wire_fields(model, attribute.value, attribute.end):
                        if part.number == SUBGRAPH:
                            yield from _tensors(model, part)
                        elif part.number == TENSOR and (found := _tensor(model, part)) is not None:
                            yield wire_text(model, item, NODE_OUTPUT), found


def _tensor(model: bytes, tensor: WireField) -> Numbers | None:
    """Returns None for a tensor of another type, and one without numbers."""
    shape: list[int] = []
    kind, raw, packed = 0, b"", list[int]()
    for part in wire_fields(model, tensor.value, tensor.end):
        if part.number == DIMENSION:
            shape.append(part.value)
        elif part.number == DATA_TYPE:
            kind = part.value
        elif part.number in (RAW_DATA, FLOAT_DATA):
            raw = model[part.value : part.end]
        elif part.number == INT32_DATA:
            packed = list(_varints(model, part))
    if kind not in DATA_TYPES or not (raw or packed):
        return None
    found = np.frombuffer(raw, DATA_TYPES[kind]) if raw else np.array(packed, DATA_TYPES[kind])
    return found.reshape(shape)


def _varints(model: bytes, packed: WireField) -> Iterator[int]:
    at = packed.value
    while at < packed.end:
        number, at = _varint(model, at)
        yield _signed(number)


def _signed(number: int) -> int:
    """Returns the 64 bits of a number as two's complement."""
    return number - (number >> 63 << 64)


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
