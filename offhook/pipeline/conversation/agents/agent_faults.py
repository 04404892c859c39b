"""Fault handling of a call's language model, as a table of fault x place -> actions.

Pure policy: times are arguments, in seconds of one monotonic clock. The caller of `AgentFaults`
queries the model, reports the `Fault` it met and where, and executes the returned `Decision`.
Whatever the fault, the caller hears something within `Limits.first_token_seconds`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from offhook.pipeline.conversation.sentences import Occasion


class Fault(StrEnum):
    SERVER_ERROR = "server_error"
    """Status 5xx, or an error inside the stream."""
    RATE_LIMITED = "rate_limited"
    """Status 429."""
    UNAUTHORIZED = "unauthorized"
    """Status 401 or 403."""
    NO_MODEL = "no_model"
    """Status 404: unknown model or path."""
    REFUSED = "refused"
    """Any other status: the request itself is rejected."""
    BAD_ANSWER = "bad_answer"
    """Not an event stream, not JSON, or JSON of another shape."""
    EMPTY = "empty"
    """The answer ends without a letter or digit and without a tool call, or a tool call came of
    which none could be made."""
    UNREACHABLE = "unreachable"
    """TCP or TLS is refused, or the connection breaks."""
    NO_NAME = "no_name"
    """DNS does not resolve the server's name."""
    FIRST_TOKEN_LATE = "first_token_late"
    STALLED = "stalled"
    """No token for Limits.between_tokens_seconds within an answer or its reasoning, or reasoning
    without end."""
    BAD_TOOL_CALL = "bad_tool_call"
    """The arguments of a tool call are not a JSON object."""
    TOOL_FAILED = "tool_failed"
    """A tool raised an error or exceeded Limits.tool_seconds."""
    TOO_LONG = "too_long"
    """The answer has reached Limits.answer_characters."""
    TOO_MANY_ROUNDS = "too_many_rounds"
    """The model has called tools Limits.tool_rounds times in one turn."""
    UNSPEAKABLE = "unspeakable"
    """The voice makes no sound of the answer: it does not speak that language."""
    UNEXPECTED = "unexpected"
    """A bug of our own."""


class Place(StrEnum):
    """Where in the turn a fault occurred."""

    START = "start"
    """Before the first word of the answer, or of the greeting."""
    SPEAKING = "mid_sentence"
    """Part of this answer has been spoken."""
    TOOL = "tool"
    """A tool has returned its result, and nothing has been said about it yet."""


class Action(StrEnum):
    """What is done about a fault."""

    RETRY = "retry"
    """Query the same model again."""
    FALL_BACK = "fall_back"
    """Query the fallback."""
    SAY = "sentence"
    """Speak a predefined sentence; the next turn goes to the model again."""
    TELL_MODEL = "tell_model"
    """Return the fault as the tool's result, for the model to handle."""
    CUT = "cut"
    """End the answer here."""
    TRANSFER = "transfer"
    """Announce and transfer the caller."""
    GOODBYE = "goodbye"
    """Say goodbye and hang up."""


@dataclass(frozen=True)
class FaultRule:
    faults: tuple[Fault, ...]
    places: tuple[Place, ...]
    tries: tuple[Action, ...]
    """The first feasible action is taken; the last always is feasible."""
    why: str


F, P, A = Fault, Place, Action
SILENT = (P.START, P.TOOL)
"""Nothing has been said yet, so a retry is inaudible."""
TABLE: tuple[FaultRule, ...] = (
    FaultRule((F.SERVER_ERROR,), SILENT, (A.RETRY, A.FALL_BACK, A.SAY), "often over at once"),
    FaultRule((F.RATE_LIMITED,), SILENT, (A.RETRY, A.FALL_BACK, A.SAY), "as Retry-After has it"),
    FaultRule(
        (F.UNREACHABLE,), SILENT, (A.RETRY, A.FALL_BACK, A.SAY), "a connection that had gone"
    ),
    FaultRule((F.BAD_ANSWER, F.EMPTY), SILENT, (A.RETRY, A.FALL_BACK, A.SAY), "seldom twice"),
    FaultRule((F.BAD_TOOL_CALL,), SILENT, (A.RETRY, A.FALL_BACK, A.SAY), "models draw lots"),
    FaultRule(
        (F.UNAUTHORIZED, F.NO_MODEL, F.REFUSED), SILENT, (A.FALL_BACK, A.SAY), "no better again"
    ),
    FaultRule((F.NO_NAME,), SILENT, (A.FALL_BACK, A.SAY), "no better within seconds"),
    FaultRule((F.FIRST_TOKEN_LATE,), SILENT, (A.FALL_BACK, A.SAY), "the time is spent"),
    FaultRule((F.STALLED,), SILENT, (A.FALL_BACK, A.SAY), "in reasoning, or a tool's arguments"),
    FaultRule((F.TOO_LONG,), SILENT, (A.SAY,), "endless arguments of a tool"),
    FaultRule((F.TOO_LONG,), (P.SPEAKING,), (A.CUT,), "nobody listens so long"),
    FaultRule((F.TOOL_FAILED,), tuple(Place), (A.TELL_MODEL,), "it may know another way"),
    FaultRule((F.TOO_MANY_ROUNDS,), tuple(Place), (A.SAY,), "it goes round in circles"),
    FaultRule((F.UNSPEAKABLE,), SILENT, (A.FALL_BACK, A.SAY), "nothing of it was heard"),
    FaultRule((F.UNEXPECTED,), tuple(Place), (A.SAY,), "no better again"),
    FaultRule(
        tuple(f for f in F if f not in (F.TOO_LONG, F.TOOL_FAILED, F.TOO_MANY_ROUNDS)),
        (P.SPEAKING,),
        (A.SAY,),
        "asked again it would begin anew, and the caller would hear the same words twice",
    ),
)
_ROWS = {(f, p): row for row in reversed(TABLE) for f in row.faults for p in row.places}
FAULT_ACTIONS = sorted(
    {(fault, action) for row in TABLE for fault in row.faults for action in row.tries}
    | {(f, end) for f in F for end in (A.TRANSFER, A.GOODBYE) if f is not F.TOOL_FAILED}
)
"""Possible actions of each fault, for metrics."""
RETRIES = 1
"""Retries per round; a second one rarely helps, and the caller is waiting."""
RETRY_S = 0.2
"""Delay in s before a retry without Retry-After."""
FALL_BACK_S = 60.0
"""Time in s for which the fallback keeps the call before the model is queried again."""


