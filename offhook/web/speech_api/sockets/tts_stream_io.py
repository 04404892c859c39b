"""Synthesizes replies over a WebSocket, one after another, on any of our servers. The message
format is a dialect; see `speech_socket`."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from aiohttp import web

from offhook.media.pcm import RATE_OUT
from offhook.media.silence_io import QUIET_S
from offhook.pipeline.speech.errors import EngineError, EngineFailed
from offhook.pipeline.speech.remote.tts_protocol import (
    MAX_AUDIO_BYTES,
    MAX_WAITING_CHARS,
    MAX_WAITING_REPLIES,
    Cancel,
    Close,
    Done,
    End,
    Mark,
    Ready,
    Reason,
    ServerMessage,
    Text,
)
from offhook.pipeline.speech.remote.worker_protocol import (
    IDLE_S,
    ErrorCode,
    ProtocolError,
    bytes_of,
)
from offhook.pipeline.speech.script.script_io import open_speech
from offhook.pipeline.speech.synthesizer import (
    Speech,
    Synthesizer,
    SynthesizerStream,
    TextTooLong,
    VoiceOptions,
)
from offhook.web.speech_api.sockets.speech_socket import Dialect, Fault, Say
from offhook.web.speech_api.sockets.stream_host_io import StreamHost
from offhook.web.speech_api.sockets.worker_stream_io import Refused, WorkerStream


@dataclass(eq=False)
class Reply:
    """A reply that has not been completed."""

    number: int
    options: VoiceOptions
    texts: list[str] = field(default_factory=list)
    """Text written before the engine's stream is open."""
    waiting: int = 0
    """Characters written that no mark has covered."""
    ended: bool = False
    cancelled: bool = False
    fault: str = ""
    """Error message; if set, nothing is spoken."""
    stream: SynthesizerStream | None = None
    """Set when it is the reply's turn."""
    samples: int = 0
    """Samples sent."""

    def write(self, text: str) -> None:
        """Adds text. Raises TextTooLong."""
        self.waiting += len(text)
        if self.stream is None:
            self.texts.append(text)
        else:
            self.stream.write(text)

    def end(self) -> None:
        self.ended = True
        if self.stream is not None:
            self.stream.end()

    def cancel(self) -> None:
        self.cancelled = True
        if self.stream is not None:
            self.stream.cancel()

    def begin(self, stream: SynthesizerStream) -> None:
        """Starts the reply's turn. Raises TextTooLong."""
        self.stream = stream
        if text := "".join(self.texts):
            stream.write(text)
        self.texts.clear()
        if self.ended:
            stream.end()


