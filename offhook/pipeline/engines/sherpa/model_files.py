"""Finds the files of a streaming model for sherpa-onnx, and checks them.

sherpa-onnx ends the process when a model is not as it expects. So everything that can be read
without loading the model is checked first, and told as an EngineError.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from offhook.pipeline.engines.hub import hub_io
from offhook.pipeline.engines.sherpa.onnx_header import OnnxHeader, read_header
from offhook.pipeline.engines.sherpa.spec import FILES, SHERPA
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.streams.languages import NAMES

TOKENS = "tokens.txt"
NUMBERS = re.compile(r"\s*\d{1,9}(\s*,\s*\d{1,9})*\s*,?\s*")
INT8 = ".int8"
PARTS = ("encoder", "decoder", "joiner")
"""ONNX files of a transducer."""
CTC_NAMES = ("model", "ctc")
"""Beginnings of the name of a CTC model's only ONNX file."""
SMALL_FILES = (f"*{INT8}.onnx", "decoder*.onnx", TOKENS)
"""Patterns of the files to download where a repository has 8-bit weights."""
TAIL_MS, EDGE_MS = 250, 120
"""Least silence in ms after an utterance, and what the mel spectrum needs beyond a window."""
LARGE_BYTES = 200 << 20
"""Size of an encoder from which one thread may be too slow for live speech."""
ICEFALL_FRAME_MS, MEL_FRAME_MS = 40, 10
"""Resolution of word times, and of the metadata that count frames."""
BLANKS = ("<blk>", "<eps>", "<blank>")
NEMO_CACHES = tuple(f"cache_last_{name}_dim{i}" for name in ("channel", "time") for i in (1, 2, 3))
NEMO_CTC_KEYS = ("vocab_size", "window_size", "chunk_shift", "subsampling_factor", *NEMO_CACHES)
NEMO_KEYS = (*NEMO_CTC_KEYS, "pred_rnn_layers", "pred_hidden")
CHUNK_KEYS = ("T", "decode_chunk_len")
ICEFALL_KEYS: Mapping[str, tuple[str, ...]] = {
    "zipformer2": (
        *("encoder_dims", "query_head_dims", "value_head_dims", "num_heads"),
        *("num_encoder_layers", "cnn_module_kernels", "left_context_len", *CHUNK_KEYS),
    ),
    "zipformer": (
        *("encoder_dims", "attention_dims", "num_encoder_layers", "cnn_module_kernels"),
        *("left_context_len", *CHUNK_KEYS),
    ),
    "conformer": (
        *("num_encoder_layers", "left_context", "encoder_dim", "pad_length", "cnn_module_kernel"),
        *CHUNK_KEYS,
    ),
    "lstm": ("num_encoder_layers", "rnn_hidden_size", "d_model", *CHUNK_KEYS),
    "ebranchformer": (
        *("num_hidden_layers", "hidden_size", "intermediate_size", "csgu_kernel_size"),
        *("merge_conv_kernel", "left_context_len", "num_heads", "head_dim", *CHUNK_KEYS),
    ),
}
"""Metadata of the encoder by `model_type`, without which sherpa-onnx ends the process."""
ENGLISH_NAMES = {name.lower(): code for code, name in NAMES.items()}


@dataclass(frozen=True)
class SherpaModel:
    """A checked model."""

    family: str
    """What it is, in words, e.g. "zipformer2 transducer"."""
    files: Mapping[str, Path]
    """The ONNX files: encoder, decoder and joiner, or model."""
    tokens: Path
    chunk_ms: int
    """Sound that it processes at a time."""
    window_ms: int
    """Sound that it needs for that: the chunk, and what it looks ahead."""
    frame_ms: int
    """Resolution of its word times."""
    time_scale: float = 1.0
    """Factor on the times that sherpa-onnx tells."""
    languages: tuple[str, ...] = ()
    """ISO 639 codes of what it recognizes; empty: unknown."""
    prompts: frozenset[str] = field(default=frozenset())
    """Language tags in lower case of a model that is told the language; empty: it is not told."""

    @property
    def is_large(self) -> bool:
        weights = max(self.files.values(), key=lambda path: path.stat().st_size)
        beside = (path.parent / name for path in (weights,) for name in _header(path).data_files)
        return sum(p.stat().st_size for p in (weights, *beside)) >= LARGE_BYTES

    @property
    def tail_ms(self) -> int:
        """Silence in ms, besides a chunk, after which it has said the last words."""
        return max(TAIL_MS, self.window_ms - self.chunk_ms + EDGE_MS)

    def describe(self) -> str:
        languages = ", ".join(self.languages or sorted(self.prompts)) or "unknown"
        return f"{self.family}, chunks of {self.chunk_ms} ms, languages: {languages}"


def find_model(
    model: str, progress: Callable[[int, int], None] = lambda done, total: None, hub: str = ""
) -> SherpaModel:
    """Returns a model in a folder or of a hub repository, which is downloaded. Raises
    EngineError."""
    published = SHERPA.published(model)
    folder = hub_io.find(model, progress, hub, published.files if published else SMALL_FILES)
    if not Path(model).expanduser().is_dir() and not _onnx_files(folder):
        folder = hub_io.find(model, progress, hub, FILES)
    return read_model(folder, model)


