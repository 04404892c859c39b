"""The session of somebody who has signed in to the console, or to a desk: a cookie that no script
can read.

The server keeps no list of sessions: a cookie says until when it is valid and for which key, signed
with that key, so that all processes know it, and a new key ends all sessions. The key of a desk is
the password of its extension, of which the cookie says the number.
"""

import base64
import hmac
import secrets
from collections.abc import Mapping
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie

COOKIE = "offhook_session"
DESK_COOKIE = "offhook_desk"
SESSION_S = 12 * 3600
"""Lifetime in s of a session."""
PURPOSE = b"offhook: sessions of the console"
DESK_PURPOSE = b"offhook: sessions of desks"


def issue_session(key: str, expires_at: int) -> str:
    """Returns the value of a cookie that is valid until then, wall-clock time in s."""
    body = f"{expires_at}.{secrets.token_hex(8)}"
    return f"{body}.{_signature(key, body)}"


def issue_desk_session(number: str, password: str, expires_at: int) -> str:
    """Returns the value of the cookie of an extension's desk."""
    body = f"{expires_at}.{secrets.token_hex(8)}.{number}"
    return f"{body}.{_signature(password, body, DESK_PURPOSE)}"


def desk_session(passwords: Mapping[str, str], value: str, now: float) -> tuple[str, int]:
    """Returns the extension whose desk has this cookie, and when it expires; "" and 0 if it is
    none, was issued for another password, or has expired."""
    body, _, signature = value.rpartition(".")
    number = body.rpartition(".")[2]
    password = passwords.get(number)
    if password is None or not _is_signed(password, body, signature, DESK_PURPOSE):
        return "", 0
    expires_at = int(body.partition(".")[0])
    return (number, expires_at) if expires_at > now else ("", 0)


def is_session_of(key: str, value: str, now: float) -> bool:
    """Returns whether a cookie was issued with this key and has not expired."""
    body, _, signature = value.rpartition(".")
    if not _is_signed(key, body, signature):
        return False
    return int(body.partition(".")[0]) > now


def cookie_in(headers: Mapping[str, str], name: str = COOKIE) -> str:
    """Returns the value of our cookie; "" if there is none."""
    try:
        found = SimpleCookie(headers.get("Cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _is_signed(key: str, body: str, signature: str, purpose: bytes = PURPOSE) -> bool:
    """Compares in constant time."""
    expected = _signature(key, body, purpose)
    return hmac.compare_digest(signature.encode(errors="surrogateescape"), expected.encode())


def _signature(key: str, body: str, purpose: bytes = PURPOSE) -> str:
    derived = hmac.digest(key.encode(), purpose, sha256)
    signed = hmac.digest(derived, body.encode(errors="surrogateescape"), sha256)
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")
