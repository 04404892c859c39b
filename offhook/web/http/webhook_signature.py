"""Signatures of webhooks by Standard Webhooks 1.0 (standardwebhooks.com).

All attempts to deliver an event have the same `webhook-id`, by which a receiver recognizes it, and
a timestamp each: receivers refuse one that is about 5 minutes off, so a recorded request is soon
worthless.
"""

import base64
import hmac
from collections.abc import Sequence
from hashlib import sha256

SECRET_PREFIX = "whsec_"
MIN_KEY_BYTES = 16


def signing_key(secret: str) -> bytes:
    """Returns the key of a secret. Raises ValueError if it is too short or not base64."""
    key = secret.encode()
    if secret.startswith(SECRET_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except ValueError:
            raise ValueError(f"what follows {SECRET_PREFIX} is not base64") from None
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes is too short: {MIN_KEY_BYTES} at least")
    return key


def signed_headers(event_id: str, body: bytes, keys: Sequence[str], now: float) -> dict[str, str]:
    """Returns the headers of one attempt to deliver an event, at wall-clock time `now` in s. `keys`
    are secrets; each signs."""
    timestamp = str(int(now))
    signed = b".".join((event_id.encode(), timestamp.encode(), body))
    digests = (hmac.digest(signing_key(key), signed, sha256) for key in keys)
    signatures = (f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return {
        "Content-Type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(signatures),
    }
