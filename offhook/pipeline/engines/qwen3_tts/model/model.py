"""Qwen3-TTS in plain torch: a talker and a code predictor, both Qwen3 bodies.

Sizes and layout follow the checkpoints Qwen/Qwen3-TTS-12Hz-0.6B-* and -1.7B-*. A frame is 80 ms of
audio and 16 codes, one per codebook. The talker takes one step per frame: its input is the sum of
the embeddings of the previous frame and of one text token, its output the first code; from its
hidden state the predictor generates the other 15 codes, one after another over 16 positions of its
own. A whole frame, including embedding and sampling, runs without waiting for the device, so it can
be one CUDA graph. Everything is packed, as in `qwen3`.

The talker's input for a text token depends on the token only, so text embeddings are projected once
at load time, and so are the predictor's inputs for code embeddings.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.pipeline.engines.qwen3_tts.model.config import TtsConfig
from offhook.pipeline.engines.shared.qwen3 import cuda_step, sampler
from offhook.pipeline.engines.shared.qwen3.body import Batch, Body, KVCache
from offhook.pipeline.engines.shared.qwen3.config import CODEBOOKS, DecoderConfig
from offhook.pipeline.engines.shared.qwen3.linear import Linear
from offhook.pipeline.engines.shared.qwen3.sampling import Draw


class PredictorCache(KVCache):
    """Keys and values of frames being generated; row r of a batch owns page r. The other inputs of
    each forward depend only on the number of rows and are precomputed."""

    def __init__(
        self, config: DecoderConfig, rows: int, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        """`rows` is the largest batch."""
        super().__init__(config, rows, CODEBOOKS, device, dtype)
        row = torch.arange(rows + 1, device=device)
        position = torch.arange(CODEBOOKS, device=device)[:, None]
        self._positions = position.expand(-1, rows).contiguous()
        self._slots = row[:-1] * CODEBOOKS + position
        self._pages = row[:-1, None].int()
        self._starts = row.int()
        self._lengths = (self._positions + 1).int()
        # The first forward has two tokens of each row.
        self._first_positions = self._positions[:2].T.flatten()
        self._first_slots = self._slots[:2].T.flatten()
        self._first_starts = self._starts * 2

    def first(self, rows: int) -> Batch:
        """Returns the inputs for positions 0 and 1 of every row."""
        return Batch(
            positions=self._first_positions[: 2 * rows],
            slots=self._first_slots[: 2 * rows],
            page_table=self._pages[:rows],
            q_starts=self._first_starts[: rows + 1],
            kv_lengths=self._lengths[1, :rows],
            max_q=2,
        )

    def step(self, position: int, rows: int) -> Batch:
        """Returns the inputs for one later position of every row."""
        return Batch(
            positions=self._positions[position, :rows],
            slots=self._slots[position, :rows],
            page_table=self._pages[:rows],
            q_starts=self._starts[: rows + 1],
            kv_lengths=self._lengths[position, :rows],
            max_q=1,
        )


class Qwen3Tts(nn.Module):
    """Talker and predictor. Build it under `torch.device(...)` with the wanted default dtype (see
    `checkpoint`) rather than `.to(dtype)`, because the rotations stay fp32. Call `project` once
    after loading the weights.

    Code embeddings are in one table, codebook after codebook, each followed by a row of zeros: the
    index after its last code means "none".
    """

    offsets: Tensor
    """int64 [codebooks], the first row of each codebook in a table."""
    predictor_alone: cuda_step.Predictor | None = None
    """Generates the codes of a single stream; see `fuse_steps`."""

    def __init__(self, config: TtsConfig) -> None:
        super().__init__()
        self.config = config
        talker, predictor = config.talker, config.predictor
        self.talker = Body(talker)
        self.text = nn.Parameter(torch.empty(config.text_vocab, talker.hidden_size))
        """Projected text embeddings."""
        rows = sum(config.code_counts) + config.codebooks
        self.embeddings = nn.Parameter(torch.zeros(rows, talker.hidden_size))
        self.head = nn.Parameter(torch.empty(config.codec_vocab, talker.hidden_size))
        self.predictor = Body(predictor)
        shape = (config.codebooks - 1, config.codebook_size, predictor.hidden_size)
        self.heads = nn.Parameter(torch.empty(shape))
        # To the predictor's width if it differs from the talker's, and `embeddings` in that width.
        self.projection: Linear | None = None
        self.predictor_tables: Tensor = self.embeddings
        if predictor.hidden_size != talker.hidden_size:
            self.projection = Linear(talker.hidden_size, predictor.hidden_size)
            del self.predictor_tables
            self.predictor_tables = nn.Buffer(
                torch.empty(rows, predictor.hidden_size), persistent=False
            )
        ends = torch.tensor([n + 1 for n in config.code_counts]).cumsum(0)
        self.offsets = nn.Buffer(F.pad(ends[:-1], (1, 0)), persistent=False)

    def project(self) -> None:
        """Precomputes the predictor's inputs from the embeddings, which must not change
        afterwards."""
        if self.projection is not None:
            self.predictor_tables.copy_(self.projection(self.embeddings))

    def fuse_steps(self) -> None:
        """Lets a single stream use the kernels of `cuda_step` if they are supported."""
        cuda_step.fuse_steps(self.talker)
        if self.predictor_alone is None and cuda_step.predictor_fits(self.predictor, self.heads):
            first, others = self.cut(self.predictor_tables)
            self.predictor_alone = cuda_step.Predictor(
                self.predictor, self.projection, first, others, self.heads
            )

    def cut(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Splits a table of all codebooks into views including their rows of zeros: [codec_vocab +
        1, width] for the first, [15, codebook_size + 1, width] for the others."""
        first, others = table.tensor_split([self.config.codec_vocab + 1])
        return first, others.unflatten(0, (self.config.codebooks - 1, -1))

    @property
    def nothing(self) -> Tensor:
        """Returns the codes of an absent frame, int64 [codebooks]."""
        return torch.tensor(self.config.code_counts, device=self.offsets.device)

    # --- input of the talker ---

    def embed(self, codes: Tensor, text: Tensor) -> Tensor:
        """Embeds the previous frame, int64 [B, 16], and a text token, int64 [B], to [B,
        hidden_size]."""
        return self.embed_frames(codes) + F.embedding(text, self.text)

    def embed_frames(self, codes: Tensor) -> Tensor:
        """Sums the embeddings of codes, int64 [T, 16], to [T, hidden_size]."""
        return F.embedding(codes + self.offsets, self.embeddings).sum(1)

    def embed_prompt(self, text: Tensor, codec: Tensor, vectors: Tensor) -> Tensor:
        """Embeds the positions of a prompt: [T, hidden_size].

        text, codec: int64 [T], a token of text and a first code; -1: none. vectors:
        [T, hidden_size], what is added, as a speaker's voice or `embed_frames`; zeros: nothing.
        """
        none = self.config.codec_vocab
        x = F.embedding(torch.where(codec < 0, none, codec), self.embeddings) + vectors
        words = F.embedding(text.clamp(min=0), self.text)
        return x + words.masked_fill((text < 0)[:, None], 0)

    # --- what they say ---

    def frame(
        self, x: Tensor, batch: Batch, cache: KVCache, predictor_cache: PredictorCache, draw: Draw
    ) -> Tensor:
        """Returns the next frame of every stream, int64 [B, 16]. A first code of codec_eos ends the
        stream, and the codes after it are meaningless.

        x: [B, hidden_size] of `embed`, written over. batch: one token of each stream. draw: of
        these frames.
        """
        hidden = self.talker(x, batch, cache)
        first = sampler.sample_first(F.linear(hidden, self.head), draw, self.config.codec_eos)
        return self.predict(hidden, first, predictor_cache, draw)

    def predict(self, hidden: Tensor, first: Tensor, cache: PredictorCache, draw: Draw) -> Tensor:
        """The codes of a frame, int64 [B, 16], from the talker's hidden state [B, hidden_size] and
        the first code, int64 [B]."""
        if self.predictor_alone is not None and len(hidden) == 1:
            return self.predictor_alone(hidden, first, draw)
        body, rows = self.predictor, len(hidden)
        if self.projection is not None:
            hidden = self.projection(hidden)
        x = torch.stack((hidden, F.embedding(first, self.predictor_tables)), 1).flatten(0, 1)
        x = body(x, cache.first(rows), cache).view(rows, 2, -1)[:, 1]
        codes = [first]
        _, tables = self.cut(self.predictor_tables)
        for number, (head, table) in enumerate(zip(self.heads, tables, strict=True), 1):
            code = sampler.sample(F.linear(x, head), draw, number)
            codes.append(code)
            if number < len(self.heads):
                at = number + 1
                turn = body.cos[at].expand(rows, -1), body.sin[at].expand(rows, -1)
                x = body.rotated(F.embedding(code, table), turn, cache.step(at, rows), cache)
        return torch.stack(codes, 1)

    def predictor_cache(self, rows: int) -> PredictorCache:
        """Returns a cache for batches of up to `rows` rows; its contents last for one `frame`."""
        weight = self.heads
        return PredictorCache(self.config.predictor, rows, weight.device, weight.dtype)
