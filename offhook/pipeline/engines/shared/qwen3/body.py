"""The body of a Qwen3 decoder in plain torch over a paged KV cache, shared by all Qwen3 models
here.

Everything is packed: tokens of many sequences lie one after another in one tensor [T, ...], and
integer tensors assign them. No forward waits for the device or has value-dependent shapes, so each
can be captured in a CUDA graph.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from offhook.pipeline.engines.shared.qwen3 import attention, linear
from offhook.pipeline.engines.shared.qwen3.config import DecoderConfig
from offhook.pipeline.engines.shared.qwen3.linear import Linear

MAX_POSITIONS = 8192
"""Length of the rotation table; five minutes of audio are 3900 tokens."""


class KVCache:
    """Keys and values of all streams in pages: [layers, pages, page_size, kv_heads, head_dim]."""

    def __init__(
        self,
        config: DecoderConfig,
        pages: int,
        page_size: int,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        shape = (config.layers, pages, page_size, config.kv_heads, config.head_dim)
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self.layer_stride = torch.tensor([self.k.stride(0)], device=device)


@dataclass
class Batch:
    """Inputs of a packed decoder forward besides the embeddings, for T tokens of S sequences; see
    `attention.paged_attention`."""

    positions: Tensor
    """int64 [T], position within the token's sequence."""
    slots: Tensor
    """int64 [T], destination of its keys and values: page * page_size + offset. Padding: page 0."""
    page_table: Tensor
    """int32 [S, P], pages of each sequence."""
    q_starts: Tensor
    """int32 [S + 1], first row of each sequence."""
    kv_lengths: Tensor
    """int32 [S], cached tokens including those of this forward."""
    max_q: int
    """Maximum tokens of a sequence in this forward; 1 in a decode step, where row i is the token of
    sequence i."""


Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of each token's position, fp32 [T, head_dim] each."""
Pages = tuple[Tensor, Tensor]
"""Keys and values of one layer, [pages, page_size, kv_heads, head_dim] each."""


class DecoderLayer(nn.Module):
    def __init__(self, c: DecoderConfig) -> None:
        super().__init__()
        self.widths = [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
        self.scale = c.head_dim**-0.5
        self.eps = c.rms_eps
        self.attention_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.qkv = Linear(c.hidden_size, sum(self.widths), bias=False)
        self.q_norm = nn.Parameter(torch.ones(c.head_dim))
        self.k_norm = nn.Parameter(torch.ones(c.head_dim))
        self.out = Linear(self.widths[0], c.hidden_size, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.gate_up = Linear(c.hidden_size, 2 * c.ffn, bias=False)
        self.down = Linear(c.ffn, c.hidden_size, bias=False)

    def forward(self, x: Tensor, turn: Rotation, batch: Batch, pages: Pages) -> None:
        """Adds the layer's output to x in place."""
        heard = self.attend(x, turn, batch, pages)
        linear.add_linear_(x, heard, self.out)
        wide = linear.norm_silu_linear(x, self.ffn_norm, self.eps, self.gate_up)
        linear.add_linear_(x, wide, self.down)

    def attend(self, x: Tensor, turn: Rotation, batch: Batch, pages: Pages) -> Tensor:
        qkv = linear.norm_linear(x, self.attention_norm, self.eps, self.qkv)
        norms = (self.q_norm, self.k_norm, *turn, self.eps)
        of = (batch.slots, batch.page_table, batch.q_starts, batch.kv_lengths)
        return attention.self_attention(qkv, *norms, *pages, *of, batch.max_q, self.scale)


class Body(nn.Module):
    """Maps embeddings to hidden states, without a vocabulary. Build it under `torch.device(...)`
    with the wanted default dtype rather than `.to(dtype)`, because the rotations stay fp32."""

    alone: Callable[[Tensor, Batch, KVCache], Tensor] | None = None
    """Computes the whole forward of a single row; see `cuda_step.fuse_steps`."""

    def __init__(self, c: DecoderConfig) -> None:
        super().__init__()
        self.config = c
        self.layers = nn.ModuleList(DecoderLayer(c) for _ in range(c.layers))
        self.norm = nn.Parameter(torch.ones(c.hidden_size))
        angles = rotations(c.head_dim, c.rope_theta)
        self.cos = nn.Buffer(angles.cos(), persistent=False)
        self.sin = nn.Buffer(angles.sin(), persistent=False)

    def forward(self, x: Tensor, batch: Batch, cache: KVCache) -> Tensor:
        """Returns the hidden states [T, hidden_size] after the last norm for embeddings x [T,
        hidden_size], which are overwritten; writes the cache."""
        if self.alone is not None and len(x) == 1:
            return self.alone(x, batch, cache)
        turn = self.cos[batch.positions], self.sin[batch.positions]
        return self.rotated(x, turn, batch, cache)

    def rotated(self, x: Tensor, turn: Rotation, batch: Batch, cache: KVCache) -> Tensor:
        """`forward` with precomputed rotations."""
        for layer, *pages in zip(self.layers, cache.k, cache.v, strict=True):
            layer(x, turn, batch, pages)
        return attention.rms_norm(x, self.norm, self.config.rms_eps)


def rotations(head_dim: int, theta: float) -> Tensor:
    """Returns the angles of every position, fp32 [MAX_POSITIONS, head_dim]; channels i and i +
    head_dim / 2 rotate together."""
    frequencies = 1 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    return (torch.arange(MAX_POSITIONS)[:, None] * frequencies).repeat(1, 2)
