"""Reads what an ONNX file says about itself: metadata, inputs and outputs, without its weights.

An ONNX file is a ModelProto in protobuf's wire format
(https://protobuf.dev/programming-guides/encoding/). Only the few fields below are decoded; all
others are skipped over, so that a model of a gigabyte takes milliseconds.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

LFS_POINTER = b"version https://git-lfs"
"""Beginning of the small file that stands for a large one in a Git clone without LFS."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""
GRAPH, METADATA = 7, 14
"""Fields of ModelProto."""
INITIALIZER, INPUT, OUTPUT = 5, 11, 12
"""Fields of GraphProto."""
NAME, TYPE = 1, 2
"""Fields of ValueInfoProto."""
TENSOR_TYPE, SHAPE, DIMENSION, DIMENSION_VALUE = 1, 2, 1, 1
"""Fields of TypeProto, TypeProto.Tensor, TensorShapeProto and TensorShapeProto.Dimension."""
EXTERNAL_DATA, KEY, VALUE = 13, 1, 2
"""Field of TensorProto, and the fields of StringStringEntryProto."""


@dataclass(frozen=True)
class OnnxHeader:
    metadata: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of the inputs by name; 0 for a dimension that varies."""
    outputs: tuple[str, ...] = ()
    data_files: frozenset[str] = frozenset()
    """Names of the files beside it that hold weights."""


class _Field(NamedTuple):
    number: int
    value: int
    """Of a number; of bytes, their first position."""
    end: int
    """Of bytes, the position after them."""


def read_header(path: Path) -> OnnxHeader:
    """Raises OSError, and ValueError if the file is not an ONNX model or not all of one."""
    if path.stat().st_size == 0:
        raise ValueError("it is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[: len(LFS_POINTER)] == LFS_POINTER:
            raise ValueError("it is a Git LFS pointer: fetch the file itself (`git lfs pull`)")
        try:
            return _header(data)
        except (IndexError, UnicodeDecodeError) as error:
            raise ValueError("it is not ONNX, or not all of it is here") from error


def _header(data: mmap.mmap) -> OnnxHeader:
    metadata: dict[str, str] = {}
    inputs: dict[str, tuple[int, ...]] = {}
    outputs: list[str] = []
    weights: set[str] = set()
    has_graph = False
    for part in _fields(data, 0, len(data)):
        if part.number == METADATA:
            metadata |= [_entry(data, part)]
        elif part.number == GRAPH:
            has_graph = True
            for item in _fields(data, part.value, part.end):
                if item.number == INPUT:
                    inputs |= [_input(data, item)]
                elif item.number == OUTPUT:
                    outputs.append(_text(data, item, NAME))
                elif item.number == INITIALIZER:
                    weights |= _data_files(data, item)
    if not has_graph:
        raise IndexError
    return OnnxHeader(metadata, inputs, tuple(outputs), frozenset(weights))


def _fields(data: mmap.mmap, at: int, end: int) -> Iterator[_Field]:
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
        yield _Field(tag >> 3, value, at)


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Returns a number of up to 64 bits and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise IndexError(at)


def _text(data: mmap.mmap, message: _Field, number: int) -> str:
    for part in _fields(data, message.value, message.end):
        if part.number == number:
            return data[part.value : part.end].decode()
    return ""


def _entry(data: mmap.mmap, message: _Field) -> tuple[str, str]:
    return _text(data, message, KEY), _text(data, message, VALUE)


def _input(data: mmap.mmap, message: _Field) -> tuple[str, tuple[int, ...]]:
    shape: list[int] = []
    for dimensions in _within(data, message, TYPE, TENSOR_TYPE, SHAPE):
        for dimension in _within(data, dimensions, DIMENSION):
            sizes = _fields(data, dimension.value, dimension.end)
            shape.append(next((s.value for s in sizes if s.number == DIMENSION_VALUE), 0))
    return _text(data, message, NAME), tuple(shape)


def _within(data: mmap.mmap, message: _Field, *path: int) -> Iterator[_Field]:
    """Yields the messages at this path of fields."""
    for part in _fields(data, message.value, message.end):
        if part.number == path[0]:
            if len(path) == 1:
                yield part
            else:
                yield from _within(data, part, *path[1:])


def _data_files(data: mmap.mmap, tensor: _Field) -> set[str]:
    entries = (_entry(data, part) for part in _within(data, tensor, EXTERNAL_DATA))
    return {value for key, value in entries if key == "location"}
