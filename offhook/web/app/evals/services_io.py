"""The voice of callers in evals that are spoken, this machine's own, and the models that judge and
play callers.

user:
  modality: audio
  speech: {factory: offhook.web.app.evals.services_io.caller_voice}
judge:
  eval: {service: openai, endpoint: "http://127.0.0.1:8000/v1", model: NAME, key_env: VARIABLE}
"""

import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import numpy as np
from pipecat.evals.services import DEFAULT_OPENAI_MODEL
from pipecat.frames.frames import Frame, TTSAudioRawFrame, TTSStartedFrame, TTSStoppedFrame
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService

from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_OUT
from offhook.pipeline.speech.synthesizer import Synthesizer, VoiceOptions, sound_of
from offhook.web.workers.engines.engines_io import open_synthesizer

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable with the key of a model's server, unless a file names another."""
NO_KEY = "none"
"""Sent to servers that want no key: the client wants one."""


class CallerVoice(TTSService):
    """Speaks with a synthesizer of this server's."""

    def __init__(self, synthesizer: Synthesizer, options: VoiceOptions) -> None:
        settings = TTSSettings(model="", voice=options.voice, language=None)
        super().__init__(settings=settings)
        self._synthesizer, self._options = synthesizer, options
        self._is_started = False

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        if not self._is_started:
            await self._synthesizer.start()
            self._is_started = True
        sound = await sound_of(self._synthesizer.open(self._options), text)
        rate = self.sample_rate or RATE_OUT
        if rate != RATE_OUT:
            whole = len(sound) // RATE_OUT + 1  # seconds, which every rate divides
            padded = np.zeros(whole * RATE_OUT, np.int16)
            padded[: len(sound)] = sound
            sound = Resampler(RATE_OUT, rate).process(padded)[: len(sound) * rate // RATE_OUT]
        yield TTSStartedFrame(context_id=context_id)
        yield TTSAudioRawFrame(sound.tobytes(), rate, 1, context_id=context_id)
        yield TTSStoppedFrame(context_id=context_id)


def caller_voice(config: Mapping[str, Any]) -> CallerVoice:
    """Returns a voice as the `speech` of a scenario describes it: `voice` is a name of Flite's or
    eSpeak NG's, `language` a code."""
    language = str(config.get("language", ""))
    options = VoiceOptions(voice=str(config.get("voice", "")), language=language)
    return CallerVoice(open_synthesizer(), options)


def chat_model(config: Mapping[str, Any]) -> OpenAILLMService:
    """Returns a model as `judge.eval` or `simulator` of a scenario describes it: `endpoint` is the
    URL of a server with OpenAI's chat API, `key_env` the environment variable with its key, and
    `extra` has further parameters of its requests. Raises ValueError."""
    endpoint = config.get("endpoint")
    model = config.get("model") or (None if endpoint else DEFAULT_OPENAI_MODEL)
    if model is None:
        raise ValueError(f"the model at {endpoint} needs model: NAME")
    variable = str(config.get("key_env") or KEY_VARIABLE)
    key = os.environ.get(variable, "")
    if not key and "key_env" in config:
        raise ValueError(f"key_env: the environment has no variable {variable}")
    settings = OpenAILLMService.Settings(model=str(model), extra=dict(config.get("extra") or {}))
    return OpenAILLMService(
        api_key=key or NO_KEY, base_url=str(endpoint) if endpoint else None, settings=settings
    )
