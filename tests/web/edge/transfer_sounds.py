"""What a caller heard, told second by second from the sound that reached them: who or what it was
by its pitch, as each has one of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from offhook.media.codecs.g711 import ULAW_LEVELS
from offhook.media.pcm import Pcm
from offhook.media.rtp.rtp import RtpPacket

RATE = 8000
"""Hz of all sound here."""
BLOCK = RATE // 10
"""Samples told apart at a time: 100 ms."""
AUDIBLE = 200
"""RMS of a block beyond which it is no silence."""
NEAR_HZ = 20
SILENCE = ""


@dataclass(frozen=True)
class Heard:
    """The sound that reached a caller, in the order and at the times of its own clock."""

    pcm: Pcm
    pitches: Mapping[float, str]
    """Names by Hz; `other` is whatever has none of them."""
    other: str = "?"

    @property
    def blocks(self) -> list[str]:
        """A name each 100 ms."""
        count = len(self.pcm) // BLOCK
        return [self._name(self.pcm[at * BLOCK : (at + 1) * BLOCK]) for at in range(count)]

    def _name(self, block: Pcm) -> str:
        if np.sqrt((block.astype(float) ** 2).mean()) < AUDIBLE:
            return SILENCE
        spectrum = np.abs(np.fft.rfft(block * np.hanning(len(block)), 8 * len(block)))
        hz = float(np.argmax(spectrum)) * RATE / (8 * len(block))
        near = min(self.pitches, key=lambda pitch: abs(pitch - hz))
        return self.pitches[near] if abs(near - hz) < NEAR_HZ else self.other

    @property
    def seconds(self) -> list[str]:
        """All that was heard in each second."""
        blocks = self.blocks
        per = RATE // BLOCK
        each = [blocks[at : at + per] for at in range(0, len(blocks), per)]
        return ["+".join(dict.fromkeys(filter(None, second))) or "-" for second in each]

    @property
    def order(self) -> list[str]:
        """What was heard after one another. What lasts for one block is where two meet."""
        runs = [(name, len(list(run))) for name, run in groupby(filter(None, self.blocks))]
        return [name for name, _ in groupby(name for name, count in runs if count > 1)]

    @property
    def longest_silence(self) -> int:
        """The most blocks without any sound, once there was one."""
        runs = [(name, len(list(run))) for name, run in groupby(self.blocks)]
        return max((n for name, n in runs[1:] if name == SILENCE), default=0)


def sound_of(packets: Sequence[RtpPacket]) -> Pcm:
    """The PCMU of RTP packets, each at its timestamp: what was not sent is silence."""
    first = packets[0].timestamp
    pieces = {
        (packet.timestamp - first) & 0xFFFF_FFFF: ULAW_LEVELS[
            np.frombuffer(packet.payload, np.uint8)
        ]
        for packet in packets
    }
    sound = np.zeros(max(at + len(piece) for at, piece in pieces.items()), np.int16)
    for at, piece in pieces.items():
        sound[at : at + len(piece)] = piece
    return sound


def table(rows: Sequence[tuple[str, str, Heard | None, str]]) -> str:
    """Rows of the transfer, what came of it, what was heard, and how it ended."""
    lines = []
    for way, outcome, heard, end in rows:
        told = [] if heard is None else heard.seconds
        each = [f"{len(list(run))} s {name}" for name, run in groupby(told)]
        silence = "" if heard is None else f"{heard.longest_silence * BLOCK / RATE:.1f}"
        lines.append((way, outcome, ", ".join(each), silence, end))
    head = ("transfer", "outcome", "heard in each second", "silence, s", "then")
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, *lines)
    )
