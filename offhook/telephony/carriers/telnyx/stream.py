"""Telnyx media streaming over a WebSocket, bidirectional in RTP mode.

Each message carries the payload of one RTP packet, without its header, in base64. Telnyx sends the
codec named in the start message: as requested (`stream_codec`), else the call's own. It accepts the
codec that was requested (`stream_bidirectional_codec`), which the start message does not repeat, so
the two directions may differ and the stream must be told. Media may arrive out of order:
`media.chunk` gives the order. Telnyx accepts 20 ms to 30 s of audio per message.

L16 is little-endian, not in RTP's byte order: undocumented, but so on real calls. Telnyx sends
"error" messages about frames it could not use; the stream continues after one.

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
"""Maximum size of a message; with a longer one the call ends. 20 ms of L16 at 48 kHz are 2600
bytes, plus custom parameters and client state."""

L16_RATES = frozenset((8000, 16000, 22050, 24000, 48000))
"""Sample rates in Hz that `stream_bidirectional_sampling_rate` accepts."""


class TelnyxStream(EventStream):
    """One Telnyx stream.

    `format_out` is the format Telnyx was asked to accept; without it, the format it sends is
    assumed.
    """

    provider = "telnyx"
    max_message_bytes = MAX_MESSAGE_BYTES
    stream_key = "stream_id"
    sends_stream_id = False

    def __init__(self, format_out: Format | None = None) -> None:
        super().__init__()
        self._format_out = format_out

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
            caller=text_of(start.get("from"), MAX_ID_CHARS),
            called=text_of(start.get("to"), MAX_ID_CHARS),
            parameters=_parameters(start),
        )

    def _refused(self, message: Json) -> list[Event]:
        raise CarrierError(f"Telnyx cannot stream: {_error_text(message)}")

    def _error(self, message: Json) -> list[Event]:
        self.last_error = _error_text(message)
        return []

    actions: ClassVar[Mapping[tuple[StreamState, str], Callable[[Any, Json], list[Event]]]] = {
        **EventStream.actions,
        (StreamState.WAITING, "error"): _refused,
        (StreamState.STREAMING, "error"): _error,
    }


def _format(media_format: object) -> Format:
    """Read the media format, PCMU by default. Raises CarrierError if it is not supported."""
    if not isinstance(media_format, dict):
        return Format("pcmu", 8000)
    encoding = text_of(media_format.get("encoding"), MAX_ID_CHARS).upper() or "PCMU"
    rate = number(media_format.get("sample_rate", 8000))
    if number(media_format.get("channels", 1)) != 1:
        raise CarrierError(f"Telnyx sends {encoding} in several channels; only mono is supported")
    match encoding:
        case "PCMU" if rate == 8000:
            return Format("pcmu", 8000)
        case "PCMA" if rate == 8000:
            return Format("pcma", 8000)
        case "L16" if rate in L16_RATES:
            return Format("l16", rate)
        case "OPUS":
            # The RTP clock is 48 kHz whatever the audio rate (RFC 7587 §4.1).
            return Format("opus", 48000)
    raise CarrierError(
        f"Telnyx sends {encoding} at {rate} Hz, which is not supported: "
        "stream_codec must be PCMU, PCMA, L16 or OPUS"
    )


def _parameters(start: Json) -> dict[str, str]:
    """Return custom parameters, which Telnyx gives as a list of names and values, and the client
    state, still in base64."""
    parameters = start.get("custom_parameters")
    if isinstance(parameters, list):
        pairs = [p for p in parameters if isinstance(p, dict)]
        parameters = {text_of(p.get("name"), MAX_ID_CHARS): p.get("value") for p in pairs}
    state = text_of(start.get("client_state"), MAX_MESSAGE_BYTES)
    return ({"client_state": state} if state else {}) | texts_of(parameters)


def _error_text(message: Json) -> str:
    """Format {"payload": {"code": 100004, "title": …, "detail": …}} as text."""
    payload = message.get("payload")
    if not isinstance(payload, dict):
        return "an unnamed error"
    said = [text_of(payload.get(key), MAX_ID_CHARS) for key in ("code", "title", "detail")]
    return " ".join(part for part in said if part) or "an unnamed error"
