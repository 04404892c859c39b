"""Greedy RNN-T decoding (Graves 2012) of many streams without synchronizing with the device.

A stream is at a frame of its chunk. A step computes the argmax label of every stream: the blank
advances it to the next frame; any other label is emitted and fed to the prediction network, and the
stream stays, for at most `max_symbols` labels. A launch runs a fixed number of steps, so it can be
one CUDA graph; a stream with too many labels continues in the next launch. (Like label-looping,
Bataev et al. 2024, without its loops.) On a CPU, where looking costs nothing, the steps end with
the last frame, and the prediction network runs only for labels.

On a GPU the operations between matrix products are one Triton kernel each (`triton_rnnt`);
elsewhere they are the plain torch beside them (`*_reference`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from offhook.pipeline.engines.nemotron.model.model import Nemotron, NemotronConfig

Pick = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Selects labels [B] from (argmax labels, frames before the chunk, frame of the chunk, labels
already emitted there), [B] each."""


def likeliest(labels: Tensor, position: Tensor, at: Tensor, said: Tensor) -> Tensor:
    return labels


@dataclass(frozen=True)
class Decoding:
    """The decoding state of every stream, by slot."""

    hidden: Tensor
    """[S, layers N], hidden state of the prediction network; `cell` likewise."""
    cell: Tensor
    heard: Tensor
    """[S, T, N], encoder output of the chunk's frames."""
    at: Tensor
    """int64 [S], next frame of the chunk."""
    said: Tensor
    """int64 [S], labels already emitted at that frame."""

    @classmethod
    def empty(
        cls, c: NemotronConfig, slots: int, device: torch.device, dtype: torch.dtype
    ) -> "Decoding":
        size, most = c.predictor_size, max(c.lookaheads) + 1

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, device=device, dtype=dtype)

        return cls(
            zeros(slots, c.predictor_layers * size),
            zeros(slots, c.predictor_layers * size),
            zeros(slots, most, size),
            torch.zeros(slots, device=device, dtype=torch.int64),
            torch.zeros(slots, device=device, dtype=torch.int64),
        )


def steps_of(frames: int) -> int:
    """Returns the steps of a launch for chunks of `frames` frames, enough for nearly all: speech
    has about one label every two frames."""
    return 2 * frames + 2


class Greedy:
    """The decoder of a model with the state of all its streams."""

    def __init__(self, model: Nemotron, state: Decoding, pick: Pick = likeliest) -> None:
        self.state = state
        self._config = model.config
        self._predictor, self._joint = model.decoder, model.joint
        self._pick = pick
        self._start = self._after_blank()

    @torch.no_grad()
    def _after_blank(self) -> tuple[Tensor, Tensor]:
        """Returns hidden and cell state at the start of an utterance, after a blank."""
        hidden, cell = (
            torch.zeros_like(self.state.hidden[:1]),
            torch.zeros_like(self.state.cell[:1]),
        )
        label = torch.tensor([self._config.blank], device=hidden.device)
        self._predict(label, torch.ones_like(label), hidden, cell)
        return hidden, cell

    def begin(self, heard: Tensor, slots: Tensor, position: Tensor) -> None:
        """Starts a new chunk with `heard` [B, T, N]; `position`, int64 [B], counts frames of the
        utterance before it, and a stream at 0 starts anew."""
        new = (position == 0)[:, None]
        of = self.state
        of.hidden[slots] = torch.where(new, self._start[0], of.hidden[slots])
        of.cell[slots] = torch.where(new, self._start[1], of.cell[slots])
        of.heard[slots, : heard.shape[1]] = heard
        of.at.index_fill_(0, slots, 0)  # a plain 0 would be copied from the host
        of.said.index_fill_(0, slots, 0)

    def run(self, slots: Tensor, position: Tensor, until: Tensor, steps: int) -> Tensor:
        """Runs `steps` steps up to frame `until`, int64 [B], of each chunk. Returns int64 [B, steps
        + 1]: emitted labels as frame * vocabulary size + label, or -1, followed by the next frame,
        which is `until` for a finished stream."""
        of, c = self.state, self._config
        hidden, cell = of.hidden[slots], of.cell[slots]
        at, said = of.at[slots], of.said[slots]
        out = torch.full((len(slots), steps + 1), -1, device=slots.device)
        last = hidden[:, -c.predictor_size :]
        looks = not slots.is_cuda
        for step in range(steps):
            if looks and bool((at >= until).all()):
                break
            predicted = self._predictor.decoder_projector(last)
            label = self._joint(joined(of.heard, predicted, slots, at)).argmax(-1)
            label = self._pick(label, position, at, said)
            new = advance(label, at, said, until, c, out, step)
            if not looks or bool(new.any()):
                self._predict(label, new, hidden, cell)
        out[:, -1] = at
        of.hidden[slots], of.cell[slots] = hidden, cell
        of.at[slots], of.said[slots] = at, said
        return out

    def _predict(self, label: Tensor, new: Tensor, hidden: Tensor, cell: Tensor) -> None:
        """Steps the prediction network where `new` is not 0; hidden and cell [B, layers N] are
        updated in place."""
        size = self._config.predictor_size
        for number, linear in enumerate(self._predictor.recurrent):
            own = slice(number * size, (number + 1) * size)
            if number == 0:
                gates = linear(hidden[:, own])
                lstm_step(
                    gates, self._predictor.of_labels, label, new, hidden[:, own], cell[:, own]
                )
            else:
                gates = linear(hidden[:, (number - 1) * size : (number + 1) * size])
                lstm_step(gates, None, label, new, hidden[:, own], cell[:, own])


