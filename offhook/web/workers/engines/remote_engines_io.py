"""Clients of remote engines: our workers, and OpenAI-compatible servers."""

from typing import Any, TypeVar

from offhook.pipeline.speech.errors import EngineError, UnsupportedRequest
from offhook.pipeline.speech.openai.recognizer_io import OpenAiRecognizer
from offhook.pipeline.speech.openai.synthesizer_io import OpenAiSynthesizer
from offhook.pipeline.speech.recognizer import Recognizer
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.config.engines import OPENAI, Asr, Tts
from offhook.web.workers.engines.engines_io import is_embedded
from offhook.web.workers.engines.remote_engine_io import RemoteEngine

E = TypeVar("E", Recognizer, Synthesizer)
Client = RemoteRecognizer | OpenAiRecognizer | RemoteSynthesizer | OpenAiSynthesizer


def recognizer_of(asr: Asr) -> RemoteRecognizer | OpenAiRecognizer:
    """Returns the client for `url` of [asr], not yet started."""
    if asr.engine == OPENAI:
        assert isinstance(asr.url, str)
        return OpenAiRecognizer(
            *(asr.url, asr.api_key, asr.model, asr.max_requests),
            partials=asr.partials,
            whole_turns=asr.whole_turns,
        )
    return RemoteRecognizer(asr.url, asr.api_key, _known_name(asr))


def synthesizer_of(tts: Tts) -> RemoteSynthesizer | OpenAiSynthesizer:
    """Returns the client for `url` of [tts], not yet started."""
    if tts.engine == OPENAI:
        assert isinstance(tts.url, str)
        return OpenAiSynthesizer(
            *(tts.url, tts.api_key, tts.model, tts.max_requests), normalise=tts.normalise
        )
    return RemoteSynthesizer(tts.url, tts.api_key, _known_name(tts))


def _known_name(settings: Asr | Tts) -> str:
    """Returns the name of a worker's engine; empty until it says so where the configuration names
    none that is in a worker."""
    return "" if is_embedded(settings.KIND, settings.engine) else settings.engine


def client_of(settings: Asr | Tts) -> Client:
    """Returns the client for `url` of a section, not yet started."""
    return recognizer_of(settings) if isinstance(settings, Asr) else synthesizer_of(settings)


async def started(engine: Client, settings: Asr | Tts) -> str:
    """Starts a client with the options of calls, and returns its engine's name. Raises EngineError,
    which names the section if the engine does not support its options."""
    options: Any = settings.options()
    try:
        await engine.start(options)
    except UnsupportedRequest as error:
        kind = "asr" if isinstance(settings, Asr) else "tts"
        raise EngineError(f"[{kind}] wants {options.demands()}: {error}", "refused") from error
    return engine.name


def elsewhere_at(settings: Asr | Tts, engine: E) -> RemoteEngine[E]:
    """Wraps the client `engine` for the speech API."""
    if isinstance(engine, RemoteRecognizer | RemoteSynthesizer):
        return RemoteEngine(engine, engine.start, engine.workers)
    return RemoteEngine(engine, engine.start, None, OPENAI, settings.model)
