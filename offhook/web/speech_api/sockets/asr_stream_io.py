"""A live stream to a recognizer: the protocol of `asr_protocol`, on any server of ours."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from aiohttp import web

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import (
    Final,
    Partial,
    RecognizerStream,
    StreamOptions,
)
from offhook.pipeline.speech.remote.asr_protocol import (
    MAX_AUDIO_BYTES,
    MAX_UNHEARD_S,
    MAX_WAITING_UTTERANCES,
    Cancel,
    Close,
    Flush,
    Ready,
    RecognitionResult,
    Request,
    parse_audio,
    parse_command,
    server_text,
)
from offhook.pipeline.speech.remote.worker_protocol import ErrorCode
from offhook.pipeline.speech.timing import Stages
from offhook.web.speech_api.sockets.stream_host_io import StreamHost
from offhook.web.speech_api.sockets.utterances import (
    BufferedRecognizerStream,
    InputResampler,
    Utterances,
)
from offhook.web.speech_api.sockets.worker_stream_io import Refused, WorkerStream


class RecognitionSession:
    """The engine's side of one live stream. What is said before the engine is there waits here."""

    def __init__(self, host: StreamHost) -> None:
        self._host = host
        self._utterances = Utterances()
        self._late = BufferedRecognizerStream()
        self._hears: RecognizerStream | None = None
        self._told = asyncio.Event()

    async def open(self, stream: WorkerStream, options: StreamOptions) -> None:
        """Raises EngineError, and what ends `stream` meanwhile."""
        recognizer = await stream.loaded(self._host.recognizer())
        self._hears = await recognizer.open(options)
        self._late.begin(self._hears)

    async def close(self) -> None:
        if self._hears is not None:
            await self._hears.close()

    def feed(self, pcm: Pcm) -> None:
        """Take 16 kHz samples."""
        if len(pcm):
            self._utterances.current().fed += len(pcm)
            self._host.count_audio(len(pcm) / RATE_IN)
            self._late.feed(pcm)

    def flush(self) -> None:
        self._utterances.flush(time.monotonic())
        self._late.finish()

    def cancel(self) -> None:
        """The utterance in progress, if there is one."""
        if self._utterances.cancel():
            self._late.cancel()

    async def room(self) -> None:
        """Returns when there is room for more. Raises Refused when there will be none, because
        nothing was flushed."""
        utterances = self._utterances
        while (
            utterances.unheard > MAX_UNHEARD_S * RATE_IN
            or utterances.waiting >= MAX_WAITING_UTTERANCES
        ):
            if not utterances.waiting:
                words = f"{MAX_UNHEARD_S} s of sound without a result: flush sooner"
                raise Refused(ErrorCode.BEHIND, words)
            self._told.clear()
            await self._told.wait()

    async def events(self) -> AsyncIterator[tuple[int, Partial | Final]]:
        """Each with the number of its utterance. Raises EngineError."""
        assert self._hears is not None
        async for event in self._hears.events():
            utterance = self._utterances.hear(event)
            self._told.set()
            if utterance is None:
                continue
            if isinstance(event, Final) and not event.continues and utterance.flushed_at:
                self._host.final_sent(time.monotonic() - utterance.flushed_at)
            yield utterance.number, event


class LiveStream(WorkerStream):
    """One in which sound is heard as it comes."""

    wants = "sound"

    def __init__(self, host: StreamHost, socket: web.WebSocketResponse) -> None:
        super().__init__(socket)
        self.host = host
        self.hearing = RecognitionSession(host)

    async def run(self) -> None:
        with self.host.in_use():
            try:
                await self.both(self.listen(), self.tell())
            finally:
                await self.hearing.close()

    async def room(self) -> None:
        await self.hearing.room()

    async def tell(self) -> None:
        """What the engine says. Raises EngineError, Refused."""
        raise NotImplementedError


class AsrStream(LiveStream):
    """One stream from `ready` to its close. It is in use all the time.

    `observe` is given the stages of each of its texts, whether the client asks for them or not.
    """

    def __init__(
        self,
        host: StreamHost,
        socket: web.WebSocketResponse,
        request: Request,
        observe: Callable[[Stages], None] | None = None,
    ) -> None:
        super().__init__(host, socket)
        self._request = request
        self._observe = observe
        self._ears = InputResampler(request.rate)

    async def hear(self, data: bytes) -> None:
        if len(data) > MAX_AUDIO_BYTES:
            words = f"{len(data)} bytes of audio in one message, not at most {MAX_AUDIO_BYTES}"
            raise Refused(ErrorCode.TOO_LONG, words)
        self.hearing.feed(self._ears.hear(parse_audio(data).pcm))

    def obey(self, text: str) -> bool:
        match parse_command(text):
            case Flush():
                self._ears.forget()
                self.hearing.flush()
            case Cancel():
                self._ears.forget()
                self.hearing.cancel()
            case Close():
                return False
        return True

    async def tell(self) -> None:
        options = self._request.options
        await self.hearing.open(
            self, replace(options, timing=options.timing or self._observe is not None)
        )
        ready = Ready(self.host.engine, self.host.model, self._request.rate)
        await self.send(server_text(ready))
        async for number, event in self.hearing.events():
            await self.send(server_text(RecognitionResult(number, event, self._stages(event))))

    def _stages(self, event: Partial | Final) -> Stages | None:
        """Of an event that is sent now; None: the client does not ask."""
        if event.timing is None:
            return None
        stages = Stages.of(event.timing, time.monotonic())
        if self._observe is not None:
            self._observe(stages)
        return stages if self._request.options.timing else None
