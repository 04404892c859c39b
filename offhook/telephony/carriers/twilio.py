"""Twilio Media Streams: a bidirectional stream as `<Connect><Stream>` opens it.

Sound is mu-law at 8000 Hz in base64, in both directions. Twilio queues what it is sent, of any
length, and plays it in order; it returns a mark once what was sent before it has been played, and
all marks at once when told to clear. Messages with fields it does not know it refuses (warning
31951), so ours have exactly the documented ones. It takes no DTMF from a stream.

Source: Twilio's "Media Streams - WebSocket Messages".
"""

from offhook.telephony.carriers.json_text import (
    MAX_ID_CHARS,
    EventStream,
    Json,
    number,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.stream import CarrierError, Format, Started

MAX_MESSAGE_BYTES = 64 * 1024
"""Twilio's are of 20 ms of sound, 400 bytes or so; only custom parameters may make one long."""

PCMU = Format("pcmu", 8000)


class TwilioStream(EventStream):
    """One stream of Twilio's."""

    provider = "twilio"
    max_message_bytes = MAX_MESSAGE_BYTES
    stream_key = "streamSid"

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
            account=text_of(start.get("accountSid"), MAX_ID_CHARS),
            parameters=texts_of(start.get("customParameters")),
        )


def _check_format(told: object) -> None:
    """There is only one; raises CarrierError should it be another all the same."""
    if not isinstance(told, dict):
        return
    encoding = text_of(told.get("encoding"), MAX_ID_CHARS) or "audio/x-mulaw"
    rate = number(told.get("sampleRate", 8000))
    channels = number(told.get("channels", 1))
    if (encoding, rate, channels) != ("audio/x-mulaw", 8000, 1):
        raise CarrierError(
            f"Twilio sends {encoding} at {rate} Hz in {channels} channels, "
            "and only audio/x-mulaw at 8000 Hz in one channel is understood"
        )