def joined(heard: Tensor, predicted: Tensor, slots: Tensor, at: Tensor) -> Tensor:
    """Returns ReLU of the encoder output at each stream's frame plus the prediction, [B, N].

    heard: [S, T, N]; predicted: [B, N]; slots, at: int64 [B]; frames beyond the last use the last.
    """
    if not heard.is_cuda:
        return joined_reference(heard, predicted, slots, at)
    from offhook.pipeline.engines.nemotron.model import triton_rnnt

    return triton_rnnt.joined(heard, predicted, slots, at)


def joined_reference(heard: Tensor, predicted: Tensor, slots: Tensor, at: Tensor) -> Tensor:
    return F.relu(heard[slots, at.clamp(max=heard.shape[1] - 1)] + predicted)


def advance(
    label: Tensor,
    at: Tensor,
    said: Tensor,
    until: Tensor,
    c: NemotronConfig,
    out: Tensor,
    step: int,
) -> Tensor:
    """Applies labels to the decoding state: returns int64 [B], 1 where a label was emitted. Updates
    `at` and `said` in place and writes column `step` of `out`; see `Greedy.run`."""
    if not label.is_cuda:
        return advance_reference(label, at, said, until, c, out, step)
    from offhook.pipeline.engines.nemotron.model import triton_rnnt

    return triton_rnnt.advance(label, at, said, until, c, out, step)


def advance_reference(
    label: Tensor,
    at: Tensor,
    said: Tensor,
    until: Tensor,
    c: NemotronConfig,
    out: Tensor,
    step: int,
) -> Tensor:
    going = at < until
    new = going & (label != c.blank)
    out[:, step] = torch.where(new, at * c.vocab_size + label, -1)
    said += new
    moves = going & (~new | (said >= c.max_symbols))
    at += moves
    said.masked_fill_(moves, 0)
    return new.long()


def lstm_step(
    gates: Tensor,
    of_labels: Tensor | None,
    label: Tensor,
    new: Tensor,
    hidden: Tensor,
    cell: Tensor,
) -> None:
    """Updates hidden and cell state [B, N] in place; they stay where `new` is 0.

    gates: [B, 4 N], input, forget, cell, output. of_labels: [vocabulary, 4 N], added to the gates
    by `label`.
    """
    if not gates.is_cuda:
        lstm_step_reference(gates, of_labels, label, new, hidden, cell)
        return
    from offhook.pipeline.engines.nemotron.model import triton_rnnt

    triton_rnnt.lstm_step(gates, of_labels, label, new, hidden, cell)


def lstm_step_reference(
    gates: Tensor,
    of_labels: Tensor | None,
    label: Tensor,
    new: Tensor,
    hidden: Tensor,
    cell: Tensor,
) -> None:
    gates = gates.float()
    if of_labels is not None:
        gates = gates + of_labels[label].float()
    i, f, g, o = gates.chunk(4, -1)
    now = f.sigmoid() * cell.float() + i.sigmoid() * g.tanh()
    steps = new[:, None] != 0
    cell.copy_(torch.where(steps, now.to(cell.dtype), cell))
    hidden.copy_(torch.where(steps, (o.sigmoid() * now.tanh()).to(hidden.dtype), hidden))
