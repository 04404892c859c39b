"""Speaks the callers' sentences with neural voices: `python speak.py --help`.

Run it with a Python that has `piper-tts` and `onnxruntime`, which need not be that of the project
and whose parts under the GPL stay in this process. Each piece between two pauses is spoken by
itself and trimmed to its sound, so that `offhook bench turn_taking` can put pauses of a
known length between them. Voices are files that one has: a Piper voice, or Kokoro's ONNX model with
its styles and vocabulary.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

TEXTS = Path(__file__).parent / "texts"
QUIET = 0.01
"""Share of full scale below which the ends of a piece are silence."""
KEPT_S = 0.02
"""Silence in s kept at both ends of a piece."""
TOKENS = 510
"""Most tokens of a piece for Kokoro."""
SPEEDS = (0.95, 1.0, 1.08)
ESPEAK_NAMES = {"en": "en-us", "de": "de", "es": "es", "fr": "fr"}

Voice = Callable[[str], tuple[np.ndarray, int]]


def lines_of(texts: str) -> list[tuple[str, str, list[str]]]:
    """Returns the turns of a file in TEXTS: kind, what the agent asked last, and the pieces."""
    lines = (TEXTS / f"{texts}.txt").read_text().splitlines()
    rows = [line.split("|") for line in lines if line.strip() and not line.startswith("#")]
    return [
        (kind.strip(), asked.strip(), [piece.strip() for piece in said.split(" / ")])
        for kind, asked, said in rows
    ]


def trimmed(sound: np.ndarray, rate: int) -> np.ndarray:
    loud = np.flatnonzero(np.abs(sound) > QUIET)
    if not len(loud):
        return sound
    kept = int(KEPT_S * rate)
    return sound[max(0, loud[0] - kept) : loud[-1] + kept]


def piper(path: Path, language: str) -> Voice:
    """Speaks with the phonemes of `language`, in which the voice may be a foreigner."""
    from piper import PiperVoice  # type: ignore[import-not-found]

    voice = PiperVoice.load(path)
    voice.config.espeak_voice = ESPEAK_NAMES[language]

    def speak(text: str) -> tuple[np.ndarray, int]:
        chunks = list(voice.synthesize(text))
        return np.concatenate([c.audio_float_array for c in chunks]), chunks[0].sample_rate

    return speak


def kokoro(model: Path, style: Path, vocabulary: Path, language: str) -> Voice:
    from piper.phonemize_espeak import (  # type: ignore[import-not-found]
        EspeakPhonemizer,
    )

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    styles = np.fromfile(style, np.float32).reshape(-1, 1, 256)
    tokens_of: dict[str, int] = json.loads(vocabulary.read_text())["vocab"]
    phonemizer: Any = EspeakPhonemizer()
    names = {value.name for value in session.get_inputs()}
    spoken = 0

    def speak(text: str) -> tuple[np.ndarray, int]:
        nonlocal spoken
        sentences = phonemizer.phonemize(ESPEAK_NAMES[language], text)
        phonemes = " ".join("".join(sentence) for sentence in sentences)
        tokens = [tokens_of[char] for char in phonemes if char in tokens_of][:TOKENS]
        speed = SPEEDS[spoken % len(SPEEDS)]
        spoken += 1
        ids = "tokens" if "tokens" in names else "input_ids"
        given = {
            ids: np.array([[0, *tokens, 0]], np.int64),
            "style": styles[min(len(tokens), len(styles) - 1)],
            "speed": np.array([speed], np.float32),
        }
        return session.run(None, given)[0].ravel(), 24_000

    return speak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the sound goes, a file a voice")
    parser.add_argument("--language", choices=ESPEAK_NAMES, default="en")
    parser.add_argument("--texts", help="a file of texts/, by default that of the language")
    parser.add_argument("--piper", type=Path, help="a Piper voice, VOICE.onnx")
    parser.add_argument("--kokoro", type=Path, help="Kokoro's model, kokoro.onnx")
    parser.add_argument("--style", type=Path, help="a style of Kokoro, af_heart.bin")
    parser.add_argument("--vocabulary", type=Path, help="Kokoro's vocab.json")
    options = parser.parse_args()
    if options.piper is not None:
        name, voice = options.piper.stem, piper(options.piper, options.language)
    else:
        name = options.style.stem
        voice = kokoro(options.kokoro, options.style, options.vocabulary, options.language)
    options.texts = options.texts or options.language
    options.folder.mkdir(parents=True, exist_ok=True)
    pieces: dict[str, np.ndarray] = {}
    for number, (_, _, texts) in enumerate(lines_of(options.texts)):
        for index, text in enumerate(texts):
            sound, rate = voice(text)
            sound = trimmed(np.asarray(sound, np.float32), rate)
            pieces[f"{number}_{index}"] = (np.clip(sound, -1, 1) * 32767).astype(np.int16)
    file = options.folder / f"{options.texts}_{name}.npz"
    np.savez(file, rate=np.int64(rate), **pieces)  # type: ignore[arg-type]
    print(f"{file}: {len(pieces)} pieces, {sum(map(len, pieces.values())) / rate:.0f} s")


if __name__ == "__main__":
    main()
