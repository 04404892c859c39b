"""Kokoro and Piper."""

from offhook.pipeline.speech.engine_spec import (
    ALONE_ON_CPU,
    SITE,
    Attribution,
    Cost,
    EngineSpec,
    PublishedModel,
)

PACKAGES = ("espeakng_loader", "onnxruntime", "huggingface_hub")
KOKORO_MODEL = "onnx-community/Kokoro-82M-v1.0-ONNX"
KOKORO_FILES = ("onnx/model_quantized.onnx", "tokenizer.json", "voices/*.bin")
KOKORO_LANGUAGES = ("en", "es", "fr", "hi", "it", "pt")

KOKORO = EngineSpec(
    "kokoro",
    "tts",
    "Kokoro",
    "offhook.pipeline.engines.onnx_voice.synthesizer_io:kokoro",
    packages=PACKAGES,
    make="espeak",
    model=KOKORO_MODEL,
    models=(
        PublishedModel(
            *(KOKORO_MODEL, "kokoro", "tts", KOKORO_LANGUAGES, "Apache-2.0"),
            *("1939ad2a8e416c0acfeecc08a694d14ef25f2231", None, KOKORO_MODEL, KOKORO_FILES),
        ),
    ),
    languages=KOKORO_LANGUAGES,
    costs=(Cost("core", 1 / 1.0, ALONE_ON_CPU, memory_mb=500),),
    traits=frozenset({"takes IPA"}),
    attribution=Attribution("hexgrad", f"{SITE}/hexgrad/Kokoro-82M"),
)
PIPER = EngineSpec(
    "piper",
    "tts",
    "Piper",
    "offhook.pipeline.engines.onnx_voice.synthesizer_io:piper",
    packages=PACKAGES,
    make="espeak",
    model="en_US-joe-medium",
    abilities_of="offhook.pipeline.engines.onnx_voice.voices:piper_abilities",
    costs=(Cost("core", 1 / 0.15, ALONE_ON_CPU, memory_mb=300),),
    traits=frozenset({"takes IPA"}),
    attribution=Attribution("Piper voices", f"{SITE}/rhasspy/piper-voices"),
)
