"""A `Recognizer` backed by an OpenAI-compatible server: vLLM, speaches, OpenAI, another offhook.

Live streams use vLLM's `/v1/realtime` if the server has it (`realtime_io`). Otherwise, and for
streams that are not live or need word times, an utterance is buffered and transcribed as a whole by
POST /audio/transcriptions; partials of live streams come from a rolling window (`rolling_text`),
requested every `update_ms` of audio, one at a time with the newest audio first, so a slow server
gets fewer requests.

The server's internals are unknown, so in a `Timing` the model's part is the time from the request
(or the newest audio sent on a socket) to the response.
"""

import asyncio
import io
import wave
from dataclasses import replace
from time import monotonic

import aiohttp
from loguru import logger

from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.openai.answers import Transcript, transcript
from offhook.pipeline.speech.openai.client_io import OpenAiServer
from offhook.pipeline.speech.openai.realtime_io import PATH as REALTIME
from offhook.pipeline.speech.openai.realtime_io import RealtimeUnsupported, Session
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Recognizer,
    StreamOptions,
    Word,
)
from offhook.pipeline.speech.streams.priority_semaphore_io import MAX_REQUESTS, Priority
from offhook.pipeline.speech.streams.retry import SPREAD_S, AttemptFailed, RetryPolicy
from offhook.pipeline.speech.streams.rolling_text import RollingText, samples
from offhook.pipeline.speech.streams.utterance_queue import UtteranceState
from offhook.pipeline.speech.streams.utterance_stream_io import (
    LIVE_GIVE_UP_S,
    Tell,
    UtteranceStream,
    WholeUtterance,
    known_language,
)

PATH = "/audio/transcriptions"
MIN_HEARD_MS = 100
"""Minimum audio in ms; OpenAI rejects less, and it cannot contain a word."""
PARTIAL_TIMEOUT_S = 5.0
"""Time limit in s of a partial; then it is given up, and newer audio is used."""
LIVE_TIMEOUT_S = 20.0
"""Time limit in s until the response to an utterance of a call starts; then the request has
failed."""
FILE_TIMEOUT_S = 300.0
"""Time limit in s until the response to an utterance of a file starts, MAX_UTTERANCE_S of audio on
a server without a GPU; then the request has failed."""
WARM_UP_MS = 500
"""Silence in ms transcribed by `start`, to verify key, model and connection."""


