"""Twilio Media Streams: a bidirectional stream as `<Connect><Stream>` opens it.

Sound is mu-law at 8000 Hz in base64, in both directions. Twilio queues what it is sent, of any
length, and plays it in order; it returns a mark once what was sent before it has been played, and
all marks at once when told to clear. Messages with fields it does not know it refuses (warning
31951), so ours have exactly the documented ones. It takes no DTMF from a stream.

Source: Twilio's "Media Streams - WebSocket Messages".
"""

import json
import re
from binascii import a2b_base64

from offhook.telephony.carriers.streams.json_text import (
    MAX_ID_CHARS,
    EventStream,
    Json,
    StreamState,
    number,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.streams.stream import (
    CarrierError,
    Event,
    Format,
    Message,
    Sound,
    Started,
)

MAX_MESSAGE_BYTES = 64 * 1024
"""Twilio's are of 20 ms of sound, 400 bytes or so; only custom parameters may make one long."""

PCMU = Format("pcmu", 8000)

_MEDIA = re.compile(
    r'\{"event":"media","sequenceNumber":"[0-9]{1,18}","media":\{"track":"inbound",'
    r'"chunk":"([0-9]{1,18})","timestamp":"([0-9]{1,18})","payload":"'
)
"""How Twilio writes a media message, up to the sound."""


class TwilioStream(EventStream):
    """One stream of Twilio's."""

    provider = "twilio"
    max_message_bytes = MAX_MESSAGE_BYTES
    stream_key = "streamSid"
    longer_ms = 60

    def __init__(self) -> None:
        super().__init__()
        self._after = ""
        """What follows the sound in a media message of this stream."""

    def receive(self, data: Message) -> list[Event]:
        """Sound comes 50 times a second, and always in the same words: what is exactly so is not
        read as JSON, which would cost four times as much; all else is."""
        if self._state is StreamState.STREAMING and isinstance(data, str):
            sound = self._sound_in(data)
            if sound is not None:
                return [sound]
        return super().receive(data)

    def _sound_in(self, data: str) -> Sound | None:
        """The sound of a message that is written as Twilio's are; None if it is not quite so."""
        media = _MEDIA.match(data)
        if media is None:
            return None
        start, end = media.end(), len(data) - len(self._after)
        if end <= start or len(data) > MAX_MESSAGE_BYTES or not data.endswith(self._after):
            return None
        try:
            payload = a2b_base64(data[start:end], strict_mode=True)
        except ValueError:
            return None
        chunk, timestamp = media.groups()
        return Sound(payload, int(chunk), int(timestamp))

    def read_start(self, start: Json, stream_id: str) -> Started:
        call_id = text_of(start.get("callSid"), MAX_ID_CHARS)
        if not call_id:
            raise CarrierError("Twilio's start message has no callSid")
        _check_format(start.get("mediaFormat"))
        self._after = f'"}},"streamSid":{json.dumps(stream_id)}}}'
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
