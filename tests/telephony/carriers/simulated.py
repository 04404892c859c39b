"""A line of ours and a far end on one simulated clock, with the way between them."""

import heapq
import itertools
from collections.abc import Callable, Mapping
from random import Random

import numpy as np

from benchmarks.carriers.far_ends.far_end import FarEnd, Message
from benchmarks.carriers.far_ends.far_end_io import FAR_ENDS
from offhook.media.pcm import PACKET_MS, RATE_OUT, Pcm
from offhook.telephony.carriers.audiosocket.stream import AudioSocketStream
from offhook.telephony.carriers.chan_websocket.stream import ChanWebSocketStream
from offhook.telephony.carriers.exotel.stream import ExotelStream
from offhook.telephony.carriers.genesys.stream import GenesysStream
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.plivo.stream import PlivoStream
from offhook.telephony.carriers.streams.stream import CarrierStream
from offhook.telephony.carriers.telnyx.stream import TelnyxStream
from offhook.telephony.carriers.twilio.stream import TwilioStream
from offhook.telephony.carriers.vonage.stream import VonageStream

STREAMS: Mapping[str, Callable[[], CarrierStream]] = {
    "twilio": TwilioStream,
    "telnyx": TelnyxStream,
    "plivo": PlivoStream,
    "exotel": ExotelStream,
    "vonage": VonageStream,
    "genesys": GenesysStream,
    "audiosocket": AudioSocketStream,
    "chan_websocket": ChanWebSocketStream,
}
LOUD = 2_000
"""Every sample of the sound said is above this, of silence and coding noise below."""


def loud_sound(ms: int) -> Pcm:
    """24 kHz: one level throughout, so that no sample of it is taken for silence."""
    return np.full(RATE_OUT * ms // 1000, 8000, np.int16)


class Simulated:
    """Time is in s from 0; both ways have the same delay, and jitter that keeps the order."""

    def __init__(
        self,
        provider: str,
        delay_ms: float = 0,
        jitter_ms: float = 0,
        seed: int = 1,
        far_end: FarEnd | None = None,
    ) -> None:
        self.now = 0.0
        self.far_end = far_end or FAR_ENDS[provider]()
        self.leg = CarrierLeg("call", STREAMS[provider](), self._from_leg)
        self.gone = False
        """Nothing arrives: the way is cut, and what is sent waits."""
        self._delay, self._jitter = delay_ms / 1000, jitter_ms / 1000
        self._chance = Random(seed)
        self._last = {"leg": 0.0, "far end": 0.0}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._at(0.0, self._open)
        self._at(0.007, self._tick_leg)

    def _open(self) -> None:
        self.far_end.open(self.now)
        self.leg.open()
        self._tick_far_end()

    def _at(self, at: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, next(self._order), what))

    def _on_the_way(self, to: str, deliver: Callable[[], None]) -> None:
        delay = self._delay + self._chance.uniform(0, self._jitter)
        self._last[to] = max(self._last[to], self.now + delay)
        self._at(self._last[to], deliver)

    def _from_leg(self, message: Message) -> None:
        self._on_the_way("far end", lambda: self._to_far_end(message))

    def _to_far_end(self, message: Message) -> None:
        self.far_end.receive(message, self.now)
        self._flush()

    def _flush(self) -> None:
        for message in self.far_end.messages_to_send():
            self._on_the_way("leg", lambda m=message: self.leg.receive(m, self.now))

    def _tick_far_end(self) -> None:
        self.far_end.handle_timer(self.now)
        self._flush()
        at = self.far_end.get_timer()
        self._at(self.now + 0.001 if at is None else at, self._tick_far_end)

    def _tick_leg(self) -> None:
        self.leg.tick(self.now)
        self._at(self.now + PACKET_MS / 1000, self._tick_leg)

    def stall(self, seconds: float) -> None:
        """What is sent from now on arrives after so long, all at once; so does what comes back."""
        for to in self._last:
            self._last[to] = max(self._last[to], self.now + seconds)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, what = heapq.heappop(self._due)
            what()
        self.now = end

    @property
    def played_ms(self) -> float:
        """Of our sound, at the far end."""
        played = self.far_end.player.sound()
        return 1000 * int(np.count_nonzero(np.abs(played) > LOUD)) / self.far_end.rate

    @property
    def counted_ms(self) -> float:
        """What the line takes for heard."""
        return 1000 * self.leg.playout.sent / RATE_OUT
