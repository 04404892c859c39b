"""Messages to the page about a call, beside RTVI's."""

from typing import Any

from offhook.media.leg import LegStatistics
from offhook.pipeline.conversation.events import (
    AgentChanged,
    AgentFailed,
    CallEnded,
    CallStarted,
    Event,
    NodeEntered,
    PlayoutResumed,
    TurnLatency,
)


def for_the_page(event: Event, *, operator: bool = False) -> dict[str, Any] | None:
    """Converts an event to the page's message; None if it has none. Only the operator is told why
    an agent failed, as a server's words name hosts and models, and of the nodes of a flow."""
    match event:
        case AgentFailed(fault=fault, place=place, action=action, cause=cause):
            why = {"reason": f"{fault}: {cause}"} if operator else {}
            return {"type": "agent-failed", "fault": fault, "place": place, "action": action, **why}
        case AgentChanged(agent=agent):
            return {"type": "agent-changed", "agent": agent}
        case NodeEntered(node=node) if operator:
            return {"type": "node-entered", "node": node}
        case TurnLatency(turn=turn, spans=spans, total_ms=total):
            listed = [{"name": name, "ms": ms} for name, ms in spans]
            return {"type": "turn-latency", "turn": turn, "spans": listed, "total_ms": total}
        case PlayoutResumed(text=""):
            return {"type": "false-interruption"}
        case PlayoutResumed(text=text):
            return {"type": "backchannel", "text": text}
        case CallEnded(reason=reason):
            return {"type": "goodbye", "reason": reason}
        case CallStarted(agent=agent, recognizer=recognizer, synthesizer=synthesizer):
            return {"type": "welcome", "agent": agent, "hears": recognizer, "speaks": synthesizer}
    return None


def of_quality(s: LegStatistics) -> dict[str, Any] | None:
    """Returns the message about the quality of a line; None before that is known."""
    if s.mos is None:
        return None
    return {
        "type": "quality",
        "mos": round(s.mos, 2),
        "loss": round(s.loss, 4),
        "jitter_ms": round(s.jitter_ms, 1),
        "round_trip_ms": s.round_trip_ms and round(s.round_trip_ms),
        "buffer_ms": round(s.buffer_ms),
    }
