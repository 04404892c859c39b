"""Qwen3-TTS as a `Synthesizer`: one inference thread for the model, replies on the event loop."""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from time import monotonic

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.pipeline.engine.inference_io import Inference
from offhook.pipeline.engine.tts.engine import TtsEngine
from offhook.pipeline.engine.tts.loading_io import TtsLoading
from offhook.pipeline.engine.tts.messages import Ended, EngineEvent, Reason, Sampling
from offhook.pipeline.engine.tts.prompt_cache_io import (
    ClonesOnDevice,
    VoiceRequest,
    request_voice,
    voice_store,
)
from offhook.pipeline.engine.tts.prompts import LANGUAGES
from offhook.pipeline.engine.tts.reply import Reply, VoiceProfile
from offhook.pipeline.engine.tts.voices import Clone, Reference, Voice, VoiceStore
from offhook.pipeline.engine.tts.voices_io import Cloning
from offhook.pipeline.engine.tts_models import NO_CACHE, TtsModels
from offhook.pipeline.speech.recognizer import EngineError, EngineFailed, EngineOverloaded, Progress
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    MAX_SEED,
    Speech,
    VoiceOptions,
)
from offhook.pipeline.speech.text.text_language import language_of
from offhook.pipeline.speech.voice.audio_cache import reply_key
from offhook.pipeline.speech.voice.audio_cache_io import ReplyCache
from offhook.pipeline.speech.voice_cloning import KnownVoice, Sample

CACHE_BYTES = 64 << 20
"""Size of the cache of short replies: twenty minutes of speech."""
MAX_PROFILES = 1000
"""Voices whose learned profile is kept; the least recently used is evicted."""


class Qwen3Synthesizer:
    """Qwen3-TTS on one device, shared by all replies of the process. Raises EngineError if the
    device does not exist or the shared cache cannot be used.

    When the inference thread fails, e.g. after a CUDA error, all replies and later calls raise
    EngineFailed.
    """

    store: VoiceStore | None = None
    """The voices and their clones; None until `start` has finished."""
    cloning: Cloning | None = None

    def __init__(
        self, models: TtsModels, progress: Progress = lambda fraction, doing: None
    ) -> None:
        self.name = f"Qwen3-TTS ({models.model})"
        self._models = models
        self._loading = TtsLoading(models, progress)
        self._inference: Inference[tuple[Qwen3Speech, EngineEvent]] = Inference(
            self.name, lambda news: news[0].receive(news[1]), self._break
        )
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="voice encoder")
        self._keeps_replies = models.audio_cache != NO_CACHE
        self.cache = ReplyCache(CACHE_BYTES, models.audio_cache if self._keeps_replies else "")
        self._asking = TaskSet()
        """Lookups in the shared cache, at most one per reply."""
        self._replies: set[Qwen3Speech] = set()
        """Replies in progress."""
        self._profiles: OrderedDict[Hashable, VoiceProfile] = OrderedDict()
        self._sampling = Sampling()
        # Owned by the inference thread:
        self._engine: TtsEngine
        self._clones: ClonesOnDevice
        self._speaking: dict[int, Qwen3Speech] = {}

    # --- on the event loop ---

    async def start(self) -> None:
        """Loads and warms up the model in the inference thread. Raises EngineError."""
        await self._inference.start(self._load)
        self.store = voice_store(self._models, self._loading.config)
        self.cloning = Cloning(self.store, self._encode)
        self._sampling = self._loading.sampling()
        await asyncio.to_thread(language_of, "two words", LANGUAGES)  # loads its model

    def voices(self) -> list[str]:
        return [voice.name for voice in self.store.voices()] if self.store else []

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "Qwen3Speech":
        """Opens a reply. Raises EngineFailed, and VoiceError for a damaged clone."""
        return self._open(options)

    def _open(self, options: VoiceOptions, voice: Voice | None = None) -> "Qwen3Speech":
        """Opens a reply; `voice` overrides the one that the options name."""
        loaded = self._loading
        assert self.store is not None
        asked = request_voice(self.store, loaded.config, loaded.tokenizer, options, voice)
        seed = secrets.randbelow(MAX_SEED) if options.seed is None else options.seed
        # With a seed the output must not depend on what was learned of the voice.
        profile = self._profile(asked) if options.seed is None else VoiceProfile()
        reply = Reply(loaded.tokenizer.vocabulary, asked.language, options, profile)
        engine = f"{self.name} {asked.prompt.key!r}"
        kept = options.cache and self._keeps_replies
        key = (lambda text: reply_key(engine, text, options)) if kept else None
        speech = Qwen3Speech(self, reply, key)

        def command() -> None:
            prompt = self._clones.complete(asked)
            try:
                number = self._engine.open(prompt, self._sampling, seed, options.live)
            except EngineOverloaded as error:
                reason = EngineOverloaded(f"{self.name}: {error}")
                self._inference.call_soon(lambda: speech.fail(reason))
            else:
                speech.number = number
                self._speaking[number] = speech

        self._inference.submit(command)
        self._replies.add(speech)
        return speech

    def _profile(self, asked: VoiceRequest) -> VoiceProfile:
        profile = self._profiles.pop(asked.prompt.key, None) or VoiceProfile()
        self._profiles[asked.prompt.key] = profile
        if len(self._profiles) > MAX_PROFILES:
            self._profiles.popitem(last=False)
        return profile

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

    async def open_clone(self, sample: Sample, options: VoiceOptions) -> "Qwen3Speech":
        voice = await self._started_cloning().nameless(sample)
        return self._open(replace(options, cache=False), voice)

    def _started_cloning(self) -> Cloning:
        assert self.cloning is not None
        return self.cloning

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()
        await self._inference.close()
        await self.cache.close()
        self._encoder.shutdown(wait=False, cancel_futures=True)

    async def _encode(self, reference: Reference) -> Clone:
        encode = self._loading.encode
        assert encode is not None  # the store refuses clones for a model without encoders
        return await asyncio.get_running_loop().run_in_executor(self._encoder, encode, reference)

    def _break(self, error: EngineFailed) -> None:
        """Fails every reply after the inference thread has failed."""
        for speech in list(self._replies):
            speech.fail(error)

    # --- in the inference thread ---

    def _load(self) -> "_Turns":
        self._engine = self._loading.load(self._deliver)
        self._clones = ClonesOnDevice(self._loading.model)
        return _Turns(self._engine)

    def _deliver(self, told: EngineEvent) -> None:
        speech = self._speaking.get(told.number)
        if speech is not None:
            self._inference.post((speech, told))
            if isinstance(told, Ended):
                del self._speaking[told.number]


