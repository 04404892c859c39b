"""Two lines joined: each hears the other, and gets the keys the other presses."""

from collections.abc import Callable

from loguru import logger

from offhook.media.codecs.resample import Resampler
from offhook.media.leg import Leg, LegError, LegListener
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_OUT, Pcm

MAX_QUEUED = 2 * SAMPLES_OUT
"""Samples that may wait to be said. On one clock none wait for longer than a tick; what a line
that stood still has gathered is not made up for, as it would delay the talk for good."""


class Bridge:
    """Joins two legs from now until `close`. Sound still queued in their playouts is said first:
    flush them if it shall not be. The bridge is the legs' listener meanwhile."""

    def __init__(self, a: Leg, b: Leg) -> None:
        self._ways = (_Way(a, b), _Way(b, a))

    def close(self) -> None:
        """Part the legs, which go on. Idempotent."""
        for way in self._ways:
            way.close()


class _Way(LegListener):
    """What one leg hears and presses, to the other."""

    def __init__(self, heard: Leg, said: Leg) -> None:
        self._heard, self._said = heard, said
        self._resampler = Resampler(RATE_IN, RATE_OUT)
        self._listener = heard.listener
        heard.listener = self
        said.playout.begin()
        self._stop: Callable[[], None] | None = heard.listen(self._hear)

    def _hear(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        sound = self._resampler.process(heard)
        if self._said.playout.queued < MAX_QUEUED:
            self._said.playout.write(sound)

    def on_held(self, held: bool) -> None:
        """Who holds a line has what is said on it wait."""
        if held:
            self._heard.playout.pause()
        else:
            self._heard.playout.resume()

    def on_dtmf(self, digit: str) -> None:
        try:
            self._said.send_dtmf(digit)
        except LegError as error:
            logger.warning("{}: a key is not passed on: {}", self._said.call_id, error)

    def close(self) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None
            self._said.playout.end()
            self._heard.listener = self._listener
