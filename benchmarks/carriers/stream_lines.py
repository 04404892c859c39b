"""`offhook bench stream_lines`: what 20 ms of a carrier's stream cost the server.

Calls that echo: what a far end says comes back to it. Counted is what happens between the kernel
and the leg, in both directions, and the leg itself: the data of a WebSocket in, its messages,
jitter buffer and decoder; playout, encoder, messages and the data of a WebSocket out. The kernel,
the event loop and the conversation are left out; `offhook bench carriers load` has the
first two.

The compiled path and the Python one take turns in one process, tick by tick, by a clock of their
own that does not wait, and only the CPU time of their steps is counted: other work on the machine
does little harm.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.callers.rtp import lines
from benchmarks.carriers.far_ends.far_end import FarEnd
from benchmarks.carriers.far_ends.far_end_io import FAR_ENDS, at_rate
from benchmarks.command import command
from benchmarks.media.phone_lines import on_path
from offhook.media import native
from offhook.media.codecs.g711 import ULAW_LEVELS
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, Pcm
from offhook.telephony.carriers.exotel.stream import ExotelStream
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.plivo.stream import PlivoStream
from offhook.telephony.carriers.streams import websocket_io
from offhook.telephony.carriers.streams.frames import unmasked
from offhook.telephony.carriers.streams.stream import CarrierStream, Format
from offhook.telephony.carriers.streams.websocket_io import StreamSocket
from offhook.telephony.carriers.telnyx.stream import TelnyxStream
from offhook.telephony.carriers.twilio.stream import TwilioStream
from offhook.telephony.carriers.vonage.stream import VonageStream
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import freeze_loaded_objects

SETTLE_S = 2.0
STEPS = ("read", "hear", "say")
"""From the socket's data to the jitter buffer; from there to 320 samples; echo, playout, encoder,
messages and the data for the socket."""
MASK = b"\x37\xfa\x21\x3d"


L16 = {"encoding": "l16", "rate": 16_000}

KINDS: dict[str, tuple[Callable[[], CarrierStream], dict[str, Any]]] = {
    "twilio": (TwilioStream, {}),
    "telnyx": (lambda: TelnyxStream(Format("pcmu", 8000)), {}),
    "telnyx-l16": (lambda: TelnyxStream(Format("l16", 16_000)), L16),
    "plivo": (PlivoStream, {}),
    "plivo-l16": (PlivoStream, L16),
    "exotel": (ExotelStream, {}),
    "vonage": (VonageStream, {"rate": 16_000}),
}
"""Streams, and the options of their far ends."""


class Wire:
    """A transport to a far end in this process: no kernel, no event loop."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def get_extra_info(self, name: str) -> None:
        return None


def client_frame(message: str | bytes) -> bytes:
    """A message as a client sends it, in one masked frame."""
    text = isinstance(message, str)
    payload = message.encode() if isinstance(message, str) else message
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return (b"\x81" if text else b"\x82") + length + MASK + unmasked(payload, MASK)


def messages_in(data: bytes) -> Iterator[str | bytes]:
    """The messages of a server's frames, none of which is fragmented."""
    at = 0
    while at < len(data):
        opcode, size, start = data[at] & 15, data[at + 1], at + 2
        if size >= 126:
            start += 2 if size == 126 else 8
            size = int.from_bytes(data[at + 2 : start], "big")
        payload = data[start : start + size]
        if opcode in (1, 2):
            yield payload.decode() if opcode == 1 else payload
        at = start + size


def compact(message: str | bytes) -> str | bytes:
    """JSON without spaces, as carriers send it."""
    if isinstance(message, bytes):
        return message
    return json.dumps(json.loads(message), separators=(",", ":"))


