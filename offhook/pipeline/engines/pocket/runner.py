"""Runs many clauses at once through one Pocket TTS: tokens in, frames of 80 ms out.

There is no policy here: a row is a slot of preallocated state in which one clause at a time is
spoken; the caller says which rows advance. What a row says depends on nothing in the others.

All methods are called by one thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.engines.pocket.model.config import FRAME_SAMPLES, frame_limit
from offhook.pipeline.engines.pocket.model.decoder import DecoderState
from offhook.pipeline.engines.pocket.model.flow_lm import LmCache
from offhook.pipeline.engines.pocket.model.model import PocketModel
from offhook.pipeline.engines.pocket.model.voices import VoiceState

FADE_SAMPLES = RATE_OUT // 200
"""Fade-in of a clause: a decoder that starts makes a step, heard as a click."""
MIN_FRAMES = 6
"""Frames in which the end is ignored: before the first word, its logit may be high."""
LOUDEST = 32767


class Frame(NamedTuple):
    """80 ms of a clause."""

    pcm: Pcm
    """FRAME_SAMPLES samples at 24 kHz."""
    ended: bool
    """Whether it is the clause's last frame."""


@dataclass
class _Clause:
    """Progress of a clause."""

    limit: int
    """Frames after which it is cut."""
    after_end: int
    """Frames from the one with the logit of the end on."""
    frames: int = 0

    def advance(self, end: bool) -> bool:
        """Counts a frame and returns whether it is the last."""
        if end and self.frames >= MIN_FRAMES:
            self.limit = min(self.limit, self.frames + self.after_end)
        self.frames += 1
        return self.frames >= self.limit


class PocketRunner:
    """Pocket TTS with state for `rows` clauses."""

    def __init__(self, model: PocketModel, rows: int) -> None:
        self.model, self.rows = model, rows
        c, sizes, device = model.config, model.network.sizes, model.device
        positions = model.longest_voice + c.max_tokens + c.max_frames
        self._cache = LmCache(sizes.lm, rows, positions, device)
        self._decoder = DecoderState(sizes.decoder, rows, c.max_frames, device)
        self._latents = torch.zeros(rows, sizes.lm.latent, device=device)
        """The last latent of each row."""
        self._noise = torch.zeros(rows, c.max_frames, sizes.lm.latent, device=device)
        self._clauses = [_Clause(0, 0) for _ in range(rows)]
        self._fade = torch.linspace(0, 1, FADE_SAMPLES, device=device)

    def warm_up(self, progress: Callable[[float, str], None] = lambda fraction, what: None) -> None:
        """Runs every batch size once, so that no caller waits for what libraries do at first."""
        for count in range(1, self.rows + 1):
            progress((count - 1) / self.rows, f"{count} voices")
            for row in range(count):
                self.begin(row, self.model.voice(), [0], seed=0, temperature=0.0)
            self.step(range(count))

    @torch.inference_mode()
    def begin(
        self,
        row: int,
        voice: VoiceState,
        tokens: Sequence[int],
        seed: int,
        temperature: float | None = None,
    ) -> None:
        """Starts a clause in a row: copies the voice's state and reads the tokens (from the
        tokenizer's `encode`). `temperature` is the variance of the noise; None: the model's.
        Raises ValueError for no tokens or more than `max_tokens`."""
        c, device = self.model.config, self.model.device
        if not 0 < len(tokens) <= c.max_tokens:
            raise ValueError(f"a clause of {len(tokens)} tokens, not of 1 to {c.max_tokens}")
        temperature = c.temperature if temperature is None else temperature
        limit = frame_limit(len(tokens))
        self._noise[row, :limit] = self._draw(seed, limit).mul_(temperature**0.5)
        self._cache.rows[row, ..., : voice.positions, :] = voice.keys_values
        self._cache.lengths[row] = voice.positions
        lm = self.model.network.flow_lm
        lm.prefill(row, torch.tensor(tokens, device=device), self._cache)
        self._latents[row] = lm.latents.bos_emb
        self._decoder.begin(row)
        self._clauses[row] = _Clause(limit, self.model.tokenizer.frames_after_end(tokens))

    def _draw(self, seed: int, frames: int) -> Tensor:
        """Returns the same noise for a seed on any device."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(frames, self._latents.shape[1], generator=generator)

    @torch.inference_mode()
    def step(self, rows: Sequence[int]) -> list[Frame]:
        """Returns the next frame of each of these rows, in order; they have begun and not
        ended."""
        lm = self.model.network.flow_lm
        clauses = [self._clauses[row] for row in rows]
        index = torch.tensor(rows, device=self.model.device)
        output = lm.step(self._latents[index], rows, self._cache)
        ends = (lm.out_eos(output)[:, 0] > self.model.config.end_threshold).tolist()
        noise = torch.stack(
            [self._noise[row, c.frames] for row, c in zip(rows, clauses, strict=True)]
        )
        latents = lm.flow_net(output, noise)
        self._latents[index] = latents
        sound = self.model.network.mimi(latents, rows, self._decoder)
        for i, clause in enumerate(clauses):
            if not clause.frames:
                sound[i, :FADE_SAMPLES] *= self._fade
        pcm = (sound.clamp_(-1, 1) * LOUDEST).to(torch.int16).cpu().numpy()
        assert pcm.shape[1] == FRAME_SAMPLES
        last = [clause.advance(end) for clause, end in zip(clauses, ends, strict=True)]
        return [Frame(*frame) for frame in zip(pcm, last, strict=True)]
