"""Voices as those of Kokoro and Piper, so small that a test makes them: each symbol is 25 ms of a
tone."""

import json
from pathlib import Path

import numpy as np

from benchmarks.recognition.onnx_writer import FLOAT, INT64, Array, node, value, write

RATE = 24_000
SAMPLES = RATE // 40
"""Of a symbol."""
SYMBOLS = " .,;:!?abdefhijklmnopstuvwzæðŋɐɑɔəɚɛɜɡɪɹɾʃʊʌʒˈˌːθ"
TONE = np.sin(2 * np.pi * 440 * np.arange(SAMPLES) / RATE).astype(np.float32)


def _speaking(path: Path, tokens: str, sound: str, shape: list[int], others: list[bytes]) -> None:
    constants: dict[str, Array] = {
        "column": np.array([-1, 1], np.int64),
        "tone": TONE[None] * np.float32(0.003),
        "shape": np.array(shape, np.int64),
    }
    nodes = [
        node("Cast", tokens, "numbers", to=FLOAT),
        node("Reshape", "numbers column", "rows"),
        node("Mul", "rows tone", "tones"),
        node("Reshape", "tones shape", sound),
    ]
    names = [str(number) for number in range(len(shape))]
    outputs = [value(sound, FLOAT, *names)]
    write(path, nodes, [value(tokens, INT64, 1, "n"), *others], outputs, constants, {})


def kokoro(folder: Path, tokens: str = "input_ids", voices: str = "af_heart bm_george") -> Path:
    """A folder as the hub's repository of Kokoro."""
    (folder / "onnx").mkdir(parents=True)
    (folder / "voices").mkdir()
    others = [value("style", FLOAT, 1, 256), value("speed", FLOAT, 1)]
    _speaking(folder / "onnx/model_quantized.onnx", tokens, "waveform", [-1], others)
    vocabulary = {symbol: number for number, symbol in enumerate(f"${SYMBOLS}")}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    for voice in voices.split():
        np.zeros((510, 1, 256), np.float32).tofile(folder / f"voices/{voice}.bin")
    return folder


def piper(folder: Path, name: str = "en_US-joe-medium", speakers: int = 1) -> Path:
    """A folder with a voice of Piper."""
    folder.mkdir(parents=True, exist_ok=True)
    others = [value("input_lengths", INT64, 1), value("scales", FLOAT, 3)]
    if speakers > 1:
        others.append(value("sid", INT64, 1))
    _speaking(folder / f"{name}.onnx", "input", "output", [1, 1, 1, -1], others)
    ids = {symbol: [number] for number, symbol in enumerate(f"_^${SYMBOLS}")}
    numbers = {f"p{number}": number for number in range(speakers)} if speakers > 1 else {}
    table = {
        "audio": {"sample_rate": 22050},
        "espeak": {"voice": "en-us"},
        "inference": {"noise_scale": 0.667, "length_scale": 1, "noise_w": 0.8},
        "phoneme_id_map": ids,
        "num_speakers": speakers,
        "speaker_id_map": numbers,
    }
    (folder / f"{name}.onnx.json").write_text(json.dumps(table))
    return folder
