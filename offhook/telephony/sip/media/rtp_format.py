"""What offer and answer have agreed, in the terms of the media: a MediaPlan to an RtpFormat."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from offhook.media.codecs.codec import Decoder, Encoder
from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.g722 import G722Decoder, G722Encoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder, OpusSettings
from offhook.media.rtp.rtp_leg import RtpFormat
from offhook.telephony.sip.media.offer_answer import Codec, MediaPlan

MIN_OPUS_BITRATE = 6_000
"""The least a far end may ask for (RFC 7587 §6.1)."""

_DECODERS: Mapping[str, Callable[[], Decoder]] = {
    "opus": OpusDecoder,
    "g722": G722Decoder,
    "pcmu": PcmuDecoder,
    "pcma": PcmaDecoder,
}


@dataclass(frozen=True)
class _MakeEncoder:
    """Equal for the same codec with the same settings: the stream then goes on."""

    codec: str
    opus: OpusSettings

    def __call__(self) -> Encoder:
        match self.codec:
            case "g722":
                return G722Encoder()
            case "pcmu":
                return PcmuEncoder()
            case "pcma":
                return PcmaEncoder()
        return OpusEncoder(self.opus)


def format_of(plan: MediaPlan, opus: OpusSettings) -> RtpFormat:
    """`opus` is how we would encode it, if that is agreed and the far end asks for no less."""
    codec = plan.codec
    opus = _as_asked(opus, codec)
    return RtpFormat(
        codec=codec.name,
        decoders={number: _DECODERS[name] for number, name in plan.receive.items()},
        make_encoder=_MakeEncoder(codec.name, opus),
        payload_type=codec.payload_type,
        dtx=codec.name == "opus" and opus.dtx,
        ptime_ms=plan.ptime_ms,
        events_in=plan.events_in,
        events_out=plan.events_out,
        comfort_noise=plan.comfort_noise,
    )


def _as_asked(settings: OpusSettings, codec: Codec) -> OpusSettings:
    """Within the bitrate that the far end asks for (RFC 7587 §6.1)."""
    for parameter in codec.fmtp.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "maxaveragebitrate" and value.isascii() and value.isdigit():
            asked = max(MIN_OPUS_BITRATE, int(value[:9]))
            return replace(settings, bitrate=min(settings.bitrate, asked))
    return settings
