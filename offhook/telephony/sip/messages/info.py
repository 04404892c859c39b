"""Key presses by INFO, as was done before RFC 4733 and by some still.

Two bodies are in use, neither with an RFC of its own: application/dtmf-relay, lines of name=value,
and application/dtmf, the bare key.
"""

from offhook.telephony.sip.messages.message import Request

DTMF_RELAY = "application/dtmf-relay"
DTMF = "application/dtmf"
KEY_MS = 160
"""Length of a key press as we tell it."""
MAX_BODY_BYTES = 256
"""What is looked at of a body."""

_KEYS = {str(number): key for number, key in enumerate("0123456789*#ABCD")}
"""Some send the event's number (RFC 4733 §3.2), as in 11 for #."""
_KEYS |= {key: key for key in "*#ABCD"}


def key_of(request: Request) -> str | None:
    """The key of an INFO, one of 0-9*#A-D; "" where it tells none that there is, or has no body
    (which asks only whether we are there); None where it is not about keys: 415."""
    text = request.body[:MAX_BODY_BYTES].decode("latin-1")
    if request.content_type == DTMF:
        return _KEYS.get(text.strip().upper(), "")
    if request.content_type == DTMF_RELAY:
        for line in text.splitlines():
            name, _, value = line.partition("=")
            if name.strip().lower() == "signal":
                return _KEYS.get(value.strip().upper(), "")
        return ""
    return None if request.body else ""


def key_body(key: str) -> bytes:
    """Body of an INFO of the type application/dtmf-relay."""
    return f"Signal={key}\r\nDuration={KEY_MS}\r\n".encode()
