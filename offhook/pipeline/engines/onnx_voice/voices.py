"""Voices that are ONNX files and speak phonemes: Kokoro and Piper. Their files are checked here,
and it is known what they are given.

Kokoro (https://huggingface.co/hexgrad/Kokoro-82M) takes tokens, a style that depends on their
number, and a speed. Piper (https://github.com/OHF-Voice/piper1-gpl, whose models are VITS; nothing
of its program is used) takes tokens with padding between them, and scales.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from offhook.pipeline.speech.engine_spec import Abilities
from offhook.pipeline.speech.errors import EngineError

Floats = npt.NDArray[np.float32]

ESPEAK_VOICES = {
    "a": "en-us",
    "b": "en-gb",
    "e": "es",
    "f": "fr-fr",
    "h": "hi",
    "i": "it",
    "p": "pt-br",
}
"""eSpeak's voice by the first letter of a voice of Kokoro. Those of Chinese and Japanese need other
phonemes than eSpeak's."""
KOKORO_RATE = 24_000
KOKORO_USUAL = "af_heart"
KOKORO_VOCABULARIES = ("tokenizer.json", "config.json", "vocab.json")
KOKORO_MODELS = ("model_quantized", "int8", "model_q8f16", "model_uint8", "model", "")
"""What the name of the model's file begins with or contains, the best for a CPU first."""
STYLE = 256
KOKORO_SOUNDS = str.maketrans({"r": "ɹ", "x": "k", "ʲ": "j", "ɬ": "l"})
"""Sounds of eSpeak that Kokoro writes otherwise in English."""
PIPER_NAME = re.compile(
    r"(?P<tag>(?P<language>[a-z]{2,3})_[A-Z]{2,3})-(?P<speaker>\w+)-(?P<quality>x_low|low|medium|high)"
)
"""Matches the name of a voice of Piper, as published."""
PAD, BEGIN, END = "_", "^", "$"
"""Piper's symbols around the others."""
SWITCH = re.compile(r"\([a-z-]+\)")
"""eSpeak's note of another language within a text."""


@dataclass(frozen=True)
class Speaker:
    languages: tuple[str, ...]
    """ISO 639 codes."""
    espeak: str
    """The voice of eSpeak whose phonemes it speaks."""


class OnnxVoice(Protocol):
    """A model and its speakers."""

    onnx: Path
    rate: int
    """Of its sound, in Hz."""
    speakers: Mapping[str, Speaker]
    """By name, the usual one first."""
    longest: int
    """Tokens that it takes at most."""

    def tokens(self, phonemes: str, speaker: str) -> list[int]:
        """Returns the tokens of IPA phonemes and punctuation; symbols that it lacks are left
        out."""

    def inputs(
        self, tokens: Sequence[int], speaker: str, speed: float, shapes: Mapping[str, Any]
    ) -> dict[str, npt.NDArray[Any]]:
        """Returns what the model is given, by the names of its inputs, whose types are
        `shapes`. Raises EngineError if it has others."""