def _known(voice: Voice) -> KnownVoice:
    created = datetime.fromisoformat(voice.created).timestamp() if voice.created else 0
    languages = (voice.language,) if voice.language else tuple(LANGUAGES)
    return KnownVoice(voice.name, voice.kind, languages, int(created))


class _Turns:
    """Adapts the engine to `Inference`."""

    def __init__(self, engine: TtsEngine) -> None:
        self.timer = engine.timer
        self._turn = engine.turn

    def turn(self, clock: Callable[[], float]) -> bool:
        return self._turn(clock())


class Qwen3Speech:
    """One reply; implements `SynthesizerStream`."""

    def __init__(
        self, synthesizer: Qwen3Synthesizer, reply: Reply, key: Callable[[str], str] | None
    ) -> None:
        """`key` returns the cache key of a whole text; None: the reply is not cached."""
        self._synthesizer = synthesizer
        self._reply = reply
        self._key = key
        self._news = asyncio.Event()
        self._error: EngineError | None = None
        self._cancelled = False
        self._end_given = False
        self.number: int | None = None
        """Number of the engine's stream; owned by the inference thread."""

    def write(self, text: str) -> None:
        self._reply.write(text)
        self._write_words()

    def end(self) -> None:
        self._reply.end()
        text, synthesizer = self._reply.short_text, self._synthesizer
        if text and self._key is not None and self._may_play:
            key = self._key(text)
            known = synthesizer.cache.get(key)
            if known is not None:
                self._play(known)
            elif synthesizer.cache.is_shared:
                # The model continues meanwhile: whichever is first is played.
                synthesizer._asking.spawn(self._look_up(synthesizer.cache, key), "look up a reply")
        self._write_words()

    async def _look_up(self, cache: ReplyCache, key: str) -> None:
        known = await cache.fetch(key)
        if known is not None and self._may_play:
            self._play(known)

    @property
    def _may_play(self) -> bool:
        """Whether a cached reply may still be played: wanted, and nothing synthesized yet."""
        over = self._cancelled or self._error is not None or self._reply.over
        return not over and self._reply.short_speech == []

    def _play(self, known: list[Speech]) -> None:
        self._reply.play(known)
        self._release()

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._release()

    async def __aiter__(self) -> AsyncIterator[Speech]:
        while True:
            while (speech := self._reply.speech()) is not None and not self._cancelled:
                self._write_words()  # there is room for more audio
                yield speech
            if self._error is not None and not self._cancelled:
                raise self._error
            if self._cancelled or self._reply.over:
                return
            self._news.clear()
            await self._news.wait()

    # --- from the engine ---

    def receive(self, told: EngineEvent) -> None:
        if self._cancelled or self._reply.over:
            return
        self._reply.receive(told)
        if isinstance(told, Ended):
            self._finish(told.reason)
        else:
            self._write_words()
        self._news.set()

    def _finish(self, reason: Reason) -> None:
        self._synthesizer._replies.discard(self)
        text, speech = self._reply.short_text, self._reply.short_speech
        if reason is not Reason.SPOKEN:
            logger.warning("{} ended a reply: {}", self._synthesizer.name, reason.name)
        elif text and speech and self._key is not None:
            self._synthesizer.cache.put(self._key(text), speech)

    def fail(self, error: EngineError) -> None:
        if not self._reply.over:
            self._error = error
            self._synthesizer._replies.discard(self)
            self._news.set()

    # --- to the engine ---

    def _write_words(self) -> None:
        """Gives the engine the words that it needs now."""
        if self._cancelled or self._error is not None or self._reply.over:
            return
        given = self._reply.words()
        last = self._reply.end_of_text and not self._end_given
        if not given and not last:
            return
        self._end_given |= last
        engine = self._synthesizer._engine

        def command() -> None:
            if self.number is not None:
                now = monotonic()
                for tokens, ends in given:
                    engine.write(self.number, tokens, ends, now)
                if last:
                    engine.end(self.number, now)

        self._synthesizer._inference.submit(command)

    def _release(self) -> None:
        """Cancels the engine's stream."""
        synthesizer = self._synthesizer
        synthesizer._replies.discard(self)
        self._news.set()

        def command() -> None:
            if self.number is not None:
                synthesizer._speaking.pop(self.number, None)
                synthesizer._engine.cancel(self.number)

        synthesizer._inference.put(command)
