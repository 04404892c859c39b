"""Writes NVIDIA's Nemotron streaming network as sherpa-onnx runs it: in ONNX, at its real size,
with random weights of 8 bits.

The weights of matrix products and of pointwise convolutions are 8-bit integers, and their inputs
are quantized when they come (DynamicQuantizeLinear), which is what the published int8 files do; the
rest is in 32 bits. The joint network always says blank: what is measured is the encoder, with one
step of the joint for each frame.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.recognition.onnx_writer import FLOAT, INT32, INT64, Array, node, value, write

MELS, WIDTH, INNER, HEADS, KERNEL, CHANNELS = 128, 1024, 4096, 8, 9, 256
LAYERS, LEFT = 24, 70
PREDICTOR, LABELS = 640, 1025
FRAME = 8
"""Mel frames of an encoder frame."""
BEFORE, DROPPED = 9, 2
"""Mel frames before a chunk that the subsampling needs, and the frames that it makes of them."""
BLANK = 1e4


class Graph:
    """Nodes and constants with names of their own."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[bytes] = []
        self.constants: dict[str, Array] = {}
        self._rng = np.random.default_rng(seed)
        self._names = 0

    def op(
        self, kind: str, inputs: str, outputs: int = 1, **attributes: int | Sequence[int]
    ) -> str:
        """Adds a node and returns the names of its outputs, separated by spaces."""
        self._names += 1
        names = " ".join(f"t{self._names}_{i}" for i in range(outputs))
        self.nodes.append(node(kind, inputs, names, **attributes))
        return names

    def named(self, kind: str, inputs: str, output: str, **attributes: int | Sequence[int]) -> None:
        self.nodes.append(node(kind, inputs, output, **attributes))

    def constant(self, array: Array) -> str:
        self._names += 1
        self.constants[f"c{self._names}"] = array
        return f"c{self._names}"

    def numbers(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def floats(self, *shape: int, scale: float = 0.1) -> str:
        return self.constant((self._rng.standard_normal(shape) * scale).astype(np.float32))

    def bytes(self, *shape: int) -> str:
        return self.constant(self._rng.integers(0, 256, shape, np.uint8))

    def _quantized(self, x: str) -> tuple[str, str, str]:
        quantized, scale, zero = self.op("DynamicQuantizeLinear", x, 3).split()
        return quantized, scale, zero

    def _scaled(self, product: str, scale: str) -> str:
        """Turns a product of integers into floats."""
        weight_scale = self.constant(np.array([3e-4], np.float32))
        return self.op(
            "Mul",
            f"{self.op('Cast', product, to=FLOAT)} {self.op('Mul', f'{scale} {weight_scale}')}",
        )

    def linear(self, x: str, inner: int, outer: int) -> str:
        quantized, scale, zero = self._quantized(x)
        weight, weight_zero = self.bytes(inner, outer), self.constant(np.array(128, np.uint8))
        return self._scaled(
            self.op("MatMulInteger", f"{quantized} {weight} {zero} {weight_zero}"), scale
        )

    def pointwise(self, x: str, inner: int, outer: int, dimensions: int = 1) -> str:
        """A convolution of kernel 1 over [B, C, T] or [B, C, T, F]."""
        quantized, scale, zero = self._quantized(x)
        weight = self.bytes(outer, inner, *(1,) * dimensions)
        weight_zero = self.constant(np.array(128, np.uint8))
        return self._scaled(
            self.op("ConvInteger", f"{quantized} {weight} {zero} {weight_zero}"), scale
        )

    def norm(self, x: str) -> str:
        return self.op(
            "LayerNormalization", f"{x} {self.floats(WIDTH)} {self.floats(WIDTH)}", axis=-1
        )

    def swish(self, x: str) -> str:
        return self.op("Mul", f"{x} {self.op('Sigmoid', x)}")

    def half(self, x: str) -> str:
        return self.op("Mul", f"{x} {self.constant(np.array(0.5, np.float32))}")

    def slice(self, x: str, begin: int, end: int, axis: int) -> str:
        bounds = f"{self.numbers(begin)} {self.numbers(end)} {self.numbers(axis)}"
        return self.op("Slice", f"{x} {bounds}")

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", f"{x} {self.numbers(*shape)}")


def nemotron(folder: Path, frames: int = 7, layers: int = LAYERS) -> Path:
    """Writes the model with chunks of `frames` encoder frames of 80 ms."""
    folder.mkdir(parents=True, exist_ok=True)
    _encoder(folder / "encoder.int8.onnx", frames, layers)
    _predictor(folder / "decoder.int8.onnx")
    _joint(folder / "joiner.int8.onnx")
    tokens = [f"▁{number}" for number in range(LABELS - 1)] + ["<blk>"]
    lines = (f"{token} {number}\n" for number, token in enumerate(tokens))
    (folder / "tokens.txt").write_text("".join(lines), "utf-8")
    return folder


def _encoder(path: Path, frames: int, layers: int) -> None:
    g = Graph(0)
    window = FRAME * frames + BEFORE
    x = _subsampled(g, frames)
    # As exported: the sound's length decides which positions there are, so that their product with
    # each layer's weights is computed anew for each chunk.
    none = g.op("Mul", f"{g.op('Cast', g.op('ReduceMax', 'length'), to=FLOAT)} {g.floats(scale=0)}")
    places = g.floats(2 * (LEFT + frames) - 1, WIDTH)
    g.named("Add", f"{places} {none}", "positions")
    channels, times = [], []
    for layer in range(layers):
        channel = g.op("Gather", f"cache_last_channel {g.constant(np.array(layer))}", axis=1)
        time = g.op("Gather", f"cache_last_time {g.constant(np.array(layer))}", axis=1)
        x, channel, time = _layer(g, x, channel, time, frames)
        channels.append(g.op("Unsqueeze", f"{channel} {g.numbers(1)}"))
        times.append(g.op("Unsqueeze", f"{time} {g.numbers(1)}"))
    g.named("Transpose", x, "outputs", perm=[0, 2, 1])
    g.named("Concat", " ".join(channels), "cache_last_channel_next", axis=1)
    g.named("Concat", " ".join(times), "cache_last_time_next", axis=1)
    g.named("Div", f"length {g.numbers(FRAME)}", "encoded_lengths")
    g.named("Add", f"cache_last_channel_len {g.numbers(frames)}", "cache_last_channel_next_len")
    channel_shape = ("B", layers, LEFT, WIDTH)
    time_shape = ("B", layers, WIDTH, KERNEL - 1)
    metadata = {
        "vocab_size": LABELS - 1,
        "window_size": window,
        "chunk_shift": FRAME * frames,
        "subsampling_factor": FRAME,
        "normalize_type": "",
        "pred_rnn_layers": 2,
        "pred_hidden": PREDICTOR,
        "cache_last_channel_dim1": layers,
        "cache_last_channel_dim2": LEFT,
        "cache_last_channel_dim3": WIDTH,
        "cache_last_time_dim1": layers,
        "cache_last_time_dim2": WIDTH,
        "cache_last_time_dim3": KERNEL - 1,
    }
    write(
        path,
        g.nodes,
        [
            value("audio_signal", FLOAT, "B", MELS, "T"),
            value("length", INT64, "B"),
            value("cache_last_channel", FLOAT, *channel_shape),
            value("cache_last_time", FLOAT, *time_shape),
            value("cache_last_channel_len", INT64, "B"),
        ],
        [
            value("outputs", FLOAT, "B", WIDTH, "F"),
            value("encoded_lengths", INT64, "B"),
            value("cache_last_channel_next", FLOAT, *channel_shape),
            value("cache_last_time_next", FLOAT, *time_shape),
            value("cache_last_channel_next_len", INT64, "B"),
        ],
        g.constants,
        metadata,
    )


def _subsampled(g: Graph, frames: int) -> str:
    """[B, MELS, T] to [B, frames, WIDTH]: three convolutions of stride 2, causal, two of them by
    depth and point."""
    x = g.op("Transpose", "audio_signal", perm=[0, 2, 1])
    x = g.op("Unsqueeze", f"{x} {g.numbers(1)}")
    pads, strides = [2, 2, 1, 1], [2, 2]
    first = f"{x} {g.floats(CHANNELS, 1, 3, 3)} {g.floats(CHANNELS)}"
    x = g.op("Relu", g.op("Conv", first, strides=strides, pads=pads))
    for _ in range(2):
        weights = f"{g.floats(CHANNELS, 1, 3, 3)} {g.floats(CHANNELS)}"
        x = g.op("Conv", f"{x} {weights}", strides=strides, pads=pads, group=CHANNELS)
        x = g.op("Relu", g.pointwise(x, CHANNELS, CHANNELS, 2))
    features = CHANNELS * (MELS // FRAME + 1)
    x = g.op("Transpose", x, perm=[0, 2, 1, 3])
    x = g.linear(g.reshape(x, 0, 0, features), features, WIDTH)
    return g.slice(x, DROPPED, DROPPED + frames, 1)


def _layer(g: Graph, x: str, channel: str, time: str, frames: int) -> tuple[str, str, str]:
    """One layer of the FastConformer; returns its output and the next caches."""
    x = g.op("Add", f"{x} {g.half(_feed_forward(g, x))}")
    given = g.norm(x)
    heard = g.op("Concat", f"{channel} {given}", axis=1)
    x = g.op("Add", f"{x} {_attention(g, given, heard, frames)}")
    channel = g.slice(heard, frames, LEFT + frames, 1)
    y = g.op("Transpose", g.norm(x), perm=[0, 2, 1])
    one, gate = g.op("Split", g.pointwise(y, WIDTH, 2 * WIDTH), 2, axis=1).split()
    y = g.op("Mul", f"{one} {g.op('Sigmoid', gate)}")
    y = g.op("Concat", f"{time} {y}", axis=2)
    time = g.slice(y, frames, KERNEL - 1 + frames, 2)
    y = g.op("Conv", f"{y} {g.floats(WIDTH, 1, KERNEL)}", group=WIDTH)
    y = g.norm(g.op("Transpose", y, perm=[0, 2, 1]))
    y = g.pointwise(g.op("Transpose", g.swish(y), perm=[0, 2, 1]), WIDTH, WIDTH)
    x = g.op("Add", f"{x} {g.op('Transpose', y, perm=[0, 2, 1])}")
    x = g.op("Add", f"{x} {g.half(_feed_forward(g, x))}")
    return g.norm(x), channel, time


def _feed_forward(g: Graph, x: str) -> str:
    return g.linear(g.swish(g.linear(g.norm(x), WIDTH, INNER)), INNER, WIDTH)


def _attention(g: Graph, given: str, heard: str, frames: int) -> str:
    """Attention of the chunk to itself and what is cached, with relative positions."""
    size, keys = WIDTH // HEADS, LEFT + frames
    positions = 2 * keys - 1
    parts = (g.linear(of, WIDTH, WIDTH) for of in (given, heard, heard))
    q, k, v = (g.reshape(part, 0, 0, HEADS, size) for part in parts)
    by_content = g.op("Transpose", g.op("Add", f"{q} {g.floats(HEADS, size)}"), perm=[0, 2, 1, 3])
    by_place = g.op("Transpose", g.op("Add", f"{q} {g.floats(HEADS, size)}"), perm=[0, 2, 1, 3])
    scores = g.op("MatMul", f"{by_content} {g.op('Transpose', k, perm=[0, 2, 3, 1])}")
    p = g.reshape(g.linear("positions", WIDTH, WIDTH), 0, HEADS, size)
    places = g.op("MatMul", f"{by_place} {g.op('Transpose', p, perm=[1, 2, 0])}")
    # The shift of Transformer-XL: row i is moved to the left by its place in the chunk.
    padded = g.op("Pad", f"{places} {g.numbers(0, 0, 0, 1, 0, 0, 0, 0)}")
    shifted = g.slice(g.reshape(padded, 0, HEADS, positions + 1, frames), 1, positions + 1, 2)
    places = g.slice(g.reshape(shifted, 0, HEADS, frames, positions), 0, keys, 3)
    scale = g.constant(np.array(size**-0.5, np.float32))
    sum_of = g.op("Mul", f"{g.op('Add', f'{scores} {places}')} {scale}")
    weights = g.op("Softmax", sum_of, axis=-1)
    y = g.op("MatMul", f"{weights} {g.op('Transpose', v, perm=[0, 2, 1, 3])}")
    y = g.reshape(g.op("Transpose", y, perm=[0, 2, 1, 3]), 0, 0, WIDTH)
    return g.linear(y, WIDTH, WIDTH)


def _predictor(path: Path) -> None:
    """Two LSTMs over the label before."""
    g = Graph(1)
    rows = g.op("Gather", f"{g.floats(LABELS, PREDICTOR)} targets", axis=0)
    x = g.op("Transpose", rows, perm=[1, 0, 2])
    hidden, cells = [], []
    for layer in range(2):
        h, c = g.slice("h_in", layer, layer + 1, 0), g.slice("c_in", layer, layer + 1, 0)
        weights = f"{g.floats(1, 4 * PREDICTOR, PREDICTOR)} {g.floats(1, 4 * PREDICTOR, PREDICTOR)}"
        bias = g.floats(1, 8 * PREDICTOR)
        y, h, c = g.op("LSTM", f"{x} {weights} {bias} - {h} {c}", 3, hidden_size=PREDICTOR).split()
        x = g.op("Squeeze", f"{y} {g.numbers(1)}")
        hidden.append(h)
        cells.append(c)
    g.named("Transpose", x, "outputs", perm=[1, 2, 0])
    g.named("Identity", "target_length", "prednet_lengths")
    g.named("Concat", " ".join(hidden), "h_out", axis=0)
    g.named("Concat", " ".join(cells), "c_out", axis=0)
    state = (2, "B", PREDICTOR)
    write(
        path,
        g.nodes,
        [
            value("targets", INT32, "B", "U"),
            value("target_length", INT32, "B"),
            value("h_in", FLOAT, *state),
            value("c_in", FLOAT, *state),
        ],
        [
            value("outputs", FLOAT, "B", PREDICTOR, "U"),
            value("prednet_lengths", INT32, "B"),
            value("h_out", FLOAT, *state),
            value("c_out", FLOAT, *state),
        ],
        g.constants,
        {},
    )


def _joint(path: Path) -> None:
    g = Graph(2)
    heard = g.linear(g.op("Transpose", "encoder_outputs", perm=[0, 2, 1]), WIDTH, PREDICTOR)
    said = g.linear(g.op("Transpose", "decoder_outputs", perm=[0, 2, 1]), PREDICTOR, PREDICTOR)
    scores = g.linear(g.op("Relu", g.op("Add", f"{heard} {said}")), PREDICTOR, LABELS)
    blank = np.zeros(LABELS, np.float32)
    blank[-1] = BLANK
    g.named("Unsqueeze", f"{g.op('Add', f'{scores} {g.constant(blank)}')} {g.numbers(1)}", "logits")
    write(
        path,
        g.nodes,
        [
            value("encoder_outputs", FLOAT, "B", WIDTH, 1),
            value("decoder_outputs", FLOAT, "B", PREDICTOR, 1),
        ],
        [value("logits", FLOAT, "B", 1, 1, LABELS)],
        g.constants,
        {},
    )
