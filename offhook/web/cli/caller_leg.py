"""What a scripted caller notes of its line, whichever way it called."""

from typing import Any

import numpy as np

from offhook.media.codecs.codec import CodecError, Decoder
from offhook.media.pcm import SAMPLES_OUT, Pcm, dbfs
from offhook.media.rtp.rtp import RtpError, RtpPacket
from offhook.media.rtp.rtp_leg import RtpLeg

AUDIBLE_DBFS = -50.0
SOUND_DBFS = -65.0
"""A packet above has the beginning of a word in it, or more; silence and coding noise are below."""


class ScriptedCallerLeg(RtpLeg):
    """Notes when packets with sound arrive, and keeps what is heard and said."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.speech_arrivals: list[float] = []
        self.sounded: list[float] = []
        """Ticks in which the agent could be heard."""
        self.heard: list[Pcm] = []
        self.said: list[Pcm] = []
        self.said_until = 0.0
        self._decoders: dict[int, Decoder] = {}
        """By payload type, for packets as they arrive."""
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
                if number not in self._format.decoders:  # of key presses, say
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
        """When the last sound of the agent before `now` came off the wire: the jitter buffer's
        own delay is taken out."""
        delay = self.statistics().buffer_ms / 1000
        return max((t - delay for t in self.sounded if t - delay < now), default=0.0)
