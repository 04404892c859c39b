"""Writes ONNX files without the package onnx: the few fields of its protobuf messages that a small
graph needs (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import pack

import numpy as np
import numpy.typing as npt

FLOAT, UINT8, INT32, INT64 = 1, 2, 6, 7
"""Element types."""
KINDS = {"float32": FLOAT, "uint8": UINT8, "int32": INT32, "int64": INT64}
OPSET, IR_VERSION = 17, 8
Array = npt.NDArray[np.generic]


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def part(field: int, data: bytes | str) -> bytes:
    data = data.encode() if isinstance(data, str) else data
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def node(kind: str, inputs: str, outputs: str, **attributes: int | float | Sequence[int]) -> bytes:
    """Names of inputs and outputs are separated by spaces; "-" is an input that is left out."""
    out = b"".join(part(1, "" if name == "-" else name) for name in inputs.split())
    out += b"".join(part(2, name) for name in outputs.split()) + part(4, kind)
    for name, value in attributes.items():
        given = part(1, name)
        if isinstance(value, float):
            given += _varint(2 << 3 | 5) + pack("<f", value) + number(20, 1)
        elif isinstance(value, int):
            given += number(3, value) + number(20, 2)
        else:
            given += b"".join(number(8, each) for each in value) + number(20, 7)
        out += part(5, given)
    return out


def value(name: str, kind: int, *shape: int | str) -> bytes:
    """An input or output; a dimension with a name varies."""
    dimensions = (number(1, d) if isinstance(d, int) else part(2, d) for d in shape)
    tensor = number(1, kind) + part(2, b"".join(part(1, each) for each in dimensions))
    return part(1, name) + part(2, part(1, tensor))


def constant(name: str, array: Array, data_file: str = "") -> bytes:
    """An initializer; with `data_file` its numbers are in that file."""
    out = b"".join(number(1, size) for size in array.shape)
    out += number(2, KINDS[array.dtype.name]) + part(8, name)
    if data_file:
        return out + part(13, part(1, "location") + part(2, data_file)) + number(14, 1)
    return out + part(9, array.tobytes())


def write(
    path: Path,
    nodes: Sequence[bytes],
    inputs: Sequence[bytes],
    outputs: Sequence[bytes],
    constants: Mapping[str, Array],
    metadata: Mapping[str, object],
) -> None:
    graph = [part(2, path.stem)]
    graph += [part(1, each) for each in nodes]
    graph += [part(5, constant(name, array)) for name, array in constants.items()]
    graph += [part(11, each) for each in inputs] + [part(12, each) for each in outputs]
    model = [part(14, part(1, key) + part(2, str(said))) for key, said in metadata.items()]
    with path.open("wb") as file:
        file.write(number(1, IR_VERSION) + _varint(7 << 3 | 2) + _varint(sum(map(len, graph))))
        file.writelines(graph)
        file.write(part(8, number(2, OPSET)) + b"".join(model))
