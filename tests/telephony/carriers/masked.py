"""Frames as a WebSocket client sends them (RFC 6455 §5.2)."""

from offhook.telephony.carriers.streams.frames import unmasked


def sent(opcode, payload, mask=b"\x01\x02\x03\x04", fin=True, masked=True):
    """A frame as a client sends it."""
    length = len(payload)
    head = bytes(((0x80 if fin else 0) | opcode,))
    bit = 0x80 if masked else 0
    if length < 126:
        head += bytes((bit | length,))
    elif length < 65_536:
        head += bytes((bit | 126,)) + length.to_bytes(2, "big")
    else:
        head += bytes((bit | 127,)) + length.to_bytes(8, "big")
    return head + (mask + unmasked(payload, mask) if masked else payload)
