"""One client of the Wyoming protocol, from its connection to its end.

Requests are answered in the order in which they came, one at a time. An error is the last event of
a connection, since Home Assistant waits for an answer or the end and passes over errors.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from loguru import logger
from pydantic import TypeAdapter
from wyoming.asr import Transcribe
from wyoming.audio import AudioChunk, AudioStart
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Info
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart

from offhook.media.silence_io import SilenceWatch
from offhook.pipeline.speech.errors import EngineError, EngineFailed
from offhook.pipeline.speech.remote.tts_protocol import MAX_WAITING_CHARS
from offhook.pipeline.speech.remote.worker_protocol import ProtocolError
from offhook.web.http.shares import NOBODY, Holders
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.server_io import GONE, SpeechServer, fault_of
from offhook.web.speech_api.sockets.worker_stream_io import Refused
from offhook.web.workers.wyoming.audio_input import AudioFormat, AudioInput
from offhook.web.workers.wyoming.events import EventReader, parsed, to_bytes
from offhook.web.workers.wyoming.requests_io import Synthesis, Transcription, WyomingRequest

READ_BYTES = 1 << 16
"""Bytes read from a client at a time."""
IDLE_S = 60.0
"""Time limit in s for the rest of an event, and between two events of a transcription; then the
client gets an error and is disconnected."""
UNREAD_S = 60.0
"""Time in s without reading after which a client is disconnected. Synthesis pauses meanwhile."""
LINGER_S = 1.0
"""Time in s in which what a client sends after an error is read and dropped: unread data would
reset the connection, and the error with it."""
MAX_REQUESTS = 16
"""Maximum requests of a connection that have no answer yet; with a further one the client gets an
error and is disconnected."""

TRANSCRIBE = TypeAdapter(Transcribe)
AUDIO_START, AUDIO_CHUNK = TypeAdapter(AudioStart), TypeAdapter(AudioChunk)
SYNTHESIZE = TypeAdapter(Synthesize)
SYNTHESIZE_START, SYNTHESIZE_CHUNK = TypeAdapter(SynthesizeStart), TypeAdapter(SynthesizeChunk)
PING = TypeAdapter(Ping)


class Connection:
    """`info` describes the server; it raises ApiError 503."""

    def __init__(
        self,
        server: SpeechServer,
        info: Callable[[], Awaitable[Info]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: str,
        holders: Holders = NOBODY,
    ) -> None:
        """`holders`: those for whom it is counted."""
        self.holders = holders
        self._received = self._sent = self._owed = 0
        """Events, and looks at a client that waits for an answer."""
        self._server, self._info, self._peer = server, info, peer
        self._reader, self._writer = reader, writer
        self._events = EventReader()
        self._event_began_at = 0.0
        """When the incomplete event began, in s of the loop's clock."""
        self._requests: deque[WyomingRequest] = deque()
        """Oldest first; only the last can be incomplete."""
        self._news = asyncio.Event()
        self._answered = asyncio.Event()
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wanted = Transcribe()
        """What the next transcription is to be."""
        self._input: AudioInput | None = None
        """Set when a client has begun audio, or said in what format it will."""

    def stop(self) -> None:
        """Ends the connection because the server stops."""
        words = "the server has stopped: connect again"
        self._end(ApiError(503, words, code="stopping"))

    def _end_silent(self, words: str) -> None:
        self._end(ApiError(408, f"{words}: connect when there is something to send", code="idle"))

    def _end(self, error: ApiError) -> None:
        if not self._stopped.done():
            self._stopped.set_exception(error)

    async def run(self) -> None:
        """Runs until the client leaves, or the first error."""
        try:
            await self._run_both()
        except ConnectionError:
            logger.debug("wyoming client {} has gone", self._peer)
        except ApiError as error:
            line = logger.bind(a_minute=error.code or error.kind)
            line.info("wyoming client {}: {}", self._peer, error)
            with suppress(ConnectionError, TimeoutError):
                await self._end_with(error)
        finally:
            await self._close()

    async def _close(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(LINGER_S):
                await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()  # the client does not read
        except ConnectionError:
            pass

    async def _run_both(self) -> None:
        """Raises ApiError, ConnectionError."""
        tasks = [asyncio.create_task(way) for way in (self._receive_all(), self._answer_all())]
        watch = SilenceWatch(self._activity, self._end_silent)
        try:
            waited = {*tasks, self._stopped}
            done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
        finally:
            watch.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._stopped.cancel()

    def _activity(self) -> int:
        if self._requests and self._requests[-1].is_complete:
            self._owed += 1
        return self._received and self._received + self._sent + self._owed

    async def _end_with(self, error: ApiError) -> None:
        async with asyncio.timeout(LINGER_S):
            await self._send(Error(str(error), error.code or error.kind).event())
            self._writer.write_eof()
            while await self._reader.read(READ_BYTES):
                pass

    async def _send(self, event: Event) -> None:
        """Raises ConnectionError if the client has gone or does not read."""
        self._sent += 1
        try:
            async with asyncio.timeout(UNREAD_S):
                self._writer.write(to_bytes(event))
                await self._writer.drain()
        except TimeoutError as error:
            raise ConnectionError(f"the client took nothing for {UNREAD_S:g} s") from error

    # --- what the client sends ---

    async def _receive_all(self) -> None:
        """Returns when the client leaves. Raises ApiError, ConnectionError."""
        loop = asyncio.get_running_loop()
        try:
            while data := await self._read():
                is_next = not self._events.is_within_event
                for event in self._events.receive(data):
                    await self._handle(event)
                    is_next = True
                if is_next and self._events.is_within_event:
                    self._event_began_at = loop.time()
        except (ProtocolError, Refused) as error:
            code = error.error.code.value if isinstance(error, Refused) else "bad_request"
            raise ApiError(400, str(error), code=code) from error

    async def _read(self) -> bytes:
        """Returns the next bytes; none at the end. Raises ApiError 408, ConnectionError."""
        loop = asyncio.get_running_loop()
        while True:
            within = self._events.is_within_event
            until = (self._event_began_at if within else loop.time()) + IDLE_S
            try:
                async with asyncio.timeout_at(until):
                    return await self._reader.read(READ_BYTES)
            except TimeoutError:
                last = self._requests[-1] if self._requests else None
                if within or (isinstance(last, Transcription) and not last.is_complete):
                    raise ApiError(408, f"nothing came for {IDLE_S:g} s", code="idle") from None

    async def _handle(self, event: Event) -> None:
        """Handles an event; unknown ones are ignored, as the protocol wants. Raises ApiError,
        ProtocolError, Refused, ConnectionError."""
        self._received += 1
        match event.type:
            case "describe":
                await self._send((await self._info()).event())
            case "ping":
                await self._send(Pong(parsed(PING, event).text).event())
            case "transcribe":
                self._begin_transcription(parsed(TRANSCRIBE, event))
            case "audio-start":
                start = parsed(AUDIO_START, event)
                await self._use(AudioFormat(start.rate, start.width, start.channels))
            case "audio-chunk":
                await self._feed(parsed(AUDIO_CHUNK, event))
            case "audio-stop":
                self._end_of_audio()
            case "synthesize" if self._text is None:
                wanted = parsed(SYNTHESIZE, event)
                synthesis = self._synthesis(wanted, streams=False)
                self._write(synthesis, wanted.text)
                synthesis.finish()
            case "synthesize":
                pass  # all of the streamed text once more, for servers without streaming
            case "synthesize-start":
                self._synthesis(parsed(SYNTHESIZE_START, event), streams=True)
            case "synthesize-chunk":
                self._write(self._open_text(event), parsed(SYNTHESIZE_CHUNK, event).text)
            case "synthesize-stop":
                self._open_text(event).finish()
            case kind:
                logger.debug("wyoming client {} sent {}, ignored", self._peer, kind)

    def _add(self, request: WyomingRequest) -> None:
        """Raises ApiError 429."""
        if len(self._requests) == MAX_REQUESTS:
            words = f"{MAX_REQUESTS} requests wait for their answers: send slower"
            raise ApiError(429, words, code="behind")
        self._requests.append(request)
        self._news.set()

    @property
    def _audio(self) -> Transcription | None:
        """The transcription whose audio is coming."""
        last = self._requests[-1] if self._requests else None
        return last if isinstance(last, Transcription) and not last.is_complete else None

    @property
    def _text(self) -> Synthesis | None:
        """The synthesis whose text is coming."""
        last = self._requests[-1] if self._requests else None
        return last if isinstance(last, Synthesis) and not last.is_complete else None

    def _check_nothing_open(self, kind: str) -> None:
        if self._audio is not None or self._text is not None:
            last = "audio-stop" if self._audio is not None else "synthesize-stop"
            raise ProtocolError(f"{kind} before {last}")

    def _begin_transcription(self, wanted: Transcribe) -> None:
        self._check_nothing_open("transcribe")
        self._wanted = wanted
        self._input = self._input or AudioInput(AudioFormat())

    async def _use(self, form: AudioFormat) -> None:
        """Sets the format of the audio that follows."""
        if self._input is None or self._input.form != form:
            self._input = await asyncio.to_thread(AudioInput, form)

    async def _feed(self, chunk: AudioChunk) -> None:
        await self._use(AudioFormat(chunk.rate, chunk.width, chunk.channels))
        assert self._input is not None
        for pcm in self._input.process(chunk.audio):
            transcription = self._audio or self._transcription()
            while transcription is not self._requests[0]:  # its audio waits in the client
                self._answered.clear()
                await self._answered.wait()
            transcription.feed(pcm)
            await transcription.session.wait_for_room()
            await asyncio.sleep(0)  # others' turn: converting a second takes milliseconds

    def _transcription(self) -> Transcription:
        self._check_nothing_open("audio-chunk")
        wanted, self._wanted = self._wanted, Transcribe()
        transcription = Transcription(self._server, self._send, wanted)
        transcription.context.holders = self.holders
        self._add(transcription)
        return transcription

    def _end_of_audio(self) -> None:
        if self._input is None:
            raise ProtocolError("audio-stop without audio")
        (self._audio or self._transcription()).finish()
        self._input = None

    def _synthesis(self, wanted: Synthesize | SynthesizeStart, *, streams: bool) -> Synthesis:
        self._check_nothing_open("synthesize-start" if streams else "synthesize")
        synthesis = Synthesis(
            self._server, self._send, wanted.voice, wanted.text_format, streams=streams
        )
        synthesis.context.holders = self.holders
        self._add(synthesis)
        return synthesis

    def _write(self, synthesis: Synthesis, text: str) -> None:
        """Adds text. Raises ApiError."""
        waiting = sum(r.waiting_chars for r in self._requests if isinstance(r, Synthesis))
        if waiting + len(text) > MAX_WAITING_CHARS:
            words = f"more than {MAX_WAITING_CHARS} characters wait to be spoken"
            raise ApiError(413, words, code="behind")
        synthesis.write(text)

    def _open_text(self, event: Event) -> Synthesis:
        if self._text is None:
            raise ProtocolError(f"{event.type} without synthesize-start")
        return self._text

    # --- answers ---

    async def _answer_all(self) -> None:
        """Raises ApiError, ConnectionError."""
        while True:
            while not self._requests:
                self._news.clear()
                await self._news.wait()
            await self._answer(self._requests[0])
            self._requests.popleft()
            self._answered.set()

    async def _answer(self, request: WyomingRequest) -> None:
        """Raises ApiError, ConnectionError."""
        status = GONE
        with logger.contextualize(request=request.context.id):
            try:
                await request.run()
                status = 200
            except ConnectionError:
                raise
            except Exception as error:
                fault = self._fault(error, request)
                status = fault.status
                raise fault from error
            finally:
                self._server.record("TCP", request.name, request.context, status)

    def _fault(self, error: Exception, request: WyomingRequest) -> ApiError:
        if isinstance(error, EngineFailed):
            self._server.engine_broke(error)
        if isinstance(error, EngineError):
            logger.warning("{}: {}", request.name, error)
        elif isinstance(error, ValueError):  # what the engine does not support
            return ApiError(400, str(error))
        fault = fault_of(error, request.context.id)
        if fault.status == 500:
            logger.opt(exception=error).error("{} failed", request.name)
        return fault