@dataclass(frozen=True)
class Limits:
    """Limits of a language model's answers."""

    first_token_seconds: float = 6.0
    """Time in s from the query to the first word of the answer, over all attempts of one round.
    With a fallback, the model itself has half of it. A model that is thinking by then goes on, and
    the caller is asked to wait."""
    between_tokens_seconds: float = 3.0
    """Time in s between tokens of an answer."""
    answer_characters: int = 4000
    """Characters of an answer, about four minutes of speech."""
    tool_rounds: int = 8
    """Rounds of tool calls per turn."""
    tool_seconds: float = 5.0
    """Time in s for a tool, except for a transfer, which rings."""
    failures: int = 3
    """Consecutive turns without an answer after which the agent gives up."""


class AgentFailure(Exception):
    """A fault in an answer being monitored."""

    def __init__(self, fault: Fault, words: str) -> None:
        super().__init__(words)
        self.fault = fault


@dataclass(frozen=True)
class Decision:
    action: Action
    occasion: Occasion | None = None
    """Selects the sentence to speak."""
    pause_s: float = 0.0
    """Delay in s before the retry."""


class AgentFaults:
    """The model's failures in one call. `stands_by` means that there is a fallback, `transfers`
    that the caller can be transferred."""

    def __init__(self, limits: Limits, *, stands_by: bool = False, transfers: bool = False) -> None:
        self.limits = limits
        self.rounds = 0
        """Rounds of tool calls in this turn."""
        self._stands_by = stands_by
        self._transfers = transfers
        self._greeting = False
        self._retries = 0
        self._failures = 0
        self._failures_before = 0
        """Failures before the last answer."""
        self._deadline = 0.0
        self._fell_back: float | None = None
        """When the fallback took over; None: the model itself is queried."""

    def begin(self, now: float, *, tool_round: bool, greeting: bool) -> None:
        """Starts a query: for the greeting, for an answer to the caller's turn, or after a tool
        result."""
        self.rounds = self.rounds + 1 if tool_round else 0
        self._greeting = greeting
        self._retries = 0
        self._deadline = now + self.limits.first_token_seconds
        if self._fell_back is not None and now - self._fell_back >= FALL_BACK_S:
            self._fell_back = None

    @property
    def fell_back(self) -> bool:
        """Whether the fallback is to be queried."""
        return self._fell_back is not None

    @property
    def over(self) -> bool:
        """Whether the turn has used all its rounds of tool calls."""
        return self.rounds > self.limits.tool_rounds

    def first_token_by(self, now: float) -> float:
        """Returns the deadline for the first token of the attempt starting now."""
        if self._stands_by and not self.fell_back:
            return now + (self._deadline - now) / 2
        return self._deadline

    def failed(self, fault: Fault, place: Place, now: float, after_s: float = 0.0) -> Decision:
        """Returns what to do about a fault. `after_s` is the server's Retry-After in s."""
        pause = max(RETRY_S, after_s)
        possible: dict[Action, Callable[[], bool]] = {
            A.RETRY: lambda: self._retries < RETRIES and now + pause < self.first_token_by(now),
            A.FALL_BACK: lambda: self._stands_by and not self.fell_back and now < self._deadline,
        }
        tries = _ROWS[fault, place].tries
        action = next(a for a in tries if a not in possible or possible[a]())
        if action is A.RETRY:
            self._retries += 1
            return Decision(action, pause_s=pause)
        if action is A.FALL_BACK:
            self._fell_back = now
            self._retries = RETRIES
        if action is not A.SAY:
            return Decision(action)
        if fault is F.UNSPEAKABLE:  # it was counted as an answer
            self._failures = max(self._failures, self._failures_before)
        self._failures += 1
        if self._failures >= self.limits.failures:
            if self._transfers:
                return Decision(A.TRANSFER, Occasion.TRANSFER)
            return Decision(A.GOODBYE, Occasion.GOODBYE)
        if place is P.SPEAKING:
            return Decision(action, Occasion.BROKEN_OFF)
        return Decision(action, Occasion.GREETING if self._greeting else Occasion.TROUBLE)

    def fall_back(self, now: float) -> None:
        """Has the fallback answer the next turns: the model cannot."""
        self._fell_back = now

    def answered(self) -> None:
        """Records a successful answer, as far as the model is concerned."""
        self._failures_before, self._failures = self._failures, 0
