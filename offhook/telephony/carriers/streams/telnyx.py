"""Telnyx media streaming over a WebSocket, bidirectional in RTP mode.

Each message carries the payload of one RTP packet, without its header, in base64. What Telnyx sends
is coded as the start message says: as asked for (`stream_codec`), else as the call happens to be.
What it takes is coded as it was asked to (`stream_bidirectional_codec`), which it does not repeat,
so that the two directions may differ and the stream has to be told. Media may come out of order:
`media.chunk` has the order. Of sound Telnyx wants at least 20 ms in a message and at most 30 s.

L16 is in the sender's own byte order, little-endian, not in RTP's: so it is heard on real calls,
though the documents do not say. Its clients get "error" messages about frames of theirs that it
could not use; the stream goes on after one.

Source: Telnyx's "Stream call media over WebSocket" and "Media Streaming over WebSockets".
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from offhook.telephony.carriers.streams.json_text import (
    MAX_ID_CHARS,
    EventStream,
    Json,
    StreamState,
    number,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.streams.stream import CarrierError, Event, Format, Started

MAX_MESSAGE_BYTES = 64 * 1024
"""20 ms of L16 at 48 kHz are 2600 bytes; custom parameters and the client state come on top."""

L16_RATES = frozenset((8000, 16000, 22050, 24000, 48000))
"""Hz, those that `stream_bidirectional_sampling_rate` takes."""


class TelnyxStream(EventStream):
    """One stream of Telnyx's.

    `format_out` is what Telnyx was asked to take from us; without it, what it sends is assumed.
    """

    provider = "telnyx"
    max_message_bytes = MAX_MESSAGE_BYTES
    stream_key = "stream_id"
    addressed = False

    def __init__(self, format_out: Format | None = None) -> None:
        super().__init__()
        self._format_out = format_out
        self.complaint = ""
        """What Telnyx last said of a message of ours that it could not use."""

    def read_start(self, start: Json, stream_id: str) -> Started:
        call_id = text_of(start.get("call_control_id"), MAX_ID_CHARS)
        if not call_id:
            raise CarrierError("Telnyx's start message has no call_control_id")
        format_in = _format(start.get("media_format"))
        return Started(
            stream_id,
            call_id,
            format_in,
            self._format_out or format_in,
            account=text_of(start.get("user_id"), MAX_ID_CHARS),
            caller=text_of(start.get("from"), MAX_ID_CHARS),
            called=text_of(start.get("to"), MAX_ID_CHARS),
            parameters=_parameters(start),
        )

    def _refused(self, message: Json) -> list[Event]:
        raise CarrierError(f"Telnyx cannot stream: {_complaint(message)}")

    def _complained(self, message: Json) -> list[Event]:
        self.complaint = _complaint(message)
        return []

    actions: ClassVar[Mapping[tuple[StreamState, str], Callable[[Any, Json], list[Event]]]] = {
        **EventStream.actions,
        (StreamState.WAITING, "error"): _refused,
        (StreamState.STREAMING, "error"): _complained,
    }


def _format(told: object) -> Format:
    """Raises CarrierError for a codec that is not ours; without any, it is the default, PCMU."""
    if not isinstance(told, dict):
        return Format("pcmu", 8000)
    encoding = text_of(told.get("encoding"), MAX_ID_CHARS).upper() or "PCMU"
    rate = number(told.get("sample_rate", 8000))
    if number(told.get("channels", 1)) != 1:
        raise CarrierError(f"Telnyx sends {encoding} in several channels, and one is understood")
    match encoding:
        case "PCMU" if rate == 8000:
            return Format("pcmu", 8000)
        case "PCMA" if rate == 8000:
            return Format("pcma", 8000)
        case "L16" if rate in L16_RATES:
            return Format("l16", rate)
        case "OPUS":
            # RTP's clock is 48 kHz whatever the rate of the sound (RFC 7587 §4.1).
            return Format("opus", 48000)
    raise CarrierError(
        f"Telnyx sends {encoding} at {rate} Hz, which is not understood: "
        "stream_codec must be PCMU, PCMA, L16 or OPUS"
    )


def _parameters(start: Json) -> dict[str, str]:
    """Custom parameters, which Telnyx takes as a list of names and values, and the client state.

    The latter stays in base64, as it was given.
    """
    told = start.get("custom_parameters")
    if isinstance(told, list):
        pairs = [p for p in told if isinstance(p, dict)]
        told = {text_of(p.get("name"), MAX_ID_CHARS): p.get("value") for p in pairs}
    state = text_of(start.get("client_state"), MAX_MESSAGE_BYTES)
    return ({"client_state": state} if state else {}) | texts_of(told)


def _complaint(message: Json) -> str:
    """The parts of {"payload": {"code": 100004, "title": …, "detail": …}} that are there."""
    payload = message.get("payload")
    if not isinstance(payload, dict):
        return "an error that it does not name"
    said = [text_of(payload.get(key), MAX_ID_CHARS) for key in ("code", "title", "detail")]
    return " ".join(part for part in said if part) or "an error that it does not name"
