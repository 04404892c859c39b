"""Digits in an INFO, however its sender writes them."""

import pytest

from offhook.media.telephone_tones.dtmf import DIGITS
from offhook.telephony.sip.messages.headers import Headers
from offhook.telephony.sip.messages.info import DTMF, DTMF_RELAY, TELEPHONE_EVENT, key_of
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.messages.uri import Uri


def info(content_type: str, body: bytes) -> Request:
    headers = Headers([("CSeq", "2 INFO")])
    if content_type:
        headers.add("Content-Type", content_type)
    return Request("INFO", Uri.parse("sip:us@192.0.2.1"), headers, body)


@pytest.mark.parametrize("digit", DIGITS)
def test_every_digit_in_every_way(digit: str) -> None:
    event = bytes((DIGITS.index(digit), 0x8A, 1, 0x40))
    for content_type, body in (
        (DTMF, digit.encode()),
        (DTMF, f" {digit.lower()}\r\n".encode()),
        (DTMF_RELAY, f"Signal={digit}\r\nDuration=160\r\n".encode()),
        (DTMF_RELAY, f"signal = {DIGITS.index(digit)}\n".encode()),
        (TELEPHONE_EVENT, event),
        (TELEPHONE_EVENT, event + event),
        (TELEPHONE_EVENT, f"Signal={digit}\r\n".encode()),
        (TELEPHONE_EVENT, digit.encode()),
    ):
        assert key_of(info(content_type, body)) == digit, (content_type, body)


@pytest.mark.parametrize(
    ("content_type", "body", "found"),
    [
        ("", b"", ""),  # a keep-alive
        (TELEPHONE_EVENT, b"", ""),
        (TELEPHONE_EVENT, bytes((16, 0x80, 0, 160)), ""),  # flash
        (TELEPHONE_EVENT, b"\xff\xff", ""),
        (DTMF, b"55", ""),
        (DTMF_RELAY, b"5", ""),
        ("application/media_control+xml", b"<media_control/>", None),
    ],
)
def test_what_is_no_digit(content_type: str, body: bytes, found: str | None) -> None:
    assert key_of(info(content_type, body)) == found
