"""Attention over a paged cache and over packed windows, and the small operations around it.

On a GPU each function is one Triton kernel (`triton_attention`, `triton_fused`); anywhere else it
is the plain torch beside it, which says what the kernel must compute (`*_reference`) and is what
a machine without a GPU runs.

T is the number of packed tokens, S of sequences, Hq and Hkv of query and kv heads, D of a head's
channels. Head h of the queries reads head h // (Hq / Hkv) of the cache. Floats are fp32 or bf16
and come out as they went in; sums, softmax and rotations are in fp32.

Nothing waits for the device, and what is launched depends on shapes and on `max_q` and `max_len`
alone: every call can be captured in a CUDA graph once it has run outside one, on the same stream:
the decode kernel counts arrivals in a buffer of each stream.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor


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
    """Causal attention of packed queries over the pages of their sequences: [T, Hq, D].

    Query i of sequence s stands at position kv_lengths[s] - q_len[s] + i and sees the positions
    up to its own. A row past the last sequence is padding and comes out zero, and so does a
    query that sees nothing. A sequence may have no queries.

    Args:
        q: [T, Hq, D]; may be a view with strides, as long as D is dense.
        k_cache, v_cache: [pages, page_size, Hkv, D], contiguous.
        page_table: int32 [S, P], the pages of each sequence in order.
        q_starts: int32 [S + 1], sequence s owns rows q_starts[s] to q_starts[s + 1].
        kv_lengths: int32 [S], tokens in the cache, those of the queries included.
        max_q: no sequence has more queries; 1 says that this is a decode step.
        scale: of the scores, 1 / sqrt(D) as a rule.
    """
    if not q.is_cuda:
        return paged_attention_reference(
            q, k_cache, v_cache, page_table, q_starts, kv_lengths, scale
        )
    from offhook.pipeline.engines.shared.qwen3 import triton_attention

    return triton_attention.paged_attention(
        q, k_cache, v_cache, page_table, q_starts, kv_lengths, max_q, scale
    )


def paged_attention_reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    q_starts: Tensor,
    kv_lengths: Tensor,
    scale: float,
) -> Tensor:
    """`paged_attention`, one sequence after another."""
    page_size, kv_heads = k_cache.shape[1:3]
    group = q.shape[1] // kv_heads
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    starts = q_starts.tolist()
    for s, (length, pages) in enumerate(zip(kv_lengths.tolist(), page_table, strict=True)):
        rows = slice(starts[s], starts[s + 1])
        count = rows.stop - rows.start
        if count == 0 or length == 0:
            continue
        pages = pages[: -(-length // page_size)]
        k = k_cache[pages].flatten(0, 1)[:length].transpose(0, 1)
        v = v_cache[pages].flatten(0, 1)[:length].transpose(0, 1)
        # The query heads of a group become rows of one kv head, so that k and v are not repeated.
        grouped = q[rows].unflatten(1, (kv_heads, group)).transpose(0, 1).flatten(1, 2)
        mask = None
        if count > 1:
            columns = torch.arange(length, device=q.device)
            mask = (columns <= columns[length - count :, None]).repeat_interleave(group, 0)
        attended = F.scaled_dot_product_attention(
            grouped[None], k[None], v[None], attn_mask=mask, scale=scale
        )
        out[rows] = attended[0].unflatten(1, (count, group)).transpose(0, 1).flatten(1, 2)
    return out


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, max_len: int, scale: float
) -> Tensor:
    """Attention of every token to all tokens of its window, windows packed: [T, H, D].

    Args:
        q, k, v: [T, H, D]; may be views with strides, as long as D is dense.
        starts: int32 [W + 1], window w is rows starts[w] to starts[w + 1]. Rows past the last
            window are padding and come out zero; a window may be empty.
        max_len: no window is longer.
        scale: of the scores.
    """
    if not q.is_cuda:
        return window_attention_reference(q, k, v, starts, scale)
    from offhook.pipeline.engines.shared.qwen3 import triton_attention

    return triton_attention.window_attention(q, k, v, starts, max_len, scale)


def window_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, scale: float
) -> Tensor:
    """`window_attention`, one window after another."""
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    for start, end in itertools.pairwise(starts.tolist()):
        if start < end:
            qs, ks, vs = (x[None, start:end].transpose(1, 2) for x in (q, k, v))
            attended = F.scaled_dot_product_attention(qs, ks, vs, scale=scale)
            out[start:end] = attended[0].transpose(0, 1)
    return out


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Puts the keys and values of tokens into the cache.

    Args:
        k, v: [T, Hkv, D].
        k_cache, v_cache: [pages, page_size, Hkv, D], contiguous, written in place.
        slots: int64 [T], page * page_size + offset. Padding goes to page 0, where tokens may
            overwrite each other.
    """
    k_cache.view(-1, *k.shape[1:]).index_copy_(0, slots, k)
    v_cache.view(-1, *v.shape[1:]).index_copy_(0, slots, v)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension. x [T, N], weight [N]."""
    if not x.is_cuda:
        return rms_norm_reference(x, weight, eps)
    from offhook.pipeline.engines.shared.qwen3 import triton_fused

    return triton_fused.rms_norm(x, weight, eps)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` over the last dimension of any shape."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y * weight.float()).to(x.dtype)


def qk_norm_rope(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """RMSNorm of each head, then rotary position: the queries and keys that attention takes.

    Rounded once, at the end. Plain torch on every device: models use `qk_norm_rope_write`.

    Args:
        q, k: [T, Hq, D] and [T, Hkv, D].
        q_weight, k_weight: [D].
        cos, sin: fp32 [T, D], of each token's position; channel i turns with i + D / 2.
    """
    return _norm_rope(q, q_weight, cos, sin, eps), _norm_rope(k, k_weight, cos, sin, eps)


def _norm_rope(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    y = rms_norm_reference(x.float(), weight, eps)
    low, high = y.chunk(2, -1)
    rotated = torch.cat((-high, low), -1)
    return (y * cos[:, None] + rotated * sin[:, None]).to(x.dtype)


def qk_norm_rope_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
) -> Tensor:
    """`qk_norm_rope`, and `write_kv` of the new keys and of v, in one launch: q [T, Hq, D].

    q, k and v may be views with strides, as long as D is dense; the q that comes back is
    contiguous.
    """
    if not q.is_cuda:
        return qk_norm_rope_write_reference(
            q, k, v, q_weight, k_weight, cos, sin, eps, k_cache, v_cache, slots
        )
    from offhook.pipeline.engines.shared.qwen3 import triton_fused

    return triton_fused.qk_norm_rope_write(
        q, k, v, q_weight, k_weight, cos, sin, eps, k_cache, v_cache, slots
    )


def qk_norm_rope_write_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
) -> Tensor:
    """`qk_norm_rope_write` as the two steps it joins."""
    q, k = qk_norm_rope(q, k, q_weight, k_weight, cos, sin, eps)
    write_kv(k, v, k_cache, v_cache, slots)
    return q


def self_attention(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    page_table: Tensor,
    q_starts: Tensor,
    kv_lengths: Tensor,
    max_q: int,
    scale: float,
) -> Tensor:
    """`qk_norm_rope_write` of a projection and `paged_attention` of its queries: [T, Hq D].

    qkv: [T, (Hq + 2 Hkv) D], the queries first. max_q: 1 says that row i is the last token of
    sequence i; then a GPU does it all in one launch, unless few rows have a long past.
    """
    if qkv.is_cuda and max_q == 1:
        from offhook.pipeline.engines.shared.qwen3 import triton_step

        if triton_step.is_faster(len(qkv), page_table, k_cache.shape[1]):
            return triton_step.step_attention(
                *(qkv, q_weight, k_weight, cos, sin, eps, k_cache, v_cache, slots),
                *(page_table, kv_lengths, scale),
            )
    kv_heads, channels = k_cache.shape[2:]
    q, k, v = qkv.unflatten(1, (-1, channels)).tensor_split((-2 * kv_heads, -kv_heads), 1)
    q = qk_norm_rope_write(q, k, v, q_weight, k_weight, cos, sin, eps, k_cache, v_cache, slots)
    of = (page_table, q_starts, kv_lengths)
    return paged_attention(q, k_cache, v_cache, *of, max_q, scale).flatten(1)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up. gate_up [T, 2F], the gates first: [T, F]."""
    if not gate_up.is_cuda:
        return silu_mul_reference(gate_up)
    from offhook.pipeline.engines.shared.qwen3 import triton_fused

    return triton_fused.silu_mul(gate_up)


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """`silu_mul`; computed in fp32 and rounded once."""
    gate, up = gate_up.float().chunk(2, -1)
    return (F.silu(gate) * up).to(gate_up.dtype)
