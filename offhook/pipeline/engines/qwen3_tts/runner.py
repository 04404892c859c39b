"""Runs batches of many streams through one Qwen3-TTS: prefill, frames, and the codec.

There is no policy here: a `Step` states which slot makes its next frame with which text token, a
`Piece` which frames to decode; the runner packs a batch and launches it (see `RunnerProtocol`). On
the device, each slot holds for its stream:

- the talker's keys and values, in pages;
- the codes of its latest RING frames, for the next frame and for the codec;
- the first codes used in its segment, for the repetition penalty: each code carries the number of
  the segment that used it last, so a new segment starts with none;
- the state of the codec.

Slot 0 and page 0 are scratch space that padding reads and writes.

A frame is one CUDA graph: embeddings, talker, predictor, sampling and bookkeeping. Sampling
parameters are part of each launch's integers. There are two CUDA streams: `speak` makes codes while
`sound` decodes them. All methods are called by one thread.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.qwen3_tts.model import codec_stream
from offhook.pipeline.engines.qwen3_tts.model.codec import MAX_FRAMES, Codec
from offhook.pipeline.engines.qwen3_tts.model.model import Qwen3Tts
from offhook.pipeline.engines.qwen3_tts.packing import (
    COUNTS,
    FLOATS,
    TABLE_WIDTH,
    Ints,
    codec_batches,
    codec_layout,
    cuts,
    places,
    prefill_layout,
    prompt_batches,
    runs,
    step_layout,
    table,
)
from offhook.pipeline.engines.shared.graphs import Fields, Pending, Size, Stage, capture_all, on
from offhook.pipeline.engines.shared.pages import PAGE_SIZE
from offhook.pipeline.engines.shared.qwen3.body import Batch, KVCache
from offhook.pipeline.engines.shared.qwen3.sampling import Draw
from offhook.pipeline.engines.shared.synthesis.messages import (
    FRAME_SAMPLES,
    PIECE_FRAMES,
    Piece,
    Prompt,
    Sampling,
    Step,
)

RING = 32
REFERENCES = 16
"""Voices whose codec state after the reference is kept; the least recently used is evicted."""
LEAST_PROMPT = 8
"""Minimum captured prompt rows; no voice prefix is shorter."""

# Captured sizes. A step takes as long for 12 streams as for 9: both read all weights.
STREAM_LADDER = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
TOKEN_LADDER = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
COPY_LADDER = (1, 4, 16)
MAX_CODEC_FRAMES = 512
"""Maximum frames of all streams in one codec launch; bounds the memory of its widest layers."""

T = TypeVar("T")


class Launch(Generic[T]):
    """A launch in flight; implements `messages.Launched`."""

    def __init__(self, results: Sequence[Pending], read: Callable[[], T]) -> None:
        self._results = results
        self._read = read

    def ready(self) -> bool:
        return all(result.ready for result in self._results)

    def __call__(self) -> T:
        return self._read()


class TtsRunner:
    """Qwen3-TTS with device state for `slots` streams and `pages` KV pages; implements
    `RunnerProtocol`. Two steps and two decodes may be in flight before the first result is read."""

    ring = RING

    def __init__(
        self,
        model: Qwen3Tts,
        codec: Codec,
        slots: int,
        pages: int,
        graphs: bool = True,
        batches: Sequence[int] = STREAM_LADDER,
        prompts: Sequence[int] = TOKEN_LADDER,
        codec_frames: int = MAX_CODEC_FRAMES,
    ) -> None:
        """Without `graphs` a GPU launches kernel by kernel, for comparison. `batches` and `prompts`
        are the captured sizes in streams and rows, ascending; a codec launch has at most
        `codec_frames` frames of all streams."""
        self.model = model
        self.codec = codec
        self.slots = slots
        self.pages = pages
        self.max_batch = min(slots, batches[-1])
        self._batches, self._prompts = batches, prompts
        self._codec_frames = codec_frames
        weight = next(model.parameters())
        self.device, dtype = weight.device, weight.dtype
        self._cuda = self.device.type == "cuda"
        self._graphs = graphs
        c = model.config
        largest = self._enough(self.max_batch)[-1]
        self._cache = KVCache(c.talker, pages, PAGE_SIZE, self.device, dtype)
        model.fuse_steps()
        self._predictor_cache = model.predictor_cache(largest)
        self._starts = torch.arange(largest + 1, device=self.device, dtype=torch.int32)
        hidden = c.talker.hidden_size
        self._vectors = torch.zeros(prompts[-1], hidden, device=self.device, dtype=dtype)
        self._said_in = torch.zeros(slots + 1, c.codec_vocab, device=self.device, dtype=torch.int32)
        # Codes of all slots; of the frame before a segment's first; of a reference.
        self._begin_row = (slots + 1) * RING
        rows = self._begin_row + 1 + MAX_FRAMES
        self._ring = torch.zeros(rows, c.codebooks, device=self.device, dtype=torch.int64)
        self._ring[self._begin_row] = torch.tensor([c.codec_bos, *c.code_counts[1:]])
        self._codec_state = codec.new_state(slots + REFERENCES * (c.kind == "base"))
        self._references: OrderedDict[int, tuple[Tensor, int]] = OrderedDict()
        self._make_books(slots)
        # Codes have priority: the codec's large grids must not delay a frame's small ones.
        self._speak = torch.cuda.Stream(priority=-1) if self._cuda else None
        self._sound = torch.cuda.Stream() if self._cuda else None
        self._stepped = [torch.cuda.Event() for _ in range(2)] if self._cuda else []
        self._codes = [self._pinned(slots + 1, torch.int64) for _ in range(2)]
        self._pcm = [
            self._pinned(slots * PIECE_FRAMES[-1] * FRAME_SAMPLES, torch.int16) for _ in range(2)
        ]
        self._make_stages()

    def _pinned(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(count, dtype=dtype, pin_memory=self._cuda)

    def _make_books(self, slots: int) -> None:
        """Creates the host's state of each slot. Slot 0 samples like the others."""
        self._pages_of = np.zeros((slots + 1, TABLE_WIDTH), np.int32)
        self._counts = np.ones((len(COUNTS), slots + 1), np.int64)
        self._floats = np.ones((len(FLOATS), slots + 1), np.float32)
        self._segments = 0
        self._segment = np.zeros(slots + 1, np.int64)
        # Frames of the slot since the runner started, which give their place in the ring:
        self._first = np.zeros(slots + 1, np.int64)  # first frame of the segment
        self._next = np.zeros(slots + 1, np.int64)
        self._referred = np.zeros(slots + 1, np.int64)  # frames of the segment's reference
        self._step_of = np.zeros(slots + 1, np.int64)  # step that made the slot's latest frame
        self._step = self._waited = self._decode = 0

    def _make_stages(self) -> None:
        def stage(
            name: str,
            run: Callable[[Fields, Size], Tensor],
            layout: Callable[[Size], dict[str, int]],
            sizes: Sequence[Size],
            least: int = 1,
        ) -> Stage:
            return Stage(name, run, layout, sizes if self._cuda else (), self.device, least)

        def pairs(size: Size) -> dict[str, int]:
            return {"from": size.items, "to": size.items}

        steps = [Size(n) for n in self._enough(self.max_batch)]
        tokens = [Size(n, n // LEAST_PROMPT) for n in self._prompts]
        copies = [Size(n) for n in COPY_LADDER]
        self.step_stage = stage("step", self._run_step, lambda s: step_layout(s.items), steps)
        self.prefill_stage = stage(
            "prefill", self._run_prefill, lambda s: prefill_layout(*s), tokens, tokens[-1].items
        )
        self.copy_stage = stage("copy", self._run_copy, pairs, copies, COPY_LADDER[-1])
        self.recall_stage = stage("recall", self._run_recall, pairs, copies[:1])
        self.codec_stages = {
            frames: stage(
                f"codec, {frames} frames",
                self._run_codec,
                lambda s: codec_layout(*s),
                [
                    Size(n, frames)
                    for n in self._enough(min(self.slots, self._codec_frames // frames))
                ],
            )
            for frames in PIECE_FRAMES
        }

    def _enough(self, most: int) -> list[int]:
        """Returns the captured sizes up to the one that holds `most` streams."""
        return [n for n in self._batches if n < most] + [min(n for n in self._batches if n >= most)]

    # --- making ready ---

    @torch.inference_mode()
    def warm_up(self, progress: Callable[[float, str], None] = lambda fraction, what: None) -> None:
        """Compiles and captures every size; nothing is captured once streams are served."""
        stages = [(s, self._speak) for s in (self.step_stage, self.prefill_stage, self.copy_stage)]
        stages += [(s, self._sound) for s in reversed(self.codec_stages.values())]
        stages.append((self.recall_stage, self._sound))
        capture_all(stages, self._graphs, progress)
        self.max_batch = min(self.max_batch, self.step_stage.most(self.max_batch))

    # --- the cache ---

    def assign(self, slot: int, pages: Sequence[int]) -> None:
        self._pages_of[slot, : len(pages)] = pages

    @torch.inference_mode()
    def copy(self, pages_from: Sequence[int], pages_to: Sequence[int]) -> None:
        for first in range(0, len(pages_from), COPY_LADDER[-1]):
            part = slice(first, first + COPY_LADDER[-1])
            self._copy(self.copy_stage, self._speak, pages_from[part], pages_to[part])

    def _copy(
        self,
        stage: Stage,
        stream: "torch.cuda.Stream | None",
        source: Sequence[int],
        target: Sequence[int],
    ) -> None:
        size = stage.fit(Size(len(source)))
        f = stage.fields(size)
        f["from"][: len(source)], f["to"][: len(source)] = source, target
        with on(stream):
            stage.launch(size)

    def _run_copy(self, f: Fields, size: Size) -> Tensor:
        for cache in (self._cache.k, self._cache.v):
            cache.index_copy_(1, f["to"], cache.index_select(1, f["from"]))
        return f["to"]

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Prompt]) -> None:
        most = self._prompts[-1]
        for batch in prompt_batches(prompts, most, most // LEAST_PROMPT):
            rows = sum(len(p.rows) for p in batch)
            size = self.prefill_stage.fit(Size(rows, len(batch)))
            with on(self._speak):
                self._fill_prompts(batch, size)
                self.prefill_stage.launch(size)

    def _fill_prompts(self, prompts: Sequence[Prompt], size: Size) -> None:
        f = self.prefill_stage.fields(size)
        starts, lengths = f["starts"].view(np.int32), f["lengths"].view(np.int32)
        pages = table(f["pages"])
        at = 0
        for i, p in enumerate(prompts):
            end = at + len(p.rows)
            f["text"][at:end], f["codec"][at:end], vectors = zip(*p.rows, strict=True)
            f["vector"][at:end] = np.array(vectors) >= 0
            for row, vector, count in runs(vectors):
                assert isinstance(p.vectors, Tensor)
                self._vectors[at + row : at + row + count] = p.vectors[vector : vector + count]
            positions = f["positions"][at:end]
            positions[:] = np.arange(p.start, p.start + len(p.rows))
            pages[i] = self._pages_of[p.slot]
            f["places"][at:end] = places(
                np.broadcast_to(pages[i], (end - at, TABLE_WIDTH)), positions
            )
            starts[i + 1], lengths[i] = end, p.start + len(p.rows)
            at = end
        starts[len(prompts) + 1 : size.groups + 1] = at

    def _run_prefill(self, f: Fields, size: Size) -> Tensor:
        given = f["vector"].to(self._vectors.dtype)[:, None] * self._vectors[: size.items]
        x = self.model.embed_prompt(f["text"], f["codec"], given)
        batch = Batch(
            positions=f["positions"],
            slots=f["places"],
            page_table=_int32(f["pages"], size.groups * TABLE_WIDTH).view(-1, TABLE_WIDTH),
            q_starts=_int32(f["starts"], size.groups + 1),
            kv_lengths=_int32(f["lengths"], size.groups),
            max_q=size.items,
        )
        hidden: Tensor = self.model.talker(x, batch, self._cache)
        return hidden

    # --- frames ---

    @torch.inference_mode()
    def begin(
        self, slot: int, seed: int, sampling: Sampling, reference: object | None = None
    ) -> None:
        """See `RunnerProtocol`; `reference` holds codes, int64 [frames, codebooks], on the device.
        The codec launches of the previous segment must already have been made."""
        self._segments += 1
        self._segment[slot] = self._segments
        self._counts[:, slot] = seed, sampling.top_k, sampling.predictor_top_k
        self._floats[:, slot] = (
            *(sampling.temperature, sampling.penalty),
            sampling.predictor_temperature,
        )
        self._first[slot] = self._next[slot]
        self._referred[slot] = 0
        if reference is not None:
            assert isinstance(reference, Tensor)
            with on(self._speak):
                self._ring[slot * RING + self._first[slot] % RING] = reference[-1]
            self._first[slot] += 1
            self._referred[slot] = len(reference)
            self._copy(self.recall_stage, self._sound, [self._decode_reference(reference)], [slot])

    def _decode_reference(self, reference: Tensor) -> int:
        """Returns the slot whose codec state has decoded exactly this reference."""
        known = self._references.pop(id(reference), None)
        if known is None:
            slot = self.slots + 1 + len(self._references)
            if len(self._references) == REFERENCES:
                _, (_, slot) = self._references.popitem(last=False)
            known = reference, slot
            row = self._begin_row + 1
            with on(self._sound):
                self._ring[row : row + len(reference)] = reference
                for first, count in cuts(len(reference)):
                    self._launch_codec(
                        np.array([slot]), np.array([first]), row + first + np.arange(count)[None]
                    )
        self._references[id(reference)] = known
        return known[1]

    def _run_recall(self, f: Fields, size: Size) -> Tensor:
        for kept in self._codec_state.tensors:
            kept.index_copy_(0, f["to"], kept.index_select(0, f["from"]))
        return f["to"]

    @torch.inference_mode()
    def step(self, steps: Sequence[Step]) -> Launch[list[int]]:
        count = len(steps)
        size = self.step_stage.fit(Size(count))
        self._step += 1
        self._fill_steps(np.array(steps, np.int64), size)
        turn = self._step % 2
        with on(self._speak):
            out = self.step_stage.launch(size)
            pending = Pending(out[:count], self._codes[turn])
            if self._cuda:
                self._stepped[turn].record()

        def read(step: int = self._step) -> list[int]:
            codes: list[int] = pending.numpy().tolist()
            self._waited = step
            return codes

        return Launch([pending], read)

    def _fill_steps(self, steps: Ints, size: Size) -> None:
        """Fills the step's fields from `steps` [n, 4], one row per step."""
        f = self.step_stage.fields(size)
        slots, _, frames, positions = steps.T
        n = len(steps)
        f["slots"][:n], f["text"][:n], f["frames"][:n], f["positions"][:n] = steps.T
        made = self._first[slots] + frames
        alone = (frames == 0) & (self._referred[slots] == 0)
        f["before"][:n] = np.where(alone, self._begin_row, slots * RING + (made - 1) % RING)
        f["after"][:n] = slots * RING + made % RING
        f["places"][:n] = places(self._pages_of[slots], positions)
        f["lengths"].view(np.int32)[:n] = positions + 1
        every = f["slots"]  # padding too: it samples like the others
        table(f["pages"])[:] = self._pages_of[every]
        f["segment"][:] = self._segment[every]
        for name, counts in zip(COUNTS, self._counts, strict=True):
            f[name][:] = counts[every]
        for name, floats in zip(FLOATS, self._floats, strict=True):
            f[name].view(np.float32)[: size.items] = floats[every]
        self._next[slots], self._step_of[slots] = made + 1, self._step

    def _run_step(self, f: Fields, size: Size) -> Tensor:
        n, slots = size.items, f["slots"]
        batch = Batch(
            positions=f["positions"],
            slots=f["places"],
            page_table=_int32(f["pages"], n * TABLE_WIDTH).view(n, TABLE_WIDTH),
            q_starts=self._starts[: n + 1],
            kv_lengths=_int32(f["lengths"], n),
            max_q=1,
        )
        draw = Draw(
            frames=f["frames"],
            seen=self._said_in[slots] == f["segment"][:, None],
            **{name: f[name] for name in COUNTS},
            **{name: f[name].view(torch.float32)[:n] for name in FLOATS},
        )
        x = self.model.embed(self._ring[f["before"]], f["text"])
        codes: Tensor = self.model.frame(x, batch, self._cache, self._predictor_cache, draw)
        first = codes[:, 0]
        self._ring[f["after"]] = codes
        self._said_in[slots, first] = f["segment"].to(torch.int32)
        return first

    # --- sound ---

    def _most_pieces(self, frames: int) -> int:
        """Returns how many pieces of so many frames fit in a codec launch."""
        return self.codec_stages[frames].most(self._codec_frames // frames)

    @torch.inference_mode()
    def decode(self, pieces: Sequence[Piece]) -> Launch[list[Pcm]]:
        self._decode += 1
        host = self._pcm[self._decode % 2]
        parts: list[tuple[list[int], Pending]] = []
        at = 0
        with on(self._sound):
            self._await_codes(pieces)
            for frames, batch in codec_batches(pieces, self._most_pieces):
                slots, first, _ = np.array([pieces[i] for i in batch]).T
                made = (self._first[slots] + first)[:, None] + np.arange(frames)
                rows = slots[:, None] * RING + made % RING
                out = self._launch_codec(slots, self._referred[slots] + first, rows)
                parts.append((batch, Pending(out, host[at : at + out.numel()].view(out.shape))))
                at += out.numel()

        def read() -> list[Pcm]:
            sounds: list[Pcm] = [np.empty(0, np.int16)] * len(pieces)
            for batch, pending in parts:
                for i, sound in zip(batch, pending.numpy().copy(), strict=True):
                    sounds[i] = sound
            return sounds

        return Launch([pending for _, pending in parts], read)

    def _await_codes(self, pieces: Sequence[Piece]) -> None:
        """Makes the codec wait for the steps that computed the pieces' codes, and no later ones."""
        if self._cuda:
            slots, first, count = np.array(pieces).T
            newest = self._first[slots] + first + count >= self._next[slots]
            step = int(np.max(np.where(newest, self._step_of[slots], self._step_of[slots] - 1)))
            if step > self._waited:
                torch.cuda.current_stream().wait_event(self._stepped[step % 2])

    def _launch_codec(self, slots: Ints, first: Ints, rows: Ints) -> Tensor:
        """Decodes the codes in these rows of the ring, [n, frames], to int16 [n, samples]."""
        n, frames = rows.shape
        stage = self.codec_stages[frames]
        size = stage.fit(Size(n, frames))
        f = stage.fields(size)
        f["slots"][:n], f["first"][:n] = slots, first
        f["rows"][: rows.size] = rows.reshape(-1)
        return stage.launch(size)[:n]

    def _run_codec(self, f: Fields, size: Size) -> Tensor:
        codes = self._ring[f["rows"]].view(size.items, size.groups, -1).transpose(1, 2)
        # The first code of the frame that ends a segment is not audio.
        codes = codes.clamp(max=self.codec.config.codebook_size - 1)
        sound = codec_stream.stream(self.codec, codes, f["slots"], f["first"], self._codec_state)
        return (sound * 32767).round_().to(torch.int16)

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()


def _int32(field: Tensor, count: int) -> Tensor:
    return field.view(torch.int32)[:count]
