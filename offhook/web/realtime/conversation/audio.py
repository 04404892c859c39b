"""Audio of a conversation as clients get it: encoded in deltas, and kept for a retrieval."""

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from offhook.media.codecs.g711 import ALAW_CODES, CLOCK_RATE, ULAW_CODES
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_OUT, Pcm
from offhook.web.realtime.protocol.session_object import PCM, AudioFormat

MAX_DELTA_BYTES = 96 << 10
"""Maximum bytes of audio in an event, 2 s of PCM: a frame stays below 200 KiB. Longer audio is sent
in several events."""
MAX_STORED_BYTES = 16 << 20
"""Maximum bytes of audio kept for a session, 5 minutes of PCM; beyond it the oldest item's audio is
dropped."""
MAX_RETRIEVED_BYTES = 2 << 20
"""Maximum bytes of audio of a retrieved item, 43 s of PCM; a longer one comes without its audio."""
_CODES = {"audio/pcmu": ULAW_CODES, "audio/pcma": ALAW_CODES}
_STEP = RATE_OUT // CLOCK_RATE


def bytes_per_ms(audio_format: AudioFormat) -> int:
    """Return the bytes of a millisecond of encoded audio."""
    return 2 * RATE_OUT // 1000 if audio_format.type == PCM else CLOCK_RATE // 1000


class AudioEncoder:
    """Encodes a stream of 24 kHz audio in a session's format."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self._codes = _CODES.get(audio_format.type)
        self._resampler = Resampler(RATE_OUT, CLOCK_RATE)
        self._rest = np.zeros(0, np.int16)

    def encode(self, pcm: Pcm) -> Iterator[bytes]:
        """Yield pieces of at most MAX_DELTA_BYTES; up to two samples wait for the next call."""
        if self._codes is None:
            data = pcm.astype("<i2", copy=False).tobytes()
        else:
            waiting = np.concatenate((self._rest, pcm))
            whole = len(waiting) // _STEP * _STEP
            self._rest = waiting[whole:]
            levels = self._resampler.process(waiting[:whole]).view(np.uint16)
            data = self._codes.take(levels).tobytes()
        for at in range(0, len(data), MAX_DELTA_BYTES):
            yield data[at : at + MAX_DELTA_BYTES]


class AudioStore:
    """Encoded audio by item; when full, the oldest item's is dropped."""

    def __init__(self, max_bytes: int = MAX_STORED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._audio: OrderedDict[str, bytearray] = OrderedDict()
        self._bytes = 0

    def append(self, item_id: str, data: bytes) -> None:
        """Keep more audio of an item."""
        self._audio.setdefault(item_id, bytearray()).extend(data)
        self._bytes += len(data)
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._audio.popitem(last=False)[1])

    def get(self, item_id: str) -> bytes:
        """Return what is kept of an item's audio."""
        return bytes(self._audio.get(item_id, b""))

    def truncate(self, item_id: str, size: int) -> None:
        """Keep only the first `size` bytes."""
        audio = self._audio.get(item_id)
        if audio is not None and size < len(audio):
            self._bytes -= len(audio) - size
            del audio[size:]

    def drop(self, item_id: str) -> None:
        """Keep nothing of the item."""
        self._bytes -= len(self._audio.pop(item_id, b""))
