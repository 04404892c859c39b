"""All engines: those that come with offhook, and those of other packages.

A package has an engine by an entry point of `offhook.asr` or `offhook.tts`, whose value is the
import path of its class; `engine` in the configuration is its name, or an import path. Nothing of
it is imported but in the process that opens it.
"""

from collections.abc import Iterator
from functools import cache

from offhook.pipeline.speech.engine_spec import (
    KINDS,
    EngineSpec,
    Kind,
    PublishedModel,
    Trait,
    imported,
)
from offhook.pipeline.speech.entry_points import path_of
from offhook.pipeline.speech.errors import EngineError

OURS: dict[Kind, tuple[str, ...]] = {
    "asr": (
        "offhook.pipeline.engines.qwen3_asr.spec:QWEN3_ASR",
        "offhook.pipeline.engines.nemotron.spec:NEMOTRON",
        "offhook.pipeline.engines.sherpa.spec:SHERPA",
        "offhook.pipeline.engines.embedded.spec:POCKETSPHINX",
        "offhook.pipeline.engines.official.spec:QWEN3_ASR_OFFICIAL",
        "offhook.pipeline.speech.openai.spec:RECOGNIZER",
    ),
    "tts": (
        "offhook.pipeline.engines.qwen3_tts.spec:QWEN3_TTS",
        "offhook.pipeline.engines.pocket.spec:POCKET",
        "offhook.pipeline.engines.onnx_voice.spec:PIPER",
        "offhook.pipeline.engines.onnx_voice.spec:KOKORO",
        "offhook.pipeline.engines.embedded.spec:EMBEDDED",
        "offhook.pipeline.engines.embedded.spec:FLITE",
        "offhook.pipeline.engines.embedded.spec:ESPEAK",
        "offhook.pipeline.engines.official.spec:QWEN3_TTS_OFFICIAL",
        "offhook.pipeline.speech.openai.spec:SYNTHESIZER",
    ),
}
"""Import paths of their specs; `auto` chooses the first that fits."""


@cache
def specs(kind: Kind) -> tuple[EngineSpec, ...]:
    """Returns the specs of the engines that come with offhook, the best first."""
    return tuple(imported(path) for path in OURS[kind])


def all_specs() -> Iterator[EngineSpec]:
    """Yields the specs of both kinds."""
    for kind in KINDS:
        yield from specs(kind)


def names(kind: Kind) -> tuple[str, ...]:
    """Returns the names of the engines that come with offhook, the best first."""
    return tuple(spec.name for spec in specs(kind))


def spec_of(kind: Kind, name: str) -> EngineSpec:
    """Returns the spec of an engine by its name, or by its import path. Raises EngineError if
    there is none."""
    for spec in specs(kind):
        if spec.name == name:
            return spec
    if (path := path_of(f"offhook.{kind}", name)) is None:
        raise EngineError(f"there is no engine {name!r} for [{kind}]")
    package = path.partition(":")[0].partition(".")[0]
    return EngineSpec(name, kind, name, path, packages=(package,), make="")


def is_known(kind: Kind, name: str) -> bool:
    """Returns whether there is an engine of this name, as far as that is known without importing
    it."""
    return name in names(kind) or path_of(f"offhook.{kind}", name) is not None


def stand_in(kind: Kind) -> EngineSpec:
    """Returns the spec of the engine that runs until one of `auto` or `small` has come: the first
    that is in the process that handles calls."""
    return next(spec for spec in specs(kind) if spec.embedded)


def with_setting(kind: Kind, key: str) -> tuple[str, ...]:
    """Returns the names of the engines that have a key of [asr] or [tts]."""
    return tuple(spec.name for spec in specs(kind) if key in spec.settings)


def names_on_gpu() -> tuple[str, ...]:
    """Returns the names of the engines that take a share of a GPU's memory."""
    return tuple(spec.name for spec in all_specs() if spec.on_gpu is not None)


def packages() -> frozenset[str]:
    """Returns the modules that any of the engines needs."""
    return frozenset(package for spec in all_specs() for package in spec.packages)


def catalogue() -> tuple[PublishedModel, ...]:
    """Returns the published models that the engines were made for."""
    return tuple(model for spec in all_specs() for model in spec.models)


def of_name(name: str) -> PublishedModel | None:
    """Returns the model that the configuration names so; a revision behind @ is left aside."""
    name = name.partition("@")[0]
    return next((model for model in catalogue() if model.name == name), None)


def has_trait(engine: str, trait: Trait) -> bool:
    """Returns whether a recognizer of this name has a trait; one that is not ours has none."""
    return any(trait in spec.traits for spec in specs("asr") if spec.name == engine)


def cloner() -> EngineSpec:
    """Returns the spec of the engine that clones voices."""
    return next(spec for spec in specs("tts") if spec.cloning_model)


def aligner() -> PublishedModel:
    """Returns the model that tells when words of a known text are spoken."""
    return next(model for model in catalogue() if model.does == "word times")


def no_aligner() -> str:
    """Returns what an engine lacks that aligns no text."""
    model = aligner()
    return (
        f"the speech engine aligns no text: that takes the engine {model.engine} with [asr] "
        f"aligner or --aligner, such as {model.name}"
    )
