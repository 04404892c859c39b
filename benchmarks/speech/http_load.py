"""Concurrent clients of the speech API, and their results.

Each client repeats its request until time is up; one that is rejected (503, 429) returns after
Retry-After. The first byte is that of the body, on sockets of the first response message.
"""

import asyncio
import io
import json
import re
import time
import wave
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp
import numpy as np

from benchmarks.speech.texts import SENTENCES
from benchmarks.table import percentile
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.web.speech_api.http.audio_encoder import FORMATS

REQUEST_S = 120.0
"""Time in s after which a request has failed."""
RETRY_S = 1.0
"""Delay in s before a retry without Retry-After, and after an error."""
CHUNK_SAMPLES = RATE_IN // 10
TURNED_AWAY = (429, 503)
BROKEN = ('"engine_error"', '"engine_unavailable"')
"""Codes of a 503 that is not due to load."""


@dataclass(frozen=True)
class LoadInputs:
    """Texts to synthesize and recordings to transcribe."""

    texts: Sequence[str]
    recordings: Sequence[Pcm]
    """16 kHz samples."""


class Overloaded(Exception):
    def __init__(self, retry_after_s: float) -> None:
        super().__init__("turned away")
        self.retry_after_s = retry_after_s


class Failed(Exception):
    """Raised when a request fails; the message says why."""


@dataclass
class Answer:
    """A successful request; times in s from its start."""

    first: float = 0.0
    total: float = 0.0
    audio: float = 0.0
    """Seconds of audio produced or transcribed."""


@dataclass
class Tally:
    """Results of one point."""

    answers: list[Answer] = field(default_factory=list)
    turned_away: int = 0
    errors: int = 0
    said: dict[str, int] = field(default_factory=dict)
    """Error messages and their counts."""
    seconds: float = 0.0

    def fail(self, words: str) -> None:
        """Counts an error by its message, without its request id."""
        self.errors += 1
        words = words.partition(" (request ")[0]
        self.said[words] = self.said.get(words, 0) + 1

    def row(self) -> dict[str, Any]:
        firsts = [1000 * answer.first for answer in self.answers]
        totals = [1000 * answer.total for answer in self.answers]
        factors = [answer.total / answer.audio for answer in self.answers if answer.audio]
        audio = sum(answer.audio for answer in self.answers)
        return {
            "requests": len(self.answers),
            "a_second": len(self.answers) / self.seconds,
            "first_p50_ms": percentile(firsts, 50),
            "first_p95_ms": percentile(firsts, 95),
            "total_p50_ms": percentile(totals, 50),
            "total_p95_ms": percentile(totals, 95),
            "rtf_p50": percentile(factors, 50),
            "audio_s_a_s": audio / self.seconds,
            "turned_away": self.turned_away,
            "errors": self.errors,
        }


# --- one request ---


class Stopwatch:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self.answer = Answer()

    def first(self) -> None:
        self.answer.first = self.answer.first or time.monotonic() - self._began

    def done(self, audio: float) -> Answer:
        self.first()
        self.answer.total = time.monotonic() - self._began
        self.answer.audio = audio
        return self.answer


class Requests:
    """The kinds of requests. Each raises Overloaded, Failed, and aiohttp's exceptions."""

    def __init__(self, http: aiohttp.ClientSession, material: LoadInputs) -> None:
        self.http = http
        self._texts = material.texts
        self._recordings = material.recordings
        self._wavs = [wav_of(pcm) for pcm in material.recordings]

    async def speech(self, number: int) -> Answer:
        """POST /v1/audio/speech, streamed raw samples, bypassing the cache."""
        body = {"model": "tts-1", "voice": "alloy", "response_format": "pcm"}
        body["input"] = self._texts[number % len(self._texts)]
        watch, size = Stopwatch(), 0
        anew = {"Cache-Control": "no-store"}
        async with self.http.post("/v1/audio/speech", json=body, headers=anew) as response:
            await check(response)
            async for data in response.content.iter_any():
                watch.first()
                size += len(data)
        if not size:
            raise Failed("no sound")
        return watch.done(size / 2 / RATE_OUT)

    async def transcription(self, number: int) -> Answer:
        """POST /v1/audio/transcriptions, streamed as events."""
        at = number % len(self._wavs)
        form = aiohttp.FormData({"model": "whisper-1", "stream": "true"})
        form.add_field("file", self._wavs[at], filename="speech.wav", content_type="audio/wav")
        watch, last = Stopwatch(), b""
        async with self.http.post("/v1/audio/transcriptions", data=form) as response:
            await check(response)
            async for line in response.content:
                if line.startswith(b"data:"):
                    watch.first()
                    last = line
        if b"transcript.text.done" not in last:
            raise Failed(f"ended with {last[:80]!r}")
        return watch.done(len(self._recordings[at]) / RATE_IN)

    async def speech_socket(self, number: int) -> Answer:
        """WS /v1/audio/speech/ws, one request on its own connection."""
        body = {"model": "tts-1", "input": self._texts[number % len(self._texts)]}
        watch, size = Stopwatch(), 0
        async with self.http.ws_connect("/v1/audio/speech/ws", compress=0) as socket:
            await socket.send_json(body)
            async for frame in socket:
                if frame.type is aiohttp.WSMsgType.BINARY:
                    watch.first()
                    size += len(frame.data)
                    continue
                event = frame.json()
                if event["event"] != "done":
                    raise Failed(str(event.get("detail")))
                return watch.done(size / 2 / RATE_OUT)
        raise Failed(f"the socket closed ({socket.close_code})")

    async def transcription_socket(self, number: int) -> Answer:
        """WS /ws/transcribe: a recording sent as fast as possible, to its final."""
        pcm = self._recordings[number % len(self._recordings)]
        watch = Stopwatch()
        path = f"/ws/transcribe?rate={RATE_IN}&live=false"
        async with self.http.ws_connect(path, compress=0) as socket:
            for at in range(0, len(pcm), CHUNK_SAMPLES):
                await socket.send_bytes(pcm[at : at + CHUNK_SAMPLES].tobytes())
            await socket.send_json({"type": "flush"})
            async for frame in socket:
                event = json.loads(frame.data)
                match event["type"]:
                    case "partial":
                        watch.first()
                    case "final" if not event.get("continues"):
                        return watch.done(len(pcm) / RATE_IN)
                    case "error":
                        _refuse_socket(event)
        raise Failed(f"the socket closed ({socket.close_code})")


