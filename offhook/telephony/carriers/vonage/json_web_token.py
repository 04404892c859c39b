"""JSON web tokens with an HMAC (RFC 7519, HS256), with which Vonage signs its webhooks."""

import base64
import binascii
import hashlib
import hmac
import re
from typing import TypeGuard

from offhook.media.untrusted_json import read_json

_TOKEN = re.compile(r"(([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+))\.([A-Za-z0-9_-]+)")
_MAX_TIME = 1e11
"""Seconds since 1970; larger numbers are not valid times."""

Claims = dict[str, object]


def verify_token(token: str, secret: bytes) -> tuple[Claims, str]:
    """Verify a token and return its claims and the text that was signed.

    Use that text, not the token, to recognize a repeated token: base64 has several encodings for
    the same bytes. Raises ValueError if the token is not signed with `secret`.
    """
    parts = _TOKEN.fullmatch(token)
    if parts is None:
        raise ValueError("not a signed token")
    # The token must not choose how it is verified (RFC 8725).
    if _object(parts[2]).get("alg") != "HS256":
        raise ValueError("the token is not signed with HS256")
    made = hmac.digest(secret, parts[1].encode(), hashlib.sha256)
    if not hmac.compare_digest(made, _bytes(parts[4])):
        raise ValueError("the token is not signed with our secret")
    return _object(parts[3]), parts[1]


def is_numeric_date(value: object) -> TypeGuard[int | float]:
    """Return whether a claim is a NumericDate (RFC 7519 §2)."""
    return isinstance(value, int | float) and 0 <= value < _MAX_TIME


def _object(part: str) -> Claims:
    try:
        value = read_json(_bytes(part))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError("malformed token")
    return value


def _bytes(part: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error:
        raise ValueError("malformed token") from None
