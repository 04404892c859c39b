"""Word timestamps of a known text: Qwen3-ForcedAligner.

The body is that of Qwen3-ASR. It reads the audio and then the words, each followed by two
<timestamp> tokens, at which it predicts start and end as one of 5000 bins of 80 ms; this takes one
forward and no generation.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.qwen3_asr.model import checkpoint as asr_checkpoint
from offhook.pipeline.engines.qwen3_asr.model.alignment import AlignmentError, Unit, split, timed
from offhook.pipeline.engines.qwen3_asr.model.model import Qwen3Asr
from offhook.pipeline.engines.shared.model import mel as log_mel
from offhook.pipeline.engines.shared.qwen3.body import MAX_POSITIONS, Batch, KVCache
from offhook.pipeline.engines.shared.qwen3.tokenizer import Tokenizer
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import MAX_ALIGNED_S, Word

MAX_SAMPLES = MAX_ALIGNED_S * RATE_IN
BIN_MS = 80
STEM_S = 16
"""Seconds that pass through the convolutions together; each needs 6 MB in bf16."""
PAGE_SIZE = 64
"""Page size in tokens, equal to the recognition engine's, so that kernels are compiled once."""
WARM_UP_S = (MAX_ALIGNED_S, 128, 64, 32, 16, 8, 4, 2, 1)
WARM_UP_WORDS = 3
"""Words per second assumed at warm-up."""


@dataclass(frozen=True)
class AlignmentInput:
    """16 kHz audio and its text; `language` is an ISO 639 code from `alignment.LANGUAGES`."""

    pcm: Pcm
    text: str
    language: str


@dataclass(frozen=True)
class _Prompt:
    """The decoder's input for one utterance."""

    pcm: Pcm
    audio_ms: int
    units: list[Unit]
    ids: list[int]


