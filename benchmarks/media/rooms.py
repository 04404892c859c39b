"""`offhook bench rooms`: what a member of a room costs the server, and what of that is the room.

Rooms of four lines, of which one or two speak at a time. Sockets, signalling and agents are left
out. The same lines are ticked in rooms and each alone, where it is sent one sound, so that the
difference is the mix, compiled or not, tick by tick. Only the CPU time of their ticks is counted.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle

import numpy as np

from benchmarks.command import command
from offhook.media import native
from offhook.media.codecs.codec import Decoder, Encoder
from offhook.media.codecs.g711 import PcmuDecoder, PcmuEncoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder
from offhook.media.pcm import PACKET_MS, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.media.rooms.room import Member, Room
from offhook.media.rtp.rtp import RtpPacket
from offhook.media.rtp.rtp_leg import RtpFormat, RtpLeg

PAYLOAD_TYPE = 96
WARM_UP_TICKS = 50
CODECS: dict[str, tuple[type[Encoder], type[Decoder], int]] = {
    "pcmu": (PcmuEncoder, PcmuDecoder, 160),
    "opus": (OpusEncoder, OpusDecoder, 960),
}
"""With the samples of a packet by the clock of RTP."""


class _Line(RtpLeg):
    """A line whose far end sends sound or silence, and whose packets go nowhere."""

    def __init__(self, name: str, codec: str) -> None:
        super().__init__(name)
        encoder, decoder, self._step = CODECS[codec]
        decoders = {PAYLOAD_TYPE: decoder}
        self._open(RtpFormat(codec, decoders, encoder, PAYLOAD_TYPE, dtx=False), 1, 0.0)
        self._number = 0
        self.connect()

    def arrive(self, payload: bytes, now: float) -> None:
        """A packet comes from the far end."""
        n = self._number
        packet = RtpPacket(PAYLOAD_TYPE, n & 0xFFFF, n * self._step, 2, payload, marker=not n)
        self.receive_rtp(packet.serialize(), now)
        self._number += 1

    def _send_rtp(self, packet: bytes) -> None:
        pass

    def _send_rtcp(self, packet: bytes) -> None:
        pass


def _sound(seconds: float, peak: float) -> Pcm:
    """Noise that swells and fades as words do."""
    random, at = np.random.default_rng(7), np.arange(int(seconds * RATE_OUT)) / RATE_OUT
    loudness = peak * (0.5 - 0.5 * np.cos(2 * np.pi * 4 * at))
    sound: Pcm = (loudness * random.standard_normal(len(at)).clip(-3, 3) / 3).astype(np.int16)
    return sound


def _packets(codec: str, sound: Pcm) -> Iterator[bytes]:
    encoder = CODECS[codec][0]()
    starts = range(0, len(sound) - SAMPLES_OUT + 1, SAMPLES_OUT)
    return cycle([encoder.encode(sound[at : at + SAMPLES_OUT]) for at in starts])


@dataclass(frozen=True)
class Cost:
    """Of one codec and so many who speak in each room. Microseconds are of CPU, for 20 ms."""

    codec: str
    rooms: int
    members: int
    speaking: int
    alone_us: float
    """Of a line that is in no room."""
    member_us: float
    """Of a line in a room."""
    python_us: float
    """The same where the mix is not compiled, but all else is."""
    core_percent: float
    """Of one core, for all rooms."""

    @property
    def mix_us(self) -> float:
        """What the room adds for each member."""
        return self.member_us - self.alone_us


def measure(codec: str, rooms: int, members: int, speaking: int, ticks: int) -> Cost:
    lines = [[_Line(f"{r}.{m}", codec) for m in range(members)] for r in range(rooms)]
    everybody = [line for room in lines for line in room]
    words, quiet = _packets(codec, _sound(2, 9000)), _packets(codec, _sound(2, 0))
    said = _sound(2, 9000)

    def arrive(now: float) -> None:
        for room in lines:
            word, silence = next(words), next(quiet)
            for number, line in enumerate(room):
                line.arrive(word if number < speaking else silence, now)

    def alone(now: float, tick: int) -> None:
        at = tick % 100 * SAMPLES_OUT
        for line in everybody:
            line.playout.write(said[at : at + SAMPLES_OUT])
        for line in everybody:
            line.receive_tick(now)
        for line in everybody:
            line.send_tick(now)

    tick, alone_ns = 0, 0
    for tick in range(WARM_UP_TICKS + ticks):
        now = tick * PACKET_MS / 1000
        arrive(now)
        began = time.thread_time_ns()
        alone(now, tick)
        if tick >= WARM_UP_TICKS:
            alone_ns += time.thread_time_ns() - began
    opened = [Room(str(number)) for number in range(rooms)]
    for room, group in zip(opened, lines, strict=True):
        for line in group:
            line.playout.flush()
            room.join(Member(line.call_id, line))
    mixed_ns = {True: 0, False: 0}
    for more in range(2 * (WARM_UP_TICKS + ticks)):
        native.used = bool(more % 2) and native.BUILT
        now = (tick + 1 + more) * PACKET_MS / 1000
        arrive(now)
        began = time.thread_time_ns()
        for room in opened:
            room.receive_tick(now)
        for room in opened:
            room.send_tick(now)
        if more >= 2 * WARM_UP_TICKS:
            mixed_ns[bool(more % 2)] += time.thread_time_ns() - began
    native.used = native.BUILT
    each = 1000 * ticks * len(everybody)
    member_us, python_us = mixed_ns[True] / each, mixed_ns[False] / each
    share = member_us * len(everybody) / (PACKET_MS * 1000) * 100
    return Cost(
        codec,
        rooms,
        members,
        speaking,
        round(alone_ns / each, 1),
        round(member_us, 1),
        round(python_us, 1),
        round(share, 1),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser: argparse.ArgumentParser = command("rooms", __doc__)
    parser.add_argument("--rooms", type=int, default=50)
    parser.add_argument("--members", type=int, default=4, help="of each room")
    parser.add_argument("--seconds", type=float, default=10.0, help="of sound, for each line")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    ticks = int(given.seconds * 1000 / PACKET_MS)
    costs = [
        measure(codec, given.rooms, given.members, speaking, ticks)
        for codec in CODECS
        for speaking in (1, 2)
    ]
    if given.json:
        print(json.dumps([{**asdict(cost), "mix_us": round(cost.mix_us, 1)} for cost in costs]))
        return 0
    print(f"{given.rooms} rooms of {given.members}; CPU for 20 ms of one line")
    for cost in costs:
        print(
            f"{cost.codec}, {cost.speaking} speaking: {cost.alone_us:6.1f} us alone, "
            f"{cost.member_us:6.1f} us in a room ({cost.mix_us:+.1f}; "
            f"{cost.python_us - cost.alone_us:+.1f} with the mix in Python); "
            f"all rooms {cost.core_percent:.1f} % of a core"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
