"""Pocket TTS."""

from offhook.pipeline.engines.pocket.model.config import CONFIGS
from offhook.pipeline.engines.pocket.model.licences import LICENCES
from offhook.pipeline.speech.engine_spec import (
    ALONE_ON_CPU,
    IN_CALLS,
    SITE,
    TEXT_PACKAGES,
    TORCH_PACKAGES,
    WITHOUT_VNNI,
    Attribution,
    Cost,
    EngineSpec,
    Need,
    PublishedModel,
)

REPOSITORY = "kyutai/pocket-tts-without-voice-cloning"
COMMIT = "a7056f505a4a8ca72d8b5fb1440071d6f1a35739"
USUAL = {
    "en": "english",
    "fr": "french",
    "de": "german",
    "es": "spanish",
    "it": "italian",
    "pt": "portuguese",
    "nl": "dutch",
}
SMALL = {"en": "english_18m_refl_2026-10"}
CORES = {"_24l": 0.35, "_18m": 0.09, "_7m": 0.07, "_2m": 0.04, "": 0.16}
"""Share of a core with VNNI that one reply takes in int8 while it speaks, by the size in a model's
name; see docs/pocket.md. Each of several at once takes less, a CPU without VNNI more."""


def files(folder: str) -> tuple[str, ...]:
    """Returns the files of one model of REPOSITORY: its own, and voices whose recordings may be
    used commercially."""
    inside = f"languages/{folder}"
    voices = (f"{inside}/embeddings/{voice}.safetensors" for voice in LICENCES)
    return f"{inside}/model.safetensors", f"{inside}/tokenizer.*", *voices


def _cost(size: str) -> Cost:
    """Returns the cost of a model that is not of the usual size."""
    memory_mb = 2000 if size == "_24l" else 600
    return Cost("core", 1 / CORES[size], ALONE_ON_CPU, size, memory_mb)


POCKET = EngineSpec(
    "pocket",
    "tts",
    "Pocket TTS",
    "offhook.pipeline.engines.pocket.synthesizer_io:PocketSynthesizer",
    packages=(*TORCH_PACKAGES, "sentencepiece", *TEXT_PACKAGES),
    make="qwen",
    settings=frozenset({"precision"}),
    model="english",
    models=tuple(
        PublishedModel(
            *(folder, "pocket", "tts", (config.language,), "CC-BY-4.0"),
            *(COMMIT, None, REPOSITORY, files(folder)),
        )
        for folder, config in CONFIGS.items()
    ),
    repository=REPOSITORY,
    abilities_of="offhook.pipeline.engines.pocket.described:abilities",
    needs=(
        Need(USUAL, memory_gib=2, cores=4, cores_with_vnni=2),
        Need(SMALL, memory_gib=1),
    ),
    costs=(
        *(_cost(size) for size in CORES if size),
        Cost("core", 1 / 0.13, IN_CALLS, memory_mb=1030, vnni=True),
        Cost("core", 1 / 0.27, WITHOUT_VNNI, memory_mb=1030),
    ),
    attribution=Attribution("Kyutai", f"{SITE}/kyutai"),
    checks="offhook.pipeline.engines.pocket.described:checks",
)
