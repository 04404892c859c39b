"""Turns a negotiated MediaPlan into the RtpFormat of the media room."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from offhook.media.codecs.codec import Decoder, Encoder
from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.g722 import G722Decoder, G722Encoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder, OpusSettings
from offhook.media.rtp.rtp_leg import RtpFormat
from offhook.telephony.sip.media.offer_answer import Codec, MediaPlan

MIN_OPUS_BITRATE = 6_000
"""The lowest bitrate a far end may request (RFC 7587 §6.1)."""

_DECODERS: Mapping[str, Callable[[], Decoder]] = {
    "opus": OpusDecoder,
    "g722": G722Decoder,
    "pcmu": PcmuDecoder,
    "pcma": PcmaDecoder,
}


@dataclass(frozen=True)
class _MakeEncoder:
    """An encoder factory that compares equal for the same codec and settings, so that the stream
    continues."""

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
    """Return the RtpFormat of a plan. `opus` are our encoder settings, limited to the bitrate the
    far end requests."""
    codec = plan.codec
    opus = _limit_bitrate(opus, codec)
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


def _limit_bitrate(settings: OpusSettings, codec: Codec) -> OpusSettings:
    """Limit the bitrate to what the far end requests (RFC 7587 §6.1)."""
    for parameter in codec.fmtp.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "maxaveragebitrate" and value.isascii() and value.isdigit():
            asked = max(MIN_OPUS_BITRATE, int(value[:9]))
            return replace(settings, bitrate=min(settings.bitrate, asked))
    return settings
