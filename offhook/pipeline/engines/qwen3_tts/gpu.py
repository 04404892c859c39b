"""Divides the memory of a GPU for Qwen3-TTS. Nothing here asks a device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from offhook.pipeline.engines.qwen3_tts.model.codec import QWEN3_CODEC, Codec, CodecConfig
from offhook.pipeline.engines.qwen3_tts.model.config import (
    QWEN3_TTS_0_6B,
    QWEN3_TTS_1_7B,
    TtsConfig,
)
from offhook.pipeline.engines.qwen3_tts.model.model import Qwen3Tts
from offhook.pipeline.engines.qwen3_tts.runner import STREAM_LADDER
from offhook.pipeline.engines.qwen3_tts.segment_prefill import PREFIX_SLOTS
from offhook.pipeline.engines.shared.capacity import (
    GRAPH_BYTES,
    MAX_VOICES,
    WORKSPACE_SHARE,
    page_bytes,
    row_bytes,
    too_little,
)
from offhook.pipeline.engines.shared.pages import PAGE_SIZE
from offhook.pipeline.engines.shared.reckoned import (
    Card,
    ModelSize,
    Size,
    config_by_name,
    read_config,
    voices,
    weights_bytes,
)
from offhook.pipeline.engines.shared.synthesis.messages import PIECE_FRAMES

LIVE_TENSORS = 3
"""Tensors of a block of the codec that exist at the same time, besides inputs of convolutions."""
PAGES_PER_VOICE = 8
"""Average KV pages of a synthesis stream, enough for about 60 words. With less, segments are
shorter."""
PREFIX_PAGES = 64
"""Pages for the prompt prefixes shared by streams of the same voice."""


@dataclass(frozen=True)
class SynthesisPlan:
    """What of Qwen3-TTS fits."""

    streams: int
    pages: int
    """Including PREFIX_PAGES and scratch page 0."""
    batch: int
    """Largest step, in streams."""
    codec_frames: int
    """Most frames of all streams in a codec launch."""


CODEC_FRAMES = (512, 384, 256, 192, 128, 96, 64)
"""Largest codec launches, best first."""


def codec_frame_bytes(c: CodecConfig) -> int:
    """Returns the bytes of one frame in a codec launch, in 16 bits: of the inputs of all
    convolutions, with the left contexts of a stream of which there is no other frame, and of the
    tensors in the widest block."""
    inputs = sum((x.length + x.rate) * x.channels for x in c.left_contexts)
    return 2 * (inputs + LIVE_TENSORS * max(x.rate * x.channels for x in c.left_contexts))


def synthesis_workspace(c: TtsConfig, codec: CodecConfig, batch: int, frames: int) -> int:
    """Returns the bytes that graphs for steps of `batch` streams and codec launches of `frames`
    frames need."""
    predictor = batch * c.codebooks * page_bytes(c.predictor) // PAGE_SIZE
    step = batch * max(
        row_bytes(c.talker, c.codec_vocab), row_bytes(c.predictor, 2 * c.codec_vocab)
    )
    step = max(step, 1024 * row_bytes(c.talker))
    sound = frames * codec_frame_bytes(codec)
    return predictor + step + sound + max(step, sound) + 90 * GRAPH_BYTES


def synthesis_plan(
    room: int,
    c: TtsConfig,
    codec: CodecConfig,
    state: int,
    batches: Sequence[int],
    spare: int,
    most: int = 0,
) -> SynthesisPlan:
    """Returns how `room` bytes beside the weights are used, for at most `most` streams (0: as many
    as fit). `state` is the size in bytes of a slot's codec state, `batches` the sizes of steps,
    ascending, and `spare` the slots besides those of the streams. Raises EngineError if not even
    one fits."""
    page = page_bytes(c.talker)
    each = PAGES_PER_VOICE * page + state
    fixed = PREFIX_PAGES * page + (spare + 1) * state
    wanted = 0
    for batch in reversed(batches):
        useful = batch * PIECE_FRAMES[-1]
        frames = next(
            (
                n
                for n in CODEC_FRAMES
                if n <= useful and synthesis_workspace(c, codec, batch, n) <= WORKSPACE_SHARE * room
            ),
            CODEC_FRAMES[-1],
        )
        wanted = fixed + synthesis_workspace(c, codec, batch, frames)
        streams = min(most or MAX_VOICES, MAX_VOICES, (room - wanted) // each)
        if streams >= 1 and (batch == batches[0] or _below(batches, batch) < streams + spare):
            pages = PREFIX_PAGES + streams * PAGES_PER_VOICE + 1
            return SynthesisPlan(streams, pages, batch, frames)
    raise too_little(room, wanted + each)


def _below(batches: Sequence[int], batch: int) -> int:
    return max((n for n in batches if n < batch), default=0)


# --- before it loads ---

CONFIGS: dict[Size, TtsConfig] = {"0.6B": QWEN3_TTS_0_6B, "1.7B": QWEN3_TTS_1_7B}


def size(model: str) -> ModelSize:
    """Returns what a model takes of a GPU. Raises EngineError."""
    told = read_config(model)
    c = TtsConfig.from_json(told) if told else config_by_name(model, CONFIGS)
    width = c.talker.hidden_size
    known = next((n for n, k in CONFIGS.items() if k.talker.hidden_size == width), None)
    weights = weights_bytes(lambda: Qwen3Tts(c)) + weights_bytes(lambda: Codec(QWEN3_CODEC))
    with torch.device("meta"):
        state: int = Codec(QWEN3_CODEC).to(torch.bfloat16).new_state(1).bytes_per_slot

    def streams(room: int) -> int:
        return synthesis_plan(room, c, QWEN3_CODEC, state, STREAM_LADDER, PREFIX_SLOTS).streams

    def followed(card: Card) -> int:
        return 0 if known is None else voices(card, known)

    return ModelSize(weights, streams, followed)
