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
from offhook.pipeline.speech.recognizer import EngineBroken, EngineError, EngineFull, Progress
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
"""Of short replies said before: twenty minutes of speech."""
MAX_MANNERS = 1000
"""Voices of which is remembered how they speak; the one used longest ago gives way."""


class Qwen3Synthesizer:
    """The model on one device, for all replies of the process. Raises EngineError when there is no
    such device, or the shared cache cannot be.

    When the thread breaks, as after an error of CUDA, all replies raise EngineBroken, and so does
    whatever is asked for later.
    """

    store: VoiceStore | None = None
    """Of the voices, and what makes new ones; None until it has started."""
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
        """Of the shared cache, one a reply at most."""
        self._replies: set[Qwen3Speech] = set()
        """Those that are not over."""
        self._manners: OrderedDict[Hashable, VoiceProfile] = OrderedDict()
        self._sampling = Sampling()
        # In the inference thread:
        self._engine: TtsEngine
        self._clones: ClonesOnDevice
        self._speaking: dict[int, Qwen3Speech] = {}

    # --- on the event loop ---

    async def start(self) -> None:
        """Load and warm up in the inference thread. Raises EngineError."""
        await self._inference.start(self._load)
        self.store = voice_store(self._models, self._loading.config)
        self.cloning = Cloning(self.store, self._encode)
        self._sampling = self._loading.sampling()
        await asyncio.to_thread(language_of, "two words", LANGUAGES)  # which loads its model

    def voices(self) -> list[str]:
        return [voice.name for voice in self.store.voices()] if self.store else []

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "Qwen3Speech":
        """Raises EngineError, too: EngineBroken, and VoiceError for a clone that is broken."""
        return self._open(options)

    def _open(self, options: VoiceOptions, voice: Voice | None = None) -> "Qwen3Speech":
        """`voice`: in place of the one that the options name."""
        loaded = self._loading
        assert self.store is not None
        asked = request_voice(self.store, loaded.config, loaded.tokenizer, options, voice)
        seed = secrets.randbelow(MAX_SEED) if options.seed is None else options.seed
        # What was learnt of the voice would be heard: with a seed, the same is to come each time.
        manner = self._manner(asked) if options.seed is None else VoiceProfile()
        reply = Reply(loaded.tokenizer.vocabulary, asked.language, options, manner)
        engine = f"{self.name} {asked.prompt.key!r}"
        kept = options.cache and self._keeps_replies
        key = (lambda text: reply_key(engine, text, options)) if kept else None
        speech = Qwen3Speech(self, reply, key)

        def order() -> None:
            prompt = self._clones.complete(asked)
            try:
                number = self._engine.open(prompt, self._sampling, seed, options.live)
            except EngineFull as error:
                reason = EngineFull(f"{self.name}: {error}")
                self._inference.call_soon(lambda: speech.fail(reason))
            else:
                speech.number = number
                self._speaking[number] = speech

        self._inference.order(order)
        self._replies.add(speech)
        return speech

    def _manner(self, asked: VoiceRequest) -> VoiceProfile:
        manner = self._manners.pop(asked.prompt.key, None) or VoiceProfile()
        self._manners[asked.prompt.key] = manner
        if len(self._manners) > MAX_MANNERS:
            self._manners.popitem(last=False)
        return manner

    # --- voices; see ClonesVoices ---

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
        assert encode is not None  # the store refuses clones of a model that has none
        return await asyncio.get_running_loop().run_in_executor(self._encoder, encode, reference)

    def _break(self, error: EngineBroken) -> None:
        """The thread is gone: no reply gets another sample."""
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
    """As `Inference` calls them."""

    def __init__(self, engine: TtsEngine) -> None:
        self.timer = engine.timer
        self._turn = engine.turn

    def turn(self, clock: Callable[[], float]) -> bool:
        return self._turn(clock())


class Qwen3Speech:
    """One reply; see `SynthesizerStream`."""

    def __init__(
        self, synthesizer: Qwen3Synthesizer, reply: Reply, key: Callable[[str], str] | None
    ) -> None:
        """`key`: of a whole text in the cache; None: the reply is not to come from there, nor to be
        kept."""
        self._synthesizer = synthesizer
        self._reply = reply
        self._key = key
        self._news = asyncio.Event()
        self._error: EngineError | None = None
        self._cancelled = False
        self._end_given = False
        self.number: int | None = None
        """Of the engine's stream; the inference thread's."""

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
                # Meanwhile the model goes on: whichever is first is heard.
                synthesizer._asking.spawn(self._look_up(synthesizer.cache, key), "look up a reply")
        self._write_words()

    async def _look_up(self, cache: ReplyCache, key: str) -> None:
        known = await cache.fetch(key)
        if known is not None and self._may_play:
            self._play(known)

    @property
    def _may_play(self) -> bool:
        """Nothing was made of it yet, and it is wanted."""
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
                self._write_words()  # there is room for more sound
                yield speech
            if self._error is not None and not self._cancelled:
                raise self._error
            if self._cancelled or self._reply.over:
                return
            self._news.clear()
            await self._news.wait()

    # --- what the engine tells ---

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

    # --- what it is told ---

    def _write_words(self) -> None:
        """The words it needs now."""
        if self._cancelled or self._error is not None or self._reply.over:
            return
        given = self._reply.words()
        last = self._reply.end_of_text and not self._end_given
        if not given and not last:
            return
        self._end_given |= last
        engine = self._synthesizer._engine

        def order() -> None:
            if self.number is not None:
                now = monotonic()
                for tokens, ends in given:
                    engine.write(self.number, tokens, ends, now)
                if last:
                    engine.end(self.number, now)

        self._synthesizer._inference.order(order)

    def _release(self) -> None:
        """The engine is to make no more of it."""
        synthesizer = self._synthesizer
        synthesizer._replies.discard(self)
        self._news.set()

        def order() -> None:
            if self.number is not None:
                synthesizer._speaking.pop(self.number, None)
                synthesizer._engine.cancel(self.number)

        synthesizer._inference.put(order)
