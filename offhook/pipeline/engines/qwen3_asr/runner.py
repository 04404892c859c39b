"""Runs batches of many streams through one Qwen3-ASR: mel, stem, encoder, prefill, decode.

There is no policy here: a `Pass` states which seconds, windows and tokens of a stream to compute,
as integers; the runner packs a batch, launches the stages and returns token ids. On the device,
each slot holds for its stream:

- the log-mel of its latest RING_S seconds and the stem's output for them;
- the encoder's output of its latest RING_WINDOWS windows;
- decoder KV in pages, addressed through its row of the page table;
- its decoding state: last token, position, and whether it continues.

Slot 0 and page 0 are scratch space that padding reads and writes.

There are two CUDA streams: `hear` (PCM in, mel, stem, encoder) runs ahead while `speak` (prefill,
decode) is still busy with the previous batch. All methods are called by one thread.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offhook.pipeline.engines.qwen3_asr.model.model import Qwen3Asr
from offhook.pipeline.engines.qwen3_asr.passes import SECOND_SAMPLES, Pass, Span, Stem, Verdict
from offhook.pipeline.engines.qwen3_asr.windows import WINDOW_S
from offhook.pipeline.engines.shared.graphs import (
    Fields,
    Ints,
    Pending,
    Size,
    Stage,
    capture_all,
    on,
)
from offhook.pipeline.engines.shared.model import mel as log_mel
from offhook.pipeline.engines.shared.pages import PAGE_SIZE
from offhook.pipeline.engines.shared.qwen3.body import Batch, KVCache
from offhook.pipeline.engines.shared.qwen3.cuda_step import fuse_steps

RING_S = 24
"""Seconds kept per slot: two windows and what the next update needs; one update adds at most 16
s. Whole windows, so that none is wrapped around."""
RING_WINDOWS = 8
"""Windows kept per slot: completed ones that can be prefilled again, and the active one."""
WINDOW_TOKENS = 104
"""Encoder tokens of an 8 s window."""
SECOND_TOKENS = 13
SECOND_FRAMES = 100
MAX_TOKENS = 2048
"""Token limit of one stream (header, windows and text); sets the width of the page table."""

TABLE_WIDTH = MAX_TOKENS // PAGE_SIZE

# Captured sizes, about a fifth apart: padding costs as much as tokens do.
TOKEN_LADDER = (
    *(32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024),
    *(1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120),
)
SECOND_LADDER = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
ROW_LADDER = (8, 16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048)
STREAM_LADDER = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MAX_BATCH = 128
"""Streams in a batch."""

Pick = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Selects tokens: (argmax ids [R], slots [R], positions [R]) -> token ids [R]."""


