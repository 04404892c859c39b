"""The language model of Pocket TTS: text and past latents in, the next latent out.

A latent is 80 ms of sound. The transformer reads the voice, the clause's tokens and the latents so
far; from its output a flow head turns noise into the next latent in one step, and a linear layer
tells where the clause ends. (Rouard et al. 2025, Continuous Audio Language Models; flow heads after
Li et al. 2024, Autoregressive Image Generation without Vector Quantization.)

A row is one clause; its keys and values lie in an `LmCache`.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.pipeline.engines.pocket.model.sizes import FlowSizes, LmSizes
from offhook.pipeline.engines.pocket.model.transformer import NORM_EPS, Layer, attend, rotations
from offhook.pipeline.engines.shared.qwen3.linear import Linear

HEAD_NORM_EPS = 1e-6
TIME_NORM_EPS = 1e-5
TIME_PERIOD = 10_000


class LmCache:
    """Keys and values of the language model, with room for `positions` in each row."""

    def __init__(
        self, sizes: LmSizes, rows: int, positions: int, device: torch.device | str
    ) -> None:
        layer = sizes.layer
        shape = (rows, sizes.layers, 2, layer.kv_heads, positions, layer.head_size)
        self.rows = torch.zeros(shape, device=device)
        self.layers = [[row[i] for row in self.rows] for i in range(sizes.layers)]
        """[2, kv heads, positions, head size] by layer and row."""
        self.lengths = [0] * rows
        """Positions in use."""
        self.rotations = rotations(positions, layer.head_size, device)[:, None]


class _Embedding(nn.Module):
    def __init__(self, s: LmSizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(s.vocabulary, s.rank or s.layer.width)
        self.proj = Linear(s.rank, s.layer.width, bias=False) if s.rank else None

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embed(tokens)
        return x if self.proj is None else self.proj(x)


class _Transformer(nn.Module):
    def __init__(self, s: LmSizes) -> None:
        super().__init__()
        self.all = [Layer(s.layer, scaled=False) for _ in range(s.layers)]
        self.layers = nn.ModuleList(self.all)


class _Latents(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.emb_std = nn.Parameter(torch.empty(size))
        self.emb_mean = nn.Parameter(torch.empty(size))
        self.bos_emb = nn.Parameter(torch.empty(size))


class FlowLm(nn.Module):
    """The language model with its flow head."""

    def __init__(self, s: LmSizes) -> None:
        super().__init__()
        width = s.layer.width
        self.sizes = s
        self.latents = _Latents(s.latent)
        self.input_linear = Linear(s.latent, width, bias=False)
        self.conditioner = _Embedding(s)
        self.transformer = _Transformer(s)
        self.out_norm = nn.LayerNorm(width, NORM_EPS)
        self.z_proj = Linear(width, s.bottleneck, bias=False) if s.bottleneck else None
        self.out_eos = Linear(s.bottleneck or width, 1)
        self.flow_net = FlowHead(s.flow, s.latent, s.bottleneck or width)

    def prefill(self, row: int, tokens: Tensor, cache: LmCache) -> None:
        """Appends tokens [T] to a row."""
        x = self.conditioner(tokens)
        count, begin = len(tokens), cache.lengths[row]
        end = begin + count
        rotation = cache.rotations[begin:end]
        mask = torch.ones(count, end, dtype=torch.bool, device=x.device).tril(begin)
        mask = mask.repeat(self.sizes.layer.heads // self.sizes.layer.kv_heads, 1)
        last = len(cache.layers) - 1
        for i, layer in enumerate(self.transformer.all):
            queries, keys_values = layer.project(x, rotation)
            kept = cache.layers[i][row]
            kept[:, :, begin:end] = keys_values.permute(1, 2, 0, 3)
            if i == last:
                break  # nothing reads its output
            of_heads = queries.permute(1, 2, 0, 3)
            found = attend(of_heads.flatten(1, 2)[None], kept[:, :, :end], mask)
            found = found.view(of_heads.shape).permute(2, 0, 1, 3)
            x = layer.finish(x, found.reshape(count, -1))
        cache.lengths[row] = end

    def step(self, latents: Tensor, rows: Sequence[int], cache: LmCache) -> Tensor:
        """Appends a latent [N, latent size] to each row and returns the output for each,
        [N, bottleneck or width]."""
        x: Tensor = self.input_linear(latents)
        lengths = [cache.lengths[row] for row in rows]
        rotation = cache.rotations[lengths]
        for layer, of_rows in zip(self.transformer.all, cache.layers, strict=True):
            queries, keys_values = layer.project(x, rotation)
            found = []
            for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
                kept = of_rows[row]
                kept[:, :, length] = keys_values[i]
                found.append(attend(queries[i : i + 1], kept[:, :, : length + 1]))
            x = layer.finish(x, torch.cat(found).view(len(x), -1))
        for row in rows:
            cache.lengths[row] += 1
        x = self.out_norm(x)
        return x if self.z_proj is None else self.z_proj(x)


# --- flow head ---


class _TimeNorm(nn.Module):
    """Divides by the standard deviation; the mean stays."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.alpha * torch.rsqrt(x.var(-1, keepdim=True) + TIME_NORM_EPS))