def read_model(folder: Path, name: str) -> SherpaModel:
    """Checks the model in a folder; `name` is for languages and messages. Raises EngineError."""
    files = _onnx_files(folder)
    if not files:
        raise EngineError(
            f"{name} has no model for sherpa-onnx: {folder} needs encoder*.onnx, decoder*.onnx and "
            f"joiner*.onnx, or model.onnx, and {TOKENS}"
        )
    headers = {part: _header(path) for part, path in files.items()}
    tokens = folder / TOKENS
    languages = languages_in(name if not Path(name).is_dir() else folder.resolve().name)
    read = _ModelFiles(files, headers, tokens, _symbols(tokens), languages)
    if kind := headers.get("decoder", OnnxHeader()).metadata.get("streaming_model_type"):
        raise EngineError(f"{name} is of the kind {kind}, which is not supported here")
    if "model" in headers:
        return _ctc(read)
    return _nemo(read) if len(headers["decoder"].outputs) > 1 else _icefall(read)


# --- which files ---


def _onnx_files(folder: Path) -> dict[str, Path]:
    """Returns the ONNX files of the model by part; empty if there is none."""
    groups: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.glob("*.onnx"), key=_natural):
        stem = path.name.removesuffix(".onnx").removesuffix(INT8)
        for part in PARTS:
            if stem.startswith(part):
                group = groups.setdefault(stem.removeprefix(part), {})
                group[part] = _preferred(part, group.get(part), path)
    whole = [group for group in groups.values() if len(group) == len(PARTS)]
    if whole:
        # Of several exports that with the largest numbers, e.g. left context; 16 bits are for GPUs.
        return max(whole, key=lambda g: ("fp16" not in g["encoder"].name, _natural(g["encoder"])))
    single = [p for p in folder.glob("*.onnx") if p.name.startswith(CTC_NAMES)]
    single.sort(key=lambda path: (INT8 in path.name, _natural(path)))
    return {"model": single[-1]} if single else {}


def _natural(path: Path) -> list[tuple[int, str]]:
    """Orders numbers in names by their value."""
    return [(int(d or -1), t) for d, t in re.findall(r"(\d+)|(\D+)", path.name)]


def _preferred(part: str, one: Path | None, other: Path) -> Path:
    """8 bits, except for the decoder: it is small, and its table of labels gains nothing."""
    if one is None:
        return other
    first, second = sorted((one, other), key=lambda path: INT8 in path.name)
    return first if part == "decoder" else second


def _header(path: Path) -> OnnxHeader:
    """Raises EngineError."""
    try:
        header = read_header(path)
        for name in header.data_files:
            if not (path.parent / name).is_file():
                raise ValueError(f"its weights are in {name}, which is missing")
    except (OSError, ValueError) as error:
        raise EngineError(f"{path} cannot be used: {error}") from error
    return header


def _symbols(path: Path) -> dict[str, int]:
    """Returns the labels of tokens.txt by text. Raises EngineError."""
    symbols: dict[str, int] = {}
    try:
        for line in path.read_text("utf-8").strip().split("\n"):
            *symbol, number = re.split(r"[ \t\r\f\v]+", line.strip(" \t\r\f\v"))
            if len(symbol) > 1:
                raise ValueError(f"{line!r} is more than a label and its number")
            symbols[symbol[0] if symbol else " "] = int(number)
    except FileNotFoundError as error:
        raise EngineError(f"there is no {path}: it comes with the model") from error
    except (OSError, ValueError) as error:
        raise EngineError(
            f"{path} is not a list of labels, one a line with its number: {error}"
        ) from error
    return symbols


# --- families ---


@dataclass(frozen=True)
class _ModelFiles:
    """The files of a model by part, and what was read of them."""

    paths: Mapping[str, Path]
    headers: Mapping[str, OnnxHeader]
    tokens: Path
    symbols: Mapping[str, int]
    """Labels by text."""
    languages: tuple[str, ...]

    def model(self, family: str, chunk_ms: int, window_ms: int, frame_ms: int) -> SherpaModel:
        languages = self.languages
        return SherpaModel(
            family, self.paths, self.tokens, chunk_ms, window_ms, frame_ms, languages=languages
        )

    def need_labels(self, count: int) -> None:
        """Checks that each label of the model has a text. Raises EngineError."""
        if missing := sorted(set(range(count)) - set(self.symbols.values())):
            raise EngineError(
                f"{self.tokens} is not of this model: it has no label {missing[0]}, and the model "
                f"has {count}"
            )


