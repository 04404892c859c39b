"""What a caller hears while another side rings: a sound of ours, until the network there plays one.

Before the answer the far end may send early media (RFC 3960): its ringing tone, an announcement. It
is heard instead of ours from its first audible packet on, since many far ends offer early media and
send silence.
"""

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.media.playout import AUDIBLE

EARLY_GAP_S = 1.5
"""Seconds without a packet after which early media have ended, and ours is heard again."""
EARLY_PAUSE_S = 6.0
"""Seconds of silent packets after which they have: longer than the pause of any ringing tone, which
is 5 s at most (ITU-T E.180)."""
MAX_EARLY_TICKS = 3
"""Ticks of early media that may wait, the oldest are dropped: both legs run on one clock, so more
would be delay."""

_SILENCE = np.zeros(SAMPLES_OUT, np.int16)


class Ringback:
    """An endless iterator of 480 samples a tick, at 24 kHz."""

    def __init__(self, begin: Callable[[], Iterator[Pcm]]) -> None:
        """`begin` returns our sound, which must not end, from its beginning."""
        self._begin = begin
        self._sound = begin()
        self._resampler = Resampler(RATE_IN, RATE_OUT)
        self._early: deque[Pcm] = deque(maxlen=MAX_EARLY_TICKS)
        self._audible_at: float | None = None
        """When early media were audible last; None while ours is heard."""

    def __iter__(self) -> Iterator[Pcm]:
        return self

    def __next__(self) -> Pcm:
        if self._audible_at is not None:
            return self._early.popleft() if self._early else _SILENCE
        return next(self._sound)

    def receive(self, heard: Pcm, last_packet_at: float, now: float) -> None:
        """Take a tick of early media, 320 samples at 16 kHz; the times are in seconds."""
        if max(int(heard.max()), -int(heard.min())) > AUDIBLE:
            self._audible_at = now
        elif self._audible_at is not None:
            paused_s = now - self._audible_at
            if paused_s > EARLY_PAUSE_S or min(paused_s, now - last_packet_at) > EARLY_GAP_S:
                self.end_early()
        sound = self._resampler.process(heard)  # always: it goes on
        if self._audible_at is not None:
            self._early.append(sound)

    def end_early(self) -> None:
        """No more early media come: ours is heard, from its beginning if they were before."""
        if self._audible_at is not None:
            self._audible_at, self._sound = None, self._begin()
        self._early.clear()
