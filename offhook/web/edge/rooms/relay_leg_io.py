"""The sound of one member, between the process that has the line and the one that has the room.

{"state": "joined"}    the member is there; nothing for as long as a phone rings
{"digit": "5"}         a key was pressed
{"left": "busy"}       why the side that sends it has closed; its last message
binary                 20 ms of sound, 480 samples of int16 at 24 kHz, in the machine's byte
                       order; nothing while nobody says anything
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import aiohttp
import numpy as np
from aiohttp import web

from offhook.media.codecs.resample import Resampler
from offhook.media.end_reason import End
from offhook.media.leg import Leg
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_IN, SAMPLES_OUT, Pcm
from offhook.media.tasks_io import TaskSet
from offhook.web.edge.rooms.requests import MemberRequest

MAX_WAITING = 5
"""Packets, 100 ms, that wait in each direction; of what comes faster the oldest are dropped, of
what cannot be sent the newest."""
MAX_NOTES = 32
"""Messages beside the sound that wait to be sent; the connection is closed when there are more."""
MAX_MESSAGE_BYTES = 16 * 1024
"""Maximum bytes of a message of the other process; a larger one closes the connection."""
_SILENCE = np.zeros(SAMPLES_IN, np.int16)

RelaySocket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class Elsewhere(Protocol):
    """The other processes of a server."""

    def process_with(self, asked: MemberRequest) -> int | None:
        """Number of the process with the line of a member; None: this one, or none."""

    async def relay(self, number: int, tenant: str) -> aiohttp.ClientWebSocketResponse:
        """Connects to it, for a tenant or "" the operator. Raises ClientError, TimeoutError."""


class RelayLeg(Leg):
    """A line whose far end is in another process of this server."""

    def __init__(self, call_id: str) -> None:
        super().__init__(call_id)
        self._coming: deque[Pcm] = deque(maxlen=MAX_WAITING)
        self._going: asyncio.Queue[bytes | str] = asyncio.Queue(MAX_WAITING + MAX_NOTES)
        self._resampler = Resampler(RATE_OUT, RATE_IN)

    def note(self, **fields: Any) -> None:
        """Send a message to the other side."""
        if self._going.full():
            self.close(End.SERVER_FAILED)
        else:
            self._going.put_nowait(json.dumps(fields))

    def _receive(self, now: float) -> Pcm:
        return self._resampler.process(self._coming.popleft()) if self._coming else _SILENCE

    def _send(self, said: Pcm | None, now: float) -> None:
        if said is not None and self._going.qsize() < MAX_WAITING:
            self._going.put_nowait(said.tobytes())

    async def carry(self, socket: RelaySocket, on_note: Callable[[dict[str, Any]], None]) -> None:
        """Exchange sound and messages with the other side until one of them closes; then this leg
        is closed, and the socket. `on_note` is called with each message, but for digits and the
        reason of the end."""
        tasks = TaskSet()
        try:
            reading = tasks.spawn(self._read(socket, on_note), f"relay in {self.call_id}")
            writing = tasks.spawn(self._write(socket), f"relay out {self.call_id}")
            closed = tasks.spawn(self.until_closed(), f"relay end {self.call_id}")
            await asyncio.wait((reading, writing, closed), return_when=asyncio.FIRST_COMPLETED)
            self.close(End.SERVER_FAILED)
            with suppress(ConnectionError):
                if not socket.closed:
                    await socket.send_json({"left": str(self.closed)})
        finally:
            await tasks.close()
            await socket.close()

    async def _read(self, socket: RelaySocket, on_note: Callable[[dict[str, Any]], None]) -> None:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY and len(message.data) == 2 * SAMPLES_OUT:
                self._coming.append(np.frombuffer(message.data, np.int16))
            elif message.type is aiohttp.WSMsgType.TEXT:
                note = json.loads(message.data)
                if "left" in note:
                    self.close(note["left"])
                elif "digit" in note:
                    self.receive_digit(note["digit"])
                else:
                    on_note(note)

    async def _write(self, socket: RelaySocket) -> None:
        with suppress(ConnectionError):  # the other process is gone
            while True:
                data = await self._going.get()
                await (socket.send_str(data) if isinstance(data, str) else socket.send_bytes(data))
