"""What callers report of their calls, as plain JSON."""

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["webrtc", "sip", "twilio"]
KINDS: tuple[Kind, ...] = ("webrtc", "sip", "twilio")
CODECS: dict[Kind, str] = {"webrtc": "opus", "sip": "pcmu", "twilio": "pcmu"}


@dataclass
class TurnRecord:
    """One line of a caller and what came back. Times in s of this machine's monotonic clock."""

    call: str
    kind: Kind
    at: float
    """When the last packet of the line was sent."""
    key: str = ""
    """The key pressed in place of a line."""
    words: list[int] = field(default_factory=list)
    """Levels of the number words of the line; empty without number words."""
    transcript: list[int] | None = None
    """The server's final transcript; None if it is not known."""
    voice: list[int] = field(default_factory=list)
    """The words heard in the reply."""
    inaudible: bool = False
    """Whether more of the reply was dropped on purpose at once than a decoder conceals."""
    final_ms: float | None = None
    """From the end of the line to the final transcript."""
    response_ms: float | None = None
    """From the last packet of the line to the first of the reply with sound; None: no reply."""
    interrupts: bool = False
    """Whether the line was said over the agent's voice."""
    stop_ms: float | None = None
    """From the first packet of such a line to the last of the agent's voice; None: it went on."""
    complete: bool = False
    """Whether the reply was heard to its end, neither interrupted nor cut off by the end of the
    call."""
    holes_ms: list[float] = field(default_factory=list)
    """Silences within the agent's voice as played by the caller's jitter buffer."""
    spans: list[dict[str, Any]] = field(default_factory=list)
    """The server's own account of the turn, stage by stage."""


@dataclass
class CallRecord:
    """One attempt to call."""

    call: str
    """CALLER.ATTEMPT"""
    kind: Kind
    began: float
    setup_ms: float | None = None
    """From the request to the connected call; None: it was not connected."""
    refused: str = ""
    """Why not."""
    ended: float | None = None
    ended_by: Literal["", "caller", "server"] = ""
    heard_until: float | None = None
    """Arrival of the last packet of a browser's call that its server has cut."""
    moved_ms: float | None = None
    """From the last packet of a phone's call until it continues at another server, which has called
    on it by re-INVITE."""
    resumed: bool = False
    """Whether it goes on with the call before, which its server has cut."""
    words: list[int] = field(default_factory=list)
    """Levels of all number words said."""
    due: int | None = None
    """How many of `words` the server had time to recognize before the call ended; None: all."""
    inaudible: list[int] = field(default_factory=list)
    """Places in `words` whose sound did not leave here whole and in time: packets of theirs were
    dropped on purpose, or one was late, or shortly before them (`caller.inaudible`)."""
    transcript: list[int] | None = None
    """Number words of all of the server's final transcripts: one may come as late as the next line.
    None if they are not known."""
    number: str = ""
    """The caller's telephone number, by which the agent knows it."""
    packets: int = 0
    missing: int = 0
    """Packets of the server that never arrived, besides those dropped on purpose."""
    dropped: int = 0
    """Packets dropped on purpose in both directions (`--loss`)."""
    late: int = 0
    """Packets that came too late to be played."""
    delay_ms: float = 0.0
    """Mouth to ear as far as it can be measured here: see `ear.Ear`."""
    mos: float | None = None

    @property
    def caller(self) -> str:
        """Who makes it, one call after another."""
        return self.call.rpartition(".")[0]


@dataclass
class ProcessRecord:
    """Of one process of callers."""

    cpu_percent: float
    lag_ms: dict[str, float]
    late_ms: dict[str, float] = field(default_factory=dict)
    """By how much its callers' packets were sent too late."""


@dataclass
class Report:
    """Everything that a process of callers has recorded."""

    calls: list[CallRecord] = field(default_factory=list)
    turns: list[TurnRecord] = field(default_factory=list)
    processes: list[ProcessRecord] = field(default_factory=list)

    @classmethod
    def of(cls, tables: list[dict[str, Any]]) -> "Report":
        """Joins the reports of several processes."""
        return cls(
            [CallRecord(**row) for table in tables for row in table["calls"]],
            [TurnRecord(**row) for table in tables for row in table["turns"]],
            [ProcessRecord(**row) for table in tables for row in table["processes"]],
        )
