"""A live recognition stream over `asr_protocol`, on any of our servers."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import numpy as np
from aiohttp import web

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import (
    Final,
    Partial,
    Recognizer,
    RecognizerStream,
    StreamOptions,
)
from offhook.pipeline.speech.remote.asr_protocol import (
    MAX_AUDIO_BYTES,
    Command,
    Ready,
    RecognitionResult,
    Request,
    parse_command,
    server_text,
)
from offhook.pipeline.speech.remote.worker_protocol import ErrorCode, samples_of
from offhook.pipeline.speech.streams import utterance_queue
from offhook.pipeline.speech.streams.utterance_queue import Utterance, UtteranceQueue
from offhook.pipeline.speech.timing import Stages
from offhook.web.speech_api.sockets.engine_use_io import EngineUse
from offhook.web.speech_api.sockets.input_resampler import InputResampler
from offhook.web.speech_api.sockets.stream_host_io import StreamHost
from offhook.web.speech_api.sockets.worker_stream_io import Refused, WorkerStream


class ClientUtterance(Utterance):
    """The engine keeps it."""

    replays = False


class RecognitionSession:
    """The engine's side of a live stream; buffers audio until the engine is available."""

    def __init__(self, engine: EngineUse) -> None:
        self._engine = engine
        self._queue = UtteranceQueue(ClientUtterance, bounded=False)
        self._hears: RecognizerStream | None = None
        self._told = asyncio.Event()

    async def open(self, recognizer: Recognizer, options: StreamOptions) -> None:
        """Opens the stream. Raises EngineError."""
        self._hears = await recognizer.open(options)
        self._forward()

    async def close(self) -> None:
        if self._hears is not None:
            await self._hears.close()

    def feed(self, pcm: Pcm) -> None:
        """Adds 16 kHz samples."""
        if not len(pcm):
            return
        self._engine.count_audio(len(pcm) / RATE_IN)
        if self._hears is None:
            self._queue.feed(pcm, time.monotonic())
        else:  # which has all that came before
            self._queue.count(len(pcm), time.monotonic())
            self._hears.feed(pcm)

    def flush(self) -> None:
        self._queue.finish(time.monotonic())
        self._forward()

    def cancel(self) -> None:
        """Cancels the utterance in progress, if any."""
        if self._queue.open is not None:
            self._queue.cancel()
            if self._hears is not None:
                self._hears.cancel()

    def _forward(self) -> None:
        """Passes buffered audio to the engine."""
        if self._hears is None:
            return
        for utterance in self._queue:
            while (sound := utterance.next_to_send(sys.maxsize)) is not None:
                if sound:
                    self._hears.feed(np.frombuffer(sound, np.int16))
                else:
                    self._hears.finish()

    async def wait_for_room(self) -> None:
        """Waits for room. Raises Refused if there will be none because nothing was flushed."""
        while self._queue.full:
            if not self._queue.waiting:
                words = f"{utterance_queue.MAX_UNHEARD_S} s of sound without a result: flush sooner"
                raise Refused(ErrorCode.BEHIND, words)
            self._told.clear()
            await self._told.wait()

    async def events(self) -> AsyncIterator[tuple[int, Partial | Final]]:
        """Yields the engine's events with the number of their utterance. Raises EngineError."""
        assert self._hears is not None
        async for event in self._hears.events():
            utterance = self._queue.oldest
            if utterance is None:
                continue  # of a cancelled utterance
            told = self._queue.receive(utterance, event)
            self._told.set()
            for each in told:
                if isinstance(each, Final) and not each.continues:
                    self._engine.final_sent(time.monotonic() - utterance.finished_at)
                yield utterance.number, each


class LiveStream(WorkerStream):
    """A WebSocket stream of live audio."""

    expects = "sound"

    def __init__(self, host: StreamHost, socket: web.WebSocketResponse) -> None:
        super().__init__(socket)
        self.host = host
        self.recognition = RecognitionSession(host)

    async def run(self) -> None:
        with self.host.in_use():
            try:
                await self.run_both(self.receive_all(), self.send_results())
            finally:
                await self.recognition.close()

    async def open(self, options: StreamOptions) -> None:
        """Opens the recognizer. Raises EngineError, and what ends this stream meanwhile."""
        recognizer = await self.loaded(self.host.recognizer())
        await self.recognition.open(recognizer, options)

    async def wait_for_room(self) -> None:
        await self.recognition.wait_for_room()

    async def send_results(self) -> None:
        """Sends the engine's events. Raises EngineError, Refused."""
        raise NotImplementedError


class AsrStream(LiveStream):
    """One stream from `ready` to its close, always in use.

    `observe` gets the stages of each text, whether or not the client requests them.
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
        self._resampler = InputResampler(request.rate)

    async def receive_bytes(self, data: bytes) -> None:
        if len(data) > MAX_AUDIO_BYTES:
            words = f"{len(data)} bytes of audio in one message, not at most {MAX_AUDIO_BYTES}"
            raise Refused(ErrorCode.TOO_LONG, words)
        self.recognition.feed(self._resampler.process(samples_of(data)))

    def receive_text(self, text: str) -> bool:
        match parse_command(text):
            case Command.FLUSH:
                self._resampler.reset()
                self.recognition.flush()
            case Command.CANCEL:
                self._resampler.reset()
                self.recognition.cancel()
            case Command.CLOSE:
                return False
        return True

    async def send_results(self) -> None:
        options = self._request.options
        await self.open(replace(options, timing=options.timing or self._observe is not None))
        host = self.host
        ready = Ready(host.engine, host.model, self._request.rate, **host.identity())
        await self.send(server_text(ready))
        self._draining_text = host.draining_text
        if host.server.draining:
            self.announce_drain()
        async for number, event in self.recognition.events():
            await self.send(server_text(RecognitionResult(number, event, self._stages(event))))

    def _stages(self, event: Partial | Final) -> Stages | None:
        """Returns the stages of an event sent now; None if the client does not request them."""
        if event.timing is None:
            return None
        stages = Stages.of(event.timing, time.monotonic())
        if self._observe is not None:
            self._observe(stages)
        return stages if self._request.options.timing else None
