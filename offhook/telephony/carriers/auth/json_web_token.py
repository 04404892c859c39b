"""JSON web tokens with an HMAC (RFC 7519, HS256): what Vonage signs its webhooks with."""

import base64
import binascii
import hashlib
import hmac
import json
import re
from typing import TypeGuard

_TOKEN = re.compile(r"(([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+))\.([A-Za-z0-9_-]+)")
_MAX_TIME = 1e11
"""s since 1970; larger numbers are no times."""

Claims = dict[str, object]


def read_token(token: str, secret: bytes) -> tuple[Claims, str]:
    """The claims of a token that was signed with `secret`, and the text that was signed.

    That text tells one token from another: the token itself can be written in several ways, for
    base64 has more than one end for the same bytes. ValueError when it is not signed so.
    """
    parts = _TOKEN.fullmatch(token)
    if parts is None:
        raise ValueError("it is not a signed token")
    # The header is what the token says of itself; it may not choose how it is looked at (RFC 8725).
    if _object(parts[2]).get("alg") != "HS256":
        raise ValueError("the token is not signed with HS256")
    made = hmac.digest(secret, parts[1].encode(), hashlib.sha256)
    if not hmac.compare_digest(made, _bytes(parts[4])):
        raise ValueError("the token is not signed with our secret")
    return _object(parts[3]), parts[1]


def is_time(value: object) -> TypeGuard[int | float]:
    """Whether a claim is a NumericDate (RFC 7519 §2)."""
    return isinstance(value, int | float) and 0 <= value < _MAX_TIME


def _object(part: str) -> Claims:
    try:
        value = json.loads(_bytes(part))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("the token cannot be read")
    return value


def _bytes(part: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error:
        raise ValueError("the token cannot be read") from None
