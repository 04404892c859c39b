"""Divides the memory of a GPU, and says how many streams it follows in real time.

Everything is counted: weights before, then per stream its keys and values and its state, and once
for all the workspace of the largest launches. Nothing here asks a device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

from offhook.pipeline.engine.pages import PAGE_SIZE
from offhook.pipeline.engine.tts.messages import PIECE_FRAMES
from offhook.pipeline.speech.recognizer import EngineError

if TYPE_CHECKING:
    from offhook.pipeline.models.nemotron.model import NemotronConfig
    from offhook.pipeline.models.qwen3.config import DecoderConfig
    from offhook.pipeline.models.qwen3_asr.model import AsrConfig
    from offhook.pipeline.models.qwen3_tts.codec import CodecConfig
    from offhook.pipeline.models.qwen3_tts.config import TtsConfig

MIB = 1 << 20
"""Number of bytes in a MiB."""
SHARED = 0.5
"""Maximum share of a GPU's memory that a worker uses, weights included, unless set otherwise:
recognition and synthesis fit on one GPU, whichever loads first. The number of streams is what fits
in it; with less memory than one stream needs the engine does not load."""
ALONE = 1.0
"""The same for a worker that has the GPU for itself."""
RESERVE = 1 << 30
"""Bytes left free: CUDA's own, and what a forced aligner or voice encoders need for a moment."""
GRAPH_BYTES = 8 * MIB
"""Bytes of a captured graph besides its tensors."""
LIVE_TENSORS = 3
"""Tensors of a block of the codec that exist at the same time, besides inputs of convolutions."""
WORKSPACE_SHARE = 0.25
"""Share of the memory that the largest launches may need; beyond it they are made smaller."""

MAX_STREAMS = 2048
"""Maximum live recognition streams, however much memory there is; further ones are refused with
EngineOverloaded."""
MAX_FILES = 16
"""Maximum files transcribed at once, besides the live streams; further ones are refused with
EngineOverloaded."""
PAGES_PER_STREAM = 4
"""Average KV pages of an open recognition stream: eight, half a minute of audio, of each second
one, whose caller speaks (most utterances need three), and one of those who listen."""
SPEAKS = 0.4
"""Share of a call in which its caller speaks."""
DEVIATIONS = 1.0
"""Standard deviations by which more callers may speak at once than on average. When still more do,
updates come late or are merged; when as many do as the device follows, nobody else is admitted."""
RING_S, RING_WINDOWS, WINDOW_TOKENS, SECOND_TOKENS = 24, 8, 104, 13
"""What a recognition stream keeps on the device; see `asr.runner`."""

MAX_VOICES = 4096
"""Maximum concurrent synthesis streams, however much memory there is; further ones are refused with
EngineOverloaded."""
PAGES_PER_VOICE = 8
"""Average KV pages of a synthesis stream, enough for about 60 words. With less, segments are
shorter."""
PREFIX_PAGES = 64
"""Pages for the prompt prefixes shared by streams of the same voice."""

MAX_LABEL_STREAMS = 8192
"""Maximum live Nemotron streams, however much memory there is; further ones are refused with
EngineOverloaded."""
LABEL_FRAMES = 1792
"""Encoder frames of the largest Nemotron launch, each with a workspace of up to one MiB."""


def budget(free: int, total: int, taken: int, share: float) -> int:
    """Returns the bytes that a worker may still take of a GPU with `free` of `total` bytes free, of
    which it has `taken` already, mostly for weights."""
    return max(0, min(free, int(share * total) - taken) - RESERVE)


def page_bytes(c: "DecoderConfig") -> int:
    """Returns the bytes of one page of keys and values in 16 bits."""
    return 2 * c.layers * c.kv_heads * c.head_dim * PAGE_SIZE * 2


def row_bytes(c: "DecoderConfig", vocabulary: int = 0) -> int:
    """Returns the bytes of the tensors of one row in the widest layer; `vocabulary`: of its logits,
    in 16 bits and for sampling in 32."""
    attention = (c.heads + 2 * c.kv_heads) * c.head_dim
    return 2 * (4 * c.hidden_size + attention + 3 * c.ffn) + 6 * vocabulary


def _too_little(room: int, wanted: float) -> EngineError:
    return EngineError(
        f"{room / 2**30:.1f} GiB of GPU memory are to be had beside the weights, "
        f"{wanted / 2**30:.1f} GiB are needed"
    )


# --- hearing ---


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


