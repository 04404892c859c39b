"""Creates the engines that the configuration names."""

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from loguru import logger

from offhook.pipeline.engine.asr_models import AsrModels
from offhook.pipeline.engine.tts_models import TtsModels
from offhook.pipeline.models import hub_io
from offhook.pipeline.models.hub.catalogue import KOKORO, POCKET
from offhook.pipeline.speech.embedded.espeak_io import HOW_TO_GET, EspeakSynthesizer, is_installed
from offhook.pipeline.speech.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.speech.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.speech.recognizer import EngineError, Progress, Recognizer
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.config.config import AUTOMATIC, OPENAI, AsrEngine, TtsEngine

EMBEDDED = ("pocketsphinx", "embedded", "flite", "espeak", *AUTOMATIC)
"""Engines small enough for the process that handles calls; with `auto` and `small` it runs the
embedded ones until a worker is ready (see `auto_io`)."""
CHECKOUT = Path(__file__).parents[3]
MODELS: dict[AsrEngine | TtsEngine, str] = {
    "pocketsphinx": "en-us",
    "qwen3-asr": "Qwen/Qwen3-ASR-0.6B",
    "nemotron": "nvidia/nemotron-speech-streaming-en-0.6b",
    "sherpa": "csukuangfj/sherpa-onnx-streaming-zipformer-en-kroko-2025-08-06",
    "qwen3-asr-official": "Qwen/Qwen3-ASR-0.6B",
    "pocket": "english",
    "kokoro": KOKORO,
    "piper": "en_US-joe-medium",
    "qwen3-tts": "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
    "qwen3-tts-official": "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
}
"""Default model of each engine; engines not listed have no models."""
ONLY_MODELS: dict[AsrEngine | TtsEngine, tuple[str, ...]] = {
    "pocketsphinx": ("en-us",),
    **dict.fromkeys(("embedded", "flite", "espeak"), ()),
}
"""All models of the engines that bring them along."""
MODEL_PACKAGES = ("torch", "safetensors", "tokenizers", "huggingface_hub")
"""Packages of the engines with a model (the extra `qwen`)."""
TEXT_PACKAGES = ("babel", "budoux", "num2words", "py3langid")
"""Packages of text normalization for synthesis."""
VOICE_PACKAGES = ("espeakng_loader", "onnxruntime", "huggingface_hub")
"""Packages of the voices that speak eSpeak's phonemes (the extra `espeak`)."""
NEEDED: dict[str, tuple[str, tuple[str, ...]]] = {
    "qwen3-asr": ("Qwen3-ASR", MODEL_PACKAGES),
    "nemotron": ("Nemotron", MODEL_PACKAGES),
    "sherpa": ("The engine sherpa", ("sherpa_onnx", "huggingface_hub")),
    "kokoro": ("Kokoro", VOICE_PACKAGES),
    "piper": ("Piper", VOICE_PACKAGES),
    "pocket": ("Pocket TTS", (*MODEL_PACKAGES, "sentencepiece", *TEXT_PACKAGES)),
    "qwen3-tts": ("Qwen3-TTS", MODEL_PACKAGES + TEXT_PACKAGES),
}
"""Description of an engine, and its packages."""

OFFICIAL_PACKAGES = {"qwen3-asr-official": "qwen_asr", "qwen3-tts-official": "qwen_tts"}
"""Import names of the official packages, which need an environment each, named after them."""

M = TypeVar("M", bound=AsrModels | TtsModels)


def silent(fraction: float, doing: str) -> None:
    """A `Progress` that does nothing."""


def check_engine(engine: AsrEngine | TtsEngine) -> None:
    """Checks without loading it that the engine's packages are installed. Raises EngineError."""
    if engine == OPENAI:
        raise EngineError("url is required for openai, e.g. http://host:8000/v1")
    if engine in OFFICIAL_PACKAGES:
        if (python := official_python(engine)) != sys.executable:
            raise EngineError(f"{engine} runs in another environment: {Path(python).parent}")
        return
    name, needed = NEEDED.get(engine, ("", ()))
    missing = [package for package in needed if find_spec(package) is None]
    if missing:
        kind = "tts" if engine in ("kokoro", "piper", "pocket", "qwen3-tts") else "asr"
        target = {"sherpa": "run", "kokoro": "espeak", "piper": "espeak"}.get(engine, "qwen")
        raise EngineError(
            f"{name} needs {', '.join(missing)}, not installed here: `make {target}`, or "
            f"pip install {' '.join(missing)}, or set [{kind}] url to a worker on a "
            "machine that has them"
        )


def check_model(engine: AsrEngine | TtsEngine, model: str) -> None:
    """Raises EngineError for a model that an engine does not bring along; "" is its usual one."""
    known = ONLY_MODELS.get(engine)
    if model and known is not None and model not in known:
        only = f"the model {', '.join(known)} only" if known else "voices and no models"
        raise EngineError(f"{engine} has {only}, not {model}")


def _make_name(engine: str) -> str:
    return OFFICIAL_PACKAGES[engine].replace("_", "-")