async def in_formats(http: aiohttp.ClientSession) -> AsyncIterator[dict[str, Any]]:
    """Yields a row for each format of one cached reply, so that its time is that of the encoding.
    Raises Overloaded, Failed."""
    body = {"input": " ".join(SENTENCES[:6])}
    sizes: dict[str, int] = {}
    first = ("pcm", "wav")  # the others are compared with these
    for number, form in enumerate((*first, *FORMATS)):
        began = time.monotonic()
        async with http.post("/v1/audio/speech", json={**body, "response_format": form}) as answer:
            await check(answer)
            size = len(await answer.read())
        total_ms = 1000 * (time.monotonic() - began)
        sizes[form] = size
        if number >= len(first):
            yield {
                "format": form,
                "kbytes": size / 1000,
                "kbit_s": size * 8 / 1000 / (sizes["pcm"] / 2 / RATE_OUT),
                "of_wav": size / sizes["wav"],
                "total_ms": total_ms,
            }


async def check(response: aiohttp.ClientResponse) -> None:
    """Raises Overloaded, Failed."""
    if response.status == 200:
        return
    text = await response.text()
    if response.status in TURNED_AWAY and not any(code in text for code in BROKEN):
        raise Overloaded(_seconds(response.headers.get("Retry-After", "")))
    raise Failed(f"{response.status}: {text[:200]}")


def _refuse_socket(event: dict[str, Any]) -> None:
    if event.get("code") == "full":
        raise Overloaded(RETRY_S)
    raise Failed(str(event.get("message")))


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else RETRY_S


# --- many ---


async def sweep(ask: Callable[[int], Awaitable[Answer]], clients: int, seconds: float) -> Tally:
    """Runs `clients` clients, each making one request after another; started requests are
    awaited."""
    tally, numbers = Tally(), count()
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(_client(ask, numbers, began + seconds, tally))
    tally.seconds = time.monotonic() - began
    return tally


async def _client(
    ask: Callable[[int], Awaitable[Answer]], numbers: "count[int]", until: float, tally: Tally
) -> None:
    while time.monotonic() < until:
        wait = 0.0
        try:
            async with asyncio.timeout(REQUEST_S):
                tally.answers.append(await ask(next(numbers)))
        except Overloaded as away:
            tally.turned_away += 1
            wait = away.retry_after_s
        except aiohttp.WSServerHandshakeError as error:
            if error.status not in TURNED_AWAY:
                tally.fail(f"{error.status}: {error.message}")
            else:
                tally.turned_away += 1
            wait = _seconds(error.headers.get("Retry-After", "") if error.headers else "")
        except TimeoutError:
            tally.fail(f"no end within {REQUEST_S:g} s")
        except (Failed, aiohttp.ClientError, ConnectionError) as error:
            tally.fail(str(error) or type(error).__name__)
            wait = RETRY_S
        with suppress(TimeoutError):
            await asyncio.sleep(max(0.0, min(wait, until - time.monotonic())))


# --- what it costs ---


@dataclass(frozen=True)
class Cost:
    """Cost of the server's process so far, from its /metrics; nan where unavailable."""

    cpu_s: float
    rss_bytes: float

    @classmethod
    async def of(cls, http: aiohttp.ClientSession) -> "Cost":
        async with http.get("/metrics") as response:
            text = await response.text() if response.status == 200 else ""
        told = dict(re.findall(r"^process_(\w+) (\S+)$", text, re.MULTILINE))
        names = "cpu_seconds_total", "resident_memory_bytes"
        return cls(*(float(told.get(name, "nan")) for name in names))

    def since(self, before: "Cost", requests: int) -> dict[str, float]:
        cpu_ms = 1000 * (self.cpu_s - before.cpu_s)
        each = cpu_ms / requests if requests else float("nan")
        return {"cpu_ms": each, "rss_mb": self.rss_bytes / 1e6}


# --- sound ---


def wav_of(pcm: Pcm) -> bytes:
    """Returns a WAV file of 16 kHz samples."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, RATE_IN, 0, "NONE", ""))
        file.writeframes(pcm.astype("<i2").tobytes())
    return data.getvalue()


def texts() -> list[str]:
    return list(SENTENCES)


def long_recording(recordings: Sequence[Pcm], seconds: float) -> Pcm:
    """Returns the recordings repeated, half a second apart."""
    silence, pieces, size = np.zeros(RATE_IN // 2, np.int16), [], 0
    for number in count():
        if size >= seconds * RATE_IN:
            break
        pieces += [recordings[number % len(recordings)], silence]
        size += len(pieces[-2]) + len(silence)
    return np.concatenate(pieces)[: round(seconds * RATE_IN)]
