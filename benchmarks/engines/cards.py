"""`python -m benchmarks.engines.cards`: what other GPUs should hold, reckoned and not measured.

For each card of `engine.reckoned` and each model: streams that fit in its memory if the worker has
it for itself, and streams that it should follow in real time.
"""

from offhook.pipeline.engines.shared import reckoned
from offhook.pipeline.engines.shared.gpu_io import fitting, size_of
from offhook.pipeline.engines.shared.reckoned import CARDS, Size
from offhook.pipeline.speech.engine_spec import Kind
from offhook.pipeline.speech.errors import EngineError

SIZES: tuple[Size, ...] = ("0.6B", "1.7B")
CONTEXT = 1 << 29
"""Bytes that CUDA takes for a process."""


def main() -> None:
    print("card, model: fit, followed")
    for card in CARDS:
        total = card.gigabytes * 10**9
        for size in SIZES:
            models: tuple[tuple[Kind, str, str, int], ...] = (
                ("asr", "qwen3-asr", f"Qwen3-ASR-{size}", reckoned.listeners(card, size)),
                ("tts", "qwen3-tts", f"Qwen3-TTS-{size}", reckoned.voices(card, size)),
            )
            for kind, engine, name, followed in models:
                try:
                    fit = str(fitting(size_of(kind, engine, name), total - CONTEXT, total))
                except EngineError as error:
                    fit = str(error)
                print(f"{card.name}, {name}: {fit}, {followed}")


if __name__ == "__main__":
    main()
