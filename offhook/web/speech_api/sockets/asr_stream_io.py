"""A live recognition stream over `asr_protocol`, on any of our servers."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
from aiohttp import web

from offhook.media.pcm import RATE_IN, Pcm
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.speech.recognizer import (
    Final,
    Partial,
    Recognizer,
    RecognizerStream,
    StreamOptions,
    TurnAnswers,
)
from offhook.pipeline.speech.remote.asr_protocol import (
    MAX_AUDIO_BYTES,
    Command,
    Ready,
    RecognitionResult,
    Request,
    TurnAnswer,
    TurnQuestion,
    parse_command,
    server_text,
)
from offhook.pipeline.speech.remote.worker_protocol import ErrorCode, ProtocolError, samples_of
from offhook.pipeline.speech.streams import utterance_queue
from offhook.pipeline.speech.streams.recent_audio import RecentAudio
from offhook.pipeline.speech.streams.utterance_queue import Utterance, UtteranceQueue
from offhook.pipeline.speech.timing import Stages
from offhook.pipeline.speech.vad.smart_turn_io import SAMPLES
from offhook.web.speech_api.sockets.engine_use_io import EngineUse
from offhook.web.speech_api.sockets.input_resampler import InputResampler
from offhook.web.speech_api.sockets.stream_host_io import StreamHost
from offhook.web.speech_api.sockets.worker_stream_io import Refused, WorkerStream

MAX_QUESTIONS = 4
"""Questions about turns that a stream may have open: of those that wait the newest replaces the
others, which are answered at once, so that only a client that reads no answers has more. Nothing
more is read from it then."""
MS = RATE_IN // 1000


class ClientUtterance(Utterance):
    """The engine keeps it."""

    replays = False


class RecognitionSession:
    """The engine's side of a live stream; buffers audio until the engine is available. It uses the
    engine from the first audio of an utterance to its final."""

    def __init__(self, engine: EngineUse) -> None:
        self._engine = engine
        self._queue = UtteranceQueue(ClientUtterance, bounded=False)
        self._stream: RecognizerStream | None = None
        self._progress = asyncio.Event()
        self._in_use = False

    async def open(self, recognizer: Recognizer, options: StreamOptions) -> None:
        """Opens the stream. Raises EngineError."""
        self._stream = await recognizer.open(options)
        self._forward()

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.close()

    def feed(self, pcm: Pcm) -> None:
        """Adds 16 kHz samples."""
        if not len(pcm):
            return
        self._engine.count_audio(len(pcm) / RATE_IN)
        if self._stream is None:
            self._queue.feed(pcm, time.monotonic())
        else:  # which has all that came before
            self._queue.count(len(pcm), time.monotonic())
            self._stream.feed(pcm)
        self._count_use()

    def flush(self) -> None:
        self._queue.finish(time.monotonic())
        self._forward()
        self._count_use()

    def cancel(self) -> None:
        """Cancels the utterance in progress, if any."""
        if self._queue.open is not None:
            self._queue.cancel()
            if self._stream is not None:
                self._stream.cancel()
            self._count_use()

    def _count_use(self) -> None:
        in_use = self._queue.oldest is not None
        if in_use != self._in_use:
            self._in_use = in_use
            (self._engine.begin_use if in_use else self._engine.end_use)()

    def _forward(self) -> None:
        """Passes buffered audio to the engine."""
        if self._stream is None:
            return
        for utterance in self._queue:
            while (sound := utterance.next_to_send(sys.maxsize)) is not None:
                if sound:
                    self._stream.feed(np.frombuffer(sound, np.int16))
                else:
                    self._stream.finish()

    async def wait_for_room(self) -> None:
        """Waits for room. Raises Refused if there will be none because nothing was flushed."""
        while self._queue.full:
            if not self._queue.waiting:
                words = f"{utterance_queue.MAX_UNHEARD_S} s of sound without a result: flush sooner"
                raise Refused(ErrorCode.BEHIND, words)
            self._progress.clear()
            await self._progress.wait()

    async def events(self) -> AsyncIterator[tuple[int, Partial | Final]]:
        """Yields the engine's events with the number of their utterance. Raises EngineError."""
        assert self._stream is not None
        async for event in self._stream.events():
            utterance = self._queue.oldest
            if utterance is None:
                continue  # of a cancelled utterance
            events = self._queue.receive(utterance, event)
            self._progress.set()
            self._count_use()
            for each in events:
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
    """One stream from `ready` to its close.

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
        self._recent = RecentAudio() if request.options.live else None
        """For questions about turns; None if none will be answered."""
        self._turns: TurnAnswers | None = None
        self._questions = TaskSet()

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self._questions.close()

    async def receive_bytes(self, data: bytes) -> None:
        if len(data) > MAX_AUDIO_BYTES:
            words = f"{len(data)} bytes of audio in one message, not at most {MAX_AUDIO_BYTES}"
            raise Refused(ErrorCode.TOO_LONG, words)
        pcm = self._resampler.process(samples_of(data))
        if self._recent is not None:
            self._recent.add(pcm)
        self.recognition.feed(pcm)

    def receive_text(self, text: str) -> bool:
        match parse_command(text):
            case TurnQuestion() as question:
                self._receive_question(question)
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
        self._turns = host.turns if self._recent is not None else None
        if self._turns is None:
            self._recent = None
        ready = Ready(host.engine, host.model, self._request.rate, **host.identity())
        await self.send(server_text(replace(ready, turns=self._turns is not None)))
        self._draining_text = host.draining_text
        if host.server.draining:
            self.announce_drain()
        async for number, event in self.recognition.events():
            await self.send(server_text(RecognitionResult(number, event, self._stages(event))))

    # --- turns ---

    async def wait_for_room(self) -> None:
        await super().wait_for_room()
        while len(self._questions) >= MAX_QUESTIONS:
            await asyncio.wait(self._questions, return_when=asyncio.FIRST_COMPLETED)

    def _receive_question(self, question: TurnQuestion) -> None:
        """Raises ProtocolError."""
        if self._turns is None:
            raise ProtocolError("turn is for streams whose ready has turns: true")
        answering = self._answer(question, self._turns, self._audio_of(question), time.monotonic())
        self._questions.spawn(answering, "turn?")

    def _audio_of(self, question: TurnQuestion) -> Pcm:
        """Returns the audio before the place of the question; nothing if that is not near the
        newest."""
        assert self._recent is not None
        at, newest = question.at_ms * MS, self._recent.end
        return self._recent.slice(at - SAMPLES if newest - RATE_IN <= at <= newest else at, at)

    async def _answer(
        self, question: TurnQuestion, turns: TurnAnswers, pcm: Pcm, asked_at: float
    ) -> None:
        probability = await turns.probability(pcm, self) if len(pcm) else None
        self.host.turn_judged(time.monotonic() - asked_at, probability is not None)
        with suppress(ConnectionError):  # the receiving side detects it, too
            await self.send(server_text(TurnAnswer(question.question, probability)))

    def _stages(self, event: Partial | Final) -> Stages | None:
        """Returns the stages of an event sent now; None if the client does not request them."""
        if event.timing is None:
            return None
        stages = Stages.of(event.timing, time.monotonic())
        if self._observe is not None:
            self._observe(stages)
        return stages if self._request.options.timing else None
