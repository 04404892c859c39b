"""The sound decoder of Pocket TTS: latents in, sound out, a frame of each row at a time.

A latent becomes steps of 5 ms for a transformer with a short context, then a stack of causal
convolutions raises the rate to that of the samples (Defossez et al. 2024, Moshi: Mimi's decoder).
Everything is a matrix product here: rows and times are rows of the matrix, the inputs of a
convolution lie side by side. So a product's rows do not depend on one another.

What a row keeps from frame to frame is in `DecoderState`: a ring of keys and values per layer, and
the last inputs of each convolution.
"""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.pipeline.engines.pocket.model.sizes import ConvolutionSizes, DecoderSizes, StageSizes
from offhook.pipeline.engines.pocket.model.transformer import Layer, attend, rotations
from offhook.pipeline.engines.shared.qwen3.linear import Linear


class DecoderState:
    """State of rows that decode at most `frames` frames."""

    def __init__(self, s: DecoderSizes, rows: int, frames: int, device: torch.device | str) -> None:
        self.frames = [0] * rows
        """Frames decoded."""
        layer, steps = s.layer, s.steps
        self.ring_frames = -(-(s.context - 1) // steps) + 1
        shape = (rows, s.layers, 2, layer.kv_heads, self.ring_frames * steps, layer.head_size)
        self.rings = torch.zeros(shape, device=device)
        self.layers = [[row[i] for row in self.rings] for i in range(s.layers)]
        """[2, kv heads, ring, head size] by layer and row."""
        self.rotations = rotations(frames * steps, layer.head_size, device).unflatten(
            0, (frames, steps)
        )
        self.masks = _masks(s, self.ring_frames, device)
        self.tails = torch.zeros(rows, sum(_tails(s)), device=device)
        """Last inputs of the convolutions, one after the other."""

    def begin(self, row: int) -> None:
        """Starts a row anew. Its rings need no clearing: masks hide what was not written."""
        self.frames[row] = 0
        self.tails[row] = 0


def _masks(s: DecoderSizes, ring: int, device: torch.device | str) -> Tensor:
    """Returns what is added to the scores of a frame's steps for each place of the ring, 0 or
    -inf, [frames, steps, ring * steps]: for the first `ring` frames, and for later ones by their
    place in it."""
    steps = s.steps
    frames = torch.arange(2 * ring, device=device)[:, None]
    places = torch.arange(ring, device=device)
    age = (frames - places) % ring
    written = (frames - age) * steps
    keys = written[..., None] + torch.arange(steps, device=device)
    queries = (frames * steps + torch.arange(steps, device=device))[..., None]
    distance = queries - keys.flatten(1)[:, None]
    seen = (distance >= 0) & (distance < s.context)
    seen &= keys.flatten(1)[:, None] >= 0
    return torch.zeros(seen.shape, device=device).masked_fill_(~seen, float("-inf"))


def _tails(s: DecoderSizes) -> list[int]:
    """Returns the values that each convolution keeps of a row, in the order of use."""
    tails = [s.first.inputs, (s.first.kernel - 1) * s.first.inputs]
    for stage in s.stages:
        tails += [stage.up.inputs, (stage.kernel - 1) * stage.up.outputs]
    return [*tails, (s.last.kernel - 1) * s.last.inputs]


class _Weights(nn.Module):
    """Weight and bias of a convolution as stored."""

    def __init__(self, *shape: int, outputs: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        if outputs:
            self.bias = nn.Parameter(torch.empty(outputs))


def _linear(weight: Tensor, bias: Tensor | None) -> Linear:
    layer = Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


class _Tails:
    """Hands the convolutions of a frame their last inputs, and collects those of the next."""

    def __init__(self, tails: Tensor, sizes: Sequence[int]) -> None:
        self._old = tails.split(list(sizes), 1)
        self.new: list[Tensor] = []

    def extend(self, x: Tensor, kept: int) -> Tensor:
        """Returns x [N, T, C] with the `kept` times before it, [N, kept + T, C]."""
        rows, _, channels = x.shape
        tail = self._old[len(self.new)].view(rows, kept, channels)
        x = torch.cat([tail, x], 1)
        self.new.append(x[:, -kept:].flatten(1))
        return x


class _Convolution(nn.Module):
    """A causal convolution: [N, T, inputs] -> [N, T, outputs]."""

    def __init__(self, s: ConvolutionSizes) -> None:
        super().__init__()
        self._kernel = s.kernel
        self.conv = _Weights(s.outputs, s.inputs, s.kernel, outputs=s.outputs)

    def prepare(self) -> None:
        self.linear = _linear(self.conv.weight.transpose(1, 2).flatten(1), self.conv.bias)
        del self.conv

    def forward(self, x: Tensor, tails: _Tails) -> Tensor:
        if self._kernel > 1:
            x = tails.extend(x, self._kernel - 1)
            rows, times, channels = x.shape
            shape = (rows, times - self._kernel + 1, self._kernel * channels)
            x = x.as_strided(shape, (times * channels, channels, 1)).contiguous()
        out: Tensor = self.linear(x)
        return out


class _TransposedConvolution(nn.Module):
    """A causal transposed convolution whose kernel is twice the stride:
    [N, T, inputs] -> [N, T * stride, outputs]. Each output depends on two inputs."""

    def __init__(self, s: ConvolutionSizes) -> None:
        super().__init__()
        self._outputs = s.outputs
        self.convtr = _Weights(s.inputs, s.outputs, s.kernel, outputs=s.outputs)

    def prepare(self) -> None:
        now, before = self.convtr.weight.permute(2, 1, 0).chunk(2)
        weight = torch.cat([before, now], 2).flatten(0, 1)
        self.linear = _linear(weight, self.convtr.bias.repeat(len(now)))
        del self.convtr

    def forward(self, x: Tensor, tails: _Tails) -> Tensor:
        x = tails.extend(x, 1)
        out: Tensor = self.linear(torch.cat([x[:, :-1], x[:, 1:]], 2))
        return out.view(len(x), -1, self._outputs)


class _Residual(nn.Module):
    def __init__(self, s: StageSizes) -> None:
        super().__init__()
        first = ConvolutionSizes(s.up.outputs, s.hidden, s.kernel)
        second = ConvolutionSizes(s.hidden, s.up.outputs, 1)
        self.block = nn.ModuleDict({"1": _Convolution(first), "3": _Convolution(second)})

    def forward(self, x: Tensor, tails: _Tails) -> Tensor:
        hidden = self.block["1"](F.elu(x), tails)
        out: Tensor = x + self.block["3"](F.elu(hidden, inplace=True), tails)
        return out


class _Convolutions(nn.Module):
    def __init__(self, s: DecoderSizes) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"0": _Convolution(s.first)})
        for i, stage in enumerate(s.stages):
            self.model[str(3 * i + 2)] = _TransposedConvolution(stage.up)
            self.model[str(3 * i + 3)] = _Residual(stage)
        self.model[str(3 * len(s.stages) + 2)] = _Convolution(s.last)

    def forward(self, x: Tensor, tails: _Tails) -> Tensor:
        """Returns samples [N, T] of inputs [N, steps, width]."""
        for name, layer in self.model.items():
            if name != "0" and not isinstance(layer, _Residual):
                x = F.elu(x, inplace=True)
            x = layer(x, tails)
        return x.flatten(1)


