"""The operations of a streaming FastConformer between its matrix products.

On a GPU each is one Triton kernel (`triton_conformer`); elsewhere it is the plain torch beside it
(`*_reference`), which defines what the kernel must compute.

B streams of one chunk have T frames each; S slots hold the streams' past, slot 0 is scratch.
Tensors are fp32 or bf16 and keep their type; sums are in fp32. Nothing waits for the device, and
launches depend on shapes only.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class EncoderState:
    """The encoder's state of every stream, by slot."""

    keys: Tensor
    """[layers, S, W, H, D]; frame p of an utterance is at row p % W."""
    values: Tensor
    conv: Tensor
    """[layers, S, K - 1, C], the previous inputs of each layer's convolution."""

    @classmethod
    def empty(
        cls,
        slots: int,
        layers: int,
        ring: int,
        heads: int,
        head_dim: int,
        kernel: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> "EncoderState":
        kv = (layers, slots, ring, heads, head_dim)
        return cls(
            torch.zeros(kv, device=device, dtype=dtype),
            torch.zeros(kv, device=device, dtype=dtype),
            torch.zeros(layers, slots, kernel - 1, heads * head_dim, device=device, dtype=dtype),
        )


def ring_attention(
    qkv: Tensor,
    bias_u: Tensor,
    by_distance: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    position: Tensor,
    left: int,
) -> Tensor:
    """Attention of a chunk to itself and to `left` frames before it: [B, T, H D].

    Frame p of an utterance lies at row p % W of its slot; the chunk's own are written there.

    Args:
        qkv: [B, T, 3, H, D], contiguous.
        bias_u: [H, D], added to the queries.
        by_distance: [H, B, T, at least left + 2 T - 1]: what is added to the score of a key, by
            how far it lies behind the query, from -(T - 1) to left + T - 1.
        keys, values: [S, W, H, D], D dense; W is at least left + T.
        slots: int64 [B].
        position: int64 [B], frames of the utterance before the chunk.
    """
    if not qkv.is_cuda:
        return ring_attention_reference(
            qkv, bias_u, by_distance, keys, values, slots, position, left
        )
    from offhook.pipeline.engines.nemotron.model import triton_conformer

    return triton_conformer.ring_attention(
        qkv, bias_u, by_distance, keys, values, slots, position, left
    )


def ring_attention_reference(
    qkv: Tensor,
    bias_u: Tensor,
    by_distance: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    position: Tensor,
    left: int,
) -> Tensor:
    _, frames, _, _, channels = qkv.shape
    own = position[:, None] + torch.arange(frames, device=qkv.device)  # [B, T]
    rows = own % keys.shape[1]
    keys[slots[:, None], rows] = qkv[:, :, 1]
    values[slots[:, None], rows] = qkv[:, :, 2]
    seen = position[:, None] + torch.arange(-left, frames, device=qkv.device)  # [B, left + T]
    of_seen = slots[:, None], seen % keys.shape[1]
    k, v = keys[of_seen].float(), values[of_seen].float()
    distance = own[:, :, None] - seen[:, None] + frames - 1  # [B, T, left + T]
    added = by_distance.float().permute(1, 0, 2, 3)  # [B, H, T, distances]
    added = added.gather(-1, distance[:, None].expand(-1, added.shape[1], -1, -1))
    scores = torch.einsum("bthd,bshd->bhts", qkv[:, :, 0].float() + bias_u.float(), k) + added
    scores = scores * channels**-0.5
    scores = scores.masked_fill((seen < 0)[:, None, None], float("-inf"))
    out = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)
    return out.flatten(2).to(qkv.dtype)


def glu_conv(
    x: Tensor,
    cache: Tensor,
    slots: Tensor,
    position: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
) -> Tensor:
    """Gate, causal convolution of each channel, norm and SiLU: [B, T, 2 C] -> [B, T, C].

    Args:
        cache: [S, K - 1, C]: of each slot the gated frames before the chunk; those of the chunk
            take their place.
        slots: int64 [B].
        position: int64 [B]; where it is 0 there is nothing before the chunk.
        weight: [C, K]; the last tap is that of the frame itself.
        bias: [C].
        norm_weight, norm_bias: [C], of a norm over the channels.
    """
    if not x.is_cuda:
        return glu_conv_reference(
            x, cache, slots, position, weight, bias, norm_weight, norm_bias, eps
        )
    from offhook.pipeline.engines.nemotron.model import triton_conformer

    return triton_conformer.glu_conv(
        x, cache, slots, position, weight, bias, norm_weight, norm_bias, eps
    )


def glu_conv_reference(
    x: Tensor,
    cache: Tensor,
    slots: Tensor,
    position: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
) -> Tensor:
    gated = F.glu(x, -1)
    before = cache[slots].masked_fill((position == 0)[:, None, None], 0.0)
    whole = torch.cat([before, gated], 1)
    cache[slots] = whole[:, -cache.shape[1] :]
    y = F.conv1d(whole.transpose(1, 2), weight[:, None], bias, groups=len(weight)).transpose(1, 2)
    return F.silu(F.layer_norm(y, y.shape[-1:], norm_weight, norm_bias, eps))


def add_norm(
    residual: Tensor, y: Tensor, scale: float, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Returns residual + scale * y, and its layer norm over the last dimension."""
    if not y.is_cuda:
        return add_norm_reference(residual, y, scale, weight, bias, eps)
    from offhook.pipeline.engines.nemotron.model import triton_conformer

    return triton_conformer.add_norm(residual, y, scale, weight, bias, eps)


def add_norm_reference(
    residual: Tensor, y: Tensor, scale: float, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    total = residual + scale * y
    return total, F.layer_norm(total, total.shape[-1:], weight, bias, eps)


def add_norm_norm(
    residual: Tensor,
    y: Tensor,
    scale: float,
    weight: Tensor,
    bias: Tensor,
    next_weight: Tensor,
    next_bias: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Returns the layer norm of residual + scale * y, and the next layer norm of that."""
    if not y.is_cuda:
        return add_norm_norm_reference(
            residual, y, scale, weight, bias, next_weight, next_bias, eps
        )
    from offhook.pipeline.engines.nemotron.model import triton_conformer

    return triton_conformer.add_norm_norm(
        residual, y, scale, weight, bias, next_weight, next_bias, eps
    )


def add_norm_norm_reference(
    residual: Tensor,
    y: Tensor,
    scale: float,
    weight: Tensor,
    bias: Tensor,
    next_weight: Tensor,
    next_bias: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    _, normed = add_norm_reference(residual, y, scale, weight, bias, eps)
    return normed, F.layer_norm(normed, normed.shape[-1:], next_weight, next_bias, eps)