class TtsStream(WorkerStream):
    """One connection, which uses the engine while a reply is spoken."""

    expects = "text"

    def __init__(
        self,
        host: StreamHost,
        socket: web.WebSocketResponse,
        options: VoiceOptions,
        dialect: Dialect,
    ) -> None:
        """`options` apply to replies without their own."""
        super().__init__(socket)
        self._host = host
        self._options = options
        self._dialect = dialect
        self._replies: deque[Reply] = deque()
        """Oldest first; text goes to the last one, and the first one is spoken."""
        self._count = 0
        self._news = asyncio.Event()
        self._spoke = False
        """Whether a reply was spoken since the client was last found idle."""
        self._quiet_s = 0
        """How long the client has sent nothing, in s."""
        self._synthesizer: Synthesizer

    async def run(self) -> None:
        await self.run_both(self.receive_all(), self._run_replies())

    # --- what the client says ---

    async def receive_bytes(self, data: bytes) -> None:
        raise ProtocolError(f"{len(data)} bytes that are not text: this worker speaks")

    def receive_text(self, text: str) -> bool:
        self._quiet_s = 0
        said = self._dialect.parse(text)
        self._news.set()
        match said:
            case Text(written):
                self._write(self._being_written(), written)
            case Say(written, options):
                reply = self._new_reply(options)
                self._write(reply, written)
                reply.end()
            case Fault(words):
                reply = self._new_reply(self._options)
                reply.fault = words
                reply.end()
            case End():
                self._being_written().end()
            case Cancel():
                for reply in self._replies:
                    reply.cancel()
            case Close():
                return False
        return True

    def _write(self, reply: Reply, text: str) -> None:
        if sum(each.waiting for each in self._replies) + len(text) > MAX_WAITING_CHARS:
            words = f"more than {MAX_WAITING_CHARS} characters wait to be spoken: write slower"
            raise Refused(ErrorCode.BEHIND, words)
        try:
            reply.write(text)
        except TextTooLong as error:
            raise Refused(ErrorCode.BEHIND, str(error)) from error

    def _being_written(self) -> Reply:
        """Returns the reply to write to, a new one if the last is complete."""
        if not self._replies or self._replies[-1].ended or self._replies[-1].cancelled:
            return self._new_reply(self._options)
        return self._replies[-1]

    def _new_reply(self, options: VoiceOptions) -> Reply:
        if len(self._replies) == MAX_WAITING_REPLIES:
            words = f"{MAX_WAITING_REPLIES} replies wait to be spoken: write slower"
            raise Refused(ErrorCode.BEHIND, words)
        self._replies.append(Reply(self._count, options))
        self._count += 1
        return self._replies[-1]

    def may_be_idle(self) -> bool:
        """The client may be silent while a reply is spoken or pending, and for a while between
        requests if it need not send pings, as browsers cannot."""
        spoke, self._spoke = self._spoke, False
        self._quiet_s += IDLE_S
        between = self._dialect.one_by_one and self._quiet_s < QUIET_S
        return spoke or between or (bool(self._replies) and self._replies[0].ended)

    # --- what the engine says ---

    async def _run_replies(self) -> None:
        self._synthesizer = await self.loaded(self._host.synthesizer())
        await self._greet()
        while True:
            while not self._replies:
                self._news.clear()
                await self._news.wait()
            reply = self._replies[0]
            if not (reply.cancelled or reply.fault):
                await self._try(reply)
            self._replies.popleft()
            if reply.fault:
                await self._send(Fault(reply.fault))
                continue
            reason = Reason.CANCEL if reply.cancelled else Reason.END
            self._host.reply_ended(reason.value)
            await self._send(Done(reply.number, reply.samples, reason))

    async def _greet(self) -> None:
        """Sends the greeting once the client's dialect is known."""
        while not self._dialect.decided:
            self._news.clear()
            await self._news.wait()
        if not self._dialect.one_by_one:
            self._open(self._options).cancel()  # reports unsupported options at once
        voices = tuple(self._synthesizer.voices())
        host = self._host
        await self._send(Ready(host.engine, host.model, voices, **host.identity()))
        if not self._dialect.one_by_one:
            self._draining_text = host.draining_text
        if host.server.draining:
            self.announce_drain()

    def _open(self, options: VoiceOptions) -> SynthesizerStream:
        """Opens the engine's stream. Raises Refused, EngineError."""
        try:
            return open_speech(self._synthesizer, options, self._host.server.lexicon)
        except ValueError as error:
            raise Refused(ErrorCode.BAD_REQUEST, str(error)) from error

    async def _try(self, reply: Reply) -> None:
        """Speaks the reply; an error ends the stream, or only this reply."""
        async with self._host.in_use():
            try:
                await self._speak(reply)
            except EngineFailed:
                raise
            except Refused as error:
                if error.error.code is ErrorCode.BEHIND or not self._dialect.one_by_one:
                    raise
                reply.fault = str(error)
            except EngineError as error:
                if not self._dialect.one_by_one:
                    raise
                reply.fault = self._host.error_words(error)

    async def _speak(self, reply: Reply) -> None:
        """Sends audio until all is spoken or the reply is cancelled."""
        began = time.monotonic()
        stream = self._open(reply.options)
        try:
            reply.begin(stream)
            async for speech in stream:
                if reply.cancelled:
                    return
                if len(speech.pcm) and not reply.samples:
                    self._host.reply_began(time.monotonic() - began)
                self._host.count_audio(len(speech.pcm) / RATE_OUT)
                await self._send_speech(reply, speech)
        except TextTooLong as error:
            raise Refused(ErrorCode.BEHIND, str(error)) from error
        except ValueError as error:  # a remote engine reports unsupported options late
            raise Refused(ErrorCode.BAD_REQUEST, str(error)) from error
        finally:
            stream.cancel()

    async def _send_speech(self, reply: Reply, speech: Speech) -> None:
        data = bytes_of(speech.pcm)
        for at in range(0, len(data), MAX_AUDIO_BYTES):
            block = data[at : at + MAX_AUDIO_BYTES]
            await self.send(block)
            reply.samples += len(block) // 2
            self._spoke = True
            if reply.cancelled:
                return
        if speech.text:
            reply.waiting = max(0, reply.waiting - len(speech.text))
            await self._send(Mark(reply.number, speech.text, reply.samples))

    async def _send(self, message: ServerMessage | Fault) -> None:
        if (text := self._dialect.to_text(message)) is not None:
            await self.send(text)
