# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"
"""`Codec.stream` as Triton kernels, made for an H200 (sm_90).

The number of launches does not grow with the streams: 82 for one frame of one, a hundred at most.
Between them x is packed, [B * T, channels], T rows of each stream of the call, or padded, [B,
length + T, channels], behind the `length` rows before them that a convolution sees too. The first
launch brings those from the state, the last keeps there what the next call will see.

The residual units of many rows are not in Triton there: see `cuda_residual_unit`.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from offhook.pipeline.engines.qwen3_tts.model import cuda_residual_unit
from offhook.pipeline.engines.qwen3_tts.model.codec import (
    LAYER_NORM_EPS,
    Codec,
    CodecConfig,
    CodecState,
    Convolution,
    Upsampling,
)
from offhook.pipeline.engines.qwen3_tts.model.triton_codec_convolution import (
    choose_pair_tile,
    convolve,
)
from offhook.pipeline.engines.shared.qwen3 import attention, linear


class Batch(NamedTuple):
    """The streams and frames of a call; see `Codec.stream`."""

    slots: Tensor
    first: Tensor
    frames: int


def stream(codec: Codec, codes: Tensor, slots: Tensor, first: Tensor, state: CodecState) -> Tensor:
    """`Codec.stream`."""
    assert codes.shape[2] <= state.frames
    batch, streams = Batch(slots, first, codes.shape[2]), len(slots)
    rings, padded = iter(state.rings), Padded(batch, codec.config, state.contexts)
    padded.begin()
    x = embed(batch, codec, codes, next(rings))
    for layer in codec.layers:
        _transform(batch, layer, x, (codec.cos, codec.sin), (next(rings), next(rings)))
    x = attention.rms_norm(x, codec.norm, codec.config.rms_eps)
    inputs = iter(padded.inputs)
    upsamplings: Any = codec.upsamplings
    for upsampling in upsamplings:
        seen = next(inputs)
        convolve(streams, upsampling.expand, x, to=seen)
        y = depthwise(upsampling, seen)
        y = convolve(streams, upsampling.widen, y, gelu=True)
        to = next(inputs) if upsampling is upsamplings[-1] else None
        x = convolve(streams, upsampling.narrow, y, add=seen, to=to)
    assert to is not None
    seen = next(inputs)
    blocks: Any = codec.blocks
    convolve(streams, codec.inner, to, snake=blocks[0].snake, to=seen)
    for block, after in zip(blocks, [*blocks[1:], codec], strict=True):
        seen = _block(block, after.snake, seen, inputs)
    sound = finish(codec.outer, seen)
    padded.keep()
    return sound


def _transform(
    batch: Batch,
    layer: Any,
    x: Tensor,
    turn: tuple[Tensor, Tensor],
    rings: tuple[Tensor, Tensor],
) -> None:
    """Adds the layer's output to x."""
    c = layer.config
    qkv = linear.norm_linear(x, layer.attention_norm, c.rms_eps, layer.qkv)
    heard = attend(batch, qkv, turn, rings, c.heads, c.window)
    linear.add_linear_(x, heard, layer.out)
    wide = linear.norm_silu_linear(x, layer.ffn_norm, c.rms_eps, layer.gate_up)
    linear.add_linear_(x, wide, layer.down)


def _block(block: Any, after: Any, x: Tensor, inputs: Iterator[Tensor]) -> Tensor:
    """Runs a decoder block and returns its output with the snake of the following part applied."""
    streams, seen = len(x), next(inputs)
    snakes = [residual.snake1 for residual in block.residuals]
    x = convolve(streams, block.expand, x, keep=True, snake=snakes[0], to=seen)
    for residual, snake in zip(block.residuals, [*snakes[1:], after], strict=True):
        to = next(inputs)
        second, keep = residual.conv2, snake is not after
        pair = choose_pair_tile(x)
        if cuda_residual_unit.fits(x):
            x = cuda_residual_unit.residual_unit(
                residual, seen, add=x, keep=keep, snake=snake, to=to
            )
        elif pair:
            x = convolve(
                streams, residual.conv1, seen, between=residual.snake2, second=second,
                add=x, keep=keep, snake=snake, to=to, tile=pair,
            )  # fmt: skip
        else:
            y = convolve(streams, residual.conv1, seen, snake=residual.snake2)
            x = convolve(streams, second, y, add=x, keep=keep, snake=snake, to=to)
        seen = to
    return seen


