"""The session of somebody who has signed in to the console: a cookie that no script can read.

The server keeps no list of sessions: a cookie says until when it is valid and for which key, signed
with that key, so that all processes know it, and a new key ends all sessions.
"""

import base64
import hmac
import secrets
from collections.abc import Mapping
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie

COOKIE = "offhook_session"
SESSION_S = 12 * 3600
"""Lifetime in s of a session."""
PURPOSE = b"offhook: sessions of the console"


def issue_session(key: str, expires_at: int) -> str:
    """Returns the value of a cookie that is valid until then, wall-clock time in s."""
    body = f"{expires_at}.{secrets.token_hex(8)}"
    return f"{body}.{_signature(key, body)}"


def is_session_of(key: str, value: str, now: float) -> bool:
    """Returns whether a cookie was issued with this key and has not expired."""
    body, _, signature = value.rpartition(".")
    expected = _signature(key, body)
    if not hmac.compare_digest(signature.encode(errors="surrogateescape"), expected.encode()):
        return False
    return int(body.partition(".")[0]) > now


def cookie_in(headers: Mapping[str, str]) -> str:
    """Returns the value of our cookie; "" if there is none."""
    try:
        found = SimpleCookie(headers.get("Cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _signature(key: str, body: str) -> str:
    derived = hmac.digest(key.encode(), PURPOSE, sha256)
    signed = hmac.digest(derived, body.encode(errors="surrogateescape"), sha256)
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")
