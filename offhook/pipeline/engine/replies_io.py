"""A voice engine as a `Synthesizer`: one inference thread, with its replies on the event loop."""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from time import monotonic
from typing import Generic, Protocol, TypeVar

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.pipeline.engine.inference_io import Inference
from offhook.pipeline.engine.reply import EngineReply, TextPart, VoiceProfile
from offhook.pipeline.engine.tts.messages import Ended, Reason
from offhook.pipeline.engine.tts_models import NO_CACHE
from offhook.pipeline.speech.recognizer import EngineError, EngineFailed, EngineOverloaded
from offhook.pipeline.speech.synthesizer import MAX_SEED, Speech, VoiceOptions
from offhook.pipeline.speech.voice.audio_cache import reply_key
from offhook.pipeline.speech.voice.audio_cache_io import ReplyCache

CACHE_BYTES = 64 << 20
"""Size of the cache of short replies: twenty minutes of speech."""
MAX_PROFILES = 1000
"""Voices whose learned profile is kept; the least recently used is evicted."""


class Numbered(Protocol):
    """An event of a stream; an `Ended` is its last."""

    @property
    def number(self) -> int: ...


P = TypeVar("P", bound=TextPart)
P_contra = TypeVar("P_contra", bound=TextPart, contravariant=True)
E = TypeVar("E", bound=Numbered)


class SpeakingEngine(Protocol[P_contra]):
    """Text in, audio out, for numbered streams. All methods are called by the inference thread;
    times are time.monotonic() in s. Calls for an ended stream are ignored."""

    def write(self, number: int, part: P_contra, now: float) -> None: ...

    def end(self, number: int, now: float) -> None: ...

    def cancel(self, number: int) -> None: ...

    def turn(self, clock: Callable[[], float]) -> bool: ...

    def timer(self) -> float | None: ...


class EngineSynthesizer(Generic[P, E]):
    """A voice model on one device, shared by all replies of the process. `audio_cache` is that of
    `TtsModels`. Raises EngineError if the shared cache cannot be used.

    When the inference thread fails, e.g. after a CUDA error, all replies and later calls raise
    EngineFailed.
    """

    def __init__(self, name: str, audio_cache: str) -> None:
        self.name = name
        self.inference: Inference[tuple[EngineSpeech[P, E], E]] = Inference(
            name, lambda news: news[0].receive(news[1]), self._break
        )
        self._keeps_replies = audio_cache != NO_CACHE
        self.cache = ReplyCache(CACHE_BYTES, audio_cache if self._keeps_replies else "")
        self.asking = TaskSet()
        """Lookups in the shared cache, at most one per reply."""
        self._replies: set[EngineSpeech[P, E]] = set()
        """Replies in progress."""
        self._profiles: OrderedDict[Hashable, VoiceProfile] = OrderedDict()
        # Owned by the inference thread:
        self.streams: SpeakingEngine[P]
        self._speaking: dict[int, EngineSpeech[P, E]] = {}

    # --- on the event loop ---

    async def load(self, load: Callable[[], SpeakingEngine[P]]) -> None:
        """Builds the engine in the inference thread. Raises EngineError."""

        def begin() -> SpeakingEngine[P]:
            self.streams = load()
            return self.streams

        await self.inference.start(begin)

    async def close(self) -> None:
        for task in self.asking:
            task.cancel()
        await self.inference.close()
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

    def begin(self, speech: "EngineSpeech[P, E]", open_stream: Callable[[], int]) -> None:
        """Opens the reply's stream in the inference thread by `open_stream`, which may raise
        EngineError."""

        def command() -> None:
            try:
                number = open_stream()
            except EngineOverloaded as error:
                self._fail(speech, EngineOverloaded(f"{self.name}: {error}"))
            except EngineError as error:
                self._fail(speech, error)
            else:
                speech.number = number
                self._speaking[number] = speech

        self.inference.submit(command)
        self._replies.add(speech)

    def discard(self, speech: "EngineSpeech[P, E]") -> None:
        self._replies.discard(speech)

    def release(self, speech: "EngineSpeech[P, E]") -> None:
        """Cancels the stream of a reply."""
        self.discard(speech)

        def command() -> None:
            if speech.number is not None:
                self._speaking.pop(speech.number, None)
                self.streams.cancel(speech.number)

        self.inference.put(command)

    def _break(self, error: EngineFailed) -> None:
        """Fails every reply after the inference thread has failed."""
        for speech in list(self._replies):
            speech.fail(error)

    # --- in the inference thread ---

    def deliver(self, told: E) -> None:
        """Sends an event to its reply."""
        speech = self._speaking.get(told.number)
        if speech is not None:
            self.inference.post((speech, told))
            if isinstance(told, Ended):
                del self._speaking[told.number]

    def fail_stream(self, number: int, error: EngineError) -> None:
        """Fails one reply; the others go on."""
        speech = self._speaking.pop(number, None)
        if speech is not None:
            self._fail(speech, error)

    def _fail(self, speech: "EngineSpeech[P, E]", error: EngineError) -> None:
        self.inference.call_soon(lambda: speech.fail(error))


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
        self._synthesizer.discard(self)
        text, speech = self._reply.short_text, self._reply.short_speech
        if reason is not Reason.SPOKEN:
            logger.warning("{} ended a reply: {}", self._synthesizer.name, reason.name)
        elif text and speech and self._key is not None:
            self._synthesizer.cache.put(self._key(text), speech)

    def fail(self, error: EngineError) -> None:
        if not self._reply.over:
            self._error = error
            self._synthesizer.discard(self)
            self._news.set()

    # --- to the engine ---

    def _write_parts(self) -> None:
        """Gives the engine the text that it needs now."""
        if self._cancelled or self._error is not None or self._reply.over:
            return
        given = self._reply.parts()
        last = self._reply.end_of_text and not self._end_given
        if not given and not last:
            return
        self._end_given |= last
        synthesizer = self._synthesizer

        def command() -> None:
            if self.number is not None:
                now = monotonic()
                for part in given:
                    synthesizer.streams.write(self.number, part, now)
                if last:
                    synthesizer.streams.end(self.number, now)

        synthesizer.inference.submit(command)

    def _release(self) -> None:
        self._synthesizer.release(self)
        self._news.set()
