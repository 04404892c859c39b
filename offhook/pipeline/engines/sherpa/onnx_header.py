"""Reads what an ONNX file says about itself: metadata, inputs and outputs, without its weights.

An ONNX file is a ModelProto in protobuf's wire format
(https://protobuf.dev/programming-guides/encoding/). Only the few fields below are decoded; all
others are skipped over, so that a model of a gigabyte takes milliseconds.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from offhook.pipeline.speech.vad.onnx_graph import (
    GRAPH,
    NAME,
    OUTPUT,
    TENSOR_TYPE,
    TYPE,
    WireField,
    wire_fields,
    wire_text,
)

LFS_POINTER = b"version https://git-lfs"
"""Beginning of the small file that stands for a large one in a Git clone without LFS."""
METADATA = 14
"""Field of ModelProto."""
INITIALIZER, INPUT = 5, 11
"""Fields of GraphProto."""
SHAPE, DIMENSION, DIMENSION_VALUE = 2, 1, 1
"""Fields of TypeProto.Tensor, TensorShapeProto and TensorShapeProto.Dimension."""
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
    for part in wire_fields(data, 0, len(data)):
        if part.number == METADATA:
            metadata |= [_entry(data, part)]
        elif part.number == GRAPH:
            has_graph = True
            for item in wire_fields(data, part.value, part.end):
                if item.number == INPUT:
                    inputs |= [_input(data, item)]
                elif item.number == OUTPUT:
                    outputs.append(wire_text(data, item, NAME))
                elif item.number == INITIALIZER:
                    weights |= _data_files(data, item)
    if not has_graph:
        raise IndexError
    return OnnxHeader(metadata, inputs, tuple(outputs), frozenset(weights))


def _entry(data: mmap.mmap, message: WireField) -> tuple[str, str]:
    return wire_text(data, message, KEY), wire_text(data, message, VALUE)


def _input(data: mmap.mmap, message: WireField) -> tuple[str, tuple[int, ...]]:
    shape: list[int] = []
    for dimensions in _within(data, message, TYPE, TENSOR_TYPE, SHAPE):
        for dimension in _within(data, dimensions, DIMENSION):
            sizes = wire_fields(data, dimension.value, dimension.end)
            shape.append(next((s.value for s in sizes if s.number == DIMENSION_VALUE), 0))
    return wire_text(data, message, NAME), tuple(shape)


def _within(data: mmap.mmap, message: WireField, *path: int) -> Iterator[WireField]:
    """Yields the messages at this path of fields."""
    for part in wire_fields(data, message.value, message.end):
        if part.number == path[0]:
            if len(path) == 1:
                yield part
            else:
                yield from _within(data, part, *path[1:])


def _data_files(data: mmap.mmap, tensor: WireField) -> set[str]:
    entries = (_entry(data, part) for part in _within(data, tensor, EXTERNAL_DATA))
    return {value for key, value in entries if key == "location"}
