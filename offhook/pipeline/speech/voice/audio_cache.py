"""Caches completed replies for reuse, since greetings and menus recur all the time.

The key is a digest of everything that affects the audio. The least recently used replies are
evicted when the size limit is reached.
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
"""Format version of a packed reply; part of every key, so other versions' replies are never
found."""
PIECE_BYTES = 200
"""Approximate overhead of a piece besides samples and text."""
_HEADER = struct.Struct("<II")
"""Header of a packed piece: number of samples, bytes of UTF-8."""


def reply_key(engine: str, text: str, options: VoiceOptions) -> str:
    """Returns the key of a reply. `engine` names the engine, its model and anything else that
    affects the audio. Without a seed any rendering is acceptable; callers that want variety skip
    the cache."""
    said = (text, options.voice, options.language, options.instructions)
    how = (options.speed, options.normalise, options.seed, options.whole_text)
    return hashlib.sha256(json.dumps((FORMAT, engine, said, how)).encode()).hexdigest()


def pack(pieces: Sequence[Speech]) -> bytes:
    """Packs a reply: lengths, 16-bit samples and text of each piece."""
    parts = []
    for piece in pieces:
        text = piece.text.encode()
        samples = np.ascontiguousarray(piece.pcm, "<i2").tobytes()
        parts += [_HEADER.pack(len(piece.pcm), len(text)), samples, text]
    return b"".join(parts)


def unpack(packed: bytes) -> list[Speech]:
    """Unpacks a reply. Raises ValueError if the bytes are invalid."""
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
class CacheCounters:
    hits: int = 0
    misses: int = 0
    evicted: int = 0


class AudioCache:
    """Replies of this process, `limit_bytes` in total. A reply larger than a quarter of that is not
    cached, because it would evict all others."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self.counts = CacheCounters()
        self._replies: OrderedDict[str, tuple[Speech, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, key: str) -> list[Speech] | None:
        """Returns the reply's pieces, whose samples must not be modified; None if not cached."""
        pieces = self._replies.get(key)
        if pieces is None:
            self.counts.misses += 1
            return None
        self._replies.move_to_end(key)
        self.counts.hits += 1
        return list(pieces)

    def put(self, key: str, pieces: Sequence[Speech]) -> None:
        """Caches a completely spoken reply."""
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
