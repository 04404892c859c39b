# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found"
"""The attention of `attention` as Triton kernels, for bf16 and made for an H200 (sm_90).

A program takes a block of rows of one sequence and one kv head; a row is a query token and one of
the query heads that share the kv head, so that a key is read once for all of them. It walks over
blocks of keys with a running softmax (FlashAttention-2, Dao 2023).

Which sequence a program belongs to is found on the device. With B tokens a block, sequence s is
given the programs from starts[s] // B + s on: at least as many as it has blocks. So T // B + S + 1
programs are enough for any lengths, few of them have nothing to do, and those past the last
sequence write the zeros of the padding.

When programs are few, the keys of each are shared out over several ("flash-decoding"), and the
one that arrives last puts the parts together in the same launch: a decode step of one stream has
8 kv heads for 132 processors, and a second launch in each of 28 layers would cost what the
sharing saves.
"""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634


class Tile(NamedTuple):
    """Rows and keys per program and iteration, its warps, and its pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


# Programs with the most work first.
PAGED_TILES = (Tile(64, 32, 4, 2), Tile(16, 64, 4, 5))
WINDOW_TILES = (Tile(64, 32, 4, 2), Tile(32, 64, 4, 2))
ENOUGH_PROGRAMS = 132
"""Multiprocessors of an H200; with fewer programs, smaller ones finish sooner."""
SPLIT_PROGRAMS = 512
"""Keys are split over programs as long as there are at most this many."""
MAX_SPLITS = 16
"""64 keys each at 1000 tokens; merging more parts costs more than it saves."""


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    q_starts: Tensor,
    kv_lengths: Tensor,
    max_q: int,
    scale: float,
) -> Tensor:
    """`attention.paged_attention`."""
    tokens, q_heads, _ = q.shape
    kv_heads = k_cache.shape[2]
    group = q_heads // kv_heads
    tile = choose_tile(PAGED_TILES, tokens, max_q, group, kv_heads)
    splits = choose_splits(count_blocks(tile, tokens, len(kv_lengths), group) * kv_heads)
    return launch_paged(q, k_cache, v_cache, page_table, q_starts, kv_lengths, scale, tile, splits)


def count_blocks(tile: Tile, tokens: int, sequences: int, group: int) -> int:
    """Returns enough blocks for the tokens, however they are distributed over sequences, plus
    padding."""
    return tokens // (tile.rows // group) + sequences + 1


def choose_tile(tiles: tuple[Tile, ...], tokens: int, longest: int, group: int, heads: int) -> Tile:
    """Returns the largest tile, below twice the longest sequence, that keeps every multiprocessor
    busy."""
    for tile in tiles:
        programs = tokens // (tile.rows // group) * heads
        if tile.rows < 2 * longest * group and programs >= ENOUGH_PROGRAMS:
            return tile
    return tiles[-1]


def choose_splits(programs: int) -> int:
    """Returns over how many programs a block's keys are split, a power of two."""
    most = min(SPLIT_PROGRAMS // programs, MAX_SPLITS)
    return 1 << max(most, 1).bit_length() - 1


@functools.cache
def arrivals(device: torch.device, stream: int) -> Tensor:
    """Returns the counters of finished programs per split block. They are zero between launches,
    which follow each other on one CUDA stream."""
    return torch.zeros(SPLIT_PROGRAMS, dtype=torch.int32, device=device)


def launch_paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    q_starts: Tensor,
    kv_lengths: Tensor,
    scale: float,
    tile: Tile,
    splits: int,
) -> Tensor:
    """`paged_attention` with a given tile, the keys of a block shared by `splits` programs."""
    tokens, q_heads, channels = q.shape
    _, page_size, kv_heads, _ = k_cache.shape
    sequences = len(kv_lengths)
    blocks = count_blocks(tile, tokens, sequences, q_heads // kv_heads)
    out = torch.empty((tokens, q_heads, channels), dtype=q.dtype, device=q.device)
    parts = sums = out
    if splits > 1:
        rows = blocks * kv_heads * splits * tile.rows
        parts = torch.empty((rows, channels), dtype=torch.float32, device=q.device)
        sums = torch.empty((rows, 2), dtype=torch.float32, device=q.device)
    _paged_attention[(blocks, kv_heads, splits)](
        q,
        k_cache,
        v_cache,
        out,
        page_table,
        q_starts,
        kv_lengths,
        parts,
        sums,
        arrivals(q.device, torch.cuda.current_stream(q.device).cuda_stream if q.is_cuda else 0),
        tokens,
        sequences,
        q.stride(0),
        q.stride(1),
        page_table.stride(0),
        scale * LOG2_E,
        KV_HEADS=kv_heads,
        GROUP=q_heads // kv_heads,
        CHANNELS=channels,
        PAGE=page_size,
        ROWS=tile.rows,
        KEYS=min(tile.keys, page_size),
        SPLITS=splits,
        SEARCH=triton.next_power_of_2(sequences + 1),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, max_len: int, scale: float
) -> Tensor:
    """`attention.window_attention`."""
    tokens, heads, channels = q.shape
    windows = len(starts) - 1
    tile = choose_tile(WINDOW_TILES, tokens, max_len, 1, heads)
    out = torch.empty((tokens, heads, channels), dtype=q.dtype, device=q.device)
    _window_attention[(count_blocks(tile, tokens, windows, 1), heads)](
        q,
        k,
        v,
        out,
        starts,
        tokens,
        windows,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        scale * LOG2_E,
        HEADS=heads,
        CHANNELS=channels,
        ROWS=tile.rows,
        KEYS=min(tile.keys, max(16, triton.next_power_of_2(max_len))),
        SEARCH=triton.next_power_of_2(windows + 1),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


@triton.jit
def _find_block(starts, tokens, sequences, TOKENS: tl.constexpr, SEARCH: tl.constexpr):
    """The sequence of this program, its first token, and where the sequence ends.

    Sequence number `sequences` is the padding. No tokens are left if first >= end.
    """
    program = tl.program_id(0)
    s = tl.arange(0, SEARCH)
    start = tl.load(starts + s, mask=s <= sequences, other=1 << 30)
    sequence = tl.sum((start // TOKENS + s <= program).to(tl.int32), 0) - 1
    begin = tl.load(starts + sequence)
    end = tl.load(starts + sequence + 1, mask=sequence < sequences, other=tokens)
    first = begin + (program - begin // TOKENS - sequence) * TOKENS
    return sequence, first, end


@triton.jit
def _attend(q, k, v, visible, total, top, out, scale, MASKED: tl.constexpr):
    """One step of the running softmax, in powers of two.

    top is the greatest score so far, total the sum of the weights, out their sum of values. top
    begins finite, so that a row that has seen nothing keeps total 0 and never makes a NaN.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - new_top[:, None])
    fade = tl.exp2(top - new_top)
    total = total * fade + tl.sum(weights, 1)
    out = tl.dot(weights.to(v.dtype), v, out * fade[:, None], input_precision="ieee")
    return total, new_top, out


@triton.jit
def _attend_pages(
    q,
    k_cache,
    v_cache,
    pages,
    head,
    position,
    low,
    high,
    total,
    top,
    out,
    scale,
    KV_HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """`_attend` to the keys low to high of a sequence; without MASKED all rows see all of them.

    low is a multiple of KEYS, and KEYS divides PAGE: a block of keys lies in one page.
    """
    channel = tl.arange(0, CHANNELS)
    for start in tl.range(low, high, KEYS):
        key = start + tl.arange(0, KEYS)
        slot = tl.load(pages + start // PAGE).to(tl.int64) * PAGE + start % PAGE
        block = (slot * KV_HEADS + head) * CHANNELS
        at = tl.arange(0, KEYS)[:, None] * (KV_HEADS * CHANNELS) + channel[None, :]
        if MASKED:
            # What lies past the last token may be anything, and 0 * NaN is NaN.
            k = tl.load(k_cache + block + at, mask=(key < high)[:, None], other=0.0)
            v = tl.load(v_cache + block + at, mask=(key < high)[:, None], other=0.0)
        else:
            k = tl.load(k_cache + block + at)
            v = tl.load(v_cache + block + at)
        visible = key[None, :] <= position[:, None]
        total, top, out = _attend(q, k, v, visible, total, top, out, scale, MASKED)
    return total, top, out


@triton.jit
def _merge_parts(
    parts,
    sums,
    first_part,
    used,
    real,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The sum of weights and of values of a block, of the parts that its programs left."""
    row = tl.arange(0, ROWS)
    end = (first_part + used) * ROWS
    at = (first_part + tl.arange(0, SPLITS))[:, None] * ROWS + row[None, :]
    top = tl.max(tl.load(sums + at * 2, mask=real[None, :] & (at < end), other=-1e30), 0)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, CHANNELS], tl.float32)
    # Unrolled, so that the loads of all parts are on their way together.
    for part in tl.static_range(SPLITS):
        at = (first_part + part) * ROWS + row
        ready = real & (at < end)
        fade = tl.exp2(tl.load(sums + at * 2, mask=ready, other=-1e30) - top)
        total += fade * tl.load(sums + at * 2 + 1, mask=ready, other=0.0)
        at = at[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]
        out += fade[:, None] * tl.load(parts + at, mask=ready[:, None], other=0.0)
    return total, out


@triton.jit(do_not_specialize=["tokens", "sequences"])
def _paged_attention(
    q,
    k_cache,
    v_cache,
    out,
    page_table,
    q_starts,
    kv_lengths,
    parts,
    sums,
    arrivals,
    tokens,
    sequences,
    q_token_stride,
    q_head_stride,
    table_stride,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    SEARCH: tl.constexpr,
):
    TOKENS: tl.constexpr = ROWS // GROUP
    head = tl.program_id(1)
    split = tl.program_id(2)
    sequence, first, end = _find_block(q_starts, tokens, sequences, TOKENS, SEARCH)
    if first >= end:
        return
    row = tl.arange(0, ROWS)
    channel = tl.arange(0, CHANNELS)
    token = first + row // GROUP
    real = (row < TOKENS * GROUP) & (token < end)
    q_head = head * GROUP + row % GROUP
    out += first.to(tl.int64) * (KV_HEADS * GROUP * CHANNELS)
    out_at = (row // GROUP * (KV_HEADS * GROUP) + q_head)[:, None] * CHANNELS + channel[None, :]
    if sequence == sequences:
        if split == 0:
            zeros = tl.zeros([ROWS, CHANNELS], out.dtype.element_ty)
            tl.store(out + out_at, zeros, mask=real[:, None])
        return

    # The block sees `seen` keys, the part of this program is low to high.
    position = tl.load(kv_lengths + sequence) - end + token
    behind = tl.load(kv_lengths + sequence) - end + first
    seen = tl.maximum(behind + tl.minimum(TOKENS, end - first), 0)
    share = tl.maximum(tl.cdiv(tl.cdiv(seen, KEYS), SPLITS), 1) * KEYS
    used = tl.maximum(tl.cdiv(seen, share), 1)
    if split >= used:
        return
    low = split * share
    high = tl.minimum(low + share, seen)

    q_at = (row // GROUP * q_token_stride + q_head * q_head_stride)[:, None] + channel[None, :]
    q_rows = tl.load(q + first.to(tl.int64) * q_token_stride + q_at, mask=real[:, None], other=0.0)
    pages = page_table + sequence * table_stride
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -1e30, tl.float32)
    sum = tl.zeros([ROWS, CHANNELS], tl.float32)
    # Every row sees the keys up to the first row's own: only the last blocks need a mask.
    unmasked = tl.minimum(tl.maximum((behind + 1) // KEYS * KEYS, low), high)
    total, top, sum = _attend_pages(
        q_rows, k_cache, v_cache, pages, head, position, low, unmasked, total, top, sum, scale,
        KV_HEADS, CHANNELS, PAGE, KEYS, False,
    )  # fmt: skip
    total, top, sum = _attend_pages(
        q_rows, k_cache, v_cache, pages, head, position, unmasked, high, total, top, sum, scale,
        KV_HEADS, CHANNELS, PAGE, KEYS, True,
    )  # fmt: skip

    if SPLITS > 1 and used > 1:
        shared = tl.program_id(0) * KV_HEADS + head
        part_at = (shared * SPLITS + split) * ROWS + row
        tl.store(parts + part_at[:, None] * CHANNELS + channel[None, :], sum, mask=real[:, None])
        tl.store(sums + part_at * 2, top, mask=real)
        tl.store(sums + part_at * 2 + 1, total, mask=real)
        # All threads have stored before the one that announces it does; the add orders memory.
        tl.debug_barrier()
        if tl.atomic_add(arrivals + shared, 1, sem="acq_rel") < used - 1:
            return
        tl.store(arrivals + shared, 0)
        total, sum = _merge_parts(parts, sums, shared * SPLITS, used, real, ROWS, CHANNELS, SPLITS)
    sum = sum / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + out_at, sum.to(out.dtype.element_ty), mask=real[:, None])


@triton.jit(do_not_specialize=["tokens", "windows"])
def _window_attention(
    q,
    k,
    v,
    out,
    starts,
    tokens,
    windows,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    scale,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SEARCH: tl.constexpr,
):
    head = tl.program_id(1)
    window, first, end = _find_block(starts, tokens, windows, ROWS, SEARCH)
    if first >= end:
        return
    row = tl.arange(0, ROWS)[:, None]
    channel = tl.arange(0, CHANNELS)
    real = first + tl.arange(0, ROWS) < end
    out += (first.to(tl.int64) * HEADS + head) * CHANNELS
    out_at = row * (HEADS * CHANNELS) + channel[None, :]
    if window == windows:
        zeros = tl.zeros([ROWS, CHANNELS], out.dtype.element_ty)
        tl.store(out + out_at, zeros, mask=real[:, None])
        return

    q += first.to(tl.int64) * q_token_stride + head * q_head_stride
    q_rows = tl.load(q + (row * q_token_stride + channel[None, :]), mask=real[:, None], other=0.0)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -1e30, tl.float32)
    sum = tl.zeros([ROWS, CHANNELS], tl.float32)
    k += head * k_head_stride
    v += head * v_head_stride
    for start in tl.range(tl.load(starts + window), end, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = (key < end)[:, None]
        k_at = key[:, None] * k_token_stride + channel[None, :]
        v_at = key[:, None] * v_token_stride + channel[None, :]
        k_rows = tl.load(k + k_at, mask=inside, other=0.0)
        v_rows = tl.load(v + v_at, mask=inside, other=0.0)
        visible = (key < end)[None, :]
        total, top, sum = _attend(q_rows, k_rows, v_rows, visible, total, top, sum, scale, True)
    sum = sum / total[:, None]
    tl.store(out + out_at, sum.to(out.dtype.element_ty), mask=real[:, None])
