"""What the specs of the embedded engines ask of this machine."""

import asyncio
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from loguru import logger

from offhook.pipeline.engines.embedded.espeak_io import (
    HOW_TO_GET,
    EspeakSynthesizer,
    is_installed,
    voices_here,
)
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.speech.engine_spec import Abilities, Check
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Progress


def open_pocketsphinx(models: Any, progress: Progress) -> PocketSphinxRecognizer:
    return PocketSphinxRecognizer(models.processes or None)


def open_flite(models: Any, progress: Progress) -> FliteSynthesizer:
    return FliteSynthesizer()


def open_espeak(models: Any, progress: Progress) -> EspeakSynthesizer:
    return EspeakSynthesizer()


def open_voice(models: Any, progress: Progress) -> FliteSynthesizer | EspeakSynthesizer:
    """Raises EngineError if there is no voice."""
    if voice_here("") == FliteSynthesizer.name:
        return FliteSynthesizer()
    logger.warning("eSpeak NG (GPL) speaks instead of Flite, in a process of its own")
    return EspeakSynthesizer()


def voice_here(language: str) -> str:
    """Returns the voice for a language, an ISO 639 code or empty: Flite, or eSpeak NG where Flite
    is missing or does not speak it. Raises EngineError if there is none."""
    flite = FliteSynthesizer()
    if language not in ("", *flite.languages) and is_installed():
        return EspeakSynthesizer.name
    try:
        flite.load()
    except EngineError as error:
        if not is_installed():
            raise EngineError(f"there is no voice here: {HOW_TO_GET}") from error
        return EspeakSynthesizer.name
    return flite.name


def flite_abilities(model: str) -> Abilities:
    return Abilities.of_voices(FliteSynthesizer.spoken)


def espeak_abilities(model: str) -> Abilities:
    return Abilities.of_voices(voices_here())


def check_pocketsphinx(model: str, language: str) -> Iterator[Check]:
    yield Check("", _pocketsphinx)


def check_voice(model: str, language: str) -> Iterator[Check]:
    if language not in ("", *FliteSynthesizer().languages) and is_installed():
        yield from check_espeak(model, language)
        return
    yield Check("", _flite, "eSpeak NG speaks instead")
    if is_installed() or not _speaks_flite():
        yield Check(", fall-back", _espeak)


def check_flite(model: str, language: str) -> Iterator[Check]:
    yield Check("", _flite)


def check_espeak(model: str, language: str) -> Iterator[Check]:
    yield Check("", _espeak)


def _pocketsphinx() -> str:
    return f"PocketSphinx {version('pocketsphinx')}, in processes of its own"


def _speaks_flite() -> bool:
    try:
        _flite()
    except EngineError:
        return False
    return True


def _flite() -> str:
    FliteSynthesizer().load()
    return "Flite, voice slt"


def _espeak() -> str:
    voice = EspeakSynthesizer()
    voice.load()
    asyncio.run(voice.close())
    return f"eSpeak NG (GPL), {len(voice.languages)} languages, in a process of its own"
