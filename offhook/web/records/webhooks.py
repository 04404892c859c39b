"""Webhooks about calls and trunks: which there are, and when each is tried again."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from offhook.web.records.entries import as_json

EventType = Literal[
    "call.started",
    "call.ended",
    "call.analyzed",
    "turn.caller",
    "turn.agent",
    "turn.member",
    "agent.failed",
    "tool.used",
    "transfer.progress",
    "transfer.completed",
    "transfer.failed",
    "call.answered_by",
    "message.left",
    "voicemail.left",
    "recording.ready",
    "recording.uploaded",
    "trunk.registered",
    "trunk.failed",
    "campaign.completed",
]
OF_KINDS: dict[str, EventType] = {
    "caller_turn": "turn.caller",
    "caller_typed": "turn.caller",
    "agent_turn": "turn.agent",
    "member_turn": "turn.member",
    "agent_failed": "agent.failed",
    "tool_used": "tool.used",
    "transfer_progress": "transfer.progress",
    "call_transferred": "transfer.completed",
    "transfer_failed": "transfer.failed",
    "answered_by": "call.answered_by",
    "message_left": "message.left",
    "voicemail_left": "voicemail.left",
}
"""Webhooks by the kinds of events in a timeline."""

LEASE_S = 60.0
"""Time in s for which a process that delivers a webhook has it to itself."""
AT_ONCE = 8
"""Webhooks that are under way to one receiver; those of one call or trunk go one after the
other."""


@dataclass(frozen=True)
class Receiver:
    """Who gets which webhooks."""

    url: str
    secrets: tuple[str, ...]
    events: frozenset[str]
    mailbox: str = ""
    """Whose messages these are, of a person who gets them by mail; "" for all."""
    delay_s: float = 0.0
    """Time in s from what happens to the first attempt."""
    tenant: str = ""
    """Whose events these are; "" for all."""


@dataclass(frozen=True)
class Delivery:
    """A webhook that waits."""

    number: int
    id: str
    """`webhook-id`, the same in all attempts."""
    body: bytes
    created: float
    """Seconds since 1970."""
    attempts: int


def body_of(event: EventType, data: dict[str, Any], now: float) -> str:
    """Returns the body of a webhook, as Standard Webhooks recommends it."""
    timestamp = datetime.fromtimestamp(now, UTC).isoformat("T", "milliseconds")
    return as_json({"type": event, "timestamp": timestamp, "data": data})


def wanting(receivers: Sequence[Receiver], event: EventType) -> list[Receiver]:
    return [receiver for receiver in receivers if event in receiver.events]
