"""Twilio Media Streams: a bidirectional stream as opened by `<Connect><Stream>`.

Audio is mu-law at 8000 Hz in base64, in both directions. Twilio queues audio of any length and
plays it in order; it returns a mark once the audio before it has been played, and all marks at once
when cleared. It rejects messages with unknown fields (warning 31951), so ours have exactly the
documented ones. It accepts no DTMF from a stream.

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
"""A message has 20 ms of audio, about 400 bytes; only custom parameters make one longer."""

PCMU = Format("pcmu", 8000)

_MEDIA = re.compile(
    r'\{"event":"media","sequenceNumber":"[0-9]{1,18}","media":\{"track":"inbound",'
    r'"chunk":"([0-9]{1,18})","timestamp":"([0-9]{1,18})","payload":"'
)
"""How Twilio writes a media message, up to the payload."""


class TwilioStream(EventStream):
    """One Twilio stream."""

    provider = "twilio"
    max_message_bytes = MAX_MESSAGE_BYTES
    stream_key = "streamSid"
    long_packet_ms = 60

    def __init__(self) -> None:
        super().__init__()
        self._after = ""
        """The text after the payload in this stream's media messages."""

    def receive(self, data: Message) -> list[Event]:
        """Process one message. Media messages, 50 a second, always have the same form: they are
        matched as text, at a quarter of the cost of parsing JSON; all others are parsed."""
        if self._state is StreamState.STREAMING and isinstance(data, str):
            sound = self._sound_in(data)
            if sound is not None:
                return [sound]
        return super().receive(data)

    def _sound_in(self, data: str) -> Sound | None:
        """The audio of a message in Twilio's exact form; None if it differs."""
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
