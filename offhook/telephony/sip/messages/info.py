"""DTMF by INFO, as used before RFC 4733 and by some still.

Three bodies are in use, none defined by an RFC: application/dtmf-relay, lines of name=value,
application/dtmf, the bare digit, and audio/telephone-event, the payload of RFC 4733 or either of
the others.
"""

from offhook.media.telephone_tones.dtmf import DIGITS
from offhook.telephony.sip.messages.message import Request

DTMF_RELAY = "application/dtmf-relay"
DTMF = "application/dtmf"
TELEPHONE_EVENT = "audio/telephone-event"
_EVENT_BYTES = 4
KEY_MS = 160
"""Duration of a digit as we report it."""
MAX_BODY_BYTES = 256
"""Maximum bytes of an INFO's body that are examined for a digit; the rest is ignored."""

_KEYS = {str(number): key for number, key in enumerate("0123456789*#ABCD")}
"""Some send the event number (RFC 4733 §3.2), e.g. 11 for #."""
_KEYS |= {key: key for key in "*#ABCD"}


def key_of(request: Request) -> str | None:
    """Return the digit of an INFO, one of 0-9*#A-D; "" if it has no valid one or no body (a
    keep-alive); None if it is not about DTMF: 415."""
    if request.content_type not in (DTMF, DTMF_RELAY, TELEPHONE_EVENT):
        return None if request.body else ""
    body = request.body[:MAX_BODY_BYTES]
    event = body[0] if request.content_type == TELEPHONE_EVENT and len(body) else len(DIGITS)
    if len(body) >= _EVENT_BYTES and event < len(DIGITS):
        return DIGITS[event]
    text = body.decode("latin-1")
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip().lower() == "signal":
            return _KEYS.get(value.strip().upper(), "")
    return _KEYS.get(text.strip().upper(), "") if request.content_type != DTMF_RELAY else ""


def key_body(key: str) -> bytes:
    """Return the body of an INFO of type application/dtmf-relay."""
    return f"Signal={key}\r\nDuration={KEY_MS}\r\n".encode()