class _TimeEmbedding(nn.Module):
    def __init__(self, frequencies: int, width: int) -> None:
        super().__init__()
        half = frequencies // 2
        steps = torch.arange(half, device="cpu") / half
        self._frequencies = torch.exp(-math.log(TIME_PERIOD) * steps)
        self.mlp = nn.Sequential(
            Linear(frequencies, width), nn.SiLU(), Linear(width, width), _TimeNorm(width)
        )

    def forward(self, time: float) -> Tensor:
        angles = time * self._frequencies
        embedded = torch.cat([angles.cos(), angles.sin()])
        out: Tensor = self.mlp(embedded.to(next(self.parameters()).device))
        return out


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(width, HEAD_NORM_EPS)
        self.mlp = nn.Sequential(Linear(width, width), nn.SiLU(), Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(width, 3 * width))


class _Final(nn.Module):
    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        self.linear = Linear(width, latent)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(width, 2 * width))


class FlowHead(nn.Module):
    """Turns noise into a latent under a condition, in one step from time 0 to 1.

    All modulations depend on the condition alone: `prepare` joins them to one product.
    """

    def __init__(self, s: FlowSizes, latent: int, condition: int) -> None:
        super().__init__()
        self._width, self._adds_noise = s.width, s.adds_noise
        times = [_TimeEmbedding(s.frequencies, s.width) for _ in range(s.times)]
        self.time_embed = nn.ModuleList(times)
        self.cond_embed = Linear(condition, s.width)
        self.input_proj = Linear(latent, s.width)
        self._blocks = [_Block(s.width) for _ in range(s.depth)]
        self.res_blocks = nn.ModuleList(self._blocks)
        self.final_layer = _Final(s.width, latent)

    def prepare(self) -> None:
        if len(self.time_embed):
            times = [embed(float(i)) for i, embed in enumerate(self.time_embed)]
            self.cond_embed.bias.add_(torch.stack(times).mean(0))
        modules = (*self._blocks, self.final_layer)
        modulations = [block.adaLN_modulation for block in self._blocks]
        modulations.append(self.final_layer.adaLN_modulation)
        parts = [cast(Linear, sequence[1]) for sequence in modulations]
        width = self._width
        self.modulation = Linear(width, sum(part.out_features for part in parts), device="meta")
        self.modulation.weight = nn.Parameter(torch.cat([p.weight for p in parts]), False)
        for part in parts:
            part.bias[width : 2 * width] += 1  # scales are relative to 1
        self.modulation.bias = nn.Parameter(torch.cat([p.bias for p in parts]), False)
        for module in modules:
            del module.adaLN_modulation
        del self.time_embed

    def forward(self, condition: Tensor, noise: Tensor) -> Tensor:
        """Returns latents [N, latent size] for conditions [N, condition size] and noise
        [N, latent size]."""
        modulations = self.modulation(F.silu(self.cond_embed(condition))).split(self._width, 1)
        x: Tensor = self.input_proj(noise)
        for i, block in enumerate(self._blocks):
            shift, scale, gate = modulations[3 * i : 3 * i + 3]
            x = torch.addcmul(x, gate, block.mlp(torch.addcmul(shift, block.in_ln(x), scale)))
        shift, scale = modulations[-2:]
        x = torch.addcmul(shift, F.layer_norm(x, (self._width,), eps=HEAD_NORM_EPS), scale)
        out: Tensor = self.final_layer.linear(x)
        return noise + out if self._adds_noise else out