class Line:
    """A call: its leg, socket and far end."""

    def __init__(self, number: int, kind: str, said: Pcm, chance: Random) -> None:
        make, options = KINDS[kind]
        self.far_end: FarEnd = FAR_ENDS[kind.partition("-")[0]](**options)
        self._said = at_rate(said, 8_000, self.far_end.rate)
        self._at = chance.randrange(len(self._said))
        self.wire, self.socket = Wire(), StreamSocket()
        self.socket._transport = self.wire  # type: ignore[assignment]
        self.socket._request = SimpleNamespace(  # type: ignore[assignment]
            protocol=SimpleNamespace(set_parser=lambda parser: None), transport=self.wire
        )
        self.leg = CarrierLeg(str(number), make(), self.socket.send)
        self._resampler = Resampler(RATE_IN, RATE_OUT)
        self.leg.listen(self._echo)
        self.coming: list[bytes] = []
        """Data for the socket in this tick."""
        self.came = 0
        """Messages that came back."""

    def _echo(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        self.leg.playout.write(self._resampler.process(heard))

    def play(self, now: float) -> None:
        """20 ms pass at the far end."""
        sent, self.wire.sent = self.wire.sent, []
        for message in messages_in(b"".join(sent)):
            self.far_end.receive(message, now)
            self.came += 1
        frame = self.far_end.player.frame
        self.far_end.say(self._said.take(range(self._at, self._at + frame), mode="wrap"))
        self._at = (self._at + frame) % len(self._said)
        self.far_end.tick(now)
        # Each in a segment of its own, as they come.
        self.coming = [client_frame(compact(m)) for m in self.far_end.messages_to_send()]


class Lines:
    """Calls on one path."""

    def __init__(self, compiled: bool) -> None:
        self.compiled = compiled
        self._spent_ns = [0] * len(STEPS)
        self._ticks = 0
        self._lines: list[Line] = []
        self._open = AsyncExitStack()

    async def open(self, calls: int, kind: str, said: Sequence[Pcm], now: float) -> None:
        chance = Random(1)
        with on_path(self.compiled):
            for number in range(calls):
                line = Line(number, kind, said[number % len(said)], chance)
                await self._open.enter_async_context(line.socket.line(line.leg))
                line.far_end.open(now)
                self._lines.append(line)

    async def tick(self, now: float, counted: bool) -> None:
        lines = self._lines
        for line in lines:
            line.play(now)
        with on_path(self.compiled):
            at = [time.thread_time_ns()]
            for line in lines:
                for data in line.coming:
                    line.socket.feed_data(data)
            for line in lines:
                line.leg.begin_tick()
            at.append(time.thread_time_ns())
            for line in lines:
                line.leg.receive_tick(now)
            at.append(time.thread_time_ns())
            for line in lines:
                line.leg.send_tick(now)
            for line in lines:
                line.socket._flush()
            at.append(time.thread_time_ns())
        await asyncio.sleep(0)
        if counted:
            self._ticks += len(lines)
            for step in range(len(STEPS)):
                self._spent_ns[step] += at[step + 1] - at[step]

    def as_dict(self) -> dict[str, Any]:
        us = [spent / 1000 / self._ticks for spent in self._spent_ns]
        steps = {name: round(each, 2) for name, each in zip(STEPS, us, strict=True)}
        legs, faults = (
            [line.leg for line in self._lines],
            [line.far_end.faults for line in self._lines],
        )
        assert not any(leg.closed for leg in legs), legs[0].closed
        return {
            "path": "compiled" if self.compiled else "python",
            **steps,
            "us": round(sum(us), 2),
            "received": sum(leg.statistics().packets_received for leg in legs),
            "concealed_ms": sum(leg.statistics().concealed_ms for leg in legs),
            "back": sum(line.came for line in self._lines),
            "faults": sum(sum(fault.values()) for fault in faults),
        }

    async def close(self) -> None:
        for line in self._lines:
            line.leg.close("done")
            line.socket._ended.set()
        await self._open.aclose()


async def compare(kind: str, calls: int, seconds: float) -> list[dict[str, Any]]:
    """What the steps cost on each path."""
    said = [ULAW_LEVELS[np.frombuffer(b"".join(line), np.uint8)] for line in await lines(0.5)]
    paths = [Lines(compiled) for compiled in (False, True)[: 1 + native.BUILT]]
    now = time.monotonic()
    websocket_io.monotonic = lambda: now  # type: ignore[attr-defined]
    for each in paths:
        await each.open(calls, kind, said, now)
    freeze_loaded_objects()
    for tick in range(round((SETTLE_S + seconds) * 1000 / PACKET_MS)):
        now += PACKET_MS / 1000
        for each in paths:
            await each.tick(now, tick * PACKET_MS >= SETTLE_S * 1000)
    found = [{"stream": kind, "calls": calls, **each.as_dict()} for each in paths]
    for each in paths:
        await each.close()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command("stream_lines", __doc__)
    parser.add_argument("--streams", default="twilio", help=f"of {','.join(KINDS)}")
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0)
    a = parser.parse_args(arguments)
    kinds = a.streams.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"no such stream: {', '.join(sorted(unknown))}")
    set_up(Log(level="WARNING"))
    for kind in kinds:
        for found in asyncio.run(compare(kind, a.calls, a.seconds)):
            print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
