"""A `Recognizer` that is a server of OpenAI's audio API elsewhere: vLLM, speaches, OpenAI, another
offhook.

Two ways to be heard. A server that has vLLM's `/v1/realtime` hears live streams as they are spoken
(`openai_realtime_io`). Everybody else, and everything that is not live or wants the times of words,
is heard by POST /audio/transcriptions: the utterance is kept and its Final comes of the whole of
it; meanwhile, for live streams, partials come of a rolling window of it (`rolling_text`), every
`update_ms` of sound, never more than one request at a time, the newest sound first: a slow server
is asked less often.

What such a server does with sound is not known: in a `Timing` the model's part is all from the
request, or on a socket from the newest sound sent, to the answer.
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
from offhook.pipeline.speech.openai.realtime_io import NoRealtime, Session
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    StreamOptions,
    Word,
)
from offhook.pipeline.speech.streams.priority_semaphore_io import MAX_REQUESTS, Priority
from offhook.pipeline.speech.streams.retry import AttemptFailed, RetryPolicy
from offhook.pipeline.speech.streams.rolling_text import RollingText, samples
from offhook.pipeline.speech.streams.utterance_queue import State
from offhook.pipeline.speech.streams.utterance_stream_io import (
    LIVE_GIVE_UP_S,
    Tell,
    UtteranceStream,
    WholeUtterance,
    known_language,
)

PATH = "/audio/transcriptions"
MIN_HEARD_MS = 100
"""OpenAI refuses a shorter sound; nobody can have said anything in it."""
PARTIAL_TIMEOUT_S = 5.0
"""A partial that takes longer is left: there is newer sound."""
LIVE_TIMEOUT_S = 20.0
FILE_TIMEOUT_S = 300.0
"""For the answer to begin: MAX_UTTERANCE_S of sound on a server without a GPU."""
WARM_UP_MS = 500
"""Of silence, heard at the start: the key, the model and the way are right then."""


class OpenAiRecognizer:
    """The server at `url`, as ``http://host:8000/v1``; `model`: "" for its only or usual one.

    `start` waits for its first answer. Without, streams are taken at once, and what is said waits
    in them.
    """

    def __init__(
        self, url: str, api_key: str = "", model: str = "", max_requests: int = MAX_REQUESTS
    ) -> None:
        self._server = OpenAiServer("asr", url, api_key, model, max_requests)
        self.name = self._server.name
        self._realtime: bool | None = None
        """Whether it has /realtime; None: not known."""
        self._finding = asyncio.Lock()
        self._has_words = True
        """It has not refused to tell the times of words."""

    async def start(self, options: StreamOptions = DEFAULT_OPTIONS) -> None:
        """Have half a second of silence heard. Raises EngineError."""
        silence = bytes(WARM_UP_MS * RATE_IN // 1000 * 2)
        try:
            if not await self._hears_live(options):
                lane = Priority.LIVE if options.live else Priority.FILE
                await self.transcribe(silence, options, lane, FILE_TIMEOUT_S, options.words)
        except AttemptFailed as failed:
            raise failed.as_error(self._server.explain(failed), options.demands()) from failed
        self.name = self._server.name

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "UtteranceStream":
        return UtteranceStream(self, options)

    async def close(self) -> None:
        await self._server.close()

    # --- for its streams ---

    async def hear(self, utterance: WholeUtterance, options: StreamOptions, tell: Tell) -> Final:
        """The utterance, from now to its end. Raises Failed; what was told then stays told."""
        while utterance.audio_ms < MIN_HEARD_MS:
            if utterance.is_finished:
                language = known_language("", options.language_code)
                return Final("", utterance.audio_ms, language=language)
            await utterance.news()
        if options.live and not options.words and await self._hears_live(options):
            try:
                return await Session(self._server, options).hear(utterance, tell)
            except NoRealtime:
                self._realtime = None  # another server has taken its place
                raise
        partials: asyncio.Task[None] | None = None
        if options.live and not utterance.is_finished:
            partials = asyncio.create_task(self._partials(utterance, options, tell))
        try:
            await utterance.until_finished()
        finally:
            if partials is not None:
                partials.cancel()
                await asyncio.gather(partials, return_exceptions=True)
        return await self._final(utterance, options)

    async def _hears_live(self, options: StreamOptions) -> bool:
        """Raises Failed when the server cannot be asked."""
        if options.live and not options.words and self._realtime is None:
            async with self._finding:
                if self._realtime is None:
                    self._realtime = await self._finds_realtime(options)
        return bool(self._realtime and options.live and not options.words)

    async def _finds_realtime(self, options: StreamOptions) -> bool:
        """Only a whole utterance proves it: vLLM opens the socket for models that cannot, too."""
        fed = WARM_UP_MS * RATE_IN // 1000
        silence = WholeUtterance(0, state=State.FINISHED, pcm=bytearray(2 * fed), fed=fed)
        session = Session(self._server, options)
        try:
            await session.hear(silence, lambda partial: None)
        except AttemptFailed as why:
            if not (session.is_open or isinstance(why, NoRealtime)):
                raise
            logger.info(
                "{} has no {} ({}): it is heard by requests", self._server.url, REALTIME, why
            )
            return False
        return True

    async def _partials(
        self, utterance: WholeUtterance, options: StreamOptions, tell: Tell
    ) -> None:
        """Until cancelled, or there is no hope of any."""
        rolling = RollingText()
        step, heard = options.update_ms * RATE_IN // 1000 * 2, 0
        patience = RetryPolicy(LIVE_GIVE_UP_S)
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
                tell(replace(rolling.heard(window, answer.text), timing=timing))
                patience = RetryPolicy(LIVE_GIVE_UP_S)
            except AttemptFailed as failed:
                pause = patience.pause_s(failed, asyncio.get_running_loop().time())
                logger.warning("x partial: {}", self._server.explain(failed))
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
        """And when it was asked for, by time.monotonic(). Raises Failed. A server that refuses to
        tell the times of words is not asked for them again."""
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
        """Raises Failed."""
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
