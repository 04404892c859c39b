"""What happens in a call, as values: the log, the page, the recording's timeline, the metrics and
the scripted caller all read the same events."""

from dataclasses import dataclass, field
from typing import Any, Literal

from offhook.media.end_reason import EndReason


@dataclass(frozen=True)
class CallStarted:
    at_ms: int
    agent: str
    recognizer: str
    synthesizer: str
    edge: str = ""
    direction: str = ""
    caller: str = ""
    """Number or address; empty when withheld or unknown."""
    caller_name: str = ""
    called: str = ""
    trunk: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SpeechStarted:
    at_ms: int


@dataclass(frozen=True)
class CallerPartial:
    at_ms: int
    text: str
    """The whole turn as heard so far."""


@dataclass(frozen=True)
class CallerTurn:
    """The caller's turn is over and went to the agent."""

    at_ms: int
    turn: int
    text: str
    """Words, and keys as `digits.as_text` writes them."""


@dataclass(frozen=True)
class TurnDiscarded:
    at_ms: int


@dataclass(frozen=True)
class PlayoutPaused:
    """Sound from the caller over the agent; the agent fell silent."""

    at_ms: int
    onset_ms: int
    """When that sound began, as the voice detector estimates it."""


@dataclass(frozen=True)
class PlayoutResumed:
    """It was nothing: a cough, an echo, or `text` said while listening."""

    at_ms: int
    text: str


@dataclass(frozen=True)
class Interrupted:
    """The caller took the floor."""

    at_ms: int
    heard: str
    """The agent's words that had been sent when it fell silent."""
    unheard: str


@dataclass(frozen=True)
class AgentTurn:
    """The agent's reply has been said to its end (or to where it was cut)."""

    at_ms: int
    turn: int
    text: str
    interrupted: bool


@dataclass(frozen=True)
class AgentFailed:
    """The agent's model or one of its tools failed; the caller hears what was done about it."""

    at_ms: int
    fault: str
    """As agent_faults.Fault has it."""
    place: str
    """As agent_faults.Place has it."""
    action: str
    """As agent_faults.Action has it."""


@dataclass(frozen=True)
class TurnLatency:
    """Where the time went between the caller's last word and the agent's first packet.

    The spans follow one another; their names are the same in the log, on the page, in the metrics
    and in the traces. `silence_ms` of the total was waited on purpose, to be sure of the end.
    """

    at_ms: int
    turn: int
    spans: tuple[tuple[str, int], ...]
    total_ms: int
    silence_ms: int


@dataclass(frozen=True)
class Dtmf:
    """A key was pressed: one of 0-9 * # A-D."""

    at_ms: int
    digit: str


@dataclass(frozen=True)
class CallHeld:
    """Nobody is heard and nothing is said until CallResumed."""

    at_ms: int
    by: Literal["caller", "agent"]


@dataclass(frozen=True)
class CallResumed:
    at_ms: int
    by: Literal["caller", "agent"]


@dataclass(frozen=True)
class TransferFailed:
    """The conversation goes on."""

    at_ms: int
    target: str
    reason: str


@dataclass(frozen=True)
class CallTransferred:
    """The agent has left. The line may stay up, with the caller and the target on it."""

    at_ms: int
    target: str


@dataclass(frozen=True)
class CallEnded:
    at_ms: int
    reason: EndReason
    statistics: dict[str, float | int | None] = field(default_factory=dict)


Event = (
    CallStarted
    | SpeechStarted
    | CallerPartial
    | CallerTurn
    | TurnDiscarded
    | PlayoutPaused
    | PlayoutResumed
    | Interrupted
    | AgentTurn
    | AgentFailed
    | TurnLatency
    | Dtmf
    | CallHeld
    | CallResumed
    | TransferFailed
    | CallTransferred
    | CallEnded
)
