"""Webhooks of incoming calls: the event, and when its delivery is tried again."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from offhook.pipeline.speech.streams.retry import AttemptFailed, RetryPolicy

FIRST_RETRY_S, MAX_RETRY_S = 0.5, 4.0
"""Pauses in s between attempts: they double, since somebody waits on the telephone."""
RETRIED = frozenset((408, 409, 425, 429))
"""Client errors after which another attempt may succeed, as after every server error."""
CREDENTIALS = frozenset(("authorization", "proxy-authorization"))
"""SIP headers that are never passed on."""
MAX_HEADERS = 128
"""Maximum SIP headers in a webhook; further ones are left out."""
MAX_HEADER_CHARS = 2048
"""Maximum length of a SIP header in a webhook; the rest is cut off."""

SipHeaders = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Webhook:
    """A receiver of webhooks."""

    url: str
    secrets: tuple[str, ...] = field(repr=False)
    """`whsec_` and base64, or any text; each signs, so that receivers can change over."""


@dataclass(frozen=True)
class Event:
    """An event to be delivered."""

    id: str
    """`webhook-id`, the same in all attempts."""
    body: bytes


def incoming_call(call_id: str, headers: SipHeaders, now: float) -> Event:
    """Returns the `realtime.call.incoming` of a call. Headers keep their order and repetitions;
    credentials are left out."""
    shown = [
        {"name": name, "value": _readable(value)[:MAX_HEADER_CHARS]}
        for name, value in headers
        if name.lower() not in CREDENTIALS
    ]
    event = {
        "object": "event",
        "id": f"evt_{secrets.token_hex(16)}",
        "type": "realtime.call.incoming",
        "created_at": int(now),
        "data": {"call_id": call_id, "sip_headers": shown[:MAX_HEADERS]},
    }
    return Event(f"wh_{secrets.token_hex(16)}", json.dumps(event).encode())


def _readable(text: str) -> str:
    """Replaces a far end's bytes that are not UTF-8 (surrogates here)."""
    return text.encode("utf-8", "replace").decode()


def retry_policy(give_up_s: float) -> RetryPolicy:
    """Returns the schedule of attempts within `give_up_s`."""
    return RetryPolicy(give_up_s, FIRST_RETRY_S, MAX_RETRY_S)


def failure_of(status: int, after_s: float) -> AttemptFailed | None:
    """Returns how an attempt answered with this status failed; None if the event is delivered. A
    redirect fails: it would take the signed event elsewhere."""
    if 200 <= status < 300:
        return None
    hopeless = status < 500 and status not in RETRIED
    return AttemptFailed(f"HTTP {status}", hopeless=hopeless, after_s=after_s, status=status)