class Padded:
    """The padded inputs of all convolutions after the transformer, of one call."""

    def __init__(self, batch: Batch, config: CodecConfig, contexts: Tensor) -> None:
        """`contexts`: those of a state, [slots, elements]."""
        self._batch, self._contexts = batch, contexts
        self._parts = _parts(config, contexts.device)
        shapes = [
            (len(batch.slots), x.length + batch.frames * x.rate, x.channels)
            for x in config.left_contexts
        ]
        sizes = [math.prod(shape) for shape in shapes]
        self._all = contexts.new_empty(sum(sizes))
        self.inputs = [
            part.view(shape) for part, shape in zip(self._all.split(sizes), shapes, strict=True)
        ]
        """In the order of the convolutions, each [B, length + T, channels]."""

    def begin(self) -> None:
        """Writes the left contexts; they are zeros for streams that begin."""
        self._copy(keep=False)

    def keep(self) -> None:
        """Keeps the last rows of all inputs as the left contexts of the next call."""
        self._copy(keep=True)

    def _copy(self, keep: bool) -> None:
        streams = len(self._batch.slots)
        _copy_contexts[(streams, len(self._parts))](
            self._contexts,
            self._all,
            self._parts,
            self._batch.slots,
            self._batch.first,
            streams,
            self._batch.frames,
            self._contexts.shape[1] // VECTOR,
            KEEP=keep,
            PART=PART,
            VECTOR=VECTOR,
            num_warps=4,
        )


VECTOR = 8
"""Elements of 16 bytes. All channels are multiples of it."""
PART = 1024
"""Elements of a context that a program copies."""


