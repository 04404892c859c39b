"""Speaks one reply by the protocol nari.speech.v1; see `live_speech`."""

import asyncio
import time

from aiohttp import WSMessage, WSMsgType, web

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.speech.remote.tts_protocol import MAX_AUDIO_BYTES, MAX_WAITING_CHARS, Reason
from offhook.pipeline.speech.remote.worker_protocol import ErrorCode, bytes_of
from offhook.pipeline.speech.script.script_io import open_speech
from offhook.pipeline.speech.synthesizer import Synthesizer, TextTooLong
from offhook.web.speech_api.sockets import live_speech
from offhook.web.speech_api.sockets.live_speech import (
    Append,
    Cancel,
    End,
    LiveSpeech,
    Message,
    Start,
)
from offhook.web.speech_api.sockets.stream_host_io import StreamHost
from offhook.web.speech_api.sockets.tts_stream_io import Reply
from offhook.web.speech_api.sockets.worker_stream_io import Refused, WorkerStream


class LiveSpeechStream(WorkerStream):
    """One connection, which uses the engine from its start on."""

    expects = "text"

    def __init__(
        self, host: StreamHost, socket: web.WebSocketResponse, protocol: LiveSpeech
    ) -> None:
        super().__init__(socket)
        self._host = host
        self._protocol = protocol
        self._reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._said: Start | Message | None = None
        """The client's last message."""
        self._began = 0.0
        """When the first text came, time.monotonic() in s."""
        self._chunks = 0
        """Binary messages sent."""

    async def run(self) -> None:
        await self.run_both(self.receive_all(), self._answer())

    # --- what the client says ---

    async def receive(self, message: WSMessage) -> bool:
        going = await super().receive(message)
        if message.type is WSMsgType.TEXT and isinstance(self._said, Append | End):
            await self.send(live_speech.acknowledged(self._said))
        return going

    def receive_text(self, text: str) -> bool:
        said = self._said = self._protocol.parse(text)
        match said:
            case Start(options):
                self._reply.set_result(Reply(0, options))
            case Append(sequence, words):
                self._began = self._began if sequence else time.monotonic()
                self._write(self._reply.result(), words)
            case End():
                self._reply.result().end()
            case Cancel() if self._reply.done():
                self._reply.result().cancel()
            case Cancel():
                return False
        return True

    def _write(self, reply: Reply, text: str) -> None:
        if reply.waiting + len(text) > MAX_WAITING_CHARS:
            words = f"more than {MAX_WAITING_CHARS} characters wait to be spoken: write slower"
            raise Refused(ErrorCode.BEHIND, words)
        try:
            reply.write(text)
        except TextTooLong as error:
            raise Refused(ErrorCode.BEHIND, str(error)) from error

    def may_be_idle(self) -> bool:
        return self._reply.done() and self._reply.result().ended

    # --- what the engine says ---

    async def _answer(self) -> None:
        synthesizer = await self.loaded(self._host.synthesizer())
        await self.send(live_speech.created())
        reply = await self._reply
        async with self._host.in_use():
            try:
                await self._speak(synthesizer, reply)
            except TextTooLong as error:
                raise Refused(ErrorCode.BEHIND, str(error)) from error
            except ValueError as error:
                raise Refused(ErrorCode.BAD_REQUEST, str(error)) from error
        if not (reply.samples or reply.cancelled):
            raise Refused(ErrorCode.BAD_REQUEST, "there is nothing to say in this text")
        self._host.reply_ended((Reason.CANCEL if reply.cancelled else Reason.END).value)
        request = self._host.request_id
        if not self._chunks:
            await self.send(live_speech.started(request))
        await self.send(live_speech.done(request, reply.cancelled, self._chunks))

    async def _speak(self, synthesizer: Synthesizer, reply: Reply) -> None:
        """Sends audio until all is spoken or the reply is cancelled. Raises ValueError for options
        that the engine does not support, at once or with the first audio."""
        server = self._host.server
        stream = open_speech(synthesizer, server.prioritized(reply.options), server.lexicon)
        try:
            await self.send(live_speech.configured())
            reply.begin(stream)
            async for speech in stream:
                reply.waiting = max(0, reply.waiting - len(speech.text))
                self._host.count_audio(len(speech.pcm) / RATE_OUT)
                await self._send_sound(reply, bytes_of(speech.pcm))
                if reply.cancelled:
                    return
        finally:
            stream.cancel()

    async def _send_sound(self, reply: Reply, data: bytes) -> None:
        if data and not self._chunks:
            self._host.reply_began(time.monotonic() - self._began)
            await self.send(live_speech.started(self._host.request_id))
        for at in range(0, len(data), MAX_AUDIO_BYTES):
            if reply.cancelled:
                return
            block = data[at : at + MAX_AUDIO_BYTES]
            await self.send(block)
            self._chunks += 1
            reply.samples += len(block) // 2
