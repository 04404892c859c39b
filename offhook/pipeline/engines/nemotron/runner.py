"""Runs batches of many streams through one Nemotron: audio in, labels out.

There is no policy here: a `Part` states which chunk of which stream to recognize; the runner packs
a batch with one right context, launches it and returns labels. Everything from samples to labels is
one CUDA graph per right context and size. A stream's device state lies under its slot
(`EncoderState`, `Decoding`); slot 0 is scratch space that padding reads and writes.

All methods are called by one thread.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.nemotron.model import mel as nemotron_mel
from offhook.pipeline.engines.nemotron.model.fast_conformer import EncoderState
from offhook.pipeline.engines.nemotron.model.mel import NemotronMel
from offhook.pipeline.engines.nemotron.model.model import (
    MEL_HISTORY,
    MELS_PER_FRAME,
    Nemotron,
    Rows,
)
from offhook.pipeline.engines.nemotron.model.rnnt import Decoding, Greedy, Pick, likeliest, steps_of
from offhook.pipeline.engines.shared.graphs import Fields, Pending, Size, Stage, capture_all, on

LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Captured batch sizes in streams, up to MAX_FRAMES."""
MAX_FRAMES = 1792
"""Maximum encoder frames of a launch; more would only delay every stream in it."""
MORE_STEPS = 8
"""Decoding steps of a follow-up launch for streams with more labels than `steps_of`."""

UNDER_WAY = 4
"""Results that may be in flight to the host: two batches and the follow-ups of the one being
read."""


class Label(NamedTuple):
    frame: int
    """Frame of the chunk."""
    id: int


class Part(NamedTuple):
    """One stream's part of a batch."""

    slot: int
    position: int
    """Encoder frames of the utterance before the chunk."""
    pcm: Pcm
    """`chunk_samples` samples of the utterance from `chunk_begin` on; fewer after its end."""
    prompt: int = 0


FRAME_SAMPLES = MELS_PER_FRAME * nemotron_mel.HOP
_BEFORE = -nemotron_mel.first_sample(-MEL_HISTORY)
_ONE_CHUNK = nemotron_mel.samples(MEL_HISTORY + 1)


def chunk_samples(frames: int) -> int:
    """Returns the samples that a chunk needs, including the convolutions' history."""
    return _ONE_CHUNK + (frames - 1) * FRAME_SAMPLES


def chunk_begin(position: int) -> int:
    """Returns the chunk's first sample; negative near the start of the utterance."""
    return position * FRAME_SAMPLES - _BEFORE


def chunk_end(position: int, frames: int) -> int:
    """Returns the samples of the utterance that must have arrived for the chunk."""
    return (position + frames - 1) * FRAME_SAMPLES + _ONE_CHUNK - _BEFORE