@functools.cache
def _parts(config: CodecConfig, device: torch.device) -> Tensor:
    """Returns what the programs copy of each stream: int64 [parts, 7], in vectors. See
    `_copy_contexts`."""
    parts = []
    start = before = before_frame = 0
    for x in config.left_contexts:
        size, frame = x.elements // VECTOR, x.rate * x.channels // VECTOR
        for inner in range(0, size, PART // VECTOR):
            count = min(PART // VECTOR, size - inner)
            parts.append((start + inner, count, inner, size, frame, before, before_frame))
        start, before, before_frame = start + size, before + size, before_frame + frame
    return torch.tensor(parts, device=device)


@triton.jit(do_not_specialize=["streams", "frames", "total"])
def _copy_contexts(
    contexts,
    inputs,
    parts,
    slots,
    first,
    streams,
    frames,
    total,
    KEEP: tl.constexpr,
    PART: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Copies a part of a stream's contexts to the padded inputs of a call or, to keep it, back.

    A part says: where it begins in the contexts of a slot, how long it is, and where it begins in
    its own context; how long that is, and a frame of its input; and how long all contexts before it
    are, and a frame of all inputs before. Counts are of vectors, so that Triton knows that their
    elements can be copied so.
    """
    number = tl.program_id(0).to(tl.int64)
    part = parts + tl.program_id(1) * 7
    start, count, inner = tl.load(part), tl.load(part + 1), tl.load(part + 2)
    size, frame = tl.load(part + 3), tl.load(part + 4)
    before = streams * (tl.load(part + 5) + frames * tl.load(part + 6))
    slot = tl.load(slots + number)
    lane = tl.arange(0, PART)
    real = lane < count * VECTOR
    at = before + number * (size + frames * frame) + inner
    of_slot = contexts + (slot * total + start) * VECTOR + lane
    if KEEP:
        of_input = inputs + (at + frames * frame) * VECTOR + lane
        x = tl.load(of_input, mask=real & (slot > 0))
        tl.store(of_slot, x, mask=real & (slot > 0))
    else:
        known = real & (tl.load(first + number) > 0)
        tl.store(inputs + at * VECTOR + lane, tl.load(of_slot, mask=known, other=0.0), mask=real)


def embed(batch: Batch, codec: Codec, codes: Tensor, ring: Tensor) -> Tensor:
    """Embeds int64 [B, codebooks, frames] to packed [B * frames, hidden_size]."""
    taps, books, size, channels = codec.embedding.shape
    total = len(codes) * batch.frames
    x = torch.empty((total, channels), dtype=codec.embedding.dtype, device=codes.device)
    block = min(64, channels)
    _embed[(total, channels // block)](
        codes.contiguous(),
        ring,
        codec.embedding,
        codec.embedding_bias,
        x,
        batch.slots,
        batch.first,
        batch.frames,
        ring.shape[1],
        SIZE=size,
        CHANNELS=channels,
        TAPS=taps,
        BOOKS=books,
        BLOCK=block,
        num_warps=4,
    )
    return x


@triton.jit(do_not_specialize=["frames", "ring_length"])
def _embed(
    codes,
    ring,
    table,
    bias,
    out,
    slots,
    first,
    frames,
    ring_length,
    SIZE: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BOOKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    number = tl.program_id(0) // frames
    inner = tl.program_id(0) % frames
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    book = tl.arange(0, BOOKS)
    codes += number * BOOKS * frames
    ring += tl.load(slots + number) * ring_length * BOOKS
    inner += tl.zeros_like(book)
    position = tl.load(first + number) + inner
    sum = tl.load(bias + channel)
    for tap in tl.static_range(TAPS):
        back = TAPS - 1 - tap
        real = position >= back
        now = tl.load(codes + book * frames + inner - back, mask=inner >= back, other=0)
        then = ring + tl.maximum(position - back, 0) % ring_length * BOOKS + book
        before = tl.load(then, mask=real & (inner < back), other=0)
        code = (tap * BOOKS + book) * SIZE + tl.where(inner >= back, now, before)
        at = table + code[:, None] * CHANNELS + channel[None, :]
        rows = tl.load(at, mask=real[:, None], other=0.0)
        sum += tl.sum(rows.to(tl.float32), 0)
        if tap == TAPS - 1:
            tl.store(then, now)
    at = out + tl.program_id(0).to(tl.int64) * CHANNELS + channel
    tl.store(at, sum.to(out.dtype.element_ty))


def attend(
    batch: Batch,
    qkv: Tensor,
    turn: tuple[Tensor, Tensor],
    rings: tuple[Tensor, Tensor],
    heads: int,
    window: int,
) -> Tensor:
    """Rotates queries and keys, remembers keys and values, and attends: packed.

    qkv: packed, [B * frames, 3 * heads * head_dim]. turn: cosine and sine of every position, fp32
    [positions, head_dim / 2]. rings: keys and values, [slots, rows, heads * head_dim].
    """
    width = qkv.shape[1] // 3
    channels = width // heads
    out = torch.empty((len(qkv), width), dtype=qkv.dtype, device=qkv.device)
    _attend[(len(batch.slots), heads)](
        qkv,
        *turn,
        *rings,
        out,
        batch.slots,
        batch.first,
        batch.frames,
        rings[0].shape[1],
        channels**-0.5,
        WINDOW=window,
        CHANNELS=channels,
        WIDTH=width,
        NEW=max(16, triton.next_power_of_2(batch.frames)),
        OLD=max(16, triton.next_power_of_2(window - 1)),
        # Of many programs, those of one warp are faster: 512 streams in 56 us instead of 70.
        num_warps=1 if len(out) * heads >= 1024 else 4,
    )
    return out


@triton.jit
def wrap(row, ring):
    """Wraps a row number, less than one ring length out of range, into the ring."""
    row = tl.where(row < 0, row + ring, row)
    return tl.where(row >= ring, row - ring, row)


@triton.jit(do_not_specialize=["frames", "ring_length"])
def _attend(
    qkv,
    cos,
    sin,
    keys,
    values,
    out,
    slots,
    first,
    frames,
    ring_length,
    scale,
    WINDOW: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    NEW: tl.constexpr,
    OLD: tl.constexpr,
):
    """One head of one stream: the new keys from qkv, the older ones from the ring."""
    number, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + number)
    position = tl.load(first + number).to(tl.int32)
    new, old = tl.arange(0, NEW), tl.arange(0, OLD)
    channel = tl.arange(0, CHANNELS)
    keys += slot * ring_length * WIDTH + head * CHANNELS
    values += slot * ring_length * WIDTH + head * CHANNELS
    # The older frames, the latest first.
    row = wrap(position % ring_length - 1 - old, ring_length)[:, None] * WIDTH + channel[None, :]
    real = ((old < WINDOW - 1) & (old < position))[:, None]
    old_k = tl.load(keys + row, mask=real, other=0.0)
    old_v = tl.load(values + row, mask=real, other=0.0)

    half: tl.constexpr = CHANNELS // 2
    real = (new < frames)[:, None]
    at = (number * frames + new).to(tl.int64)[:, None]
    angle = (position + new)[:, None] * half + (channel % half)[None, :]
    c = tl.load(cos + angle, mask=real, other=0.0)
    s = tl.load(sin + angle, mask=real, other=0.0)
    s = tl.where((channel < half)[None, :], -s, s)
    q = qkv + at * (3 * WIDTH) + head * CHANNELS
    k, partner = q + WIDTH, ((channel + half) % CHANNELS)[None, :]
    v = tl.load(k + WIDTH + channel[None, :], mask=real, other=0.0)
    qx = tl.load(q + channel[None, :], mask=real, other=0.0).to(tl.float32) * c
    qx += tl.load(q + partner, mask=real, other=0.0).to(tl.float32) * s
    kx = tl.load(k + channel[None, :], mask=real, other=0.0).to(tl.float32) * c
    kx += tl.load(k + partner, mask=real, other=0.0).to(tl.float32) * s
    qx, kx = qx.to(v.dtype), kx.to(v.dtype)
    row = wrap(position % ring_length + new, ring_length)[:, None] * WIDTH + channel[None, :]
    tl.store(keys + row, kx, mask=real)
    tl.store(values + row, v, mask=real)

    near = (old[None, :] < WINDOW - 1 - new[:, None]) & (old < position)[None, :]
    far = tl.dot(qx, tl.trans(old_k), input_precision="ieee") * scale
    far = tl.where(near, far, float("-inf"))
    behind = new[:, None] - new[None, :]
    close = tl.dot(qx, tl.trans(kx), input_precision="ieee") * scale
    close = tl.where((behind >= 0) & (behind < WINDOW), close, float("-inf"))
    most = tl.maximum(tl.max(far, 1), tl.max(close, 1))[:, None]
    far, close = tl.exp(far - most), tl.exp(close - most)
    weight = tl.sum(far, 1) + tl.sum(close, 1)
    sum = tl.dot(far.to(v.dtype), old_v, input_precision="ieee")
    sum = tl.dot(close.to(v.dtype), v, sum, input_precision="ieee") / weight[:, None]
    at = out + at * WIDTH + head * CHANNELS + channel[None, :]
    tl.store(at, sum.to(out.dtype.element_ty), mask=real)


def depthwise(upsampling: Upsampling, x: Tensor) -> Tensor:
    """The depthwise convolution of a ConvNeXt block and the following norm: padded to packed."""
    taps, channels = upsampling.depthwise.shape
    rows = x.shape[1] - (taps - 1)
    out = x.new_empty(len(x) * rows, channels)
    _depthwise[(len(out),)](
        x,
        upsampling.depthwise,
        upsampling.depthwise_bias,
        out,
        rows,
        LAYER_NORM_EPS,
        CHANNELS=channels,
        TAPS=taps,
        BLOCK=triton.next_power_of_2(channels),
        num_warps=4,
    )
    return out


@triton.jit(do_not_specialize=["rows"])
def _depthwise(
    x,
    weight,
    bias,
    out,
    rows,
    eps,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    real = channel < CHANNELS
    # Each stream before it has so many rows more in x.
    seen = x + (row + row // rows * (TAPS - 1)) * CHANNELS + channel
    y = tl.load(bias + channel, mask=real, other=0.0)
    for tap in tl.static_range(TAPS):
        z = tl.load(seen + tap * CHANNELS, mask=real, other=0.0).to(tl.float32)
        y += z * tl.load(weight + tap * CHANNELS + channel, mask=real, other=0.0).to(tl.float32)
    y = tl.where(real, y - tl.sum(y, 0) / CHANNELS, 0.0)
    y *= tl.rsqrt(tl.sum(y * y, 0) / CHANNELS + eps)
    tl.store(out + row * CHANNELS + channel, y.to(out.dtype.element_ty), mask=real)


def finish(conv: Convolution, x: Tensor) -> Tensor:
    """The last convolution, to one channel: padded to fp32 [B, T] in [-1, 1]."""
    _, taps, channels = conv.weight.shape
    rows = x.shape[1] - conv.length
    out = x.new_empty((len(x), rows), dtype=torch.float32)
    seen = 128 if len(out) > 4 else 32
    _finish[(len(out), triton.cdiv(rows, seen - taps + 1))](
        x,
        conv.weight,
        conv.bias,
        out,
        rows,
        CHANNELS=channels,
        TAPS=taps,
        SEEN=seen,
        BLOCK=max(16, triton.next_power_of_2(channels)),
        num_warps=4,
    )
    return out


@triton.jit(do_not_specialize=["rows"])
def _finish(
    x,
    weight,
    bias,
    out,
    rows,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    SEEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Multiplies every row by every tap, then adds up what belongs together: row i and tap j go to
    row i - j."""
    number = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * (SEEN - TAPS + 1) + tl.arange(0, SEEN)
    real = row < rows + TAPS - 1
    channel, tap = tl.arange(0, BLOCK), tl.arange(0, 16)
    there = channel < CHANNELS
    at = x + (number * (rows + TAPS - 1) + row) * CHANNELS
    seen = tl.load(at[:, None] + channel[None, :], mask=real[:, None] & there[None, :], other=0.0)
    at = weight + tap[None, :] * CHANNELS + channel[:, None]
    w = tl.load(at, mask=there[:, None] & (tap < TAPS)[None, :], other=0.0)
    product = tl.dot(seen, w, input_precision="ieee")
    of = tl.minimum(tl.arange(0, SEEN)[:, None] + tap[None, :], SEEN - 1)
    product = tl.gather(product, of, 0)
    y = tl.sum(tl.where((tap < TAPS)[None, :], product, 0.0), 1) + tl.load(bias)
    y = tl.minimum(tl.maximum(y, -1.0), 1.0)
    last = tl.minimum((tl.program_id(1) + 1) * (SEEN - TAPS + 1), rows)
    tl.store(out + number * rows + row, y, mask=row < last)
