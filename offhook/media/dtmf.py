"""Keys to be pressed: which there are, for how long, and one after the other.

Whether a press goes out as telephone events or as tones, it is 100 ms long and 100 ms of silence
follow: well over the 40 ms of either that receivers must recognise (ITU-T Q.24, annex A).
"""

from collections import deque
from typing import NamedTuple

from offhook.media.pcm import PACKET_MS

DIGITS = "0123456789*#ABCD"
"""In the order of their event codes (RFC 4733 §3.2)."""
WAIT = ","
TONE_MS = 100
PAUSE_MS = 100
WAIT_MS = 500
TONE_TICKS = TONE_MS // PACKET_MS
PRESS_TICKS = TONE_TICKS + PAUSE_MS // PACKET_MS
MAX_QUEUED = 256
"""Keys and waits not yet pressed. More are refused: they would take most of a minute."""


class DtmfError(ValueError):
    """These keys cannot be pressed."""


class KeyTick(NamedTuple):
    """20 ms of a key's press or of the pause after it."""

    digit: str
    tick: int
    """From 0; the tone lasts for TONE_TICKS."""


class KeyPresses:
    """Keys waiting to be pressed, 20 ms at a time."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque()
        self._tick = 0

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def press(self, digits: str) -> None:
        """Queue 0-9 * # A-D (a-d) and "," to wait. Raises DtmfError, and then queues nothing."""
        keys = digits.upper()
        for key in keys:
            if key not in DIGITS and key != WAIT:
                raise DtmfError(f"{key!r} is not a key: they are 0-9 * # A-D and a comma to wait")
        if len(self._waiting) + len(keys) > MAX_QUEUED:
            raise DtmfError(f"more than {MAX_QUEUED} keys wait to be pressed")
        self._waiting.extend(keys)

    def tick(self) -> KeyTick | None:
        """20 ms pass; None while waiting, and when nothing is to be pressed."""
        if not self._waiting:
            return None
        key, tick = self._waiting[0], self._tick
        self._tick += 1
        if self._tick == (WAIT_MS // PACKET_MS if key == WAIT else PRESS_TICKS):
            self.skip()
        return None if key == WAIT else KeyTick(key, tick)

    def skip(self) -> None:
        """Have done with the key being pressed, if one is."""
        if self._tick:
            self._waiting.popleft()
            self._tick = 0
