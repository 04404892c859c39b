"""A loaded model of sherpa-onnx: recognition streams that are decoded in batches.

A wrong model may end the process, see `model_files`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.sherpa.model_files import SherpaModel, read_model
from offhook.pipeline.speech.engine_spec import Check
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Word

PACKAGE, OLDEST = "sherpa-onnx", (2, 0, 1)
"""Older versions lose the predictor's state of NeMo models between chunks."""
FULL_SCALE = np.float32(1 / 32768)
BYTE = re.compile("<0x([0-9A-F]{2})>")
"""A piece that is one byte of a character."""
BEGINS_WORD = (" ", "▁")
UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Characters of Chinese and Japanese, each of which counts as a word."""


@dataclass(frozen=True)
class Hypothesis:
    """What a stream has said since its begin or last `reset`."""

    text: str
    pieces: tuple[str, ...]
    """Word pieces; the first of a word begins with a space."""
    starts_ms: tuple[int, ...]
    """When each piece begins."""

    @property
    def stable_chars(self) -> int:
        """Characters of complete words: the last word may grow."""
        if not self.text or UNSPACED.match(self.text[-1]):
            return len(self.text)
        return self.text.rfind(" ") + 1

    def words(self, frame_ms: int) -> Iterator[Word]:
        """Yields the words with their times; none if its pieces cannot be read as words."""
        begins = [i for i in range(len(self.pieces)) if i == 0 or self._begins_word(i)]
        groups = list(pairwise((*begins, len(self.pieces))))
        texts = [_decode(self.pieces[first:last]) for first, last in groups]
        if "".join(texts) != "".join(self.text.split()):  # coded, as by byte-level BPE
            texts = self.text.split()
            if len(texts) != len(groups):
                return
        for text, (first, last) in zip(texts, groups, strict=True):
            if text:
                yield Word(text, self.starts_ms[first], self.starts_ms[last - 1] + frame_ms)

    def _begins_word(self, index: int) -> bool:
        piece, before = self.pieces[index], self.pieces[index - 1]
        if piece.startswith(BEGINS_WORD) or UNSPACED.match(piece):
            return before not in BEGINS_WORD  # a piece of its own: the word is in the next one
        return bool(UNSPACED.match(before[-1:])) and not BYTE.fullmatch(piece)


NOTHING = Hypothesis("", (), ())


def _decode(pieces: Sequence[str]) -> str:
    """Returns the word that these pieces make."""
    coded = (BYTE.fullmatch(piece) for piece in pieces)
    parts = (
        bytes([int(byte[1], 16)]) if byte else piece.encode()
        for byte, piece in zip(coded, pieces, strict=True)
    )
    return b"".join(parts).decode(errors="ignore").replace("▁", " ").strip()


class SherpaStreams:
    """The model's streams, one per utterance. Calls for one stream come from one thread."""

    def __init__(self, model: SherpaModel, threads: int) -> None:
        """Loads the model. Raises EngineError; a model that is wrong in a way that `model_files`
        does not know ends the process."""
        self.model = model
        try:
            self._recognizer = _load(model, threads)
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            reason = " ".join(str(error).split())
            raise EngineError(f"sherpa-onnx refuses the {model.family}: {reason}") from error

    def open(self, language: str = "") -> Any:
        """Opens a stream; `language` is for models with `prompts`."""
        stream = self._recognizer.create_stream()
        if language:
            stream.set_option("language", language)
        return stream

    def feed(self, stream: Any, pcm: Pcm) -> None:
        stream.accept_waveform(RATE_IN, pcm * FULL_SCALE)

    def is_ready(self, stream: Any) -> bool:
        """Whether a chunk can be decoded."""
        return bool(self._recognizer.is_ready(stream))

    def decode(self, streams: Sequence[Any]) -> None:
        """Decodes one chunk of each; all must be ready."""
        self._recognizer.decode_streams(list(streams))

    def hypothesis(self, stream: Any) -> Hypothesis:
        found = self._recognizer.get_result_all(stream)
        scale = 1000 * self.model.time_scale
        starts = tuple(round(start * scale) for start in found.timestamps)
        return Hypothesis(found.text.strip(), tuple(found.tokens), starts)

    def reset(self, stream: Any) -> None:
        """Forgets what has been said; sound not decoded yet stays. Times begin at 0 again."""
        self._recognizer.reset(stream)


def _load(model: SherpaModel, threads: int) -> Any:
    import sherpa_onnx

    paths = {part: str(path) for part, path in model.files.items()}
    given: dict[str, Any] = {"tokens": str(model.tokens), "num_threads": threads, **paths}
    if model.family == "zipformer2 CTC":
        return sherpa_onnx.OnlineRecognizer.from_zipformer2_ctc(**given)
    if model.family == "NeMo CTC":
        return sherpa_onnx.OnlineRecognizer.from_nemo_ctc(**given)
    return sherpa_onnx.OnlineRecognizer.from_transducer(**given)


def check_version() -> None:
    """Raises EngineError if the installed sherpa-onnx is too old, or missing."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError as error:
        raise EngineError(f"{PACKAGE} is not installed: pip install {PACKAGE}") from error
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[: len(OLDEST)])
    if numbers < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise EngineError(
            f"{PACKAGE} {found} loses words of NeMo models: pip install '{PACKAGE}>={wanted}'"
        )


def checks(model: str, language: str) -> Iterator[Check]:
    """Yields what the doctor checks; a folder without loading the model."""
    yield Check("", lambda: _described(model))


def _described(model: str) -> str:
    """Raises EngineError."""
    check_version()
    folder = Path(model).expanduser()
    if folder.is_dir():
        return read_model(folder, model).describe()
    return f"{model}, downloaded if it is not on this machine"
