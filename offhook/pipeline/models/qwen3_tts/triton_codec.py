# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"
"""`Codec.stream` as Triton kernels, made for an H200 (sm_90).

The number of launches does not grow with the streams: 80 for one frame of one, a hundred at most.
Between them x is packed: [B * T, channels], T rows of each stream of the call. On an H200, in a
CUDA graph:

    1 stream, 1 frame        412 us
    1 stream, 2 frames       482
    8 streams, 1 frame       574
    64 streams, 1 frame     1244
    128 streams, 4 frames   5762, 55 % of the 790 TFLOP/s that it has in bf16

The residual units of many rows are not in Triton there: see `cuda_residual_unit`.
"""

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from offhook.pipeline.models.qwen3 import attention, linear
from offhook.pipeline.models.qwen3_tts import cuda_residual_unit
from offhook.pipeline.models.qwen3_tts.codec import (
    LAYER_NORM_EPS,
    Codec,
    CodecState,
    Convolution,
    Upsampling,
)
from offhook.pipeline.models.qwen3_tts.triton_codec_convolution import (
    Batch,
    choose_pair_tile,
    convolve,
    wrap,
)


def stream(codec: Codec, codes: Tensor, slots: Tensor, first: Tensor, state: CodecState) -> Tensor:
    """`Codec.stream`."""
    assert codes.shape[2] <= state.frames
    batch = Batch(slots, first, codes.shape[2])
    rings = iter(state.rings)
    x = embed(batch, codec, codes, next(rings))
    for layer in codec.layers:
        _transform(batch, layer, x, (codec.cos, codec.sin), (next(rings), next(rings)))
    x = attention.rms_norm(x, codec.norm, codec.config.rms_eps)
    rate, ring = 1, next(rings)
    upsamplings: Any = codec.upsamplings
    for upsampling in upsamplings:
        convolve(batch, upsampling.expand, x, rate, to=ring)
        rate *= upsampling.expand.rows
        y = depthwise(batch, upsampling, ring, rate)
        y = convolve(batch, upsampling.widen, y, rate, gelu=True)
        seen, ring = ring, next(rings)
        last = upsampling is upsamplings[-1]
        x = convolve(batch, upsampling.narrow, y, rate, add=seen, to=ring if last else None)
    seen, ring = ring, next(rings)
    blocks: Any = codec.blocks
    convolve(batch, codec.inner, seen, rate, snake=blocks[0].snake, to=ring)
    for block, after in zip(blocks, [*blocks[1:], codec], strict=True):
        ring, rate = _block(batch, block, after.snake, ring, rate, rings)
    return finish(batch, codec.outer, ring, rate)


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


def _block(
    batch: Batch, block: Any, after: Any, ring: Tensor, rate: int, rings: Iterator[Tensor]
) -> tuple[Tensor, int]:
    """Runs a decoder block and returns the ring and the rate of its output, with the snake of the
    following part applied."""
    seen, ring = ring, next(rings)
    snakes = [residual.snake1 for residual in block.residuals]
    x = convolve(batch, block.expand, seen, rate, keep=True, snake=snakes[0], to=ring)
    rate *= block.expand.rows
    for residual, snake in zip(block.residuals, [*snakes[1:], after], strict=True):
        seen, ring = ring, next(rings)
        second, keep = residual.conv2, snake is not after
        pair = choose_pair_tile(x)
        if cuda_residual_unit.fits(batch, seen, rate):
            x = cuda_residual_unit.residual_unit(
                batch, residual, seen, rate, add=x, keep=keep, snake=snake, to=ring
            )
        elif pair:
            x = convolve(
                batch, residual.conv1, seen, rate, between=residual.snake2, second=second,
                add=x, keep=keep, snake=snake, to=ring, tile=pair,
            )  # fmt: skip
        else:
            y = convolve(batch, residual.conv1, seen, rate, snake=residual.snake2)
            x = convolve(batch, second, y, rate, add=x, keep=keep, snake=snake, to=ring)
    return ring, rate


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


