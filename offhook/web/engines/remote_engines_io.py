"""Engines that are servers elsewhere: a worker of ours, or a server of OpenAI's audio API."""

from offhook.pipeline.speech.openai.recognizer_io import OpenAiRecognizer
from offhook.pipeline.speech.openai.synthesizer_io import OpenAiSynthesizer
from offhook.pipeline.speech.recognizer import Recognizer
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer
from offhook.pipeline.speech.remote.worker_client_io import WorkerClient
from offhook.pipeline.speech.streams.priority_semaphore_io import MAX_REQUESTS
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.config.config import OPENAI, AsrEngine, Engines, TtsEngine
from offhook.web.engines.engines_io import EMBEDDED
from offhook.web.engines.remote_engine_io import Elsewhere


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


def recognizer_of(engines: Engines) -> RemoteRecognizer | OpenAiRecognizer:
    """What is at asr_url, not started yet."""
    e = engines
    return recognizer_at(e.asr_url, e.asr_api_key, e.asr, e.asr_model, e.asr_max_requests)


def synthesizer_of(engines: Engines) -> RemoteSynthesizer | OpenAiSynthesizer:
    """What is at tts_url, not started yet."""
    e = engines
    return synthesizer_at(e.tts_url, e.tts_api_key, e.tts, e.tts_model, e.tts_max_requests)


def hears_at(engines: Engines, recognizer: Recognizer) -> Elsewhere[Recognizer]:
    """How programs wait for what is at asr_url, which `recognizer` reaches."""
    of_ours = engines.asr != OPENAI
    return Elsewhere(
        recognizer,
        recognizer.start,
        WorkerClient("asr", engines.asr_url, engines.asr_api_key) if of_ours else None,
        "" if of_ours else OPENAI,
        "" if of_ours else engines.asr_model,
    )


def speaks_at(engines: Engines, synthesizer: Synthesizer) -> Elsewhere[Synthesizer]:
    """As hears_at, at tts_url."""
    of_ours = engines.tts != OPENAI
    return Elsewhere(
        synthesizer,
        synthesizer.start,
        WorkerClient("tts", engines.tts_url, engines.tts_api_key) if of_ours else None,
        "" if of_ours else OPENAI,
        "" if of_ours else engines.tts_model,
    )
