"""Descriptions of a far end, and our end to put before them."""

from base64 import b64encode
from itertools import count

from offhook.telephony.sip.media.offer_answer import MediaNegotiation, MediaPlan, MediaSettings
from offhook.telephony.sip.messages.sdp import Media, parse

PLAIN = MediaSettings(srtp="off")
SECURE = MediaSettings(srtp="required")
FINGERPRINT = "sha-256 " + ":".join(["A1"] * 32)
OTHER_FINGERPRINT = "sha-256 " + ":".join(["B2"] * 32)
KEY, KEY2 = bytes(30), bytes([1]) * 30


def inline(key: bytes) -> str:
    return "inline:" + b64encode(key).decode()


CRYPTO = f"a=crypto:1 AES_CM_128_HMAC_SHA1_80 {inline(KEY)}"
DTLS_OFFER = ("m=audio 5000 UDP/TLS/RTP/SAVP 0", f"a=fingerprint:{OTHER_FINGERPRINT}")


def end(line: MediaSettings = PLAIN, fingerprint: str = "", port: int = 4000) -> MediaNegotiation:
    """Our end of a call. Keys are told apart by their first byte: 100, 101, …"""
    made = count(100)
    return MediaNegotiation(
        line,
        "192.0.2.1",
        port,
        port + 1,
        77,
        fingerprint,
        lambda size: bytes([next(made)]) * size,
    )


def sdp(*lines: str, address: str = "192.0.2.9", version: int = 1) -> str:
    kind = "IP6" if ":" in address else "IP4"
    head = ("v=0", f"o=- 5 {version} IN {kind} {address}", "s=-", f"c=IN {kind} {address}", "t=0 0")
    return "\r\n".join((*head, *lines)) + "\r\n"


def answer(us: MediaNegotiation, *lines: str, address: str = "192.0.2.9") -> MediaPlan:
    """The plan after their offer."""
    us.answer(sdp(*lines, address=address))
    assert us.plan is not None
    return us.plan


def sound(text: str) -> Media:
    return next(m for m in parse(text).media if m.kind == "audio" and m.port)
