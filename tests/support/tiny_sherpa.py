"""Writes streaming recognition models of a few kilobytes that sherpa-onnx loads.

They recognize chords: the band of the log-mel spectrum that is loudest is a label, a frame without
a loud band is a blank, and a label is not repeated until another has been (or, by CTC, a blank). So
a test knows the text of its sound, and a stream that got another's sound or state says something
else.

The graphs have the inputs, outputs and metadata of the models that users have:
`zipformer2` of icefall's streaming transducers, `zipformer2_ctc` of its CTC models, `nemo` of
NVIDIA's cache-aware transducers. `voice` is a VITS voice that sings them, a letter a chord.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.recognition.onnx_writer import FLOAT, INT32, INT64, Array, node, value, write
from offhook.media.pcm import RATE_IN, Pcm

PIECES = ("▁do", "re", "▁mi", "fa", "▁so", "la", "▁ti", "ut")
"""What the bands say, from the lowest."""
BANDS = len(PIECES)
BANDS_HZ = (
    (60, 250),
    (400, 610),
    (780, 1080),
    (1180, 1660),
    (1780, 2450),
    (2650, 3640),
    (3850, 5350),
    (5480, 7500),
)
"""What is within the same band of both mel scales in use, HTK's to 7600 Hz and Slaney's to 8000."""
TONES = 5
"""Of a chord."""
TONE_S, PAUSE_S, FADE_S = 0.4, 0.2, 0.05
LOUDNESS = 2.0
"""Nepers of power over the mean of all bands from which a band is a label."""
CERTAIN = 100.0
NEVER = -1000.0
LEFT, SIZE = 4, 4
"""Frames and channels of the attention caches, which only count."""


def sound(*labels: int, lead_s: float = 0.0) -> Pcm:
    """The chords of these labels, with pauses."""
    t = np.arange(int(RATE_IN * TONE_S)) / RATE_IN
    fade = np.sin(np.pi / 2 * np.minimum(1, np.minimum(t, t[::-1]) / FADE_S)) ** 2
    pause = np.zeros(int(RATE_IN * PAUSE_S))
    parts = [np.zeros(int(RATE_IN * lead_s))]
    for label in labels:
        tones = (np.sin(2 * np.pi * hz * t) for hz in np.linspace(*BANDS_HZ[label], TONES))
        parts += [fade * sum(tones) / TONES / 2, pause]
    return (np.concatenate(parts) * 32767).astype(np.int16)


LETTERS = "".join(piece.lstrip("▁")[0] for piece in PIECES)
"""What the voice sings the bands from."""


def voice(folder: Path) -> Path:
    """The graph makes the sound, as `sound` does."""
    folder.mkdir(parents=True, exist_ok=True)
    t = np.arange(int(RATE_IN * (TONE_S + PAUSE_S))) / RATE_IN
    inside = np.minimum(t, TONE_S - t).clip(0, FADE_S)
    tones = np.stack([np.linspace(*band, TONES) for band in BANDS_HZ])
    constants: dict[str, Array] = {
        "turns": (2 * np.pi * tones[:, :, None]).astype(np.float32),
        "clock": t.astype(np.float32),
        "fade": (np.sin(np.pi / 2 * inside / FADE_S) ** 2 / 2).astype(np.float32),
        "shape": np.array([1, 1, -1], np.int64),
    }
    write(
        folder / "model.onnx",
        [
            node("Gather", "turns x", "chords", axis=0),
            node("Mul", "chords clock", "phases"),
            node("Sin", "phases", "tones"),
            node("ReduceMean", "tones", "chord", axes=[2]),
            node("Mul", "chord fade", "sung"),
            node("Reshape", "sung shape", "y"),
        ],
        [
            value("x", INT64, 1, "L"),
            value("x_length", INT64, 1),
            value("noise_scale", FLOAT, 1),
            value("length_scale", FLOAT, 1),
            value("noise_scale_w", FLOAT, 1),
            value("sid", INT64, 1),
        ],
        [value("y", FLOAT, 1, 1, "N")],
        constants,
        {
            "model_type": "vits",
            "comment": "tiny",
            "frontend": "characters",
            "language": "English",
            "sample_rate": RATE_IN,
            "n_speakers": 1,
            "add_blank": 0,
            "use_eos_bos": 0,
        },
    )
    _tokens(folder, list(LETTERS))
    return folder


def text(*labels: int) -> str:
    return "".join(PIECES[label] for label in labels).replace("▁", " ").strip()


def _kernel(mels: int, frames: int) -> Array:
    """[BANDS, mels, frames]: the mean of each band less the mean of all."""
    bands = np.full((BANDS, mels), -1 / mels, np.float32)
    for band, bins in enumerate(np.array_split(np.arange(mels), BANDS)):
        bands[band, bins] += 1 / len(bins)
    kernel: Array = np.repeat(bands[:, :, None], frames, axis=2) / np.float32(frames)
    return kernel


def _scores(mel: str, out: str, frames: int, blank_first: bool) -> list[bytes]:
    """Nodes from mel [B, mels, T] to scores [B, BANDS + 1, T / frames]: the loudest band has 0, the
    others far less, and the blank is over or under it."""
    parts = "blank labels" if blank_first else "labels blank"
    return [
        node("Conv", f"{mel} kernel", "bands", strides=[frames]),
        node("ReduceMax", "bands", "top", axes=[1], keepdims=1),
        node("Sub", "bands top", "below"),
        node("Mul", "below certain", "labels"),
        node("Sub", "loudness top", "blank"),
        node("Concat", parts, out, axis=1),
    ]


def _constants(kernel: Array, **more: int | list[int]) -> dict[str, Array]:
    return {
        "kernel": kernel,
        "certain": np.array([CERTAIN], np.float32),
        "loudness": np.array([LOUDNESS], np.float32),
        "one": np.array([1], np.float32),
        **{name: np.array(number, np.int64) for name, number in more.items()},
    }


def _not_again(blank: int) -> npt.NDArray[np.float32]:
    """[label said last, label]: what is added to the scores."""
    table = NEVER * np.eye(BANDS + 1, dtype=np.float32)
    table[blank] = 0
    return table


def _tokens(folder: Path, tokens: Sequence[str]) -> None:
    lines = (f"{token} {number}\n" for number, token in enumerate(tokens))
    (folder / "tokens.txt").write_text("".join(lines), "utf-8")


def _zipformer2_encoder(
    path: Path, chunk: int, mels: int, batch: int | str, drop: Sequence[str], ctc: bool
) -> None:
    embed = ((mels - 1) // 2 - 1) // 2
    states: Mapping[str, tuple[int | str, ...]] = {
        "key": (LEFT, batch, SIZE),
        "nonlin": (1, batch, LEFT, 3 * SIZE // 4),
        "val1": (LEFT, batch, SIZE),
        "val2": (LEFT, batch, SIZE),
        "conv1": (batch, SIZE, 1),
        "conv2": (batch, SIZE, 1),
        "embed": (batch, 128, 3, embed),
    }
    out = "log_probs" if ctc else "encoder_out"
    metadata = {
        "model_type": "zipformer2",
        "version": 1,
        "T": chunk + 13,
        "decode_chunk_len": chunk,
        "encoder_dims": SIZE,
        "query_head_dims": SIZE,
        "value_head_dims": SIZE,
        "num_heads": 1,
        "num_encoder_layers": 1,
        "cnn_module_kernels": 3,
        "left_context_len": LEFT,
    }
    write(
        path,
        [
            node("Slice", "x zero end axis", "piece"),
            node("Transpose", "piece", "turned", perm=[0, 2, 1]),
            *_scores("turned", "heard", 4, blank_first=True),
            node("Transpose", "heard", out, perm=[0, 2, 1]),
            # The count of chunks goes round in the caches, as real states do.
            *(node("Add", f"{name} one", f"new_{name}") for name in states),
            node("Add", "processed_lens frames", "new_processed_lens"),
        ],
        [
            value("x", FLOAT, batch, chunk + 13, mels),
            *(value(name, FLOAT, *shape) for name, shape in states.items()),
            value("processed_lens", INT64, batch),
        ],
        [
            value(out, FLOAT, batch, "F", BANDS + 1),
            *(value(f"new_{name}", FLOAT, *shape) for name, shape in states.items()),
            value("new_processed_lens", INT64, batch),
        ],
        _constants(_kernel(mels, 4), zero=[0], end=[chunk], axis=[1], frames=chunk // 4),
        {key: said for key, said in metadata.items() if key not in drop},
    )


def zipformer2(
    folder: Path,
    chunk: int = 32,
    batch: int | str = "N",
    drop: Sequence[str] = (),
    suffix: str = "",
) -> Path:
    """Chunks of `chunk` mel frames of 10 ms; label 0 is the blank. `batch` as a number: the only
    size of a batch. `drop`: missing metadata of the encoder. `suffix`: of the files' names."""
    folder.mkdir(parents=True, exist_ok=True)
    _zipformer2_encoder(folder / f"encoder{suffix}.onnx", chunk, 80, batch, drop, ctc=False)
    labels = BANDS + 1
    write(
        folder / f"decoder{suffix}.onnx",
        [
            node("Gather", "y last", "label", axis=1),
            node("Gather", "not_again label", "decoder_out", axis=0),
        ],
        [value("y", INT64, "N", 2)],
        [value("decoder_out", FLOAT, "N", labels)],
        {"not_again": _not_again(0), "last": np.array(1)},
        {"vocab_size": labels, "context_size": 2},
    )
    write(
        folder / f"joiner{suffix}.onnx",
        [node("Add", "encoder_out decoder_out", "logit")],
        [value("encoder_out", FLOAT, "N", labels), value("decoder_out", FLOAT, "N", labels)],
        [value("logit", FLOAT, "N", labels)],
        {},
        {"joiner_dim": labels},
    )
    _tokens(folder, ["<blk>", *PIECES])
    return folder


