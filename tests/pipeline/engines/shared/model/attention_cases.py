"""Random inputs for the attention tests. Memory that must not be read holds NaN."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

PEAK = 4.0
"""Of the scores: few keys carry most of the weight, so one key too many or too few shows."""


@dataclass(frozen=True)
class Paged:
    """The tensors that `paged_attention` takes, in its order."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    page_table: Tensor
    q_starts: Tensor
    kv_lengths: Tensor

    def tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]

    def floats(self) -> "Paged":
        """The same numbers in fp32."""
        return replace(
            self, q=self.q.float(), k_cache=self.k_cache.float(), v_cache=self.v_cache.float()
        )


def random_paged(
    q_lengths: Sequence[int],
    kv_lengths: Sequence[int],
    *,
    padding: int = 0,
    kv_heads: int = 2,
    group: int = 2,
    channels: int = 16,
    page_size: int = 4,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Paged:
    """Sequences on pages in random order; q is a view of a fused projection, its padding NaN."""
    nan = float("nan")
    needed = [-(-length // page_size) for length in kv_lengths]
    pages = 1 + torch.randperm(sum(needed))
    table = torch.zeros(len(needed), max(needed, default=0) + 2, dtype=torch.int32)
    k_cache, v_cache = torch.full(
        (2, 1 + sum(needed), page_size, kv_heads, channels), nan, dtype=dtype, device=device
    )
    used = torch.zeros(1 + sum(needed), page_size, dtype=torch.bool)
    for s, (own, length) in enumerate(
        zip(pages.split(needed), kv_lengths, strict=True) if needed else ()
    ):
        table[s, : len(own)] = own.int()
        position = torch.arange(length)
        used[own[position // page_size], position % page_size] = True
    filled = used.to(device)
    for cache in (k_cache, v_cache):
        cache[filled] = torch.randn(sum(kv_lengths), kv_heads, channels, device=device).to(dtype)
    tokens = sum(q_lengths)
    fused = torch.randn(tokens + padding, (group + 2) * kv_heads * channels, device=device)
    fused[tokens:] = nan
    q = PEAK * fused.to(dtype)
    return Paged(
        q[:, : group * kv_heads * channels].unflatten(1, (group * kv_heads, channels)),
        k_cache,
        v_cache,
        table.to(device),
        starts_of(q_lengths).to(device),
        torch.tensor(kv_lengths, dtype=torch.int32, device=device),
    )


def random_windows(
    lengths: Sequence[int],
    *,
    padding: int = 0,
    heads: int = 3,
    channels: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v as views of a fused projection, padding NaN, and the starts of the windows."""
    fused = torch.randn(sum(lengths) + padding, 3, heads, channels, device=device)
    fused[:, 0] *= PEAK
    fused[sum(lengths) :] = float("nan")
    q, k, v = fused.to(dtype).unbind(1)
    return q, k, v, starts_of(lengths).to(device)


def starts_of(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()
