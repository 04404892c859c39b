"""Qwen3-TTS as a `Synthesizer`."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime

from offhook.pipeline.engine.replies_io import EngineSpeech, EngineSynthesizer, seed_of
from offhook.pipeline.engine.tts.engine import TtsEngine
from offhook.pipeline.engine.tts.loading_io import TtsLoading
from offhook.pipeline.engine.tts.messages import EngineEvent, Sampling
from offhook.pipeline.engine.tts.prompt_cache_io import (
    ClonesOnDevice,
    request_voice,
    voice_store,
)
from offhook.pipeline.engine.tts.prompts import LANGUAGES
from offhook.pipeline.engine.tts.reply import Reply, WordTokens
from offhook.pipeline.engine.tts.voices import Clone, Reference, Voice, VoiceStore
from offhook.pipeline.engine.tts.voices_io import Cloning
from offhook.pipeline.engine.tts_models import TtsModels
from offhook.pipeline.speech.recognizer import Progress
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, VoiceOptions
from offhook.pipeline.speech.text.text_language import language_of
from offhook.pipeline.speech.voice_cloning import KnownVoice, Sample

Qwen3Speech = EngineSpeech[WordTokens, EngineEvent]
"""One reply."""


class Qwen3Synthesizer(EngineSynthesizer[WordTokens, EngineEvent]):
    """Qwen3-TTS on one device, shared by all replies of the process. Raises EngineError if the
    device does not exist or the shared cache cannot be used."""

    store: VoiceStore | None = None
    """The voices and their clones; None until `start` has finished."""
    cloning: Cloning | None = None
    loading: type[TtsLoading] = TtsLoading

    def __init__(
        self, models: TtsModels, progress: Progress = lambda fraction, doing: None
    ) -> None:
        super().__init__(f"Qwen3-TTS ({models.model})", models.audio_cache)
        self._models = models
        self._loading = self.loading(models, progress)
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="voice encoder")
        self._sampling = Sampling()
        # Owned by the inference thread:
        self._engine: TtsEngine
        self._clones: ClonesOnDevice

    # --- on the event loop ---

    async def start(self) -> None:
        """Loads and warms up the model in the inference thread. Raises EngineError."""
        await self.load(self._load)
        self.store = voice_store(self._models, self._loading.config)
        self.cloning = Cloning(self.store, self._encode)
        self._sampling = self._loading.sampling()
        await asyncio.to_thread(language_of, "two words", LANGUAGES)  # loads its model

    @property
    def max_streams(self) -> int | None:
        """Voices that the GPU follows in real time; None: it is not known."""
        return self._loading.streams

    def voices(self) -> list[str]:
        return [voice.name for voice in self.store.voices()] if self.store else []

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> Qwen3Speech:
        """Opens a reply. Raises EngineFailed, and VoiceError for a damaged clone."""
        return self._open(options)

    def _open(self, options: VoiceOptions, voice: Voice | None = None) -> Qwen3Speech:
        """Opens a reply; `voice` overrides the one that the options name."""
        loaded = self._loading
        assert self.store is not None
        asked = request_voice(self.store, loaded.config, loaded.tokenizer, options, voice)
        seed, key = seed_of(options), asked.prompt.key
        profile = self.profile(key, options)
        reply = Reply(loaded.tokenizer.vocabulary, asked.language, options, profile)
        speech = Qwen3Speech(self, reply, self.cache_key(f"{self.name} {key!r}", options))

        def open_stream() -> int:
            prompt = self._clones.complete(asked)
            return self._engine.open(prompt, self._sampling, seed, options.live)

        self.begin(speech, open_stream)
        return speech

    # --- voices; see VoiceCloner ---

    async def known_voices(self) -> list[KnownVoice]:
        if self.store is None:
            return []
        return [_known(voice) for voice in await asyncio.to_thread(self.store.voices)]

    async def add_voice(self, name: str, sample: Sample, language: str = "") -> KnownVoice:
        return _known(await self._started_cloning().add(name, sample, language))

    async def remove_voice(self, name: str) -> None:
        self._started_cloning()
        assert self.store is not None
        self.store.remove(name)

    async def open_clone(self, sample: Sample, options: VoiceOptions) -> Qwen3Speech:
        voice = await self._started_cloning().nameless(sample)
        return self._open(replace(options, cache=False), voice)

    def _started_cloning(self) -> Cloning:
        assert self.cloning is not None
        return self.cloning

    async def close(self) -> None:
        await super().close()
        self._encoder.shutdown(wait=False, cancel_futures=True)

    async def _encode(self, reference: Reference) -> Clone:
        encode = self._loading.encode
        assert encode is not None  # the store refuses clones for a model without encoders
        return await asyncio.get_running_loop().run_in_executor(self._encoder, encode, reference)

    # --- in the inference thread ---

    def _load(self) -> "_Streams":
        self._engine = self._loading.load(self.deliver)
        self._clones = ClonesOnDevice(self._loading.model)
        return _Streams(self._engine)


def _known(voice: Voice) -> KnownVoice:
    created = datetime.fromisoformat(voice.created).timestamp() if voice.created else 0
    languages = (voice.language,) if voice.language else tuple(LANGUAGES)
    return KnownVoice(voice.name, voice.kind, languages, int(created))


class _Streams:
    """Adapts the engine to `SpeakingEngine`."""

    def __init__(self, engine: TtsEngine) -> None:
        self.timer = engine.timer
        self.end = engine.end
        self.cancel = engine.cancel
        self._engine = engine

    def write(self, number: int, part: WordTokens, now: float) -> None:
        self._engine.write(number, part.tokens, part.ends, now)

    def turn(self, clock: Callable[[], float]) -> bool:
        return self._engine.turn(clock())