def greedy(ids: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
    return ids


class Runner:
    """Qwen3-ASR with device state for `streams` streams and `pages` pages of KV cache."""

    def __init__(
        self,
        model: Qwen3Asr,
        streams: int,
        pages: int,
        pick: Pick = greedy,
        graphs: bool = True,
        alone: bool = True,
        tokens: int = TOKEN_LADDER[-1],
    ) -> None:
        """With `alone`, a batch of one stream uses kernels that occupy the whole GPU (`cuda_step`);
        at most one of two models on a GPU may do so. `tokens`: in the largest prefill."""
        self.model, self.streams, self.pages = model, streams, pages
        config = model.config
        weight = next(model.parameters())
        device, dtype = weight.device, weight.dtype
        self.device = device
        self._cuda = device.type == "cuda"
        self._graphs, self._pick, self._tokens = graphs, pick, tokens
        self.eos_ids = frozenset(config.eos_ids)
        self._eos = torch.tensor(config.eos_ids, device=device)
        slots = streams + 1
        mels = (slots * RING_S, config.encoder.mel_bins, SECOND_FRAMES)
        self._mel = torch.zeros(mels, device=device)
        width = config.encoder.d_model
        self._stem = torch.zeros(slots * RING_S, SECOND_TOKENS, width, device=device, dtype=dtype)
        heard = (slots * RING_WINDOWS * WINDOW_TOKENS, config.decoder.hidden_size)
        self._heard = torch.zeros(heard, device=device, dtype=dtype)
        read = (TOKEN_LADDER[-1], config.decoder.hidden_size)
        self._read = torch.zeros(read, device=device, dtype=dtype)
        self._cache = KVCache(config.decoder, pages, PAGE_SIZE, device, dtype)
        if alone:
            fuse_steps(model.decoder)
        self._pages_of = np.zeros((slots, TABLE_WIDTH), np.int64)
        self._table = torch.zeros(slots, TABLE_WIDTH, device=device, dtype=torch.int32)
        self._last = torch.zeros(slots, device=device, dtype=torch.int64)
        self._position = torch.zeros(slots, device=device, dtype=torch.int64)
        self._going = torch.zeros(slots, device=device, dtype=torch.bool)
        self._front = log_mel.LogMel(device)
        # High priority: mel of the next batch must not wait for a whole prefill.
        self._hear = torch.cuda.Stream(priority=-1) if self._cuda else None
        self._speak = torch.cuda.Stream() if self._cuda else None
        self._host = {
            name: torch.zeros(4096, dtype=dtype_, pin_memory=self._cuda)
            for name, dtype_ in (("mel", torch.float32), ("verify", torch.int64))
        }
        self._steps = [
            torch.zeros(streams + 1, dtype=torch.int64, pin_memory=self._cuda) for _ in range(2)
        ]
        self._step = 0
        self._make_stages(tokens)

    def _make_stages(self, tokens: int) -> None:
        """`tokens`: in the largest prefill."""
        device, sizes = self.device, self._sizes(tokens)
        self.mel_stage = Stage(
            "mel", self._run_mel, _mel_layout, sizes["mel"], device, uncleared="pcm"
        )
        self.stem_stage = Stage("stem", self._run_stem, _stem_layout, sizes["stem"], device)
        self.encoder_stage = Stage(
            "encoder", self._run_encoder, _encoder_layout, sizes["encoder"], device, MAX_TOKENS
        )
        self.prefill_stage = Stage(
            "prefill", self._run_prefill, _prefill_layout, sizes["prefill"], device, MAX_TOKENS
        )
        self.verify_stage = Stage(
            "verify", self._run_verify, _verify_layout, sizes["verify"], device, MAX_TOKENS // 2
        )
        self.decode_stage = Stage(
            "decode", self._run_decode, _decode_layout, sizes["decode"], device
        )

    def _sizes(self, most: int) -> dict[str, list[Size]]:
        """`most`: tokens of the largest prefill; the other stages are as large in proportion."""
        if not self._cuda:
            names = ("mel", "stem", "encoder", "prefill", "verify", "decode")
            return {name: [] for name in names}
        seconds = [Size(n) for n in SECOND_LADDER if n <= most // 32]
        tokens = [Size(n, max(2, n // 16)) for n in TOKEN_LADDER if n <= most]
        rows = [n for n in ROW_LADDER if n <= most // 2]
        return {
            "mel": seconds,
            "stem": seconds,
            "encoder": tokens,
            "prefill": tokens,
            "verify": [Size(n, min(n, STREAM_LADDER[-1])) for n in rows],
            "decode": [Size(n) for n in STREAM_LADDER if n < 2 * self.streams],
        }

    # --- making ready ---

    @torch.inference_mode()
    def warm_up(self, progress: Callable[[float, str], None] = lambda fraction, what: None) -> None:
        """Compiles and captures every size; nothing is captured once calls are served."""
        stages = (
            (self.mel_stage, self._hear),
            (self.stem_stage, self._hear),
            (self.encoder_stage, self._hear),
            (self.prefill_stage, self._speak),
            (self.verify_stage, self._speak),
            (self.decode_stage, self._speak),
        )
        capture_all(stages, self._graphs, progress)

    @property
    def max_tokens(self) -> int:
        """Tokens of a batch that is one launch of every stage."""
        return min(self.encoder_stage.most(self._tokens), self.prefill_stage.most(self._tokens))

    @property
    def max_batch(self) -> int:
        """Streams of a batch, each with two windows; its tokens are usually exhausted first, at
        about 50 streams."""
        windows = (self.encoder_stage.largest or Size(0, 2 * MAX_BATCH)).groups
        return min(MAX_BATCH, self.decode_stage.most(MAX_BATCH), windows // 2)

    # --- the pages of a stream ---

    def assign(self, slot: int, pages: Sequence[int]) -> None:
        """Assigns the stream's KV pages, in order, from its next prefill on."""
        self._pages_of[slot, : len(pages)] = pages

    # --- hearing ---

    @torch.inference_mode()
    def mel(self, passes: Sequence[Pass]) -> "NDArray[np.generic]":
        """Computes the log-mel of all `seconds` and returns each one's maximum [N] as float32.
        Blocks."""
        seconds = [(one.slot, second) for one in passes for second in one.seconds]
        pending = []
        most = self.mel_stage.sizes[-1].items if self.mel_stage.sizes else len(seconds)
        for first in range(0, len(seconds), most):
            part = seconds[first : first + most]
            size = self.mel_stage.fit(Size(len(part)))
            f = self.mel_stage.fields(size)
            pcm = f["pcm"].view(np.int16).reshape(size.items, SECOND_SAMPLES)
            for row, (_, second) in zip(pcm, part, strict=False):  # padding has old samples
                row[: len(second.pcm)] = second.pcm
                row[len(second.pcm) :] = 0
            f["frames"][: len(part)] = [second.frames for _, second in part]
            f["row"][: len(part)] = [_second_row(slot, second.number) for slot, second in part]
            with on(self._hear):
                loudest = self.mel_stage.launch(size)[: len(part)]
                pending.append(Pending(loudest, self._host["mel"][first:]))
        return np.concatenate([p.numpy() for p in pending])

    def _run_mel(self, f: Fields, size: Size) -> Tensor:
        pcm = f["pcm"].view(torch.int16).view(size.items, SECOND_SAMPLES)
        mel = self._front(pcm.float() / 32768)  # [N, bins, 100]
        beyond = torch.arange(SECOND_FRAMES, device=self.device) >= f["frames"][:, None]
        mel = mel.masked_fill(beyond[:, None, :], log_mel.FLOOR)
        self._mel[f["row"]] = mel
        return mel.amax((1, 2))

    @torch.inference_mode()
    def encode(self, passes: Sequence[Pass]) -> None:
        """Runs stem and encoder for all `stems` and `encode` spans; the output stays on the
        device."""
        stems = [(one.slot, stem) for one in passes for stem in one.stems]
        most = self.stem_stage.sizes[-1].items if self.stem_stage.sizes else len(stems)
        for first in range(0, len(stems), max(1, most)):
            self._convolve(stems[first : first + most])
        spans = [(one.slot, span) for one in passes for span in one.encode]
        if spans:
            tokens = sum(span.tokens for _, span in spans)
            size = self.encoder_stage.fit(Size(tokens, len(spans)))
            f = self.encoder_stage.fields(size)
            counts = np.array([span.tokens for _, span in spans])
            firsts = [(_stem_row(slot, span), _encoded_row(slot, span)) for slot, span in spans]
            f["stem"][:tokens], f["heard"][:tokens] = _ranges(np.array(firsts).T, counts)
            f["starts"][1 : len(spans) + 1] = counts.cumsum()
            f["starts"][len(spans) + 1 :] = tokens
            with on(self._hear):
                self.encoder_stage.launch(size)

    def _convolve(self, stems: Sequence[tuple[int, Stem]]) -> None:
        size = self.stem_stage.fit(Size(len(stems)))
        f = self.stem_stage.fields(size)
        count = len(stems)
        f["row"][:count] = [_second_row(slot, stem.number) for slot, stem in stems]
        f["frames"][:count] = [stem.frames for _, stem in stems]
        f["maximum"].view(np.float64)[:count] = [stem.maximum for _, stem in stems]
        with on(self._hear):
            self.stem_stage.launch(size)

    def _run_stem(self, f: Fields, size: Size) -> Tensor:
        mel = log_mel.scale(self._mel[f["row"]], f["maximum"].view(torch.float64).float())
        beyond = torch.arange(SECOND_FRAMES, device=self.device) >= f["frames"][:, None]
        mel = mel.masked_fill(beyond[:, None, :], 0.0)
        self._stem[f["row"]] = self.model.encoder.convolve(mel.to(self._stem.dtype))
        return self._stem

    def _run_encoder(self, f: Fields, size: Size) -> Tensor:
        x = self._stem.view(-1, self._stem.shape[-1])[f["stem"]]
        out: Tensor = self.model.encoder(x, f["starts"].to(torch.int32), WINDOW_TOKENS)
        self._heard[f["heard"]] = out
        return out

    # --- reading out ---

    @torch.inference_mode()
    def prefill(self, passes: Sequence[Pass]) -> Callable[[], list[Verdict]]:
        """Fills the KV cache and verifies the drafts. Returns a function that waits for the device
        and returns the verdicts of the streams that decode; those can be passed to `decode` at
        once."""
        pending: list[tuple[list[Pass], Pending]] = []
        with on(self._speak):
            if self._hear is not None and self._speak is not None:
                self._speak.wait_stream(self._hear)
            place = 0
            for part in self._parts(passes):
                laid = self._prefill(part)
                said = [p for p in part if p.decode]
                if said:
                    out = self._verify(part, said, laid)
                    pending.append((said, Pending(out, self._host["verify"][place:])))
                    place += len(out)

        def verdicts() -> list[Verdict]:
            found: list[Verdict] = []
            for said, result in pending:
                accepted, tokens = result.numpy().reshape(2, -1).tolist()
                found += map(Verdict, [p.slot for p in said], accepted, tokens)
            return found

        return verdicts

    def _parts(self, passes: Sequence[Pass]) -> Iterator[list[Pass]]:
        """Splits the passes to fit the largest captured sizes; usually there is one part."""
        part: list[Pass] = []
        tokens = rows = 0
        largest = self.prefill_stage.largest or Size(self._tokens, STREAM_LADDER[-1])
        most_rows = self.verify_stage.most(ROW_LADDER[-1])
        for p in passes:
            tokens += p.tokens
            rows += p.rows
            full = tokens > largest.items or rows > most_rows
            if part and (full or len(part) + 1 == largest.groups):
                yield part
                part, tokens, rows = [], p.tokens, p.rows
            part.append(p)
        yield part

    def _prefill(self, passes: Sequence[Pass]) -> dict[str, Ints]:
        """Launches a prefill and returns its integers."""
        count, counts = len(passes), np.array([p.tokens for p in passes])
        slots, starts = np.array([(p.slot, p.start) for p in passes]).T
        ends = counts.cumsum()
        tokens = int(ends[-1])
        # One group more than there are passes: padding tokens belong to it, and thus to page 0.
        size = self.prefill_stage.fit(Size(tokens, count + 1))
        f = self.prefill_stage.fields(size)
        f["positions"][:tokens] = _ranges(starts, counts)
        f["owner"][:tokens] = np.arange(count).repeat(counts)
        f["owner"][tokens:] = count
        f["slots"][:count], f["lengths"][:count] = slots, starts + counts
        f["pages"].reshape(size.groups, TABLE_WIDTH)[:count] = self._pages_of[slots]
        f["starts"][1 : count + 1], f["starts"][count + 1 :] = ends, tokens
        _write_tokens(passes, f["audio"][:tokens], f["ids"][:tokens])
        self.prefill_stage.launch(size)
        return f

    def _run_prefill(self, f: Fields, size: Size) -> Tensor:
        audio, positions = f["audio"], f["positions"]
        table = f["pages"].view(size.groups, TABLE_WIDTH).to(torch.int32)
        self._table[f["slots"]] = table
        x = self.model.decoder.embed(f["ids"])
        x = torch.where((audio > 0)[:, None], self._heard[(audio - 1).clamp(min=0)], x)
        page = table[f["owner"], positions // PAGE_SIZE].long()
        batch = Batch(
            positions=positions,
            slots=page * PAGE_SIZE + positions % PAGE_SIZE,
            page_table=table,
            q_starts=f["starts"].to(torch.int32),
            kv_lengths=f["lengths"].to(torch.int32),
            max_q=min(size.items, MAX_TOKENS),
        )
        hidden: Tensor = self.model.decoder(x, batch, self._cache)
        self._read[: size.items] = hidden
        return hidden

    def _verify(
        self, passes: Sequence[Pass], said: Sequence[Pass], laid: dict[str, Ints]
    ) -> Tensor:
        """Verifies the drafts of a `_prefill`, whose integers are `laid`: int64 [2 x streams],
        accepted count and next token."""
        count, counts = len(said), np.array([p.rows for p in said])
        rows = slice(None, int(counts.sum()))
        size = self.verify_stage.fit(Size(rows.stop, count))
        f = self.verify_stage.fields(size)
        decodes = np.array([p.decode for p in passes])
        ends = laid["starts"][1 : len(passes) + 1][decodes]
        lengths, slots = (laid[name][: len(passes)][decodes] for name in ("lengths", "slots"))
        firsts = np.array((ends, lengths)) - counts
        f["rows"][rows], f["positions"][rows] = _ranges(firsts, counts)
        f["owner"][rows] = slots.repeat(counts)
        f["sequence"][:] = size.groups  # padding rows belong to no stream
        f["sequence"][rows] = np.arange(count).repeat(counts)
        expected: list[int] = []
        for p in said:
            expected += p.draft
            expected.append(-1)
        f["expected"][:] = -1
        f["expected"][rows] = _ints(expected)
        f["slots"][:count], f["first"][:count] = slots, counts.cumsum() - counts
        return self.verify_stage.launch(size)[:, :count].reshape(-1)

    def _run_verify(self, f: Fields, size: Size) -> Tensor:
        likeliest = self.model.decoder.argmax(self._read[f["rows"]])
        said = self._pick(likeliest, f["owner"], f["positions"])
        # The first row of each stream whose prediction differs from the next draft token; the last
        # row expects none, so there always is one.
        number = torch.arange(size.items, device=self.device)
        wrong = torch.where(said == f["expected"], size.items, number)
        first_wrong = torch.full((size.groups + 1,), size.items, device=self.device)
        first_wrong = first_wrong.scatter_reduce(0, f["sequence"], wrong, "amin")[:-1]
        at = first_wrong.clamp(max=size.items - 1)
        token, slots = said[at], f["slots"]
        self._last[slots] = token
        self._position[slots] = f["positions"][at] + 1
        self._going[slots] = (slots > 0) & ~self._ends(token)
        return torch.stack((at - f["first"], token))

    @torch.inference_mode()
    def decode(self, slots: Sequence[int]) -> Callable[[], list[int]]:
        """Decodes one more token for each slot; -1 for one that had ended. Up to two steps may be
        in flight before the first result is read."""
        size = self.decode_stage.fit(Size(len(slots)))
        f = self.decode_stage.fields(size)
        f["slots"][: len(slots)] = slots
        self._step ^= 1
        with on(self._speak):
            out = self.decode_stage.launch(size)
            pending = Pending(out[: len(slots)], self._steps[self._step])
        return lambda: pending.numpy().tolist()

    def _run_decode(self, f: Fields, size: Size) -> Tensor:
        slots = f["slots"]
        going = self._going[slots]
        positions = torch.where(going, self._position[slots], 0)
        table = self._table[slots]
        page = table.gather(1, (positions // PAGE_SIZE)[:, None])[:, 0].long()
        batch = Batch(
            positions=positions,
            slots=torch.where(going, page * PAGE_SIZE + positions % PAGE_SIZE, 0),
            page_table=table,
            q_starts=torch.arange(size.items + 1, device=self.device, dtype=torch.int32),
            kv_lengths=(positions + 1).to(torch.int32),
            max_q=1,
        )
        hidden = self.model.decoder(self.model.decoder.embed(self._last[slots]), batch, self._cache)
        token = self._pick(self.model.decoder.argmax(hidden), slots, positions)
        self._last[slots] = token
        self._position[slots] = positions + going
        self._going[slots] = going & ~self._ends(token)
        return torch.where(going, token, -1)

    def _ends(self, token: Tensor) -> Tensor:
        return (token[:, None] == self._eos).any(-1)

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()


def _ranges(firsts: Ints, counts: Ints) -> Ints:
    """Returns `counts[i]` integers from `firsts[..., i]` on, for each i, one after another."""
    ends = counts.cumsum()
    ranges: Ints = np.arange(ends[-1]) + (firsts - ends + counts).repeat(counts, axis=-1)
    return ranges


def _ints(values: list[int]) -> Ints:
    """Returns the integers as an array, in less than half the time of np.array."""
    return np.fromiter(values, np.int64, len(values))


def _write_tokens(passes: Sequence[Pass], audio: Ints, ids: Ints) -> None:
    """Writes the tokens of a prefill: 1 + the row of the encoder's output for audio, ids
    elsewhere."""
    text: list[int] = []
    spans: list[tuple[int, int, int]] = []  # of each: ids before it, first row, tokens
    for p in passes:
        text += p.before
        spans += [(len(text), _encoded_row(p.slot, span), span.tokens) for span in p.audio]
        text += p.after
        text += p.draft
    if spans:
        before, rows, counts = np.array(spans).T
        firsts = np.array((before + counts.cumsum() - counts, rows + 1))
        places, audio_rows = _ranges(firsts, counts)
        audio[places] = audio_rows
    ids[audio == 0] = _ints(text)


def _second_row(slot: int, second: int) -> int:
    """Returns the row of a second's log-mel, and of the stem's output for it."""
    return slot * RING_S + second % RING_S


def _stem_row(slot: int, span: Span) -> int:
    """Returns the row of the stem's output for the span's first token; the others follow."""
    return _second_row(slot, span.window * WINDOW_S) * SECOND_TOKENS


def _encoded_row(slot: int, span: Span) -> int:
    """Returns the row of the encoder's output for the span's first token; the others follow."""
    return (slot * RING_WINDOWS + span.window % RING_WINDOWS) * WINDOW_TOKENS


def encoded_rows(slot: int, span: Span) -> Ints:
    """Returns the rows of the encoder's output for the span, one per token."""
    first = _encoded_row(slot, span)
    return np.arange(first, first + span.tokens)


def _mel_layout(size: Size) -> dict[str, int]:
    pcm = size.items * SECOND_SAMPLES // 4
    return {"frames": size.items, "row": size.items, "pcm": pcm}


def _stem_layout(size: Size) -> dict[str, int]:
    return {"row": size.items, "frames": size.items, "maximum": size.items}


def _encoder_layout(size: Size) -> dict[str, int]:
    return {"stem": size.items, "heard": size.items, "starts": size.groups + 1}


def _prefill_layout(size: Size) -> dict[str, int]:
    tokens = dict.fromkeys(("ids", "audio", "positions", "owner"), size.items)
    groups = dict.fromkeys(("slots", "lengths"), size.groups)
    pages = {"pages": size.groups * TABLE_WIDTH}
    return {**tokens, **groups, **pages, "starts": size.groups + 1}


def _verify_layout(size: Size) -> dict[str, int]:
    rows = dict.fromkeys(("rows", "positions", "owner", "sequence", "expected"), size.items)
    return {**rows, **dict.fromkeys(("slots", "first"), size.groups)}


def _decode_layout(size: Size) -> dict[str, int]:
    return {"slots": size.items}
