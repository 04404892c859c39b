"""Lightweight RTP sender and receiver for many calls.

Arrival times are the kernel's (SO_TIMESTAMPNS), so a late process of callers makes no received
packet late, only its own; see `Pace.read_late_ms`.
"""

import asyncio
import secrets
import socket
import struct
from array import array
from collections.abc import Callable, Iterator
from math import ceil
from random import Random
from time import monotonic
from typing import Any, Protocol

import numpy as np

from benchmarks.processes.own_server import HOST
from benchmarks.speech.lines import caller_lines, encode
from benchmarks.speech.recordings import Packets
from benchmarks.table import percentiles
from offhook.media.codecs.codec import Encoder
from offhook.media.codecs.g711 import PcmuEncoder
from offhook.media.pcm import PACKET_MS, RATE_OUT
from offhook.media.rtp.rtp import HEADER_BYTES, uint16_diff, uint32_diff

PCMU, G722 = 0, 9
CODECS = {PCMU: "PCMU", G722: "G722"}
"""By their payload types (RFC 3551 §6)."""
CLOCK_RATE = 8_000
TICKS = CLOCK_RATE * PACKET_MS // 1000
PHASES = 10
"""Groups of calls that send one after another within 20 ms."""
PHASE_S = PACKET_MS / 1000 / PHASES
SO_TIMESTAMPNS = 35
"""Linux constant that Python lacks; the ancillary data has the same type."""
_TIMESPEC = struct.Struct("ll")
_RTP = struct.Struct("!BBHII")


async def lines(pause: float, make: Callable[[], Encoder] = PcmuEncoder) -> list[Packets]:
    """Returns spoken lines, each followed by `pause` seconds of a quiet room."""
    room = np.random.default_rng(1).integers(-8, 9, int(RATE_OUT * pause)).astype(np.int16)
    return [encode(np.concatenate((pcm, room)), make()) for pcm in await caller_lines()]


def offer(port: int, host: str = HOST, payload_type: int = PCMU) -> str:
    """Returns the SDP offer of a phone with audio at this address in PCMU or G722."""
    lines = (
        "v=0",
        f"o=- {secrets.randbits(32)} 1 IN IP4 {host}",
        "s=-",
        f"c=IN IP4 {host}",
        "t=0 0",
        f"m=audio {port} RTP/AVP {payload_type} 101",
        f"a=rtpmap:{payload_type} {CODECS[payload_type]}/8000",
        "a=rtpmap:101 telephone-event/8000",
        "a=ptime:20",
        "a=rtcp-mux",
    )
    return "".join(f"{line}\r\n" for line in lines)


class Heard:
    """The packets of one call since counting began."""

    def __init__(self) -> None:
        self.packets = 0
        self.missing = 0
        """Sequence numbers never received."""
        self._sequence: int | None = None
        self._first_timestamp = 0
        self._transits = array("d")
        """Arrival minus timestamp of each packet, in s."""

    def add(self, sequence: int, timestamp: int, arrived: float) -> None:
        if self._sequence is None:
            self._first_timestamp = timestamp
        else:
            self.missing += max(0, uint16_diff(sequence, self._sequence) - 1)
        self._sequence = sequence
        self.packets += 1
        at = uint32_diff(timestamp, self._first_timestamp) / CLOCK_RATE
        self._transits.append(arrived - at)

    def late_ms(self) -> Any:
        """Returns the lateness of every packet, by its timestamp, relative to the most punctual."""
        transits = np.frombuffer(self._transits, np.float64)
        return (transits - transits.min()) * 1000 if len(transits) else transits


