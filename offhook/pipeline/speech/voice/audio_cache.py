"""Finished replies kept to be played again: greetings and menus are said a thousand times a day.

A reply is kept under a digest of everything that changes its sound. The least recently used go
first when the bytes are used up.
"""

import hashlib
import json
import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offhook.pipeline.speech.synthesizer import Speech, VoiceOptions

FORMAT = 1
"""Of a packed reply; part of every key, so that another version's replies are not found."""
PIECE_BYTES = 200
"""What a piece takes beside its samples and its text, about."""
_HEADER = struct.Struct("<II")
"""Of a packed piece: samples, bytes of UTF-8."""


def reply_key(engine: str, text: str, options: VoiceOptions) -> str:
    """Under which a reply is kept. `engine` names the engine, its model and what else of it changes
    the sound. Without a seed any rendering will do, so whoever wants another each time does not
    ask."""
    said = (text, options.voice, options.language, options.instructions)
    how = (options.speed, options.normalise, options.seed, options.whole_text)
    return hashlib.sha256(json.dumps((FORMAT, engine, said, how)).encode()).hexdigest()


def pack(pieces: Sequence[Speech]) -> bytes:
    """A reply as bytes: for each piece its lengths, its samples (16 bits) and its text."""
    parts = []
    for piece in pieces:
        text = piece.text.encode()
        samples = np.ascontiguousarray(piece.pcm, "<i2").tobytes()
        parts += [_HEADER.pack(len(piece.pcm), len(text)), samples, text]
    return b"".join(parts)


def unpack(packed: bytes) -> list[Speech]:
    """The reply again. Raises ValueError for bytes that are none."""
    pieces, place = [], 0
    while place < len(packed):
        try:
            samples, letters = _HEADER.unpack_from(packed, place)
        except struct.error as error:
            raise ValueError("a packed reply breaks off") from error
        place += _HEADER.size
        if place + 2 * samples + letters > len(packed):
            raise ValueError("a packed reply breaks off")
        pcm = np.frombuffer(packed, "<i2", samples, place).astype(np.int16, copy=False)
        place += 2 * samples + letters
        pieces.append(Speech(pcm, packed[place - letters : place].decode()))
    return pieces


def size_bytes(pieces: Sequence[Speech]) -> int:
    return sum(piece.pcm.nbytes + len(piece.text) + PIECE_BYTES for piece in pieces)


@dataclass
class CacheCounts:
    hits: int = 0
    misses: int = 0
    evicted: int = 0


class AudioCache:
    """Replies of this process, `limit_bytes` in all. One that is over a quarter of that is not
    kept: it would push out all others."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self.counts = CacheCounts()
        self._replies: OrderedDict[str, tuple[Speech, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, key: str) -> list[Speech] | None:
        """The reply's pieces, whose samples nobody may change; None when it is not kept."""
        pieces = self._replies.get(key)
        if pieces is None:
            self.counts.misses += 1
            return None
        self._replies.move_to_end(key)
        self.counts.hits += 1
        return list(pieces)

    def put(self, key: str, pieces: Sequence[Speech]) -> None:
        """Keep a reply that has been spoken to its end."""
        size = size_bytes(pieces)
        if size > self.limit_bytes // 4:
            return
        if (old := self._replies.pop(key, None)) is not None:
            self.bytes -= size_bytes(old)
        self._replies[key] = tuple(pieces)
        self.bytes += size
        while self.bytes > self.limit_bytes:
            _, gone = self._replies.popitem(last=False)
            self.bytes -= size_bytes(gone)
            self.counts.evicted += 1
