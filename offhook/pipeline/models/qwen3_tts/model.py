"""Qwen3-TTS in plain torch: a talker and a code predictor, both Qwen3 bodies.

Sizes and layout follow the checkpoints Qwen/Qwen3-TTS-12Hz-0.6B-* and -1.7B-*. A frame is 80 ms of
sound and 16 codes, one of each codebook. The talker takes one step a frame. It is told the sum of
the embeddings of the frame before and of one token of text, and says the first code; with its
hidden state the predictor says the other 15, one after another over 16 positions of its own. All of
a frame, embedding, sampling and all, runs without waiting for the device, so it can be one CUDA
graph. Everything is packed, as in `qwen3`.

What a token of text is to the talker depends on the token alone, so the embeddings are projected
once, when the weights are read, and so is what the predictor takes of the embeddings of codes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.pipeline.models.qwen3 import cuda_step, sampler
from offhook.pipeline.models.qwen3.body import Batch, Body, DecoderConfig, KVCache, require
from offhook.pipeline.models.qwen3.linear import Linear
from offhook.pipeline.models.qwen3.sampling import CODEBOOKS, Draw
from offhook.pipeline.speech.recognizer import EngineError

Kind = Literal["base", "custom_voice", "voice_design"]
"""Voices cloned from a recording, named, or described in words."""


@dataclass(frozen=True)
class Generation:
    """How codes are drawn when nobody says otherwise."""

    temperature: float = 0.9
    top_k: int = 50
    penalty: float = 1.05
    predictor_temperature: float = 0.9
    predictor_top_k: int = 50

    @staticmethod
    def from_json(c: Mapping[str, Any]) -> "Generation":
        """From a checkpoint's generation_config.json. Raises EngineError when it asks for what
        `sampling` does not do."""
        for name in ("top_p", "do_sample", "subtalker_top_p", "subtalker_dosample"):
            if c.get(name, 1) != 1:
                value = True if "sample" in name else 1.0
                raise EngineError(
                    f"generation_config.json: {name} is {c[name]!r}, but only {value!r} "
                    "is supported"
                )
        return Generation(
            temperature=c.get("temperature", Generation.temperature),
            top_k=c.get("top_k", Generation.top_k),
            penalty=c.get("repetition_penalty", Generation.penalty),
            predictor_temperature=c.get("subtalker_temperature", Generation.predictor_temperature),
            predictor_top_k=c.get("subtalker_top_k", Generation.predictor_top_k),
        )


@dataclass(frozen=True)
class TtsConfig:
    talker: DecoderConfig
    predictor: DecoderConfig
    kind: Kind = "base"
    size: str = ""
    """"0b6" or "1b7"; of a checkpoint with sizes of its own, what it says."""
    codec_vocab: int = 3072
    """First codes, and behind them what else the talker is told in codes."""
    codebook_size: int = 2048
    codebooks: int = CODEBOOKS
    text_vocab: int = 151936
    text_hidden: int = 2048
    """Of the embedding of text before its projection."""
    codec_bos: int = 2149
    codec_eos: int = 2150
    codec_pad: int = 2148
    think: int = 2154
    nothink: int = 2155
    think_bos: int = 2156
    think_eos: int = 2157
    tts_bos: int = 151672
    tts_eos: int = 151673
    tts_pad: int = 151671
    """The last three are text, the seven before them codes."""
    languages: Mapping[str, int] = field(default_factory=dict)
    """English names in small letters ("german"), and dialects, to codes."""
    speakers: Mapping[str, int] = field(default_factory=dict)
    """Names in small letters to codes."""
    dialects: Mapping[str, str | bool] = field(default_factory=dict)
    """Of speakers, a key of `languages`; False: none."""
    generation: Generation = Generation()

    @staticmethod
    def from_json(
        config: Mapping[str, Any], generation: Mapping[str, Any] | None = None
    ) -> "TtsConfig":
        """From a checkpoint's config.json and generation_config.json. Raises EngineError when it is
        of another model or variant."""
        if config.get("model_type") != "qwen3_tts":
            raise EngineError(
                f"config.json is of a {config.get('model_type')!r} model, not of Qwen3-TTS"
            )
        require(config, "tokenizer_type", "qwen3_tts_tokenizer_12hz")
        try:
            return _config(config, config["talker_config"], Generation.from_json(generation or {}))
        except KeyError as error:
            raise EngineError(f"config.json of Qwen3-TTS lacks {error.args[0]!r}") from error

    @property
    def code_counts(self) -> tuple[int, ...]:
        """Of each codebook."""
        return (self.codec_vocab, *[self.codebook_size] * (self.codebooks - 1))


def _config(top: Mapping[str, Any], c: Mapping[str, Any], generation: Generation) -> TtsConfig:
    kind = top["tts_model_type"]
    if kind not in get_args(Kind):
        raise EngineError(f"config.json: tts_model_type {kind!r} is not known")
    p = c["code_predictor_config"]
    for part in (c, p):
        require(part, "num_code_groups", CODEBOOKS)
    return TtsConfig(
        talker=DecoderConfig.from_json(c),
        predictor=DecoderConfig.from_json(p),
        kind=cast(Kind, kind),
        size=top.get("tts_model_size") or "",
        codec_vocab=c["vocab_size"],
        codebook_size=p["vocab_size"],
        text_vocab=c["text_vocab_size"],
        text_hidden=c["text_hidden_size"],
        codec_bos=c["codec_bos_id"],
        codec_eos=c["codec_eos_token_id"],
        codec_pad=c["codec_pad_id"],
        think=c["codec_think_id"],
        nothink=c["codec_nothink_id"],
        think_bos=c["codec_think_bos_id"],
        think_eos=c["codec_think_eos_id"],
        tts_bos=top["tts_bos_token_id"],
        tts_eos=top["tts_eos_token_id"],
        tts_pad=top["tts_pad_token_id"],
        languages=c.get("codec_language_id") or {},
        speakers=c.get("spk_id") or {},
        dialects=c.get("spk_is_dialect") or {},
        generation=generation,
    )


LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "spanish": 2054,
    "japanese": 2058,
    "french": 2061,
    "korean": 2064,
    "russian": 2069,
    "italian": 2070,
    "portuguese": 2071,
    "beijing_dialect": 2074,
    "sichuan_dialect": 2062,
}
SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
DIALECTS: dict[str, str | bool] = {
    **dict.fromkeys(SPEAKERS, False),
    "eric": "sichuan_dialect",
    "dylan": "beijing_dialect",
}
_SMALL = DecoderConfig(1024, 3072, layers=28, heads=16, kv_heads=8, head_dim=128)
_LARGE = DecoderConfig(2048, 6144, layers=28, heads=16, kv_heads=8, head_dim=128)
_VOICES = TtsConfig(
    talker=_SMALL,
    predictor=replace(_SMALL, layers=5),
    kind="custom_voice",
    languages=LANGUAGES,
    speakers=SPEAKERS,
    dialects=DIALECTS,
)
QWEN3_TTS_0_6B = replace(_VOICES, size="0b6")
QWEN3_TTS_1_7B = replace(_VOICES, size="1b7", talker=_LARGE)


class PredictorCache(KVCache):
    """Keys and values of the frames in the making: row r of a batch has page r to itself. What each
    forward needs beside depends on the number of rows alone and is made ahead."""

    def __init__(
        self, config: DecoderConfig, rows: int, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        """rows: of the largest batch."""
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
        """Positions 0 and 1 of every row, one row after another."""
        return Batch(
            positions=self._first_positions[: 2 * rows],
            slots=self._first_slots[: 2 * rows],
            page_table=self._pages[:rows],
            q_starts=self._first_starts[: rows + 1],
            kv_lengths=self._lengths[1, :rows],
            max_q=2,
        )

    def step(self, position: int, rows: int) -> Batch:
        """One later position of every row."""
        return Batch(
            positions=self._positions[position, :rows],
            slots=self._slots[position, :rows],
            page_table=self._pages[:rows],
            q_starts=self._starts[: rows + 1],
            kv_lengths=self._lengths[position, :rows],
            max_q=1,
        )


class Qwen3Tts(nn.Module):
    """Build it under `torch.device(...)` and with the default dtype wanted (`tts_checkpoint` does),
    not with `.to(dtype)`: the rotations stay fp32. When its weights are filled in, `project` is
    called once.

    Embeddings of codes are in one table, codebook after codebook, each followed by a row of zeros:
    the index next to its last code means that there is none.
    """

    offsets: Tensor
    """int64 [codebooks], where each codebook begins in a table."""
    predictor_alone: cuda_step.Predictor | None = None
    """What says the codes of one stream; see `quicken`."""

    def __init__(self, config: TtsConfig) -> None:
        super().__init__()
        self.config = config
        talker, predictor = config.talker, config.predictor
        self.talker = Body(talker)
        self.text = nn.Parameter(torch.empty(config.text_vocab, talker.hidden_size))
        """Embeddings of text, projected."""
        rows = sum(config.code_counts) + config.codebooks
        self.embeddings = nn.Parameter(torch.zeros(rows, talker.hidden_size))
        self.head = nn.Parameter(torch.empty(config.codec_vocab, talker.hidden_size))
        self.predictor = Body(predictor)
        shape = (config.codebooks - 1, config.codebook_size, predictor.hidden_size)
        self.heads = nn.Parameter(torch.empty(shape))
        # To the predictor's width where the talker's is another, and `embeddings` in that width.
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
        """Makes what the predictor takes of the embeddings, which must not change afterwards."""
        if self.projection is not None:
            self.predictor_tables.copy_(self.projection(self.embeddings))

    def quicken(self) -> None:
        """Gives a stream that is alone kernels of its own (`cuda_step`), where they fit."""
        cuda_step.quicken(self.talker)
        if self.predictor_alone is None and cuda_step.predictor_fits(self.predictor, self.heads):
            first, others = self.cut(self.predictor_tables)
            self.predictor_alone = cuda_step.Predictor(
                self.predictor, self.projection, first, others, self.heads
            )

    def cut(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Views of a table of all codebooks, each with its row of zeros: [codec_vocab + 1, width]
        of the first, [15, codebook_size + 1, width] of the others."""
        first, others = table.tensor_split([self.config.codec_vocab + 1])
        return first, others.unflatten(0, (self.config.codebooks - 1, -1))

    @property
    def nothing(self) -> Tensor:
        """The codes of a frame that is not there, int64 [codebooks]."""
        return torch.tensor(self.config.code_counts, device=self.offsets.device)

    # --- what the talker is told ---

    def embed(self, codes: Tensor, text: Tensor) -> Tensor:
        """The frame before, int64 [B, 16], and a token of text, int64 [B]: [B, hidden_size]."""
        return self.embed_frames(codes) + F.embedding(text, self.text)

    def embed_frames(self, codes: Tensor) -> Tensor:
        """Codes, int64 [T, 16], to the sum of their embeddings [T, hidden_size]."""
        return F.embedding(codes + self.offsets, self.embeddings).sum(1)

    def embed_prompt(self, text: Tensor, codec: Tensor, vectors: Tensor) -> Tensor:
        """Positions of a prompt: [T, hidden_size].

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
        """The next frame of every stream, int64 [B, 16]. A first code that is codec_eos ends the
        stream, and the codes behind it mean nothing.

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
                x = body.turned(F.embedding(code, table), turn, cache.step(at, rows), cache)
        return torch.stack(codes, 1)

    def predictor_cache(self, rows: int) -> PredictorCache:
        """For batches of up to so many rows. Its contents live as long as one `frame`."""
        weight = self.heads
        return PredictorCache(self.config.predictor, rows, weight.device, weight.dtype)
