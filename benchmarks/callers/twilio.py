"""A caller by Twilio Media Streams, as light as it can be."""

import asyncio
import base64
from random import Random
from time import monotonic

from benchmarks.callers.caller import Caller
from benchmarks.callers.ear import BUFFER_S
from offhook.media.codecs.g711 import PcmuDecoder
from offhook.web.app.callers.twilio.stream_io import RATE, TwilioStream
from offhook.web.app.callers.twilio.webhook_io import CallFacts
from offhook.web.app.callers.way import Way


class TwilioCall(TwilioStream):
    """One call of a caller; `Pace` ticks it."""

    def __init__(self, caller: Caller, way: Way, chance: Random) -> None:
        ids = f"{chance.getrandbits(128):032x}"
        super().__init__(CallFacts(f"MZ{ids}", f"CA{ids}", caller=caller.record.number), way)
        self._caller = caller
        self._decoder = PcmuDecoder()
        self._back = 0.0
        """When the last message on its way here arrives."""
        self._place = 0.0
        """Seconds of sound received: the provider plays it as it comes."""

    def tick(self) -> None:
        now = monotonic()
        self.say(base64.b64encode(self._caller.step(now)).decode(), now)
        if self._caller.key:
            self.press(self._caller.key, now)
            self._caller.key = ""

    def receive(self, pcmu: bytes, now: float) -> None:
        """Sound is played after what was received before it; it has no timestamps."""
        arrived = self._back = max(self._back, now + self._way.delay_s())
        if arrived > self.play_until:
            # Nothing was left to play: as in a stream with timestamps, the time goes on.
            self._place += arrived - self.play_until if self._place else 0.0
            self.play_until = arrived + BUFFER_S
        seconds = len(pcmu) / RATE
        self._caller.ear.receive(self._decoder.decode(pcmu), self._place, arrived)
        self._place += seconds
        self.play_until += seconds

    def clear(self, now: float) -> None:
        self.play_until = now
        self._caller.ear.clear(now)

    async def run(self) -> bool:
        """Runs until the caller or the server hangs up; returns whether it was the server."""
        while not self._caller.over:
            if self.closed:
                return True
            await asyncio.sleep(0.1)
        return False