def official_python(engine: AsrEngine | TtsEngine, named: str = "") -> str:
    """Returns the Python with the package of an official engine: this one, `named`, or that of the
    environment created by `make`; empty for other engines. Raises EngineError."""
    if engine not in OFFICIAL_PACKAGES:
        return ""
    if find_spec(OFFICIAL_PACKAGES[engine]) is not None:
        return sys.executable
    made = f".venv-{_make_name(engine)}/bin/python"
    for python in (Path(named),) if named else (Path(made), CHECKOUT / made):
        if python.is_file() and os.access(python, os.X_OK):
            # symlinks are not resolved: they make it a virtual environment
            return str(python.absolute())
    kind = engine.split("-")[1]
    raise EngineError(
        f"{engine} needs an environment of its own: `make {_make_name(engine)}-official`, or set "
        f"[{kind}] python to the Python of one ({named or made} is none)"
    )


def with_usual_model(engine: AsrEngine | TtsEngine, models: M) -> M:
    return replace(models, model=models.model or MODELS.get(engine, ""))


def open_recognizer(
    engine: AsrEngine, models: AsrModels, progress: Progress = silent
) -> Recognizer:
    """Creates a recognizer in this process, not yet started, that supports `StreamOptions.gate`.
    Takes seconds if it imports torch. Raises EngineError."""
    from offhook.pipeline.speech.streams.speech_gate_io import (
        GatedRecognizer,  # not for who only reaches engines
    )

    check_engine(engine)
    check_model(engine, models.model)
    return GatedRecognizer(_recognizer(engine, with_usual_model(engine, models), progress))


def _recognizer(engine: AsrEngine, models: AsrModels, progress: Progress) -> Recognizer:
    if engine == "qwen3-asr":
        _import_torch(progress, models.hub, models.model, models.final_model, models.aligner)
        from offhook.pipeline.engine.asr.recognizer_io import Qwen3Recognizer

        return Qwen3Recognizer(models, progress)
    if engine == "nemotron":
        _import_torch(progress, models.hub, models.model)
        from offhook.pipeline.engine.nemotron.recognizer_io import NemotronRecognizer

        return NemotronRecognizer(models, progress)
    if engine == "sherpa":
        from offhook.pipeline.engine.sherpa.recognizer_io import SherpaRecognizer

        return SherpaRecognizer(models, progress)
    if engine == "qwen3-asr-official":
        from offhook.pipeline.engine.asr.official_io import OfficialRecognizer

        return OfficialRecognizer(models, progress)
    return PocketSphinxRecognizer()


NO_MODEL = TtsModels("")


def open_synthesizer(
    engine: TtsEngine = "embedded",
    models: TtsModels = NO_MODEL,
    progress: Progress = silent,
    language: str = "",
) -> Synthesizer:
    """Creates a synthesizer in this process, not yet started; of the embedded ones that for
    `language`, an ISO 639 code. Takes seconds if it imports torch. Raises EngineError."""
    check_engine(engine)
    check_model(engine, models.model)
    if engine == "qwen3-tts":
        _import_torch(progress, models.hub, with_usual_model(engine, models).model)
        from offhook.pipeline.engine.tts.synthesizer_io import Qwen3Synthesizer

        return Qwen3Synthesizer(with_usual_model(engine, models), progress)
    if engine == "pocket":
        _import_torch(progress, models.hub, _pocket(with_usual_model(engine, models).model))
        from offhook.pipeline.engine.pocket.synthesizer_io import PocketSynthesizer

        return PocketSynthesizer(with_usual_model(engine, models), progress)
    if engine in ("kokoro", "piper"):
        from offhook.pipeline.engine.onnx_voice.synthesizer_io import OnnxSynthesizer

        return OnnxSynthesizer(engine, with_usual_model(engine, models), progress)
    if engine == "qwen3-tts-official":
        from offhook.pipeline.engine.tts.official_io import OfficialSynthesizer

        return OfficialSynthesizer(with_usual_model(engine, models), progress)
    if at_hand(engine, language) == "flite":
        return FliteSynthesizer()
    if engine == "embedded" and not language:
        logger.warning("eSpeak NG (GPL) speaks instead of Flite, in a process of its own")
    return EspeakSynthesizer()


def at_hand(engine: TtsEngine, language: str = "") -> TtsEngine:
    """Returns the voice that `embedded` selects here for a language, an ISO 639 code: Flite, or
    eSpeak NG where Flite is missing or does not speak it. Raises EngineError if there is none."""
    if engine != "embedded":
        return engine
    flite = FliteSynthesizer()
    if language not in ("", *flite.languages) and is_installed():
        return "espeak"
    try:
        flite.load()
    except EngineError as error:
        if not is_installed():
            raise EngineError(f"there is no voice here: {HOW_TO_GET}") from error
        return "espeak"
    return "flite"


def _pocket(model: str) -> str:
    """Returns where Pocket TTS finds a model: in this folder or repository."""
    _, at, revision = model.partition("@")
    return model if Path(model).expanduser().is_dir() else f"{POCKET}{at}{revision}"


def _import_torch(progress: Progress, hub: str, *models: str) -> None:
    """Raises EngineError if one of the models cannot be had."""
    progress(0.0, "looking for the model")
    for model in filter(None, models):
        hub_io.check(model, hub)
    progress(0.0, "importing torch")
    from offhook.pipeline.engine.affinity_io import cap_threads

    cap_threads()
