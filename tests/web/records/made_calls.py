"""Calls for the store, as an edge hands them on."""

from dataclasses import asdict, replace
from typing import Any

from offhook.media.leg import CallInfo
from offhook.telephony.call_record import CallRecord
from offhook.web.records.entries import Began, Entry, Happened, Over
from offhook.web.records.store import Writer

HERE = Writer("here:7860")
NOON = 1_790_000_000.0
"""When the first call began."""
INFO = CallInfo("sip", caller="+49 30 1234567", caller_name="Ada", called="100", trunk="line")

RECORD = CallRecord(
    call_id="call",
    edge="sip",
    remote_call_id="x@far",
    direction="inbound",
    started="2026-09-21T14:13:18+00:00",
    ended="2026-09-21T14:13:40+00:00",
    end_reason="the caller hung up",
    ended_by="remote",
    status=200,
    answered="2026-09-21T14:13:20+00:00",
    duration_seconds=20.0,
    trunk="line",
    caller="+49301234567",
    called="100",
    agent="front",
    packets_lost=3,
)


def begun(call: str, at: float = NOON, agent: str = "front", **info: Any) -> Began:
    return Began(call, at, agent, asdict(replace(INFO, **info)))


def said(call: str, position: int, who: str, text: str, at_ms: int = 0) -> Happened:
    fields = {"turn": 1, "text": text}
    return Happened(call, position, at_ms or 1000 * position, f"{who}_turn", fields)


def over(call: str, at: float = NOON + 20, **more: Any) -> Over:
    reason = "the caller hung up"
    return Over(call, at, reason, reason, "remote", {"mos": 4.2, "packets_lost": 3}, **more)


def call_of(call: str, *words: str, at: float = NOON, **info: Any) -> list[Entry]:
    """A call in which the caller says these words, and the agent repeats them."""
    entries: list[Entry] = [begun(call, at, **info)]
    for number, text in enumerate(words):
        entries.append(said(call, 3 * number, "caller", text))
        latency = {"turn": 1, "spans": [["asr_final", 90]], "total_ms": 400 + number}
        entries.append(Happened(call, 3 * number + 1, 1000 * number, "turn_latency", latency))
        entries.append(said(call, 3 * number + 2, "agent", f"you say {text}"))
    return [*entries, over(call, at + 20)]
