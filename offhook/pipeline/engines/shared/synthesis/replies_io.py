"""A voice engine as a `Synthesizer`: its replies on an event loop, over the engine's streams."""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any, Generic, TypeVar

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.pipeline.engines.shared.synthesis.messages import Ended, Reason
from offhook.pipeline.engines.shared.synthesis.reply import EngineReply, TextPart, VoiceProfile
from offhook.pipeline.engines.shared.synthesis.reply_streams_io import Numbered, ReplyStreams
from offhook.pipeline.engines.shared.tts_models import NO_CACHE, TtsModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import MAX_SEED, Speech, Synthesizer, VoiceOptions
from offhook.pipeline.speech.voice.audio_cache import reply_key
from offhook.pipeline.speech.voice.audio_cache_io import ReplyCache

MAX_PROFILES = 1000
"""Voices whose learned profile is kept; the least recently used is evicted."""


P = TypeVar("P", bound=TextPart)
E = TypeVar("E", bound=Numbered)


class EngineSynthesizer(Synthesizer, Generic[P, E]):
    """A voice model, shared by all replies of the process. `models` says which cache its replies
    have. Raises EngineError if the shared cache cannot be used.

    When the engine fails, e.g. after a CUDA error, all replies and later calls raise EngineFailed.
    """

    def __init__(self, name: str, models: TtsModels, streams: ReplyStreams[P, E]) -> None:
        self.name = name
        self.streams = streams
        self._keeps_replies = models.audio_cache != NO_CACHE
        url = models.audio_cache if self._keeps_replies else ""
        self.cache = ReplyCache(models.audio_cache_mb << 20, url)
        self.asking = TaskSet()
        """Lookups in the shared cache, at most one per reply."""
        self._profiles: OrderedDict[Hashable, VoiceProfile] = OrderedDict()

    async def close(self) -> None:
        for task in self.asking:
            task.cancel()
        await self.cache.close()

    def profile(self, voice: Hashable, options: VoiceOptions) -> VoiceProfile:
        """Returns what was learned of a voice; with a seed nothing, since then the output must not
        depend on it."""
        if options.seed is not None:
            return VoiceProfile()
        profile = self._profiles.pop(voice, None) or VoiceProfile()
        self._profiles[voice] = profile
        if len(self._profiles) > MAX_PROFILES:
            self._profiles.popitem(last=False)
        return profile

    def cache_key(self, engine: str, options: VoiceOptions) -> Callable[[str], str] | None:
        """Returns a function from a whole text to its key; None if the reply is not cached.
        `engine` names all that affects the audio besides the text and the options."""
        if not (options.cache and self._keeps_replies):
            return None
        return lambda text: reply_key(engine, text, options)


def seed_of(options: VoiceOptions) -> int:
    return secrets.randbelow(MAX_SEED) if options.seed is None else options.seed


class EngineSpeech(Generic[P, E]):
    """One reply; implements `SynthesizerStream`."""

    def __init__(
        self,
        synthesizer: EngineSynthesizer[P, E],
        reply: EngineReply[P, E],
        key: Callable[[str], str] | None,
    ) -> None:
        """`key` returns the cache key of a whole text; None: the reply is not cached."""
        self._synthesizer = synthesizer
        self._streams = synthesizer.streams
        self._reply = reply
        self._key = key
        self._news = asyncio.Event()
        self._error: EngineError | None = None
        self._cancelled = False
        self._end_given = False

    def begin(self, request: Any) -> None:
        """Opens the stream as the engine's `request` says. Raises EngineFailed."""
        self._streams.open(self, request)

    def write(self, text: str) -> None:
        self._reply.write(text)
        self._write_parts()

    def end(self) -> None:
        self._reply.end()
        text, cache = self._reply.short_text, self._synthesizer.cache
        if text and self._key is not None and self._may_play:
            key = self._key(text)
            known = cache.get(key)
            if known is not None:
                self._play(known)
            elif cache.is_shared:
                # The model continues meanwhile: whichever is first is played.
                self._synthesizer.asking.spawn(self._look_up(cache, key), "look up a reply")
        self._write_parts()

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
                self._write_parts()  # there is room for more audio
                yield speech
            if self._error is not None and not self._cancelled:
                raise self._error
            if self._cancelled or self._reply.over:
                return
            self._news.clear()
            await self._news.wait()

    # --- from the engine ---

    def receive(self, told: E) -> None:
        if self._cancelled or self._reply.over:
            return
        self._reply.receive(told)
        if isinstance(told, Ended):
            self._finish(told.reason)
        else:
            self._write_parts()
        self._news.set()

    def _finish(self, reason: Reason) -> None:
        text, speech = self._reply.short_text, self._reply.short_speech
        if reason is not Reason.SPOKEN:
            logger.warning("{} ended a reply: {}", self._synthesizer.name, reason.name)
        elif text and speech and self._key is not None:
            self._synthesizer.cache.put(self._key(text), speech)

    def fail(self, error: EngineError) -> None:
        if not self._reply.over:
            self._error = error
            self._news.set()

    # --- to the engine ---

    def _write_parts(self) -> None:
        """Gives the engine the text that it needs now."""
        if self._cancelled or self._error is not None or self._reply.over:
            return
        given = self._reply.parts()
        if self._reply.has_speech:
            self._news.set()
        last = self._reply.end_of_text and not self._end_given
        if not given and not last:
            return
        self._end_given |= last
        self._streams.write(self, given, last=last)

    def _release(self) -> None:
        self._streams.cancel(self)
        self._news.set()
