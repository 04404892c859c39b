"""Writes end-of-turn models of a few hundred bytes, whose answers a test knows."""

from pathlib import Path

import numpy as np

from benchmarks.recognition.onnx_writer import FLOAT, Array, node, value, write


def loudness(
    file: Path, *shape: int | str, kind: int = FLOAT, times: float = 1.0, less: float = 0.0
) -> Path:
    """Answers with the mean level of its input times a number, less a number."""
    rank = len(shape)
    constants: dict[str, Array] = {
        "times": np.array([times], np.float32),
        "less": np.array([less], np.float32),
    }
    nodes = [
        node("Cast", "sound", "real", to=FLOAT),
        node("Abs", "real", "level"),
        node("ReduceMean", "level", "mean", axes=list(range(1, rank)), keepdims=0),
        node("Mul", "mean times", "share"),
        node("Sub", "share less", "p"),
    ]
    write(file, nodes, [value("sound", kind, *shape)], [value("p", FLOAT, "B")], constants, {})
    return file


def levels(file: Path, frame: int, samples: int | str = "N") -> Path:
    """Answers with the highest level of each frame."""
    nodes = [
        node("Abs", "sound", "level"),
        node("Unsqueeze", "level one", "channel"),
        node("MaxPool", "channel", "p", kernel_shape=[frame], strides=[frame]),
    ]
    constants: dict[str, Array] = {"one": np.array([1], np.int64)}
    outputs = [value("p", FLOAT, "B", 1, "T")]
    write(file, nodes, [value("sound", FLOAT, 1, samples)], outputs, constants, {})
    return file


def with_state(file: Path) -> Path:
    """Has a second input, as models that are fed piece by piece."""
    nodes = [node("Add", "sound state", "p")]
    inputs = [value("sound", FLOAT, 1, 512), value("state", FLOAT, 1, 512)]
    write(file, nodes, inputs, [value("p", FLOAT, "B", "N")], {}, {})
    return file


def broken(file: Path) -> Path:
    """Fails whenever it is asked: the audio is none of 3 x 7 samples."""
    nodes = [node("Reshape", "sound shape", "p")]
    constants: dict[str, Array] = {"shape": np.array([3, 7], np.int64)}
    inputs, outputs = [value("sound", FLOAT, 1, "N")], [value("p", FLOAT, "A", "B")]
    write(file, nodes, inputs, outputs, constants, {})
    return file