def stream_bytes(c: "AsrConfig") -> int:
    """Returns the bytes of a recognition stream besides its pages: mel in fp32, stem and encoder
    output in 16 bits."""
    mel = 4 * RING_S * c.encoder.mel_bins * c.encoder.second_frames
    stem = 2 * RING_S * SECOND_TOKENS * c.encoder.d_model
    return mel + stem + 2 * RING_WINDOWS * WINDOW_TOKENS * c.decoder.hidden_size


def recognition_workspace(c: "AsrConfig", tokens: int) -> int:
    """Returns the bytes that graphs with prefills of up to `tokens` tokens need."""
    e = c.encoder
    stem = (tokens // 32) * e.conv_channels * (e.mel_bins // 2) * (e.second_frames // 2) * 2 * 3
    encoder = tokens * 2 * (5 * e.d_model + e.ffn) * 2
    prefill = tokens * row_bytes(c.decoder)
    logits = tokens // 2 * c.decoder.vocab_size * 2
    pools = max(stem, encoder) + max(prefill, logits)
    return pools + max(stem, encoder, prefill, logits) + 92 * GRAPH_BYTES


def recognition_plan(room: int, c: "AsrConfig", most: int = 0) -> RecognitionPlan:
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
        raise _too_little(room, workspace + (MAX_FILES + 1) * each)
    return RecognitionPlan(streams, (streams + MAX_FILES) * PAGES_PER_STREAM + 1, tokens)


def label_streams(room: int, c: "NemotronConfig", most: int = 0) -> int:
    """Returns the live Nemotron streams that fit in `room` bytes beside the weights and MAX_FILES
    files, at most `most` (0: as many as fit). Raises EngineError if not even one fits."""
    e = c.encoder
    caches = e.layers * (2 * c.ring + e.conv_kernel - 1) * e.hidden_size
    heard = c.predictor_size * (max(c.lookaheads) + 2 + 2 * c.predictor_layers)
    each = 2 * (caches + heard)  # in 16 bits
    # On a small GPU the largest launches do without; those that do not fit are left out.
    workspace = 50 * GRAPH_BYTES + min(LABEL_FRAMES * MIB, int(WORKSPACE_SHARE * room))
    streams = (room - workspace) // each - MAX_FILES
    streams = min(most or MAX_LABEL_STREAMS, MAX_LABEL_STREAMS, streams)
    if streams < 1:
        raise _too_little(room, workspace + (MAX_FILES + 1) * each)
    return streams


# --- speaking ---


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


def codec_frame_bytes(c: "CodecConfig") -> int:
    """Returns the bytes of one frame in a codec launch, in 16 bits: of the inputs of all
    convolutions, with the left contexts of a stream of which there is no other frame, and of the
    tensors in the widest block."""
    inputs = sum((x.length + x.rate) * x.channels for x in c.left_contexts)
    return 2 * (inputs + LIVE_TENSORS * max(x.rate * x.channels for x in c.left_contexts))


def synthesis_workspace(c: "TtsConfig", codec: "CodecConfig", batch: int, frames: int) -> int:
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
    c: "TtsConfig",
    codec: "CodecConfig",
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
    raise _too_little(room, wanted + each)


def _below(batches: Sequence[int], batch: int) -> int:
    return max((n for n in batches if n < batch), default=0)


# --- in real time ---


def speaking_at_once(calls: int, share: float, deviations: float) -> float:
    """Returns how many of the `calls` speak at once, each for a `share` of the time whenever chance
    has it: the mean, and so many standard deviations more."""
    return calls * share + deviations * sqrt(calls * share * (1 - share))


def open_streams(followed: int, fit: int | None = None) -> int:
    """Returns how many recognition streams may be open of which at most `followed` are in use, each
    by a caller who speaks SPEAKS of the time: the inverse of `speaking_at_once`. `fit`: those for
    which there is memory, if that limits them."""
    spread = DEVIATIONS * sqrt(SPEAKS * (1 - SPEAKS))
    root = (sqrt(spread**2 + 4 * SPEAKS * followed) - spread) / (2 * SPEAKS)
    wanted = max(followed, int(root**2))
    return wanted if fit is None else min(fit, wanted)


def followed(work_ms: float, streams: int, period_ms: float, load: float) -> int:
    """Returns how many streams a device follows of which each needs a part of `work_ms` every
    `period_ms`: `work_ms` is what `streams` of them take together, and `load` the share of the time
    that they may take."""
    return max(1, int(load * period_ms * streams / work_ms))
