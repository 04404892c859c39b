"""Speakers on WS /ws/transcribe in real time, alone and concurrent with a long file.

Each plays one recording after another and flushes at its end; the measure is the time from the
flush to the final. Streams start at different moments, so that they do not flush simultaneously.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.speech.http_load import CHUNK_SAMPLES, Failed, check, wav_of
from benchmarks.table import percentile
from offhook.media.pcm import RATE_IN, Pcm

STAGGER_S = 3.0
GOLDEN_RATIO = 0.618
FINALS_S = 60.0
"""Time limit in s for outstanding finals when a stream ends."""
FILE_S = 3600.0
"""Time limit in s for a file."""


@dataclass
class Live:
    """Results of the streams of one run."""

    finals_ms: list[float] = field(default_factory=list)
    """Time in ms from flush to final."""
    late_ms: list[float] = field(default_factory=list)
    """Lateness in ms at which the clients sent each chunk of audio."""
    errors: int = 0
    said: dict[str, int] = field(default_factory=dict)

    def fail(self, words: str) -> None:
        self.errors += 1
        self.said[words] = self.said.get(words, 0) + 1

    def row(self) -> dict[str, Any]:
        return {
            "finals": len(self.finals_ms),
            "final_p50_ms": percentile(self.finals_ms, 50),
            "final_p95_ms": percentile(self.finals_ms, 95),
            "final_max_ms": max(self.finals_ms, default=float("nan")),
            "client_late_p95_ms": percentile(self.late_ms, 95),
            "errors": self.errors,
        }


class LiveStream:
    """One speaker."""

    def __init__(self, number: int, lines: Sequence[Pcm], live: Live, over: Callable[[], bool]):
        self._number = number
        self._lines = lines
        self._live = live
        self._over = over
        self._flushed: deque[float] = deque()
        """Flush times of utterances without a final."""
        self._no_more = False

    async def run(self, http: aiohttp.ClientSession) -> None:
        """Runs until it is over and all finals have arrived."""
        await asyncio.sleep(self._number * GOLDEN_RATIO % 1 * STAGGER_S)
        if self._over():
            return
        path = f"/ws/transcribe?rate={RATE_IN}"
        try:
            async with http.ws_connect(path, compress=0) as socket, asyncio.TaskGroup() as group:
                hearing = group.create_task(self._receive(socket))
                await self._talk(socket, hearing)
                await self._last_finals(hearing)
        except* (aiohttp.ClientError, OSError, Failed) as group_of:
            for error in _leaves(group_of):
                self._live.fail(str(error) or type(error).__name__)

    async def _last_finals(self, hearing: "asyncio.Task[None]") -> None:
        """Raises Failed."""
        try:
            async with asyncio.timeout(FINALS_S):
                await hearing
        except TimeoutError as error:
            raise Failed(f"{len(self._flushed)} finals missing after {FINALS_S:g} s") from error

    async def _talk(
        self, socket: aiohttp.ClientWebSocketResponse, hearing: "asyncio.Task[None]"
    ) -> None:
        due, at = time.monotonic(), self._number
        while not self._over() and not hearing.done():
            line = self._lines[at % len(self._lines)]
            at += 1
            for begin in range(0, len(line), CHUNK_SAMPLES):
                piece = line[begin : begin + CHUNK_SAMPLES]
                due += len(piece) / RATE_IN  # sent when its last sample was spoken
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                self._live.late_ms.append(1000 * max(0.0, time.monotonic() - due))
                await socket.send_bytes(piece.tobytes())
            self._flushed.append(time.monotonic())
            await socket.send_json({"type": "flush"})
        self._no_more = True
        if not self._flushed:
            await socket.close()

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for frame in socket:
            event = json.loads(frame.data)
            if event["type"] == "error":
                raise Failed(f"{event['code']}: {event['message']}")
            if event["type"] == "final" and not event.get("continues"):
                self._live.finals_ms.append(1000 * (time.monotonic() - self._flushed.popleft()))
                if self._no_more and not self._flushed:
                    return
        if not self._no_more:
            raise Failed(f"the socket closed ({socket.close_code})")


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


async def live_run(
    http: aiohttp.ClientSession, streams: int, lines: Sequence[Pcm], over: Callable[[], bool]
) -> Live:
    """Runs streams until `over` returns True."""
    live = Live()
    async with asyncio.TaskGroup() as group:
        for number in range(streams):
            group.create_task(LiveStream(number, lines, live, over).run(http))
    return live


async def transcribe_file(http: aiohttp.ClientSession, pcm: Pcm) -> float:
    """Returns the seconds it took. Raises Overloaded, Failed."""
    form = aiohttp.FormData({"model": "whisper-1", "response_format": "json"})
    form.add_field("file", wav_of(pcm), filename="long.wav", content_type="audio/wav")
    began = time.monotonic()
    limits = aiohttp.ClientTimeout(total=FILE_S)
    async with http.post("/v1/audio/transcriptions", data=form, timeout=limits) as response:
        await check(response)
        if "text" not in await response.json():
            raise Failed("the answer has no text")
    return time.monotonic() - began
