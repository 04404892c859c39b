"""The queue of DTMF digits to send and their timing.

Whether sent as telephone events or as tones, a digit lasts 100 ms and is followed by 100 ms of
silence: well over the 40 ms that receivers must recognize (ITU-T Q.24, annex A).
"""

from collections import deque
from typing import NamedTuple

from offhook.media.pcm import PACKET_MS

DIGITS = "0123456789*#ABCD"
"""DTMF digits in the order of their event codes (RFC 4733 §3.2)."""
PAUSE_KEY = ","
TONE_MS = 100
"""Length in ms of a digit's tone."""
PAUSE_MS = 100
"""Length in ms of the silence after it."""
PAUSE_KEY_MS = 500
"""Length in ms of the pause that a comma stands for."""
TONE_TICKS = TONE_MS // PACKET_MS
"""Length of a digit's tone in ticks."""
DIGIT_TICKS = TONE_TICKS + PAUSE_MS // PACKET_MS
"""Length of a digit in ticks, the silence after it included."""
MAX_QUEUED = 256
"""Maximum digits and pauses queued; more are refused, as they would last most of a minute."""


class DtmfError(ValueError):
    """The digits are invalid or too many."""


class DtmfTick(NamedTuple):
    """One 20 ms tick of a digit or of the silence after it."""

    digit: str
    tick: int
    """Ticks since the digit began, from 0; the tone lasts for TONE_TICKS."""


class DtmfQueue:
    """DTMF digits waiting to be sent, in ticks of 20 ms."""

    def __init__(self) -> None:
        self._queue: deque[str] = deque()
        self._tick = 0

    @property
    def busy(self) -> bool:
        return bool(self._queue)

    def press(self, digits: str) -> None:
        """Queue the digits 0-9 * # A-D (a-d); "," pauses for 500 ms. Raises DtmfError and queues
        nothing if any is invalid or the queue is full."""
        keys = digits.upper()
        for key in keys:
            if key not in DIGITS and key != PAUSE_KEY:
                raise DtmfError(f"{key!r} is not a DTMF digit: use 0-9 * # A-D or a comma")
        if len(self._queue) + len(keys) > MAX_QUEUED:
            raise DtmfError(f"more than {MAX_QUEUED} DTMF digits are queued")
        self._queue.extend(keys)

    def tick(self) -> DtmfTick | None:
        """Advance by 20 ms. Returns the digit being sent, or None if there is none."""
        if not self._queue:
            return None
        key, tick = self._queue[0], self._tick
        self._tick += 1
        if self._tick == (PAUSE_KEY_MS // PACKET_MS if key == PAUSE_KEY else DIGIT_TICKS):
            self.skip()
        return None if key == PAUSE_KEY else DtmfTick(key, tick)

    def skip(self) -> None:
        """Drop the digit being sent, if any."""
        if self._tick:
            self._queue.popleft()
            self._tick = 0