def _icefall(read: _ModelFiles) -> SherpaModel:
    path, decoder = read.paths["encoder"], read.headers["decoder"].metadata
    encoder = read.headers["encoder"].metadata
    kind = encoder.get("model_type", "")
    if kind not in ICEFALL_KEYS:
        known = ", ".join(ICEFALL_KEYS)
        raise EngineError(
            f"{path} is no streaming encoder that is known here: its metadata has the "
            f"model_type {kind!r}, not {known}; models for whole recordings are none"
        )
    _need(path, encoder, ICEFALL_KEYS[kind])
    _need(read.paths["decoder"], decoder, ("vocab_size", "context_size"))
    read.need_labels(_count(decoder, "vocab_size"))
    return read.model(
        f"{kind} transducer",
        _count(encoder, "decode_chunk_len") * MEL_FRAME_MS,
        _count(encoder, "T") * MEL_FRAME_MS,
        ICEFALL_FRAME_MS,
    )


def _nemo(read: _ModelFiles) -> SherpaModel:
    path, encoder = read.paths["encoder"], read.headers["encoder"]
    _need(path, encoder.metadata, NEMO_KEYS)
    labels = _count(encoder.metadata, "vocab_size") + 1
    read.need_labels(labels)
    if read.symbols.get("<blk>") != labels - 1 or len(read.symbols) != labels:
        raise EngineError(
            f"{read.tokens} has {len(read.symbols)} labels; the encoder has {labels}, the last of "
            "them <blk>"
        )
    model = read.model(
        "NeMo transducer",
        _count(encoder.metadata, "chunk_shift") * MEL_FRAME_MS,
        _count(encoder.metadata, "window_size") * MEL_FRAME_MS,
        _count(encoder.metadata, "subsampling_factor") * MEL_FRAME_MS,
    )
    if "prompt_index" not in encoder.inputs:
        return model
    prompts = _prompts(path, encoder.metadata.get("prompt_dictionary", ""))
    return replace(model, languages=(), prompts=prompts)


def _ctc(read: _ModelFiles) -> SherpaModel:
    path, metadata = read.paths["model"], read.headers["model"].metadata
    if not any(blank in read.symbols for blank in BLANKS):
        raise EngineError(f"{read.tokens} has no blank: {', '.join(BLANKS)}")
    if metadata.get("model_type") == "zipformer2":
        _need(path, metadata, ICEFALL_KEYS["zipformer2"])
        return read.model(
            "zipformer2 CTC",
            _count(metadata, "decode_chunk_len") * MEL_FRAME_MS,
            _count(metadata, "T") * MEL_FRAME_MS,
            ICEFALL_FRAME_MS,
        )
    if "cache_last_channel_dim1" in metadata:
        _need(path, metadata, NEMO_CTC_KEYS)
        frame = _count(metadata, "subsampling_factor") * MEL_FRAME_MS
        read.need_labels(_count(metadata, "vocab_size"))
        model = read.model(
            "NeMo CTC",
            _count(metadata, "chunk_shift") * MEL_FRAME_MS,
            _count(metadata, "window_size") * MEL_FRAME_MS,
            frame,
        )
        # sherpa-onnx takes all CTC models for icefall's
        return replace(model, time_scale=frame / ICEFALL_FRAME_MS)
    raise EngineError(
        f"{path} is no streaming CTC model of icefall (zipformer2) or NeMo: its metadata has "
        f"{', '.join(sorted(metadata)) or 'nothing'}"
    )


def _need(path: Path, metadata: Mapping[str, str], keys: Sequence[str]) -> None:
    """Checks numbers, or lists of them, in the metadata. Raises EngineError."""
    missing = [key for key in keys if not metadata.get(key)]
    if missing:
        raise EngineError(
            f"{path} cannot be used: its metadata lacks {', '.join(missing)}, which sherpa-onnx's "
            "export scripts write"
        )
    for key in keys:
        if not NUMBERS.fullmatch(metadata[key]):
            raise EngineError(f"{path} cannot be used: its {key} is {metadata[key]!r}")


def _count(metadata: Mapping[str, str], key: str) -> int:
    """Returns a number of `_need`. Raises EngineError if it is 0."""
    if not (number := int(metadata[key].strip(" ,").partition(",")[0])):
        raise EngineError(f"the model's metadata has 0 as {key}")
    return number


def _prompts(path: Path, dictionary: str) -> frozenset[str]:
    """Returns the tags in the encoder's metadata. Raises EngineError."""
    try:
        known = {tag.lower().replace("_", "-") for tag in json.loads(dictionary or "{}")}
    except (ValueError, AttributeError) as error:
        raise EngineError(f"{path} has languages in its metadata that are not JSON") from error
    return frozenset(known - {"auto"})


def languages_in(name: str) -> tuple[str, ...]:
    """Returns the ISO 639 codes in the name of a model, as those of sherpa-onnx have them:
    "...-zipformer-en-kroko-2025-08-06", "...-bilingual-zh-en-...", "...-korean-..."."""
    words = re.split(r"[^a-z0-9]+", name.partition("@")[0].rpartition("/")[2].lower())
    found = [ENGLISH_NAMES.get(word, word) for word in words]
    return tuple(dict.fromkeys(code for code in found if code in NAMES))
