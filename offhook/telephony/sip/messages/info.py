"""DTMF by INFO, as used before RFC 4733 and by some still.

Two bodies are in use, neither defined by an RFC: application/dtmf-relay, lines of name=value, and
application/dtmf, the bare digit.
"""

from offhook.telephony.sip.messages.message import Request

DTMF_RELAY = "application/dtmf-relay"
DTMF = "application/dtmf"
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
    """Return the body of an INFO of type application/dtmf-relay."""
    return f"Signal={key}\r\nDuration={KEY_MS}\r\n".encode()
