"""Live speech over vLLM's `/v1/realtime`: sound goes out as it comes, text comes as it is heard.

    client                                          server
    ------                                          ------
                                                    {"type": "session.created", "id": …}
    {"type": "session.update", "model": …}
    {"type": "input_audio_buffer.commit"}           (it begins to hear)
    {"type": "input_audio_buffer.append",           {"type": "transcription.delta", "delta": …}
     "audio": base64 of PCM16 at 16 kHz}            …
    {"type": "input_audio_buffer.commit",
     "final": true}                                 {"type": "transcription.done", "text": …}

One WebSocket an utterance. vLLM would take the next utterance on the same one, but loses sound that
comes before the last one's `done`, ignores a `commit` that comes too soon after it, and has no way
to drop what it hears: a new connection has none of that. Text is only ever added to. There are no
times of words, and vLLM itself takes no language and no context (they are sent: ours does).
"""

import asyncio
import base64
import json
from dataclasses import replace
from time import monotonic
from typing import Any

import aiohttp

from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.openai.answers import (
    MAX_TEXT_CHARS,
    Created,
    Delta,
    Done,
    HeaderFilter,
    Message,
    Refusal,
    cleaned_text,
    message,
    plain,
)
from offhook.pipeline.speech.openai.client_io import BROKEN, OpenAiServer
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions
from offhook.pipeline.speech.streams.retry import AttemptFailed
from offhook.pipeline.speech.streams.utterance_stream_io import (
    Tell,
    WholeUtterance,
    known_language,
)

PATH = "/realtime"
HELLO_TIMEOUT_S = 10.0
"""Time limit in s for connecting, after which the attempt has failed, and for the first message,
after which the server counts as one without Realtime."""
DONE_TIMEOUT_S = 20.0
"""Time limit in s from the end of the utterance, or the last news, to its final text; then the
attempt has failed."""
APPEND_BYTES = 1 << 15
"""Maximum audio bytes of one message, 1 s; more is sent in several."""
NOT_THERE = (200, 400, 404, 405, 426, 501)
"""Handshake statuses of a server without this endpoint, including redirects."""


class RealtimeUnsupported(AttemptFailed):
    """The server does not support /v1/realtime."""


class Session:
    """The transcription of one utterance."""

    def __init__(self, server: OpenAiServer, options: StreamOptions) -> None:
        self._server = server
        self._options = options
        self.is_open = False
        """Whether the socket has been opened."""
        self._clean = HeaderFilter()
        self._text = ""
        self._said_at = 0.0
        """When the last audio or the end of the utterance was sent."""

    async def recognize(self, utterance: WholeUtterance, tell: Tell) -> Final:
        """Transcribes the utterance from its audio so far to its end. Raises AttemptFailed,
        RealtimeUnsupported."""
        try:
            socket = await self._server.socket(PATH, HELLO_TIMEOUT_S)
        except AttemptFailed as failed:
            if failed.status in NOT_THERE:
                raise RealtimeUnsupported(str(failed)) from failed
            raise
        self.is_open = True
        try:
            await self._begin(socket)
            sending = asyncio.create_task(self._send(socket, utterance), name="realtime send")
            try:
                return await self._listen(socket, utterance, tell, sending)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        finally:
            await socket.close()

    async def _begin(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await self._receive(socket)
        except TimeoutError as error:
            raise RealtimeUnsupported(f"it sent nothing for {HELLO_TIMEOUT_S:g} s") from error
        if not isinstance(hello, Created):
            words = hello.words if isinstance(hello, Refusal) else "it is of another kind"
            raise RealtimeUnsupported(words)
        update: dict[str, Any] = {"type": "session.update", "model": await self._server.model()}
        if self._options.language_code:
            update["language"] = self._options.language_code
        if self._options.context:
            update["prompt"] = self._options.context
        await self._send_json(socket, update)
        await self._send_json(socket, {"type": "input_audio_buffer.commit", "final": False})

    async def _send(
        self, socket: aiohttp.ClientWebSocketResponse, utterance: WholeUtterance
    ) -> None:
        """Sends all audio and the end of the utterance. Raises AttemptFailed."""
        while True:
            while utterance.sent < len(utterance.pcm):
                piece = bytes(utterance.pcm[utterance.sent : utterance.sent + APPEND_BYTES])
                utterance.sent += len(piece)
                audio = base64.b64encode(piece).decode()
                await self._send_json(socket, {"type": "input_audio_buffer.append", "audio": audio})
                self._said_at = monotonic()
            if utterance.is_finished:
                self._said_at = monotonic()
                await self._send_json(socket, {"type": "input_audio_buffer.commit", "final": True})
                return
            await utterance.news()

    async def _listen(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        utterance: WholeUtterance,
        tell: Tell,
        sending: "asyncio.Task[None]",
    ) -> Final:
        """Receives until the final text. Raises AttemptFailed, RealtimeUnsupported."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:

                def hurry(_: object = None) -> None:
                    limit.reschedule(loop.time() + DONE_TIMEOUT_S)

                sending.add_done_callback(hurry)
                try:
                    while (
                        final := self._handle(await self._receive(socket), utterance, tell)
                    ) is None:
                        if sending.done():
                            hurry()
                finally:
                    sending.remove_done_callback(hurry)
        except TimeoutError as error:
            raise AttemptFailed(f"it sent nothing for {DONE_TIMEOUT_S:g} s") from error
        # The server may end its generation early, in the middle of the utterance.
        return replace(final, continues=not sending.done())

    def _handle(self, heard: Message, utterance: WholeUtterance, tell: Tell) -> Final | None:
        """Handles a message. Raises AttemptFailed, RealtimeUnsupported."""
        audio_ms = utterance.sent // 2 * 1000 // RATE_IN
        if isinstance(heard, Delta):
            self._text += self._clean.write(heard.text)
            if len(self._text) > MAX_TEXT_CHARS:
                raise AttemptFailed(f"it says over {MAX_TEXT_CHARS} characters in one utterance")
            if text := self._text.strip():
                timing = utterance.partial_timing(utterance.sent, utterance.sent, self._said_at)
                tell(Partial(text, len(text), audio_ms, timing))
        elif isinstance(heard, Refusal):
            raise (AttemptFailed if self._text else RealtimeUnsupported)(heard.words)
        elif isinstance(heard, Done):
            text = cleaned_text(heard.text)
            language = known_language(heard.language, self._options.language_code)
            timing = utterance.final_timing(self._said_at)
            return Final(text, audio_ms, language=language, timing=timing)
        return None

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> Message:
        """Receives the next message. Raises AttemptFailed."""
        try:
            frame = await socket.receive()
        except BROKEN as error:
            raise AttemptFailed(f"the connection broke ({plain(error)})") from error
        if frame.type is not aiohttp.WSMsgType.TEXT:
            raise AttemptFailed(f"it closed the connection early ({socket.close_code})")
        return message(frame.data)

    async def _send_json(
        self, socket: aiohttp.ClientWebSocketResponse, command: dict[str, Any]
    ) -> None:
        """Sends a message. Raises AttemptFailed."""
        try:
            await socket.send_str(json.dumps(command))
        except BROKEN as error:
            raise AttemptFailed(f"the connection broke ({plain(error)})") from error
