"""Which engines the configuration names."""

from loguru import logger

from offhook.pipeline.espeak_io import EspeakSynthesizer
from offhook.pipeline.flite_io import FliteSynthesizer
from offhook.pipeline.recognizer import EngineError
from offhook.pipeline.synthesizer import Synthesizer


async def open_synthesizer(wanted: str) -> Synthesizer:
    """`flite`, `espeak`, or `auto`: Flite where its library is, else eSpeak NG. Raises
    EngineError."""
    if wanted != "espeak":
        flite = FliteSynthesizer()
        try:
            await flite.start()
            return flite
        except EngineError as error:
            if wanted == "flite":
                raise
            logger.warning("{}; eSpeak NG speaks instead", error)
    espeak = EspeakSynthesizer()
    await espeak.start()
    return espeak