class NemotronRunner:
    """Nemotron with device state for `streams` streams."""

    def __init__(
        self, model: Nemotron, streams: int, pick: Pick = likeliest, graphs: bool = True
    ) -> None:
        self.model = model
        self.streams = streams
        c = model.config
        weight = next(model.parameters())
        self.device, self._dtype = weight.device, weight.dtype
        self._cuda = self.device.type == "cuda"
        self._graphs = graphs
        slots, e = streams + 1, c.encoder
        self._state = EncoderState.empty(
            *(slots, e.layers, c.ring, e.heads, e.head_dim, e.conv_kernel),
            device=self.device,
            dtype=self._dtype,
        )
        decoding = Decoding.empty(c, slots, self.device, self._dtype)
        self._greedy = Greedy(model, decoding, pick)
        self._mel = NemotronMel(e.mel_bins, self.device, c.mel_in_bf16)
        self._stream = torch.cuda.Stream() if self._cuda else None
        self.largest = {r: self._sizes(r + 1)[-1] for r in c.lookaheads}
        """Maximum streams of a launch, by right context."""
        self.stages = {
            r: Stage(
                f"{80 * (r + 1)} ms",
                self._encode_frames(r + 1),
                _layout(r + 1),
                [Size(n) for n in self._sizes(r + 1)] if self._cuda else [],
                self.device,
                uncleared="pcm",  # what is beyond a stream's samples is ignored
            )
            for r in c.lookaheads
        }
        more = [Size(n) for n in LADDER] if self._cuda else []
        self._more_stage = Stage(
            "more labels", self._run_more, _more_layout, more, self.device, LADDER[-1]
        )
        most = max(n * (steps_of(r + 1) + 1) for r, n in self.largest.items())
        most = max(most, LADDER[-1] * (MORE_STEPS + 1))
        self._hosts = [
            torch.zeros(most, dtype=torch.int64, pin_memory=self._cuda) for _ in range(UNDER_WAY)
        ]
        self._turn = 0

    def _sizes(self, frames: int) -> list[int]:
        return [n for n in LADDER if n * frames <= MAX_FRAMES and n < 2 * self.streams]

    @torch.inference_mode()
    def warm_up(self, progress: Callable[[float, str], None] = lambda fraction, what: None) -> None:
        """Compiles and captures every size; nothing is captured once calls are served."""
        stages = [*self.stages.values(), self._more_stage]
        capture_all([(stage, self._stream) for stage in stages], self._graphs, progress)
        self.largest = {r: stage.most(self.largest[r]) for r, stage in self.stages.items()}

    # --- a batch ---

    @torch.inference_mode()
    def encode(self, lookahead: int, parts: Sequence[Part]) -> "InFlightBatch":
        """Launches one chunk of each stream, at most `largest` of them; none may be in another
        batch in flight."""
        stage, frames = self.stages[lookahead], lookahead + 1
        size = stage.fit(Size(len(parts)))
        f = stage.fields(size)
        pcm = f["pcm"].view(np.int16).reshape(size.items, -1)
        for i, part in enumerate(parts):
            pcm[i, : len(part.pcm)] = part.pcm
        many = slice(None, len(parts))
        f["samples"][many] = [len(p.pcm) for p in parts]
        f["slots"][many] = [p.slot for p in parts]
        f["position"][many] = [p.position for p in parts]
        f["prompt"][many] = [p.prompt for p in parts]
        with on(self._stream):
            out = stage.launch(size)[: len(parts)]
            return InFlightBatch(self, parts, frames, self._copy_out(out))

    def _encode_frames(self, frames: int) -> Callable[[Fields, Size], Tensor]:
        length = chunk_samples(frames)

        def run(f: Fields, size: Size) -> Tensor:
            pcm = f["pcm"].view(torch.int16).view(size.items, -1)[:, :length]
            mel = self._mel(pcm.float() / 32768, f["samples"]).to(self._dtype)
            slots, position = f["slots"], f["position"]
            heard = self.model.encode(mel, self._state, Rows(slots, position), f["prompt"])
            self._greedy.begin(heard, slots, position)
            until = torch.full_like(slots, frames)
            return self._greedy.run(slots, position, until, steps_of(frames))

        return run

    @torch.inference_mode()
    def more(self, parts: Sequence[Part], frames: int) -> Pending:
        """Launches further decoding for streams that have not finished their chunk."""
        size = self._more_stage.fit(Size(len(parts)))
        f = self._more_stage.fields(size)
        many = slice(None, len(parts))
        f["slots"][many] = [p.slot for p in parts]
        f["position"][many] = [p.position for p in parts]
        f["until"][many] = frames
        with on(self._stream):
            return self._copy_out(self._more_stage.launch(size)[: len(parts)])

    def _run_more(self, f: Fields, size: Size) -> Tensor:
        return self._greedy.run(f["slots"], f["position"], f["until"], MORE_STEPS)

    def _copy_out(self, out: Tensor) -> Pending:
        """Starts copying the result to host memory, which is reused UNDER_WAY results later."""
        self._turn = (self._turn + 1) % len(self._hosts)
        return Pending(out, self._hosts[self._turn][: out.numel()].view(out.shape))

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()


class InFlightBatch:
    """A batch in flight."""

    def __init__(
        self, runner: NemotronRunner, parts: Sequence[Part], frames: int, pending: Pending
    ) -> None:
        self._runner, self._parts = runner, parts
        self._frames, self._pending = frames, pending

    def labels(self) -> list[list[Label]]:
        """Waits for the device and returns each stream's labels, in order."""
        said: list[list[Label]] = [[] for _ in self._parts]
        parts, of = self._parts, list(range(len(self._parts)))
        table = np.asarray(self._pending.numpy(), np.int64)
        vocabulary = self._runner.model.config.vocab_size
        while True:
            for row, column in np.argwhere(table[:, :-1] >= 0).tolist():
                frame, label = divmod(int(table[row, column]), vocabulary)
                said[of[row]].append(Label(frame, label))
            left = np.flatnonzero(table[:, -1] < self._frames).tolist()
            if not left:
                return said
            parts, of = [parts[i] for i in left], [of[i] for i in left]
            table = np.asarray(self._runner.more(parts, self._frames).numpy(), np.int64)


def _layout(frames: int) -> Callable[[Size], dict[str, int]]:
    words = -(-chunk_samples(frames) // 4)  # of 64 bits

    def layout(size: Size) -> dict[str, int]:
        return {
            **dict.fromkeys(("samples", "slots", "position", "prompt"), size.items),
            "pcm": size.items * words,
        }

    return layout


def _more_layout(size: Size) -> dict[str, int]:
    return dict.fromkeys(("slots", "position", "until"), size.items)