class RtpSocket:
    """One call's RTP on its own socket, connected to its far end. RTCP arrives at the same port and
    is ignored."""

    def __init__(self, chance: Random, host: str = HOST) -> None:
        self.timestamp = chance.getrandbits(32)
        """Of the last packet of sound."""
        self._ssrc = chance.getrandbits(32)
        self._sequence = chance.getrandbits(15)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._socket.bind((host, 0))

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def connect(self, remote: tuple[str, int]) -> None:
        self._socket.connect(remote)

    def packet(
        self,
        payload: bytes,
        payload_type: int = PCMU,
        timestamp: int | None = None,
        marker: bool = False,
    ) -> bytes:
        """Returns the next packet, 20 ms after the last one; `timestamp`, if not its own, is that
        of a telephone event."""
        self._sequence = self._sequence + 1 & 0xFFFF
        self.timestamp = self.timestamp + TICKS & 0xFFFFFFFF
        at = self.timestamp if timestamp is None else timestamp
        kind = payload_type | marker << 7
        return _RTP.pack(0x80, kind, self._sequence, at, self._ssrc) + payload

    def send(self, packet: bytes) -> bool:
        """Returns False if the far end is gone; its BYE is on the way."""
        try:
            self._socket.send(packet)
        except OSError:
            return False
        return True

    def receive(self) -> Iterator[tuple[int, int, bytes, float]]:
        """Yields sequence number, timestamp, payload and arrival of the packets that have arrived;
        the arrival in s of the wall clock."""
        receive = self._socket.recvmsg
        while True:
            try:
                data, ancillary, _, _ = receive(2048, 64)
            except BlockingIOError:
                return
            except OSError:
                if self._socket.fileno() < 0:
                    return
                continue
            if len(data) > HEADER_BYTES and not 192 <= data[1] <= 223:
                _, _, sequence, timestamp, _ = _RTP.unpack_from(data)
                seconds, ns = _TIMESPEC.unpack_from(ancillary[0][2])
                yield sequence, timestamp, data[HEADER_BYTES:], seconds + ns * 1e-9

    def close(self) -> None:
        self._socket.close()


class Sound(RtpSocket):
    """A call that says the same payloads again and again."""

    def __init__(
        self, payloads: Packets, chance: Random, payload_type: int = PCMU, loss: float = 0.0
    ) -> None:
        """`loss` is the fraction of its packets that get lost."""
        self._chance = chance
        self._loss = loss
        self._heard = Heard()
        self._payload_type = payload_type
        self._sent = 0
        self._payloads = payloads
        self._at = chance.randrange(len(payloads))
        super().__init__(chance)

    def tick(self) -> None:
        """Sends 20 ms and receives what has arrived."""
        self._at = (self._at + 1) % len(self._payloads)
        packet = self.packet(self._payloads[self._at], self._payload_type)
        if self._loss and self._chance.random() < self._loss:
            self._sent += 1
        else:
            self._sent += self.send(packet)
        self.drain()

    def drain(self) -> None:
        add = self._heard.add
        for sequence, timestamp, _, arrived in self.receive():
            add(sequence, timestamp, arrived)

    def read(self) -> tuple[int, Heard]:
        """Returns packets sent and received since the last call."""
        taken = self._sent, self._heard
        self._sent, self._heard = 0, Heard()
        return taken


class Ticking(Protocol):
    def tick(self) -> None: ...


class Pace:
    """Sends each call's audio every 20 ms, a tenth of the calls at a time."""

    def __init__(self) -> None:
        self._phases: list[list[Ticking]] = [[] for _ in range(PHASES)]
        self._phase = 0
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._late: list[float] = []

    def add(self, sound: Ticking) -> None:
        min(self._phases, key=len).append(sound)
        if self._handle is None:
            self._due = monotonic()
            self._run()

    def remove(self, sound: Ticking) -> None:
        for phase in self._phases:
            if sound in phase:
                phase.remove(sound)

    def read_late_ms(self) -> dict[str, float]:
        """Returns how late they sent since the last call."""
        late, self._late = self._late, []
        return percentiles([one * 1000 for one in late])

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        now = monotonic()
        while self._due <= now:
            phase = self._phases[self._phase]
            if phase:
                self._late.append(now - self._due)
            for sound in tuple(phase):
                sound.tick()
            self._phase = (self._phase + 1) % PHASES
            self._due += PHASE_S
        wait = max(1, ceil((self._due - monotonic()) * 1000)) / 1000
        self._handle = asyncio.get_running_loop().call_later(wait, self._run)