class _Transformer(nn.Module):
    def __init__(self, s: DecoderSizes) -> None:
        super().__init__()
        self.all = [Layer(s.layer, scaled=True) for _ in range(s.layers)]
        self.transformer = nn.ModuleDict({"layers": nn.ModuleList(self.all)})


class _Upsampling(nn.Module):
    def __init__(self, s: DecoderSizes) -> None:
        super().__init__()
        self.convtr = nn.ModuleDict({"convtr": _Weights(s.first.inputs, 1, 2 * s.steps)})


class _Quantizer(nn.Module):
    """Only the projection to the decoder's channels is left of it."""

    def __init__(self, s: DecoderSizes) -> None:
        super().__init__()
        self.output_proj = _Weights(s.first.inputs, s.latent, 1)


class Decoder(nn.Module):
    """Turns latents into sound."""

    def __init__(self, s: DecoderSizes) -> None:
        super().__init__()
        self.sizes = s
        self._tails = _tails(s)
        self.quantizer = _Quantizer(s)
        self.upsample = _Upsampling(s)
        self.decoder_transformer = _Transformer(s)
        self.decoder = _Convolutions(s)

    def prepare(self, mean: Tensor, deviation: Tensor) -> None:
        """Folds in the mean and the standard deviation of the latents [latent size]."""
        weight = self.quantizer.output_proj.weight[..., 0]
        self.input = _linear(weight * deviation, weight @ mean)
        upsampling = cast(_Weights, self.upsample.convtr["convtr"]).weight
        now, before = upsampling[:, 0].T.contiguous().chunk(2)
        self.now, self.before = now, before
        for module in self.modules():
            if isinstance(module, Layer | _Convolution | _TransposedConvolution):
                module.prepare()
        del self.quantizer, self.upsample

    def forward(self, latents: Tensor, rows: Sequence[int], state: DecoderState) -> Tensor:
        """Decodes the next latent of each row: [N, latent size] -> samples [N, samples] around
        [-1, 1]."""
        index = torch.tensor(rows, device=latents.device)
        tails = _Tails(state.tails[index], self._tails)
        x: Tensor = tails.extend(self.input(latents)[:, None], 1)
        x = torch.addcmul(x[:, 1:] * self.now, x[:, :1], self.before)
        x = self._attend(x, rows, state)
        x = self.decoder(x, tails)
        state.tails[index] = torch.cat(tails.new, 1)
        for row in rows:
            state.frames[row] += 1
        return x

    def _attend(self, x: Tensor, rows: Sequence[int], state: DecoderState) -> Tensor:
        steps, ring = self.sizes.steps, state.ring_frames
        frames = [state.frames[row] for row in rows]
        rotation = state.rotations[frames].flatten(0, 1)[:, None]
        masks = [state.masks[f if f < ring else ring + f % ring] for f in frames]
        shape = x.shape
        x = x.flatten(0, 1)
        for layer, of_rows in zip(self.decoder_transformer.all, state.layers, strict=True):
            queries, keys_values = layer.project(x, rotation)
            queries = queries.view(len(rows), steps, -1, queries.shape[-1]).transpose(1, 2)
            keys_values = keys_values.unflatten(0, (len(rows), steps)).permute(0, 2, 3, 1, 4)
            found = []
            for i, row in enumerate(rows):
                begin = frames[i] % ring * steps
                of_rows[row][:, :, begin : begin + steps] = keys_values[i]
                found.append(attend(queries[i : i + 1], of_rows[row], masks[i]))
            x = layer.finish(x, torch.cat(found).transpose(1, 2).reshape(len(x), -1))
        return x.view(shape)
