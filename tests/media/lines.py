"""Lines over RTP in memory, on a clock of their own, for tests that join some."""

from dataclasses import replace

import numpy as np

from offhook.media.codecs.g711 import PcmaDecoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.g722 import G722Decoder, G722Encoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder
from offhook.media.rtp.rtp import RtpPacket
from offhook.media.rtp.rtp_leg import RtpFormat, RtpLeg
from tests.support.listening import Listening

PCMU, PCMA, G722, CN, OPUS, EVENT = 0, 8, 9, 13, 96, 101
DECODERS = {PCMU: PcmuDecoder, PCMA: PcmaDecoder, G722: G722Decoder, OPUS: OpusDecoder}
NARROW = RtpFormat(
    "pcmu",
    DECODERS,
    PcmuEncoder,
    PCMU,
    dtx=False,
    events_in={EVENT: 8000},
    events_out=(EVENT, 8000),
    comfort_noise=frozenset({CN}),
)
WIDE = replace(NARROW, codec="g722", make_encoder=G722Encoder, payload_type=G722)
FULL = replace(
    NARROW,
    codec="opus",
    make_encoder=OpusEncoder,
    payload_type=OPUS,
    dtx=True,
    events_in={EVENT: 48000},
    events_out=(EVENT, 48000),
)


def tone(hz):
    """A second at 24 kHz."""
    at = np.arange(24_000) / 24_000
    return (6000 * np.sin(2 * np.pi * hz * at)).astype(np.int16)


def loudest(pcm):
    """Hz of the strongest part of what was heard."""
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm))))
    return np.argmax(spectrum) * 16_000 / len(pcm)


class Line(RtpLeg):
    """One end. What it sends reaches the other at once, unless `lost` says otherwise."""

    def __init__(self, name, format=None, ssrc=1):
        super().__init__(name)
        self.far: Line
        self.now = 0.0
        self.sent, self.reports, self.digits, self.heard = [], [], [], []
        self.lost = lambda packet: False
        self.listener = Listening(on_dtmf=self.digits.append)
        self.listen(lambda heard, said, now: self.heard.append(heard))
        if format is not None:
            self._open(format, ssrc, 0.0)

    def _send_rtp(self, packet):
        self.sent.append(RtpPacket.parse(packet))
        if not self.lost(self.sent[-1]):
            self.far.receive_rtp(packet, self.now)

    def _send_rtcp(self, packet):
        self.reports.append(packet)
        self.far.receive_rtcp(packet, self.now)

    def send_message(self, text):
        return False

    async def hang_up(self, reason):
        self.close(reason)
