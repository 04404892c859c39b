"""The caller's audio in a carrier's stream: its messages become RTP packets and pass through the
same receiver as those of every other leg."""

from collections.abc import Callable
from functools import partial

from offhook.media import native
from offhook.media.codecs.codec import Decoder
from offhook.media.codecs.g711 import PcmaDecoder, PcmuDecoder
from offhook.media.codecs.l16 import L16Decoder
from offhook.media.codecs.opus import OpusDecoder
from offhook.media.pcm import Pcm
from offhook.media.rtp.loss_window import LossWindow
from offhook.media.rtp.receiver import new_receiver
from offhook.media.rtp.rtcp import new_reception
from offhook.telephony.carriers.streams.media_form import MediaForm
from offhook.telephony.carriers.streams.packets import PAYLOAD_TYPE, new_packetizer
from offhook.telephony.carriers.streams.stream import Format, Sound

COMPILED = ("pcmu", "pcma")
"""Codecs whose packets the receiver takes on the compiled path, one sample a byte."""


class SoundIn:
    """Receives the audio of one stream, from when it has started."""

    def __init__(self, format: Format, now: float) -> None:
        """Raises CodecError."""
        make_decoder = _make_decoder(format)
        clock_rate = make_decoder().clock_rate
        self.codec = format.encoding
        self.packetizer = new_packetizer(format)
        self.receiver = new_receiver({PAYLOAD_TYPE: make_decoder})
        self.reception = self.receiver.reception = new_reception(0, clock_rate)
        self.window = LossWindow(now)

    def receive(self, sound: Sound, now: float) -> None:
        """Receive the audio of one message."""
        packets = self.packetizer.packets(sound)
        for packet in packets:
            self.receiver.receive(packet, now)
        if packets:
            first = packets[0]
            self.reception.receive(first.sequence_number, first.timestamp, now)

    def pull(self, now: float) -> Pcm:
        """Return the 320 samples of this tick."""
        return self.receiver.pull(now)

    def media_reader(self, form: MediaForm | None) -> "native.MediaReader | None":
        """Return what reads media messages of this form from a socket's data; None if that is not
        on the compiled path."""
        packetizer, receiver = self.packetizer, self.receiver
        if form is None or not native.BUILT or not isinstance(packetizer, native.Packetizer):
            return None
        if not isinstance(receiver, native.Receiver) or self.codec not in COMPILED:
            return None
        fields = "".join(field.value for field in form.fields)
        literals = tuple(literal.encode() for literal in form.literals)
        return native.MediaReader(literals, fields, packetizer, receiver)


def _make_decoder(format: Format) -> Callable[[], Decoder]:
    match format.encoding:
        case "pcmu":
            return PcmuDecoder
        case "pcma":
            return PcmaDecoder
        case "opus":
            return OpusDecoder
        case "l16":
            return partial(L16Decoder, format.rate, format.big_endian)
