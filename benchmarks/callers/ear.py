"""What a caller hears, judged packet by packet as it would be played."""

import numpy as np

from benchmarks.speech.number_words import WordCounter
from offhook.media.codecs.codec import Decoder
from offhook.media.pcm import PACKET_MS, Pcm
from offhook.media.rtp.quality import mos

BUFFER_S = 0.060
"""Depth in s of the caller's jitter buffer."""
PACKET_S = PACKET_MS / 1000
HOLE_S = 0.030
"""Silence in s within speech without pauses that is a hole: more than the packet it may begin
in."""
LOUD = 300
"""Peak from which a packet has speech."""
CONCEALED_PACKETS = 3
"""Missing packets that a decoder conceals; more are silence."""
CODEC_MS = 5


class Ear:
    """One call's received audio. `numbers`: the agent speaks number words, without pauses."""

    def __init__(self, rate: int, numbers: bool) -> None:
        self.packets = self.missing = self.dropped = self.late = 0
        self.began_at: float | None = None
        """Arrival of the first packet with sound since `expect_reply`."""
        self.loud_at = 0.0
        """Arrival of the last packet with sound, or the time at which it was due."""
        self.holes_ms: list[float] = []
        self.inaudible = False
        """Whether more packets of the reply were dropped on purpose at once than are concealed."""
        self.counter = WordCounter(rate)
        self._rate = rate
        self._numbers = numbers
        self._base: float | None = None
        """Time at which sample 0 of the stream is played; None between replies."""
        self._loud_until = 0.0
        """End of the last sound within the stream, in s."""
        self.one_way_ms = 0.0
        """Delay of the network, as far as it is known."""

    def expect_reply(self) -> None:
        """From now on sound is another reply."""
        self.began_at = self._base = None
        self.holes_ms = []
        self.inaudible = False
        self.counter = WordCounter(self._rate)

    def skip(self, packets: int, dropped: int, decoder: Decoder, following: bytes) -> None:
        """Packets that did not arrive before that with the payload `following`, of which `dropped`
        were dropped on purpose."""
        self.missing += packets - dropped
        if packets > CONCEALED_PACKETS:
            self.inaudible |= dropped > CONCEALED_PACKETS
            return
        samples = self._rate * PACKET_MS // 1000
        concealed = [decoder.conceal(samples) for _ in range(packets - 1)]
        recovered = decoder.recover(following, samples)
        concealed.append(decoder.conceal(samples) if recovered is None else recovered)
        if self.began_at is not None:
            for pcm in concealed:
                self.counter.feed(pcm)

    def receive(self, pcm: Pcm, at: float, arrived: float) -> None:
        """A packet whose place in the stream is `at` s."""
        self.packets += 1
        loud = len(pcm) > 0 and int(np.abs(pcm.astype(np.int32)).max()) > LOUD
        if self.began_at is None and not loud:
            return
        self.counter.feed(pcm)
        if self._base is None:
            self.began_at, self._base = arrived, arrived + BUFFER_S - at
        elif arrived > self._base + at:
            self.late += 1
            if loud:
                self.holes_ms.append((arrived - self._base - at) * 1000)
                self._base = arrived - at  # the buffer is filled again
        elif loud and self._numbers and at - self._loud_until > HOLE_S:
            self.holes_ms.append((at - self._loud_until) * 1000)
        if loud:
            self._loud_until = at + len(pcm) / self._rate
            # A carrier's stream comes ahead of its time: it sounds when its turn has come.
            self.loud_at = max(arrived, self._base + at - BUFFER_S)

    def clear(self, now: float) -> None:
        """Drops what has not been played."""
        self.loud_at = min(self.loud_at, now)

    @property
    def delay_ms(self) -> float:
        """From the server's mouth to the caller's ear in ms: packet, codec, jitter buffer, and the
        network where RTCP measures it."""
        return PACKET_MS + CODEC_MS + BUFFER_S * 1000 + self.one_way_ms

    def mos(self, codec: str) -> float | None:
        """Estimates the mean opinion score of what was heard (E-model, ITU-T G.107)."""
        if not self.packets:
            return None
        lost = self.missing + self.dropped + self.late
        return round(mos(self.delay_ms, lost / (self.packets + lost), codec=codec), 2)
