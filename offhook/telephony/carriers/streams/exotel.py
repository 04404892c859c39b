"""Exotel AgentStream: the bidirectional stream of a Voicebot applet.

Twilio's messages in snake_case, with linear 16-bit PCM, little-endian, at 8000 Hz or the rate that
the stream's URL asks for. About 100 ms come in one message, and as much is to be sent in one: in
shorter pieces playback may be distorted. A piece is a multiple of 320 bytes and at most 100 kB,
else there are gaps. Marks and `clear` are as Twilio's.

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
"""100 kB, the most that Exotel takes itself, in base64 and as much again."""

PIECE_BYTES = 320
"""What Exotel wants a piece of sound to be a multiple of."""
MAX_PIECE_BYTES = 100_000 // PIECE_BYTES * PIECE_BYTES

L16_RATES = frozenset((8000, 16000, 24000))
"""Hz, those that `sample-rate` in the URL takes."""

# The documents, the beta guide and what is seen on the wire each have names of their own; "base64"
# tells how the PCM is written, not what it is.
_L16_NAMES = frozenset(
    ("", "base64", "raw", "slin", "raw/slin", "l16", "linear16", "pcm", "pcm_s16le")
)
_MULAW_NAMES = frozenset(("mulaw", "ulaw", "pcmu"))


class ExotelStream(EventStream):
    """One stream of Exotel's."""

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
        told = _format(start.get("media_format"))
        self._silence = b"\xff" if told.encoding == "pcmu" else b"\x00"
        return Started(
            stream_id,
            call_id,
            told,
            told,
            account=text_of(start.get("account_sid"), MAX_ID_CHARS),
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


def _format(told: object) -> Format:
    """Raises CarrierError for sound that is not ours; untold, it is PCM at 8000 Hz."""
    if not isinstance(told, dict):
        return Format("l16", 8000)
    encoding, _, rate_told = text_of(told.get("encoding"), MAX_ID_CHARS).lower().partition(";rate=")
    rate = number(told.get("sample_rate") or rate_told or 8000)
    name = encoding.strip().removeprefix("audio/").removeprefix("x-")
    if name in _L16_NAMES and rate in L16_RATES:
        return Format("l16", rate)
    if name in _MULAW_NAMES and rate == 8000:
        return Format("pcmu", 8000)
    raise CarrierError(
        f"Exotel sends {encoding or 'PCM'} at {rate} Hz, which is not understood: "
        "it must be PCM at 8000, 16000 or 24000 Hz"
    )
