"""The leg of a scripted caller, for any kind of call."""

from typing import Any

import numpy as np

from offhook.media.codecs.codec import CodecError, Decoder
from offhook.media.pcm import SAMPLES_OUT, Pcm, dbfs
from offhook.media.rtp.rtp import RtpError, RtpPacket
from offhook.media.rtp.rtp_leg import RtpLeg

AUDIBLE_DBFS = -50.0
SOUND_DBFS = -65.0
"""Level above which a packet contains speech; silence and coding noise are below."""


class ScriptedCallerLeg(RtpLeg):
    """Records when packets with sound arrive, and both sides' audio."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.speech_arrivals: list[float] = []
        self.sounded: list[float] = []
        """Times at which the agent was audible."""
        self.heard: list[Pcm] = []
        self.said: list[Pcm] = []
        self.said_until = 0.0
        self._decoders: dict[int, Decoder] = {}
        """Decoders by payload type, for packets as they arrive."""
        self.listen(self._keep)

    def receive_rtp(self, data: bytes, now: float) -> None:
        if self._opened and self._has_sound(data):
            self.speech_arrivals.append(now)
        super().receive_rtp(data, now)

    def _has_sound(self, data: bytes) -> bool:
        try:
            packet = RtpPacket.parse(data)
            number = packet.payload_type
            if number not in self._decoders:
                if number not in self._format.decoders:  # DTMF, for example
                    return False
                self._decoders[number] = self._format.decoders[number]()
            return dbfs(self._decoders[number].decode(packet.payload)) > SOUND_DBFS
        except (RtpError, CodecError):
            return False

    def _keep(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        self.heard.append(heard)
        if dbfs(heard) > AUDIBLE_DBFS:
            self.sounded.append(now)
        self.said.append(np.zeros(SAMPLES_OUT, np.int16) if said is None else said)
        if said is not None:
            self.said_until = now

    def last_sound_before(self, now: float) -> float:
        """Returns when the agent's last sound before `now` arrived from the network, excluding the
        jitter buffer's delay."""
        delay = self.statistics().buffer_ms / 1000
        return max((t - delay for t in self.sounded if t - delay < now), default=0.0)
