"""Exotel AgentStream: the bidirectional stream of a Voicebot applet.

Events with names in snake_case, and linear 16-bit PCM, little-endian, at 8000 Hz or the rate that
the stream's URL requests. Messages of about 100 ms are received, and should be sent: shorter ones
may distort playback. A payload must be a multiple of 320 bytes and at most 100 kB, or there are
gaps. Marks come back as in any EventStream, and after `clear` all at once.

Source: Exotel's "Working with the Stream and Voicebot Applet" and "WebSocket protocol", and the
beta guide for the mu-law that some accounts get.
"""

from offhook.telephony.carriers.streams.json_text import (
    MAX_ID_CHARS,
    EventStream,
    Json,
    number,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.streams.stream import CarrierError, Format, Message, Started

MAX_MESSAGE_BYTES = 256 * 1024
"""Maximum size of a message, Exotel's own limit of 100 kB in base64 and doubled; with a longer one
the call ends."""

PIECE_BYTES = 320
"""Exotel requires payloads to be a multiple of this."""
MAX_PIECE_BYTES = 100_000 // PIECE_BYTES * PIECE_BYTES
"""Longest payload that Exotel accepts; longer audio is sent in several."""

L16_RATES = frozenset((8000, 16000, 24000))
"""Sample rates in Hz that `sample-rate` in the URL accepts."""

# The documentation, the beta guide and actual traffic each use other names; "base64" describes how
# the PCM is transported, not its format.
_L16_NAMES = frozenset(
    ("", "base64", "raw", "slin", "raw/slin", "l16", "linear16", "pcm", "pcm_s16le")
)
_MULAW_NAMES = frozenset(("mulaw", "ulaw", "pcmu"))


class ExotelStream(EventStream):
    """One Exotel stream."""

    provider = "exotel"
    packet_ms = 100
    lead_ms = 300
    max_message_bytes = MAX_MESSAGE_BYTES
    stream_key = "stream_sid"

    def __init__(self) -> None:
        super().__init__()
        self._silence = b"\x00"

    def read_start(self, start: Json, stream_id: str) -> Started:
        call_id = text_of(start.get("call_sid"), MAX_ID_CHARS)
        if not call_id:
            raise CarrierError("Exotel's start message has no call_sid")
        media_format = _format(start.get("media_format"))
        self._silence = b"\xff" if media_format.encoding == "pcmu" else b"\x00"
        return Started(
            stream_id,
            call_id,
            media_format,
            media_format,
            caller=text_of(start.get("from"), MAX_ID_CHARS),
            called=text_of(start.get("to"), MAX_ID_CHARS),
            parameters=texts_of(start.get("custom_parameters")),
        )

    def sound(self, payload: bytes) -> list[Message]:
        payload += self._silence * (-len(payload) % PIECE_BYTES)
        messages: list[Message] = []
        for at in range(0, len(payload), MAX_PIECE_BYTES):
            messages += super().sound(payload[at : at + MAX_PIECE_BYTES])
        return messages

    def around_sound(self) -> None:
        """Messages have a length of their own."""


def _format(media_format: object) -> Format:
    """Read the media format, by default PCM at 8000 Hz. Raises CarrierError if unsupported."""
    if not isinstance(media_format, dict):
        return Format("l16", 8000)
    encoding, _, rate_text = (
        text_of(media_format.get("encoding"), MAX_ID_CHARS).lower().partition(";rate=")
    )
    rate = number(media_format.get("sample_rate") or rate_text or 8000)
    name = encoding.strip().removeprefix("audio/").removeprefix("x-")
    if name in _L16_NAMES and rate in L16_RATES:
        return Format("l16", rate)
    if name in _MULAW_NAMES and rate == 8000:
        return Format("pcmu", 8000)
    raise CarrierError(
        f"Exotel sends {encoding or 'PCM'} at {rate} Hz, which is not supported: "
        "it must be PCM at 8000, 16000 or 24000 Hz"
    )
