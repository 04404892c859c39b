"""A server of OpenAI's audio API as its documents (and vLLM's source) have it, on a TCP port, which
misbehaves when a test says so.

It hears a word in every tenth of a second: the value of its first sample. It says a tone of a tenth
of a second for every word, as loud as the word is long.
"""

import asyncio
import base64
import io
import json
import wave
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import WSMsgType, web

from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm

TENTH = RATE_IN // 10
WORD = RATE_OUT // 10
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


def words_in(pcm: Pcm) -> list[str]:
    return [str(value) for value in pcm[: len(pcm) // TENTH * TENTH : TENTH] if value]


def saying(*numbers: int) -> Pcm:
    """Sound in which those words are heard; 0 is silence."""
    return np.repeat(np.array(numbers, np.int16), TENTH)


def tones(text: str) -> Pcm:
    loud = [1000 * len(word) for word in text.split()]
    return np.repeat(np.array(loud, np.int16), WORD)


@dataclass
class Asked:
    """One request."""

    path: str
    fields: dict[str, Any]
    heard: list[str] = field(default_factory=list)
    done: bool = False
    """Answered to its end."""


@dataclass
class OpenAiStub:
    url: str = ""
    key: str = ""
    models: list[str] = field(default_factory=lambda: ["stub"])
    voices: Any = None
    """What /audio/voices answers; None: 404."""
    realtime: bool = False
    faults: deque[Fault] = field(default_factory=deque)
    """For the next requests of sound or speech; then all is well."""
    slow_s: float = 0.0
    word_s: float = 0.0
    """Before each word of speech."""
    silence_s: float = 0.0
    """Around what it speaks."""
    has_words: bool = True
    own_fields_only: bool = False
    rate: int = RATE_OUT
    delta_prefix: str = ""
    loop: str = ""
    """What it says beside all that it hears."""
    asked: list[Asked] = field(default_factory=list)
    now: int = 0
    most: int = 0
    """Requests at a time."""
    sockets: int = 0

    def of(self, path: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.path == path]

    # --- HTTP ---

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return error(401, f"Incorrect API key provided: {request.headers['Authorization']}")
        if request.path == "/v1/models":
            data = [{"id": model, "object": "model"} for model in self.models]
            return web.json_response({"object": "list", "data": data})
        if request.path == "/v1/audio/voices" and self.voices is not None:
            return web.json_response(self.voices)
        if request.path == "/v1/realtime" and self.realtime:
            return await self.talk(request)
        handlers = {"/v1/audio/transcriptions": self.hear, "/v1/audio/speech": self.speak}
        if request.path not in handlers or request.method != "POST":
            return error(404, f"Invalid URL ({request.method} {request.path})")
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.faults:
                return await self.faults.popleft()(request)
            await asyncio.sleep(self.slow_s)
            return await handlers[request.path](request)
        finally:
            self.now -= 1

    async def hear(self, request: web.Request) -> web.Response:
        form = await request.post()
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        asked = Asked("hear", fields)
        self.asked.append(asked)
        upload = form["file"]
        assert isinstance(upload, web.FileField)
        if fields["model"] not in self.models:
            return error(404, f"The model `{fields['model']}` does not exist", "model_not_found")
        with wave.open(io.BytesIO(upload.file.read())) as sound:
            assert (sound.getframerate(), sound.getnchannels()) == (RATE_IN, 1)
            pcm = np.frombuffer(sound.readframes(1 << 24), "<i2")
        if len(pcm) < TENTH:
            return error(400, "Audio file is too short. Minimum audio length is 0.1 seconds.")
        asked.heard = words_in(pcm)
        text = " ".join(asked.heard) + self.loop
        asked.done = True
        if fields["response_format"] == "json":
            return web.json_response({"text": text})
        if not self.has_words:
            return error(400, "response_format 'verbose_json' is not compatible with model 'stub'")
        at = [n for n, value in enumerate(pcm[: len(pcm) // TENTH * TENTH : TENTH]) if value]
        words = [
            {"word": word, "start": n / 10, "end": (n + 1) / 10}
            for n, word in zip(at, asked.heard, strict=True)
        ]
        body = {"text": text, "language": "english", "duration": len(pcm) / RATE_IN, "words": words}
        return web.json_response(body)

    async def speak(self, request: web.Request) -> web.StreamResponse:
        fields = await request.json()
        asked = Asked("speak", fields)
        self.asked.append(asked)
        known = {"model", "input", "voice", "response_format", "speed", "instructions"}
        if self.own_fields_only and (more := fields.keys() - known):
            return error(400, f"Unknown parameter: '{more.pop()}'.", "unknown_parameter")
        assert fields["response_format"] == "pcm"
        response = web.StreamResponse(headers={"Content-Type": f"audio/pcm; rate={self.rate}"})
        await response.prepare(request)
        silence = bytes(2 * int(self.silence_s * self.rate))
        await response.write(silence)
        for word in fields["input"].split():
            await asyncio.sleep(self.word_s)
            # In pieces that do not end where samples do.
            data = tones(word)[:: RATE_OUT // self.rate].astype("<i2").tobytes()
            await response.write(data[:777])
            await response.write(data[777:])
        await response.write(silence)
        asked.done = True
        return response

    # --- vLLM's WebSocket ---

    async def talk(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sockets += 1
        self.asked.append(asked := Asked("realtime", {}))
        await socket.send_json({"type": "session.created", "id": "sess-1", "created": 1})
        validated, begun = False, False
        sound: list[Pcm] = []
        said = 0
        with suppress(ConnectionError):
            async for frame in socket:
                if frame.type is not WSMsgType.TEXT:
                    break
                event = json.loads(frame.data)
                match event.get("type"):
                    case "session.update":
                        asked.fields = event
                        validated = True
                    case "input_audio_buffer.append":
                        sound.append(np.frombuffer(base64.b64decode(event["audio"]), "<i2"))
                    case "input_audio_buffer.commit" if not validated:
                        why = {"error": "Model not validated.", "code": "model_not_validated"}
                        await socket.send_json({"type": "error", **why})
                    case "input_audio_buffer.commit":
                        begun = True
                        if self.faults and event.get("final"):
                            await self.faults.popleft()(request)
                            await socket.close()
                            break
                    case _:
                        why = {"error": "Unknown event type", "code": "unknown_event"}
                        await socket.send_json({"type": "error", **why})
                if not begun:
                    continue
                asked.heard = words_in(np.concatenate([np.zeros(0, np.int16), *sound]))
                for word in asked.heard[said:]:
                    delta = f"{self.delta_prefix}{' ' if said else ''}{word}"
                    said += 1
                    await socket.send_json({"type": "transcription.delta", "delta": delta})
                if event.get("final"):
                    text = self.delta_prefix + " ".join(asked.heard) + self.loop
                    usage = {
                        "prompt_tokens": 1,
                        "completion_tokens": said,
                        "total_tokens": 1 + said,
                    }
                    asked.done = True
                    done = {"type": "transcription.done", "text": text, "usage": usage}
                    await socket.send_json(done)
        self.sockets -= 1
        return socket


def error(status: int, message: str, code: str | None = None, **headers: str) -> web.Response:
    body = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return web.json_response({"error": body}, status=status, headers=headers)


# --- faults ---


def status(code: int, message: str = "so it is", why: str | None = None, **headers: str) -> Fault:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return error(code, message, why, **named)

    return answer


def says(body: bytes, kind: str, code: int = 200) -> Fault:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=body, status=code, headers={"Content-Type": kind})

    return answer


def stands_still(seconds: float = 60) -> Fault:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(seconds)
        return error(500, "too late")

    return answer


def cut_after(data: bytes, kind: str) -> Fault:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        await response.write(data)
        await asyncio.sleep(0.1)
        assert request.transport is not None
        request.transport.abort()
        return response

    return answer


def endless(data: bytes, kind: str) -> Fault:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(data)
        return response

    return answer


@asynccontextmanager
async def openai_stub(**how: Any) -> AsyncIterator[OpenAiStub]:
    stub = OpenAiStub(**how)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", stub.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        stub.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield stub
    finally:
        await runner.cleanup()
