"""Transformer layers of Pocket TTS, shared by the language model and the sound decoder.

Pre-norm layers without biases, rotary positions on neighbouring pairs of channels, GELU. Several
query heads may share one head of keys and values. What a row attends to is attended to by itself,
so its result does not depend on the rows beside it.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.pipeline.engines.shared.qwen3.linear import Linear

NORM_EPS = 1e-5
ROTATION_BASE = 10_000.0


class LayerSizes(NamedTuple):
    width: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int

    @property
    def rotated(self) -> int:
        """Channels of queries and keys."""
        return (self.heads + self.kv_heads) * self.head_size

    @property
    def queries(self) -> int:
        return self.heads * self.head_size

    @property
    def projected(self) -> int:
        """Channels of queries, keys and values."""
        return self.rotated + self.kv_heads * self.head_size


def rotations(positions: int, head_size: int, device: torch.device | str) -> Tensor:
    """Returns the rotations of pairs of channels, complex [positions, head_size / 2]."""
    pairs = torch.arange(head_size // 2, dtype=torch.float32, device=device)
    frequencies = torch.exp(pairs * (-math.log(ROTATION_BASE) * 2 / head_size))
    angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * frequencies
    return torch.complex(angles.cos(), angles.sin())


class _Attention(nn.Module):
    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.in_proj = Linear(sizes.width, sizes.projected, bias=False)
        self.out_proj = Linear(sizes.queries, sizes.width, bias=False)


class _Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(width))


class Layer(nn.Module):
    """One layer in two halves, between which the caller attends; parameters are named as in
    Kyutai's checkpoints."""

    def __init__(self, sizes: LayerSizes, scaled: bool) -> None:
        """`scaled`: whether the outputs of both halves have scales, which `prepare` folds into the
        weights."""
        super().__init__()
        self.sizes = sizes
        self.self_attn = _Attention(sizes)
        self.norm1 = nn.LayerNorm(sizes.width, NORM_EPS)
        self.norm2 = nn.LayerNorm(sizes.width, NORM_EPS)
        self.linear1 = Linear(sizes.width, sizes.ffn, bias=False)
        self.linear2 = Linear(sizes.ffn, sizes.width, bias=False)
        self._scaled = scaled
        if scaled:
            self.layer_scale_1 = _Scale(sizes.width)
            self.layer_scale_2 = _Scale(sizes.width)

    def prepare(self) -> None:
        if self._scaled:
            self.self_attn.out_proj.weight *= self.layer_scale_1.scale[:, None]
            self.linear2.weight *= self.layer_scale_2.scale[:, None]
            del self.layer_scale_1, self.layer_scale_2

    def project(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
        """Returns queries [N, kv heads, heads / kv heads, head size], and keys and values
        [N, 2, kv heads, head size] of x [N, width], rotated by `rotation`
        [N, 1, head size / 2]."""
        s = self.sizes
        qkv: Tensor = self.self_attn.in_proj(self.norm1(x))
        pairs = qkv[:, : s.rotated].view(len(x), -1, s.head_size // 2, 2)
        torch.view_as_complex(pairs).mul_(rotation)
        queries = qkv[:, : s.queries].view(len(x), s.kv_heads, -1, s.head_size)
        return queries, qkv[:, s.queries :].view(len(x), 2, s.kv_heads, s.head_size)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Returns the layer's output of x [N, width] from what its queries attended to
        [N, heads * head size]."""
        x = x + self.self_attn.out_proj(attended)
        hidden = F.gelu(self.linear1(self.norm2(x)), approximate="tanh")
        out: Tensor = x + self.linear2(hidden)
        return out


def attend(queries: Tensor, keys_values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns what queries [1, kv heads, Q, head size] attend to among keys and values
    [2, kv heads, K, head size], in the queries' shape."""
    return F.scaled_dot_product_attention(queries, keys_values[:1], keys_values[1:], mask)
