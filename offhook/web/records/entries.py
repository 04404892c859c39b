"""What the calls of an edge hand to the store: small values that any thread can turn into rows."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from offhook.telephony.call_record import CallRecord

NOT_KEPT = "[not kept]"
"""Stands for words that were said while the recording was paused."""
PART_POSITIONS = 10_000_000
"""Positions of the events of one part of a call: a call that continues at another server goes on
with the next part."""

_NUMBER = re.compile(r"(?i)(sips?:|tel:)?[^a-z@;]+([@;].*)?")
"""A phone number, also within an address: its first part has no letter."""


@dataclass(frozen=True, slots=True)
class Began:
    """A call has reached its agent."""

    call: str
    at: float
    """Seconds since 1970."""
    agent: str
    info: Mapping[str, Any]
    """Fields of a `CallInfo`."""
    recording: str = ""
    """Where it is recorded from the beginning, so that a crash leaves a recording that is found."""


@dataclass(frozen=True, slots=True)
class Happened:
    """Something has happened in a call."""

    call: str
    position: int
    at_ms: int
    kind: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Over:
    """A conversation has ended: the call's own row can be completed."""

    call: str
    at: float
    reason: str
    end: str
    """The label that metrics have for it."""
    ended_by: str
    """"remote" if the far end has hung up, else "local"."""
    statistics: Mapping[str, Any]
    recording: str = ""
    tokens: Mapping[str, Any] | None = None
    """Columns of the row that say what the language models took."""
    collected: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The record of a phone or carrier call, which also those have that reached no agent."""

    record: CallRecord
    end: str


@dataclass(frozen=True, slots=True)
class RecordingReady:
    """A recording of a call is complete where it is kept."""

    call: str
    place: str
    seconds: float
    sealed: bool


@dataclass(frozen=True, slots=True)
class TrunkTurned:
    """A trunk has come up or gone down, or is down for another reason."""

    trunk: str
    at: float
    """Seconds since 1970."""
    up: bool
    reason: str
    """Why it is down; "" if it is up."""
    tenant: str = ""
    """Whose trunk it is."""


Entry = Began | Happened | Over | Recorded | RecordingReady | TrunkTurned


def digits_key(number: str) -> str:
    """Returns the digits of a phone number or SIP address from the last to the first; "" of what
    has fewer than three, as a browser's caller.

    >>> digits_key("sip:+49 30 1234@example.org")
    '43210394'
    """
    user = number.removeprefix("sip:").removeprefix("sips:").removeprefix("tel:").split("@")[0]
    digits = re.sub(r"\D", "", user.split(";")[0])
    return digits[::-1] if len(digits) >= 3 else ""


def digits_keys(number: str) -> list[str]:
    """Returns the keys of all ways to write a number: with a prefix of international calls, as 00
    instead of +, or none. Empty of what is no number, as a name or the id of a call."""
    key = digits_key(number) if _NUMBER.fullmatch(number) else ""
    return [key.rstrip("0") + zeros for zeros in ("", "0", "00")] if key else []


def seconds_of(iso: str | None) -> float | None:
    """Returns an ISO 8601 time in seconds since 1970."""
    return None if iso is None else datetime.fromisoformat(iso).timestamp()


def as_json(value: Any) -> str:
    """Returns a value as JSON; NULs and lone surrogates, which databases refuse, are replaced."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return storable(text.replace("\\u0000", "\\ufffd"))


def storable(text: str) -> str:
    """Returns a text without what databases refuse: NULs and lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