def zipformer2_ctc(folder: Path, chunk: int = 32) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    _zipformer2_encoder(folder / "model.onnx", chunk, 80, "N", (), ctc=True)
    _tokens(folder, ["<blk>", *PIECES])
    return folder


def nemo(folder: Path, frames: int = 2, languages: Mapping[str, int] | None = None) -> Path:
    """Chunks of `frames` encoder frames of 80 ms; the last label is the blank. With `languages`
    (and their prompts) it is multilingual: prompt n says the label n bands higher."""
    folder.mkdir(parents=True, exist_ok=True)
    shift, before, labels, mels = 8 * frames, 9, BANDS + 1, 128
    window = shift + before
    prompted = languages is not None
    channel, time = ("B", 1, LEFT, labels), ("B", 1, labels, LEFT)
    constants = _constants(
        _kernel(mels, 8), before=[before], end=[window], axis=[2], eight=8, frames=frames
    )
    nodes = [
        node("Slice", "audio_signal before end axis", "chunk"),
        *_scores("chunk", "scores" if prompted else "outputs", 8, blank_first=False),
        node("Div", "length eight", "encoded_lengths"),
        node("Add", "cache_last_channel one", "cache_last_channel_next"),
        node("Add", "cache_last_time one", "cache_last_time_next"),
        node("Add", "cache_last_channel_len frames", "cache_last_channel_next_len"),
    ]
    inputs = [
        value("audio_signal", FLOAT, "B", mels, "T"),
        value("length", INT64, "B"),
        value("cache_last_channel", FLOAT, *channel),
        value("cache_last_time", FLOAT, *time),
        value("cache_last_channel_len", INT64, "B"),
    ]
    if prompted:
        higher = [[*np.roll(np.arange(BANDS), shift).tolist(), BANDS] for shift in range(BANDS)]
        constants["orders"] = np.array(higher)
        constants["last_axis"] = np.array([2])
        # For each stream, the order of its prompt: [B, labels, F] by [B, labels, 1].
        nodes += [
            node("Gather", "orders prompt_index", "order", axis=0),
            node("Unsqueeze", "order last_axis", "order3"),
            node("Shape", "scores", "shape"),
            node("Expand", "order3 shape", "full"),
            node("GatherElements", "scores full", "outputs", axis=1),
        ]
        inputs.append(value("prompt_index", INT64, "B"))
    metadata: dict[str, object] = {
        "vocab_size": BANDS,
        "window_size": window,
        "chunk_shift": shift,
        "subsampling_factor": 8,
        "normalize_type": "",
        "pred_rnn_layers": 1,
        "pred_hidden": labels,
        "cache_last_channel_dim1": 1,
        "cache_last_channel_dim2": LEFT,
        "cache_last_channel_dim3": labels,
        "cache_last_time_dim1": 1,
        "cache_last_time_dim2": labels,
        "cache_last_time_dim3": LEFT,
        "model_type": "EncDecHybridRNNTCTCBPEModel",
    }
    if languages is not None:
        entries = ", ".join(f'"{tag}": {prompt}' for tag, prompt in languages.items())
        metadata["prompt_dictionary"] = f"{{{entries}}}"
    write(
        folder / "encoder.onnx",
        nodes,
        inputs,
        [
            value("outputs", FLOAT, "B", labels, "F"),
            value("encoded_lengths", INT64, "B"),
            value("cache_last_channel_next", FLOAT, *channel),
            value("cache_last_time_next", FLOAT, *time),
            value("cache_last_channel_next_len", INT64, "B"),
        ],
        constants,
        metadata,
    )
    state = (1, "B", labels)
    write(
        folder / "decoder.onnx",
        [
            node("Gather", "not_again targets", "rows", axis=0),
            node("Transpose", "rows", "outputs", perm=[0, 2, 1]),
            node("Identity", "target_length", "prednet_lengths"),
            node("Identity", "h_in", "h_out"),
            node("Identity", "c_in", "c_out"),
        ],
        [
            value("targets", INT32, "B", "U"),
            value("target_length", INT32, "B"),
            value("h_in", FLOAT, *state),
            value("c_in", FLOAT, *state),
        ],
        [
            value("outputs", FLOAT, "B", labels, "U"),
            value("prednet_lengths", INT32, "B"),
            value("h_out", FLOAT, *state),
            value("c_out", FLOAT, *state),
        ],
        {"not_again": _not_again(BANDS)},
        {},
    )
    write(
        folder / "joiner.onnx",
        [
            node("Add", "encoder_outputs decoder_outputs", "sum"),
            node("Reshape", "sum shape", "logits"),
        ],
        [
            value("encoder_outputs", FLOAT, "B", labels, 1),
            value("decoder_outputs", FLOAT, "B", labels, 1),
        ],
        [value("logits", FLOAT, "B", 1, 1, labels)],
        {"shape": np.array([-1, 1, 1, labels])},
        {},
    )
    _tokens(folder, [*PIECES, "<blk>"])
    return folder
