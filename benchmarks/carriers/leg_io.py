"""A scripted caller's line by a carrier: what it hears is what the far end played, tick by tick.

The caller's packet clock is the far end's: each tick of the line is one of the far end's, so that
`ScriptedCall` and what is built on it say and hear by it as by any other line.
"""

from collections.abc import Mapping
from time import monotonic

import numpy as np

from benchmarks.carriers.far_ends.far_end import FarEnd
from benchmarks.carriers.far_ends.far_end_io import FarEndCall, Way
from offhook.media.codecs.resample import Resampler
from offhook.media.leg import Leg, LegStatistics
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_OUT, Pcm, dbfs
from offhook.web.app.callers.caller_leg import AUDIBLE_DBFS, SOUND_DBFS


class FarEndLeg(Leg):
    """Times are those of the caller's ear: after the way and the far end's jitter buffer."""

    def __init__(self, far_end: FarEnd, way: Way | None = None) -> None:
        super().__init__("caller")
        self.far_end = far_end
        self.call = FarEndCall(far_end, way, clocked=False)
        self.speech_arrivals: list[float] = []
        self.sounded: list[float] = []
        """Ticks in which the agent could be heard."""
        self.heard: list[Pcm] = []
        self.said: list[Pcm] = []
        self.said_until = 0.0
        self.setup_ms: float | None = None
        """From the request for the connection to the stream's start."""
        self._in = None if far_end.rate == RATE_IN else Resampler(far_end.rate, RATE_IN)
        self._out = None if far_end.rate == RATE_OUT else Resampler(RATE_OUT, far_end.rate)
        self._silence = np.zeros(SAMPLES_OUT, np.int16)

    async def dial(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        """Raises Refused."""
        began = monotonic()
        await self.call.start(url, headers)
        self.setup_ms = (monotonic() - began) * 1000
        self.connect()

    def _receive(self, now: float) -> Pcm:
        if self.call.ended.is_set() and self.closed is None:
            self.close("the application hung up")
        before = len(self.far_end.player.played)
        if self.closed is None:
            self.far_end.tick(now)
        ticks = self.far_end.player.played[before:]  # none before Genesys has opened
        played = ticks[0] if ticks else np.zeros(self.far_end.player.frame, np.int16)
        heard = played if self._in is None else self._in.process(played)
        level = dbfs(heard)
        if level > SOUND_DBFS:
            self.speech_arrivals.append(now)
        if level > AUDIBLE_DBFS:
            self.sounded.append(now)
        self.heard.append(heard)
        return heard

    def _send(self, said: Pcm | None, now: float) -> None:
        pcm = self._silence if said is None else said
        self.said.append(pcm)
        if said is not None:
            self.said_until = now
        self.far_end.say(pcm if self._out is None else self._out.process(pcm))
        self.call.flush()

    def last_sound_before(self, now: float) -> float:
        """When the agent was last heard before `now`."""
        return max((t for t in self.sounded if t < now), default=0.0)

    def send_message(self, text: str) -> bool:
        return False

    def statistics(self) -> LegStatistics:
        player = self.far_end.player
        return LegStatistics(
            packets_received=self.call.came,
            packets_lost=player.dropped // player.frame,
            packets_late=player.hole_ticks,
            packets_sent=self.ticks,
        )

    async def hang_up(self, reason: str) -> None:
        await self.call.close()
        self.close(reason)
