"""`python -m benchmarks.engines.cards`: what other GPUs should hold, reckoned and not measured.

For each card of `engine.reckoned` and each model: streams that fit in its memory if the worker has
it for itself, and streams that it should follow in real time.
"""

from offhook.pipeline.engine import reckoned
from offhook.pipeline.engine.gpu_io import fitting
from offhook.pipeline.engine.reckoned import CARDS, Size

SIZES: tuple[Size, ...] = ("0.6B", "1.7B")
CONTEXT = 1 << 29
"""Bytes that CUDA takes for a process."""


def main() -> None:
    print("card, model: fit, followed")
    for card in CARDS:
        total = card.gigabytes * 10**9
        for size in SIZES:
            for name, followed in (
                (f"Qwen3-ASR-{size}", reckoned.listeners(card, size)),
                (f"Qwen3-TTS-{size}", reckoned.voices(card, size)),
            ):
                fit, lacks = fitting(name, total - CONTEXT, total)
                print(f"{card.name}, {name}: {lacks or fit}, {followed}")


if __name__ == "__main__":
    main()