def depthwise(batch: Batch, upsampling: Upsampling, ring: Tensor, rate: int) -> Tensor:
    """The depthwise convolution of a ConvNeXt block and the following norm, packed."""
    taps, channels = upsampling.depthwise.shape
    rows = rate * batch.frames
    total = len(batch.slots) * rows
    out = torch.empty((total, channels), dtype=ring.dtype, device=ring.device)
    _depthwise[(total,)](
        ring,
        upsampling.depthwise,
        upsampling.depthwise_bias,
        out,
        batch.slots,
        batch.first,
        rows,
        rate,
        ring.shape[1],
        LAYER_NORM_EPS,
        CHANNELS=channels,
        TAPS=taps,
        BLOCK=triton.next_power_of_2(channels),
        num_warps=4,
    )
    return out


@triton.jit(do_not_specialize=["rows", "rate", "ring_length"])
def _depthwise(
    ring,
    weight,
    bias,
    out,
    slots,
    first,
    rows,
    rate,
    ring_length,
    eps,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    number = tl.program_id(0) // rows
    position = (tl.load(first + number) * rate).to(tl.int32) + tl.program_id(0) % rows
    ring += tl.load(slots + number) * ring_length * CHANNELS
    channel = tl.arange(0, BLOCK)
    position += tl.zeros_like(channel)
    real = channel < CHANNELS
    y = tl.load(bias + channel, mask=real, other=0.0)
    for tap in tl.static_range(TAPS):
        row = position + tap - (TAPS - 1)
        there = real & (row >= 0)
        at = ring + tl.maximum(row, 0) % ring_length * CHANNELS + channel
        x = tl.load(at, mask=there, other=0.0).to(tl.float32)
        y += x * tl.load(weight + tap * CHANNELS + channel, mask=real, other=0.0).to(tl.float32)
    y = tl.where(real, y - tl.sum(y, 0) / CHANNELS, 0.0)
    y *= tl.rsqrt(tl.sum(y * y, 0) / CHANNELS + eps)
    at = out + tl.program_id(0).to(tl.int64) * CHANNELS + channel
    tl.store(at, y.to(out.dtype.element_ty), mask=real)


def finish(batch: Batch, conv: Convolution, ring: Tensor, rate: int) -> Tensor:
    """The last convolution, to one channel: fp32 [B, T] in [-1, 1]."""
    _, taps, channels = conv.weight.shape
    rows = rate * batch.frames
    out = torch.empty((len(batch.slots), rows), dtype=torch.float32, device=ring.device)
    seen = 128 if len(out) > 4 else 32
    _finish[(len(out), triton.cdiv(rows, seen - taps + 1))](
        ring,
        conv.weight,
        conv.bias,
        out,
        batch.slots,
        batch.first,
        rows,
        rate,
        ring.shape[1],
        CHANNELS=channels,
        TAPS=taps,
        SEEN=seen,
        BLOCK=max(16, triton.next_power_of_2(channels)),
        num_warps=4,
    )
    return out


@triton.jit(do_not_specialize=["rows", "rate", "ring_length"])
def _finish(
    ring,
    weight,
    bias,
    out,
    slots,
    first,
    rows,
    rate,
    ring_length,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    SEEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Multiplies every row by every tap, then adds up what belongs together: row i and tap j go to
    row i - j."""
    number = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * (SEEN - TAPS + 1) + tl.arange(0, SEEN)
    position = (tl.load(first + number) * rate).to(tl.int32) + row - (TAPS - 1)
    real = (position >= 0) & (row < rows + TAPS - 1)
    ring += tl.load(slots + number) * ring_length * CHANNELS
    at = ring + tl.maximum(position, 0) % ring_length * CHANNELS
    channel, tap = tl.arange(0, BLOCK), tl.arange(0, 16)
    there = channel < CHANNELS
    x = tl.load(at[:, None] + channel[None, :], mask=real[:, None] & there[None, :], other=0.0)
    at = weight + tap[None, :] * CHANNELS + channel[:, None]
    w = tl.load(at, mask=there[:, None] & (tap < TAPS)[None, :], other=0.0)
    product = tl.dot(x, w, input_precision="ieee")
    of = tl.minimum(tl.arange(0, SEEN)[:, None] + tap[None, :], SEEN - 1)
    product = tl.gather(product, of, 0)
    y = tl.sum(tl.where((tap < TAPS)[None, :], product, 0.0), 1) + tl.load(bias)
    y = tl.minimum(tl.maximum(y, -1.0), 1.0)
    last = tl.minimum((tl.program_id(1) + 1) * (SEEN - TAPS + 1), rows)
    tl.store(out + number * rows + row, y, mask=row < last)
