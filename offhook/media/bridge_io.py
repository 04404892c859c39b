"""Bridges two legs: each receives the other's audio and DTMF."""

from collections.abc import Callable

from loguru import logger

from offhook.media.codecs.resample import Resampler
from offhook.media.end_reason import EndReason
from offhook.media.leg import Leg, LegError, LegListener
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.media.tasks_io import first_of

MAX_QUEUED = 2 * SAMPLES_OUT
"""Samples a playout may hold; what arrives beyond that is discarded. Both legs run on one clock, so
audio waits at most one tick; whatever a stalled leg has accumulated is skipped, because playing it
would delay the rest of the call."""


class Bridge:
    """Joins two legs until `close`. Audio already queued in their playouts is played first; flush
    them beforehand to avoid that. The bridge is the legs' listener meanwhile."""

    def __init__(self, a: Leg, b: Leg, on_over: Callable[[], None] = lambda: None) -> None:
        """`on_over` is called when the first of them closes, before anybody who awaits that; at
        once if one has."""
        self._legs, self._on_over = (a, b), on_over
        self._is_over = False
        self._directions = (_Direction(a, b, self._end), _Direction(b, a, self._end))
        if a.closed is not None or b.closed is not None:
            self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_over()

    async def until_over(self) -> None:
        """Return once one of the legs has closed, and separate them, also if cancelled."""
        try:
            await first_of(*[leg.until_closed() for leg in self._legs])
        finally:
            self.close()

    def close(self) -> None:
        """Separate the legs, which stay up. Idempotent."""
        for direction in self._directions:
            direction.close()


class _Direction(LegListener):
    """Forwards audio and DTMF from one leg to the other."""

    def __init__(self, heard: Leg, said: Leg, on_over: Callable[[], None]) -> None:
        self._source, self._sink = heard, said
        self._on_over = on_over
        self._resampler = Resampler(RATE_IN, RATE_OUT)
        self._listener = heard.listener
        heard.listener = self
        said.playout.begin()
        self._stop: Callable[[], None] | None = heard.listen(self._forward)

    def _forward(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        sound = self._resampler.process(heard)
        if self._sink.playout.queued < MAX_QUEUED:
            self._sink.playout.write(sound)

    def on_closed(self, reason: EndReason) -> None:
        self._on_over()

    def on_held(self, held: bool) -> None:
        """Pause playout to a leg while its far end holds it."""
        if held:
            self._source.playout.pause()
        else:
            self._source.playout.resume()

    def on_dtmf(self, digit: str) -> None:
        try:
            self._sink.send_dtmf(digit)
        except LegError as error:
            logger.warning("{}: DTMF digit not forwarded: {}", self._sink.call_id, error)

    def close(self) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None
            self._sink.playout.end()
            self._source.listener = self._listener
