"""Engines that are servers elsewhere: a worker of ours, or a server of OpenAI's audio API."""

from typing import TypeVar

from offhook.pipeline.speech.openai.recognizer_io import OpenAiRecognizer
from offhook.pipeline.speech.openai.synthesizer_io import OpenAiSynthesizer
from offhook.pipeline.speech.recognizer import Recognizer
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer
from offhook.pipeline.speech.remote.worker_client_io import WorkerClient
from offhook.pipeline.speech.streams.priority_semaphore_io import MAX_REQUESTS
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.config.config import OPENAI, Asr, AsrEngine, Tts, TtsEngine
from offhook.web.engines.engines_io import EMBEDDED
from offhook.web.engines.remote_engine_io import Elsewhere

E = TypeVar("E", Recognizer, Synthesizer)


def recognizer_at(
    url: str,
    api_key: str,
    engine: AsrEngine,
    model: str = "",
    max_requests: int = MAX_REQUESTS,
) -> RemoteRecognizer | OpenAiRecognizer:
    """What is at that address, not started yet; `engine`: openai, or what its worker should run."""
    if engine == OPENAI:
        return OpenAiRecognizer(url, api_key, model, max_requests)
    return RemoteRecognizer(url, api_key, "" if engine in EMBEDDED else engine)


def synthesizer_at(
    url: str,
    api_key: str,
    engine: TtsEngine,
    model: str = "",
    max_requests: int = MAX_REQUESTS,
) -> RemoteSynthesizer | OpenAiSynthesizer:
    """As recognizer_at."""
    if engine == OPENAI:
        return OpenAiSynthesizer(url, api_key, model, max_requests)
    return RemoteSynthesizer(url, api_key, "" if engine in EMBEDDED else engine)


def recognizer_of(asr: Asr) -> RemoteRecognizer | OpenAiRecognizer:
    """What is at its url, not started yet."""
    return recognizer_at(asr.url, asr.api_key, asr.engine, asr.model, asr.max_requests)


def synthesizer_of(tts: Tts) -> RemoteSynthesizer | OpenAiSynthesizer:
    """What is at its url, not started yet."""
    return synthesizer_at(tts.url, tts.api_key, tts.engine, tts.model, tts.max_requests)


def elsewhere_at(kind: str, settings: Asr | Tts, engine: E) -> Elsewhere[E]:
    """How programs wait for what is at that url, which `engine` reaches."""
    if settings.engine == OPENAI:
        return Elsewhere(engine, engine.start, None, OPENAI, settings.model)
    client = WorkerClient(kind, settings.url, settings.api_key)
    return Elsewhere(engine, engine.start, client, "", "")
