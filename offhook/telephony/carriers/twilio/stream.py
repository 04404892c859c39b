"""Twilio Media Streams: a bidirectional stream as opened by `<Connect><Stream>`.

Audio is mu-law at 8000 Hz in base64, in both directions. Twilio queues audio of any length and
plays it in order; it returns a mark once the audio before it has been played, and all marks at once
when cleared. It rejects messages with unknown fields (warning 31951), so ours have exactly the
documented ones. It accepts no DTMF from a stream.

Source: Twilio's "Media Streams - WebSocket Messages".
"""

from offhook.telephony.carriers.streams.json_text import (
    MAX_ID_CHARS,
    EventStream,
    Json,
    number,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.streams.stream import (
    CarrierError,
    Format,
    Started,
)

MAX_MESSAGE_BYTES = 64 * 1024
"""Maximum size of a message; with a longer one the call ends. It has 20 ms of audio, about 400
bytes, unless custom parameters make it longer."""

PCMU = Format("pcmu", 8000)


class TwilioStream(EventStream):
    """One Twilio stream."""

    provider = "twilio"
    max_message_bytes = MAX_MESSAGE_BYTES
    stream_key = "streamSid"
    long_packet_ms = 60

    def read_start(self, start: Json, stream_id: str) -> Started:
        call_id = text_of(start.get("callSid"), MAX_ID_CHARS)
        if not call_id:
            raise CarrierError("Twilio's start message has no callSid")
        _check_format(start.get("mediaFormat"))
        return Started(
            stream_id,
            call_id,
            PCMU,
            PCMU,
            parameters=texts_of(start.get("customParameters")),
        )


def _check_format(media_format: object) -> None:
    """Check the media format. Raises CarrierError if it is not Twilio's only one."""
    if not isinstance(media_format, dict):
        return
    encoding = text_of(media_format.get("encoding"), MAX_ID_CHARS) or "audio/x-mulaw"
    rate = number(media_format.get("sampleRate", 8000))
    channels = number(media_format.get("channels", 1))
    if (encoding, rate, channels) != ("audio/x-mulaw", 8000, 1):
        raise CarrierError(
            f"Twilio sends {encoding} at {rate} Hz in {channels} channels, "
            "only audio/x-mulaw at 8000 Hz in one channel is supported"
        )
