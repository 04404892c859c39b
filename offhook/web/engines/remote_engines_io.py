"""Engines that are servers elsewhere: a worker of ours, or a server of OpenAI's audio API."""

from typing import TypeVar

from offhook.pipeline.speech.openai.recognizer_io import OpenAiRecognizer
from offhook.pipeline.speech.openai.synthesizer_io import OpenAiSynthesizer
from offhook.pipeline.speech.recognizer import Recognizer
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer
from offhook.pipeline.speech.remote.worker_client_io import WorkerClient
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.config.config import OPENAI, Asr, Tts
from offhook.web.engines.engines_io import EMBEDDED
from offhook.web.engines.remote_engine_io import Elsewhere

E = TypeVar("E", Recognizer, Synthesizer)


def recognizer_of(asr: Asr) -> RemoteRecognizer | OpenAiRecognizer:
    """What is at its url, not started yet; `engine`: openai, or what its worker should run."""
    if asr.engine == OPENAI:
        return OpenAiRecognizer(asr.url, asr.api_key, asr.model, asr.max_requests)
    return RemoteRecognizer(asr.url, asr.api_key, "" if asr.engine in EMBEDDED else asr.engine)


def synthesizer_of(tts: Tts) -> RemoteSynthesizer | OpenAiSynthesizer:
    """What is at its url, not started yet."""
    if tts.engine == OPENAI:
        return OpenAiSynthesizer(tts.url, tts.api_key, tts.model, tts.max_requests)
    return RemoteSynthesizer(tts.url, tts.api_key, "" if tts.engine in EMBEDDED else tts.engine)


def elsewhere_at(kind: str, settings: Asr | Tts, engine: E) -> Elsewhere[E]:
    """How programs wait for what is at that url, which `engine` reaches."""
    if settings.engine == OPENAI:
        return Elsewhere(engine, engine.start, None, OPENAI, settings.model)
    client = WorkerClient(kind, settings.url, settings.api_key)
    return Elsewhere(engine, engine.start, client, "", "")
