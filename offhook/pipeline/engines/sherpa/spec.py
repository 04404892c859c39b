"""Streaming models of sherpa-onnx."""

from offhook.pipeline.speech.engine_spec import (
    ALONE_ON_CPU,
    Attribution,
    Cost,
    EngineSpec,
    Need,
    PublishedModel,
)

FILES = ("*.onnx", "*.data", "*.weights", "tokens.txt")
KROKO = {
    "en": ("572aaf4e2e0c603c3fc2a574d096e755a178faa1", 71_053_214),
    "de": ("887db3d083240198c2d2b99fb66cfcfe6948ced8", 71_051_469),
    "es": ("20cf7a4921613397841d31168796cade5b866585", 155_838_792),
    "fr": ("08b84b7b7cf519be9817e9c16919d96a7a8bad91", 71_052_319),
}
"""Commits and bytes of the published models, by language."""


def kroko(language: str) -> str:
    """Returns the name of the model for a language of KROKO."""
    return f"csukuangfj/sherpa-onnx-streaming-zipformer-{language}-kroko-2025-08-06"


SHERPA = EngineSpec(
    "sherpa",
    "asr",
    "a streaming Zipformer",
    "offhook.pipeline.engines.sherpa.recognizer_io:SherpaRecognizer",
    packages=("sherpa_onnx", "huggingface_hub"),
    make="run",
    model=kroko("en"),
    models=tuple(
        PublishedModel(
            *(kroko(language), "sherpa", "asr", (language,), "CC-BY-SA-4.0"),
            *(commit, bytes, kroko(language), FILES),
        )
        for language, (commit, bytes) in KROKO.items()
    ),
    files=FILES,
    needs=(Need({language: kroko(language) for language in KROKO}, memory_gib=0.5, small=True),),
    costs=(Cost("core", 1 / 0.047, ALONE_ON_CPU, memory_mb=300),),
    attribution=Attribution("k2-fsa", "https://github.com/k2-fsa/sherpa-onnx"),
    checks="offhook.pipeline.engines.sherpa.model:checks",
    traits=frozenset({"appends", "ends with a wrong model"}),
)
