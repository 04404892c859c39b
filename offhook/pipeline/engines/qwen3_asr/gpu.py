"""Divides the memory of a GPU for Qwen3-ASR. Nothing here asks a device."""

from dataclasses import dataclass

from offhook.pipeline.engines.qwen3_asr.model.model import (
    QWEN3_ASR_0_6B,
    QWEN3_ASR_1_7B,
    AsrConfig,
    Qwen3Asr,
)
from offhook.pipeline.engines.shared.capacity import (
    GRAPH_BYTES,
    MAX_FILES,
    MAX_STREAMS,
    PAGES_PER_STREAM,
    WORKSPACE_SHARE,
    page_bytes,
    row_bytes,
    too_little,
)
from offhook.pipeline.engines.shared.reckoned import (
    Card,
    ModelSize,
    Size,
    config_by_name,
    listeners,
    read_config,
    weights_bytes,
)

RING_S, RING_WINDOWS, WINDOW_TOKENS, SECOND_TOKENS = 24, 8, 104, 13
"""What a recognition stream keeps on the device; see `asr.runner`."""


@dataclass(frozen=True)
class RecognitionPlan:
    """What of Qwen3-ASR fits."""

    streams: int
    """Live streams, besides MAX_FILES files."""
    pages: int
    tokens: int
    """Largest prefill."""


PREFILL_TOKENS = (5120, 4096, 2048)
"""Largest prefills, best first. One stream may need 2,048 tokens."""


def stream_bytes(c: AsrConfig) -> int:
    """Returns the bytes of a recognition stream besides its pages: mel in fp32, stem and encoder
    output in 16 bits."""
    mel = 4 * RING_S * c.encoder.mel_bins * c.encoder.second_frames
    stem = 2 * RING_S * SECOND_TOKENS * c.encoder.d_model
    return mel + stem + 2 * RING_WINDOWS * WINDOW_TOKENS * c.decoder.hidden_size


def recognition_workspace(c: AsrConfig, tokens: int) -> int:
    """Returns the bytes that graphs with prefills of up to `tokens` tokens need."""
    e = c.encoder
    stem = (tokens // 32) * e.conv_channels * (e.mel_bins // 2) * (e.second_frames // 2) * 2 * 3
    encoder = tokens * 2 * (5 * e.d_model + e.ffn) * 2
    prefill = tokens * row_bytes(c.decoder)
    logits = tokens // 2 * c.decoder.vocab_size * 2
    pools = max(stem, encoder) + max(prefill, logits)
    return pools + max(stem, encoder, prefill, logits) + 92 * GRAPH_BYTES


def recognition_plan(room: int, c: AsrConfig, most: int = 0) -> RecognitionPlan:
    """Returns how `room` bytes beside the weights are used, for at most `most` live streams (0: as
    many as fit). Raises EngineError if not even one fits."""
    each = PAGES_PER_STREAM * page_bytes(c.decoder) + stream_bytes(c)
    tokens = next(
        (n for n in PREFILL_TOKENS if recognition_workspace(c, n) <= WORKSPACE_SHARE * room),
        PREFILL_TOKENS[-1],
    )
    workspace = recognition_workspace(c, tokens)
    streams = min(most or MAX_STREAMS, MAX_STREAMS, (room - workspace) // each - MAX_FILES)
    if streams < 1:
        raise too_little(room, workspace + (MAX_FILES + 1) * each)
    return RecognitionPlan(streams, (streams + MAX_FILES) * PAGES_PER_STREAM + 1, tokens)


# --- before it loads ---

CONFIGS: dict[Size, AsrConfig] = {"0.6B": QWEN3_ASR_0_6B, "1.7B": QWEN3_ASR_1_7B}


def size(model: str) -> ModelSize:
    """Returns what a model takes of a GPU. Raises EngineError."""
    told = read_config(model)
    c = AsrConfig.from_json(told) if told else config_by_name(model, CONFIGS)
    width = c.decoder.hidden_size
    known = next((n for n, k in CONFIGS.items() if k.decoder.hidden_size == width), None)

    def followed(card: Card) -> int:
        return 0 if known is None else listeners(card, known)

    weights = weights_bytes(lambda: Qwen3Asr(c))
    return ModelSize(weights, lambda room: recognition_plan(room, c).streams, followed)