class OpenAiRecognizer(Recognizer):
    """The server at `url`, e.g. ``http://host:8000/v1``; an empty `model` means its only or default
    one.

    `start` waits for its first response. Without it, streams open at once and buffer their audio.
    """

    def __init__(
        self,
        url: str,
        api_key: str = "",
        model: str = "",
        max_requests: int = MAX_REQUESTS,
        *,
        partials: bool = True,
        whole_turns: bool = True,
    ) -> None:
        """Without `partials` nothing is requested before the end of an utterance; with
        `whole_turns` a turn with pauses is recognized again as a whole. Both are for servers
        without /realtime."""
        self._partials_wanted = partials
        self._whole_turns = whole_turns
        self._server = OpenAiServer("asr", url, api_key, model, max_requests)
        self.name = self._server.name
        self._realtime: bool | None = None
        """Whether the server has /realtime; None: unknown."""
        self._finding = asyncio.Lock()
        self._has_words = True
        """Whether word times may be requested; False once the server has refused them."""

    async def start(self, options: StreamOptions = DEFAULT_OPTIONS) -> None:
        """Transcribes half a second of silence as a test. Raises EngineError."""
        silence = bytes(WARM_UP_MS * RATE_IN // 1000 * 2)
        try:
            if not await self._uses_realtime(options):
                lane = Priority.LIVE if options.live else Priority.FILE
                await self.transcribe(silence, options, lane, FILE_TIMEOUT_S, options.words)
        except AttemptFailed as failed:
            raise failed.as_error(self._server.explain(failed), options.demands()) from failed
        self.name = self._server.name

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "UtteranceStream":
        return UtteranceStream(self, options)

    async def close(self) -> None:
        await self._server.close()

    @property
    def whole_turns(self) -> bool:
        """Whether a turn with pauses is to be recognized again as a whole."""
        return self._whole_turns and not self._realtime

    # --- for its streams ---

    async def recognize(
        self, utterance: WholeUtterance, options: StreamOptions, tell: Tell
    ) -> Final:
        """Transcribes the utterance to its end. Raises AttemptFailed; partials emitted before stay
        valid."""
        while utterance.audio_ms < MIN_HEARD_MS:
            if utterance.is_finished:
                language = known_language("", options.language_code)
                return Final("", utterance.audio_ms, language=language)
            await utterance.news()
        if options.live and not options.words and await self._uses_realtime(options):
            try:
                return await Session(self._server, options).recognize(utterance, tell)
            except RealtimeUnsupported:
                self._realtime = None  # another server has taken its place
                raise
        partials: asyncio.Task[None] | None = None
        if self._partials_wanted and options.live and not utterance.is_finished:
            partials = asyncio.create_task(self._partials(utterance, options, tell))
        try:
            await utterance.until_finished()
        finally:
            if partials is not None:
                partials.cancel()
                await asyncio.gather(partials, return_exceptions=True)
        return await self._final(utterance, options)

    async def _uses_realtime(self, options: StreamOptions) -> bool:
        """Raises AttemptFailed if the server cannot be asked."""
        if options.live and not options.words and self._realtime is None:
            async with self._finding:
                if self._realtime is None:
                    self._realtime = await self._finds_realtime(options)
        return bool(self._realtime and options.live and not options.words)

    async def _finds_realtime(self, options: StreamOptions) -> bool:
        """Tests with a whole utterance, because vLLM also opens the socket for models that do not
        support it."""
        fed = WARM_UP_MS * RATE_IN // 1000
        silence = WholeUtterance(0, state=UtteranceState.FINISHED, pcm=bytearray(2 * fed), fed=fed)
        session = Session(self._server, options)
        try:
            await session.recognize(silence, lambda partial: None)
        except AttemptFailed as why:
            if not (session.is_open or isinstance(why, RealtimeUnsupported)):
                raise
            logger.info(
                "{} has no {} ({}): it is heard by requests", self._server.url, REALTIME, why
            )
            return False
        return True

    async def _partials(
        self, utterance: WholeUtterance, options: StreamOptions, tell: Tell
    ) -> None:
        """Emits partials until cancelled or until they cannot succeed."""
        rolling = RollingText()
        step, heard = options.update_ms * RATE_IN // 1000 * 2, 0
        patience = RetryPolicy(LIVE_GIVE_UP_S, spread_s=SPREAD_S)
        while True:
            while len(utterance.pcm) - heard < step:
                await utterance.news()
            try:
                async with self._server.turns.turn(Priority.PARTIAL):
                    window = rolling.window(samples(utterance.pcm))
                    piece = bytes(utterance.pcm[2 * window.start : 2 * window.stop])
                    due, heard = heard + step, max(heard, 2 * window.stop)
                    started = monotonic()
                    answer = await self._post(piece, options, PARTIAL_TIMEOUT_S, words=False)
                timing = utterance.partial_timing(2 * window.stop, due, started)
                tell(replace(rolling.update(window, answer.text), timing=timing))
                patience = RetryPolicy(LIVE_GIVE_UP_S, spread_s=SPREAD_S)
            except AttemptFailed as failed:
                pause = patience.pause_s(failed, asyncio.get_running_loop().time())
                logger.warning("partial: {}", self._server.explain(failed))
                if pause is None:
                    return
                await asyncio.sleep(pause)

    async def _final(self, utterance: WholeUtterance, options: StreamOptions) -> Final:
        lane, within_s = Priority.LIVE, LIVE_TIMEOUT_S
        if not options.live:
            lane, within_s = Priority.FILE, FILE_TIMEOUT_S
        pcm = bytes(utterance.pcm)
        answer, started = await self.transcribe(pcm, options, lane, within_s, options.words)
        shift = utterance.start * 1000 // RATE_IN
        words = (Word(w.text, w.start_ms + shift, w.end_ms + shift) for w in answer.words)
        language = known_language(answer.language, options.language_code)
        timing = utterance.final_timing(started)
        return Final(answer.text, utterance.audio_ms, tuple(words), language, timing=timing)

    async def transcribe(
        self, pcm: bytes, options: StreamOptions, lane: Priority, within_s: float, words: bool
    ) -> tuple[Transcript, float]:
        """Returns the transcript and the request's time.monotonic(). Raises AttemptFailed. Word
        times are not requested again once refused."""
        async with self._server.turns.turn(lane):
            started = monotonic()
            if not (words and self._has_words):
                return await self._post(pcm, options, within_s, words=False), started
            try:
                return await self._post(pcm, options, within_s, words=True), started
            except AttemptFailed as failed:
                if failed.status not in (400, 422):
                    raise
                refused = failed
            answer = await self._post(pcm, options, within_s, words=False)
            self._has_words = False
            logger.warning("{} tells no times of words ({})", self._server.name, refused)
            return answer, started

    async def _post(
        self, pcm: bytes, options: StreamOptions, within_s: float, words: bool
    ) -> Transcript:
        """Sends the request. Raises AttemptFailed."""
        model = await self._server.model()

        def form() -> aiohttp.FormData:
            form = aiohttp.FormData()
            form.add_field("model", model)
            form.add_field("response_format", "verbose_json" if words else "json")
            if words:
                form.add_field("timestamp_granularities[]", "word")
            if options.language_code:
                form.add_field("language", options.language_code)
            if options.context:
                form.add_field("prompt", options.context)
            sound = _wav(pcm)
            form.add_field("file", sound, filename="speech.wav", content_type="audio/wav")
            return form

        async with self._server.ask("POST", PATH, within_s, form=form) as response:
            body = await self._server.body(response, within_s)
        return transcript(body, len(pcm) // 2 * 1000 // RATE_IN)

    def explain(self, failed: AttemptFailed) -> str:
        return self._server.explain(failed)


def _wav(pcm: bytes) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(RATE_IN)
        sound.writeframes(pcm)
    return file.getvalue()