def read_voice(family: str, folder: Path, name: str) -> OnnxVoice:
    """Reads a voice without loading its weights. Raises EngineError."""
    try:
        return Kokoro(folder) if family == "kokoro" else Piper(folder, name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise EngineError(f"{folder} is no voice of {family.title()}: {reason}") from error


class Kokoro:
    """A folder with the model, its vocabulary, and a file for each voice (`voices/NAME.bin`)."""

    rate = KOKORO_RATE
    longest = 509

    def __init__(self, folder: Path) -> None:
        found = sorted(folder.rglob("*.onnx"), key=_preference)
        styles = sorted(path for path in folder.rglob("*.bin") if path.stem[:1] in ESPEAK_VOICES)
        vocabulary = [folder / n for n in KOKORO_VOCABULARIES if (folder / n).is_file()]
        if not (found and styles and vocabulary):
            raise EngineError(
                f"{folder} is no voice of Kokoro: it needs model.onnx, voices/NAME.bin and "
                f"{' or '.join(KOKORO_VOCABULARIES)}"
            )
        self.onnx = found[0]
        self._symbols = _vocabulary(json.loads(vocabulary[0].read_text()))
        self._styles = {path.stem: _styles(path) for path in styles}
        names = sorted(self._styles, key=lambda name: (name != KOKORO_USUAL, name))
        self.speakers: Mapping[str, Speaker] = {
            name: _speaker(ESPEAK_VOICES[name[0]]) for name in names
        }

    def tokens(self, phonemes: str, speaker: str) -> list[int]:
        phonemes = SWITCH.sub("", phonemes)
        if "en" in self.speakers[speaker].languages:
            phonemes = phonemes.translate(KOKORO_SOUNDS)
        return [self._symbols[symbol] for symbol in phonemes if symbol in self._symbols]

    def inputs(
        self, tokens: Sequence[int], speaker: str, speed: float, shapes: Mapping[str, Any]
    ) -> dict[str, npt.NDArray[Any]]:
        (name,) = shapes.keys() - {"style", "speed"}
        styles = self._styles[speaker]
        return {
            name: np.array([[0, *tokens, 0]], np.int64),
            "style": styles[min(len(tokens), len(styles) - 1)],
            "speed": np.array([speed], np.float32),
        }


def _preference(path: Path) -> int:
    return next(n for n, part in enumerate(KOKORO_MODELS) if part in path.stem)


def _vocabulary(table: dict[str, Any]) -> dict[str, int]:
    symbols = table.get("model", table).get("vocab", table.get("vocab"))
    return {str(symbol): int(number) for symbol, number in symbols.items() if len(symbol) == 1}


def _styles(path: Path) -> Floats:
    """Returns the styles by the number of tokens, [tokens, 1, 256]."""
    styles = np.fromfile(path, np.float32)
    if not len(styles) or len(styles) % STYLE:
        raise ValueError(f"{path.name} is no style: {len(styles)} numbers")
    return styles.reshape(-1, 1, STYLE)


class Piper:
    """A file NAME.onnx, and its settings in NAME.onnx.json."""

    longest = 1000

    def __init__(self, folder: Path, name: str) -> None:
        found = sorted(path for path in folder.rglob("*.onnx") if _settings(path).is_file())
        if not found:
            raise EngineError(
                f"{folder} is no voice of Piper: it needs NAME.onnx and NAME.onnx.json"
            )
        self.onnx = next((path for path in found if path.stem == name), found[0])
        table = json.loads(_settings(self.onnx).read_text())
        self.rate = int(table["audio"]["sample_rate"])
        ids: dict[str, list[int]] = table["phoneme_id_map"]
        self._ids = {unicodedata.normalize("NFD", symbol): of for symbol, of in ids.items()}
        missing = [symbol for symbol in (PAD, BEGIN, END) if symbol not in self._ids]
        if missing:
            raise ValueError(f"no symbol {missing[0]!r} in phoneme_id_map")
        if table.get("phoneme_type", "espeak") != "espeak":
            raise EngineError(f"{self.onnx.name} speaks other phonemes than eSpeak's")
        voice = table["espeak"]["voice"]
        scales = table.get("inference", {})
        self._noise = float(scales.get("noise_scale", 0.667))
        self._length = float(scales.get("length_scale", 1.0))
        self._noise_of_lengths = float(scales.get("noise_w", 0.8))
        numbers = table.get("speaker_id_map") or {self.onnx.stem: 0}
        self._numbers = {str(name): int(number) for name, number in numbers.items()}
        self.speakers: Mapping[str, Speaker] = dict.fromkeys(self._numbers, _speaker(voice))

    def tokens(self, phonemes: str, speaker: str) -> list[int]:
        symbols = unicodedata.normalize("NFD", SWITCH.sub("", phonemes))
        return list(self._padded(symbol for symbol in symbols if symbol in self._ids))

    def _padded(self, symbols: Iterator[str]) -> Iterator[int]:
        for symbol in symbols:
            yield from self._ids[symbol]
            yield from self._ids[PAD]

    def inputs(
        self, tokens: Sequence[int], speaker: str, speed: float, shapes: Mapping[str, Any]
    ) -> dict[str, npt.NDArray[Any]]:
        ids = [*self._ids[BEGIN], *self._ids[PAD], *tokens, *self._ids[END]]
        given: dict[str, npt.NDArray[Any]] = {
            "input": np.array([ids], np.int64),
            "input_lengths": np.array([len(ids)], np.int64),
            "scales": np.array(
                [self._noise, self._length / speed, self._noise_of_lengths], np.float32
            ),
        }
        if "sid" in shapes:
            given["sid"] = np.array([self._numbers[speaker]], np.int64)
        return given


def _speaker(voice: str) -> Speaker:
    return Speaker((voice.partition("-")[0],), voice)


def _settings(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def piper_abilities(model: str) -> Abilities:
    """Returns the language that the name of a published voice begins with."""
    name = PIPER_NAME.fullmatch(model)
    return Abilities((name["language"],) if name else ())
