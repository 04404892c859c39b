"""Creates the engines that the configuration names."""

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from offhook.pipeline.engines.hub import hub_io
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.engine_spec import EngineSpec, Kind
from offhook.pipeline.speech.engines import spec_of
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Progress, Recognizer
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.config.engines import AUTOMATIC

CHECKOUT = Path(__file__).parents[4]
M = TypeVar("M", bound=AsrModels | TtsModels)


def silent(fraction: float, doing: str) -> None:
    """A `Progress` that does nothing."""


def is_embedded(kind: Kind, engine: str) -> bool:
    """Returns whether an engine is in the process that handles calls; with `auto` and `small` it
    runs the stand-in until a worker is ready (see `auto_io`)."""
    return engine in AUTOMATIC or spec_of(kind, engine).embedded


def usual_model(kind: Kind, engine: str) -> str:
    """Returns the model of an engine where none is named; of several engines none."""
    return "" if engine in AUTOMATIC else spec_of(kind, engine).model


def check_engine(kind: Kind, engine: str) -> None:
    """Checks without loading it that the engine's packages are installed. Raises EngineError."""
    spec = spec_of(kind, engine)
    if not spec.opens:
        raise EngineError(f"url is required for {engine}, e.g. http://host:8000/v1")
    if spec.own_environment:
        if (python := own_python(kind, engine)) != sys.executable:
            raise EngineError(f"{engine} runs in another environment: {Path(python).parent}")
        return
    spec.check_packages()


def own_python(kind: Kind, engine: str, named: str = "") -> str:
    """Returns the Python with the package of an engine that needs an environment of its own: this
    one, `named`, or that of the environment created by `make`; empty for other engines. Raises
    EngineError."""
    if not (package := spec_of(kind, engine).own_environment):
        return ""
    if find_spec(package) is not None:
        return sys.executable
    name = package.replace("_", "-")
    made = f".venv-{name}/bin/python"
    for python in (Path(named),) if named else (Path(made), CHECKOUT / made):
        if python.is_file() and os.access(python, os.X_OK):
            # symlinks are not resolved: they make it a virtual environment
            return str(python.absolute())
    raise EngineError(
        f"{engine} needs an environment of its own: `make {name}-official`, or set "
        f"[{kind}] python to the Python of one ({named or made} is none)"
    )


def with_usual_model(kind: Kind, engine: str, models: M) -> M:
    return replace(models, model=models.model or usual_model(kind, engine))


def open_recognizer(engine: str, models: AsrModels, progress: Progress = silent) -> Recognizer:
    """Creates a recognizer in this process, not yet started, that supports `StreamOptions.gate`.
    Takes seconds if it imports torch. Raises EngineError."""
    from offhook.pipeline.speech.streams.speech_gate_io import (
        GatedRecognizer,  # not for who only reaches engines
    )

    spec = _openable("asr", engine, models.model)
    models = with_usual_model("asr", engine, models)
    others = {"final_model": models.final_model, "aligner": models.aligner}
    known = (model for key, model in others.items() if key in spec.settings)
    _prepare(spec, progress, models.hub, models.model, *known)
    return GatedRecognizer(spec.open(models, progress))


NO_MODEL = TtsModels("")


def open_synthesizer(
    engine: str = "embedded",
    models: TtsModels = NO_MODEL,
    progress: Progress = silent,
    language: str = "",
) -> Synthesizer:
    """Creates a synthesizer in this process, not yet started; of the embedded ones that for
    `language`, an ISO 639 code. Takes seconds if it imports torch. Raises EngineError."""
    spec = _openable("tts", at_hand(engine, language) if language else engine, models.model)
    models = with_usual_model("tts", engine, models)
    _prepare(spec, progress, models.hub, models.model)
    synthesizer: Synthesizer = spec.open(models, progress)
    return synthesizer


def at_hand(engine: str, language: str = "") -> str:
    """Returns the voice that a name means here for a language, an ISO 639 code; of most engines
    the same. Raises EngineError if there is none."""
    return engine if engine in AUTOMATIC else spec_of("tts", engine).here(language)


def _openable(kind: Kind, engine: str, model: str) -> EngineSpec:
    """Raises EngineError if an engine or a model cannot be opened here."""
    check_engine(kind, engine)
    spec = spec_of(kind, engine)
    spec.check_model(model)
    return spec


def _prepare(spec: EngineSpec, progress: Progress, hub: str, *models: str) -> None:
    """Prepares this process for an engine in torch. Raises EngineError if one of its models cannot
    be had."""
    if "torch" not in spec.packages:
        return
    progress(0.0, "looking for the model")
    for model in filter(None, models):
        hub_io.check(spec.on_hub(model), hub)
    progress(0.0, "importing torch")
    from offhook.pipeline.engines.shared.affinity_io import cap_threads

    cap_threads()