class ForcedAligner:
    """An aligner on one device. Call it from one thread at a time, on that thread's current CUDA
    stream; calls return when the device is done."""

    def __init__(self, model: Qwen3Asr, tokenizer: Tokenizer) -> None:
        self._model = model
        self._tokenizer = tokenizer
        weight = model.decoder.norm
        self._device, self._dtype = weight.device, weight.dtype
        self._front = log_mel.LogMel(weight.device)

    @staticmethod
    def load(folder: Path, device: torch.device | str, dtype: torch.dtype) -> "ForcedAligner":
        """As of Qwen/Qwen3-ForcedAligner-0.6B. Raises EngineError when it is no aligner."""
        if asr_checkpoint.read_config(folder).classes is None:
            raise EngineError(f"{folder} recognises speech; it is no Qwen3-ForcedAligner")
        tokenizer = Tokenizer.load(folder)
        return ForcedAligner(asr_checkpoint.load_model(folder, device, dtype), tokenizer)

    def warm_up(self) -> None:
        """Compiles every kernel and allocates the memory of the longest utterance, on a GPU."""
        for seconds in WARM_UP_S:
            text = "word " * (WARM_UP_WORDS * seconds)
            self.align(np.zeros(seconds * RATE_IN, np.int16), text, "en")

    def align(self, pcm: Pcm, text: str, language: str) -> tuple[Word, ...]:
        """Returns all words of the text with times in ms that never decrease.

        `pcm` is 16 kHz; `language` is an ISO 639 code. Raises AlignmentError if the audio exceeds
        MAX_ALIGNED_S, text and audio exceed MAX_POSITIONS tokens, or the language is not in
        `alignment.LANGUAGES`.
        """
        return self.align_all([AlignmentInput(pcm, text, language)])[0]

    @torch.inference_mode()
    def align_all(self, utterances: Sequence[AlignmentInput]) -> list[tuple[Word, ...]]:
        """Aligns several utterances, in batches of up to MAX_ALIGNED_S. Raises AlignmentError,
        aligning none, if one cannot be aligned."""
        prompts = [self._prompt(utterance) for utterance in utterances]
        times = (t for pack in _packs(p for p in prompts if p.units) for t in self._times(pack))
        return [timed(p.units, next(times), p.audio_ms) if p.units else () for p in prompts]

    def _prompt(self, utterance: AlignmentInput) -> _Prompt:
        samples = len(utterance.pcm)
        if samples > MAX_SAMPLES:
            raise AlignmentError(
                f"the sound is {samples / RATE_IN:.1f} s long, not at most {MAX_ALIGNED_S}"
            )
        config, t = self._model.config, self._tokenizer
        pcm = log_mel.lengthen(utterance.pcm)
        heard = config.encoder.tokens(log_mel.frame_count(len(pcm)))
        units = split(utterance.text, utterance.language)
        ids = [t.audio_start, *[config.audio_token] * heard, t.audio_end]
        for unit in units:
            ids += [*t.encode(unit.spoken), config.timestamp_token, config.timestamp_token]
        if len(ids) > MAX_POSITIONS:
            raise AlignmentError(
                f"text and sound are {len(ids)} tokens, not at most {MAX_POSITIONS}"
            )
        return _Prompt(pcm, samples * 1000 // RATE_IN, units, ids)

    def _times(self, prompts: Sequence[_Prompt]) -> list[list[int]]:
        """Returns the predicted start and end of every word in ms, per utterance."""
        counts = [2 * len(p.units) for p in prompts]
        bins = self._logits(prompts).argmax(-1).cpu()
        return [(BIN_MS * part).tolist() for part in bins.split(counts)]

    def _logits(self, prompts: Sequence[_Prompt]) -> Tensor:
        """Runs one forward: [timestamps of all, classes]."""
        config, decoder = self._model.config, self._model.decoder
        ids = torch.tensor([i for p in prompts for i in p.ids], device=self._device)
        x = decoder.embed(ids)
        x[ids == config.audio_token] = self._features([p.pcm for p in prompts])
        batch, pages = _lay_out([len(p.ids) for p in prompts], self._device)
        one = replace(config.decoder, layers=1)
        cache = KVCache(one, pages, PAGE_SIZE, self._device, self._dtype)
        # There is no next forward: each layer may overwrite the previous layer's keys.
        layers = (config.decoder.layers, -1, -1, -1, -1)
        cache.k, cache.v = cache.k.expand(layers), cache.v.expand(layers)
        hidden = decoder(x, batch, cache)
        return decoder.logits(hidden[ids == config.timestamp_token])

    def _features(self, pcms: Sequence[Pcm]) -> Tensor:
        """Encodes all audio for the decoder, packed: [T, hidden_size]."""
        encoder = self._model.encoder
        stems = [self._stem(pcm) for pcm in pcms]
        window = encoder.config.window_tokens
        lengths = [min(window, len(s) - at) for s in stems for at in range(0, len(s), window)]
        heard: Tensor = encoder(torch.cat(stems), _starts(lengths, self._device), window)
        return heard

    def _stem(self, pcm: Pcm) -> Tensor:
        """Convolves one utterance of at least MIN_SAMPLES samples: [T, d_model]."""
        encoder = self._model.encoder
        frames = log_mel.frame_count(len(pcm))
        samples = torch.from_numpy(log_mel.cut(pcm, 0, frames)).to(self._device)
        mel = self._front(samples[None].float() / 32768)
        scaled = log_mel.scale(mel, mel.amax((1, 2)))[0].to(self._dtype)
        second = encoder.config.second_frames
        seconds = F.pad(scaled, (0, -frames % second)).unflatten(1, (-1, second)).transpose(0, 1)
        tokens = torch.cat([encoder.convolve(some) for some in seconds.split(STEM_S)])
        return tokens.flatten(0, 1)[: encoder.config.tokens(frames)]


def _packs(prompts: Iterable[_Prompt]) -> Iterator[list[_Prompt]]:
    """Splits prompts, in order, into batches of at most MAX_SAMPLES samples."""
    pack: list[_Prompt] = []
    samples = 0
    for prompt in prompts:
        if pack and samples + len(prompt.pcm) > MAX_SAMPLES:
            yield pack
            pack, samples = [], 0
        pack.append(prompt)
        samples += len(prompt.pcm)
    if pack:
        yield pack


def _lay_out(counts: Sequence[int], device: torch.device) -> tuple[Batch, int]:
    """Lays out sequences of these lengths in consecutive pages; returns the batch and the number of
    pages."""
    needed = [-(-n // PAGE_SIZE) for n in counts]
    first = np.cumsum([0, *needed])
    table = np.minimum(first[:-1, None] + np.arange(max(needed)), first[-1] - 1)
    positions = np.concatenate([np.arange(n) for n in counts])
    slots = positions + np.repeat(first[:-1] * PAGE_SIZE, counts)
    batch = Batch(
        positions=torch.from_numpy(positions).to(device),
        slots=torch.from_numpy(slots).to(device),
        page_table=torch.from_numpy(table.astype(np.int32)).to(device),
        q_starts=_starts(counts, device),
        kv_lengths=torch.tensor(counts, device=device, dtype=torch.int32),
        max_q=max(counts),
    )
    return batch, int(first[-1])


def _starts(lengths: Sequence[int], device: torch.device) -> Tensor:
    return torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)).to(device)
