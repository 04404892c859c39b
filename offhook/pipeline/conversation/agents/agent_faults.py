"""What is done when the language model of a call fails: a table of fault x place -> what is tried.

Pure policy: times are arguments, in seconds of one clock. The caller of `AgentFaults` asks the
model, says which `Fault` it met and where, and carries out the `Decision` that comes back. Whatever
the fault, the caller hears something within `Limits.first_token_seconds`.
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
    """Status 404: no such model, or no such path."""
    REFUSED = "refused"
    """Any other status: the request itself is not taken."""
    BAD_ANSWER = "bad_answer"
    """No event stream, no JSON, or JSON of another shape."""
    EMPTY = "empty"
    """The answer ends without a word and without a tool."""
    UNREACHABLE = "unreachable"
    """TCP or TLS is refused, or the connection breaks."""
    NO_NAME = "no_name"
    """DNS does not know the server."""
    FIRST_TOKEN_LATE = "first_token_late"
    STALLED = "stalled"
    """No token for Limits.between_tokens_seconds, in an answer that has begun."""
    BAD_TOOL_CALL = "bad_tool_call"
    """The arguments of a tool are no JSON object."""
    TOOL_FAILED = "tool_failed"
    """A tool raised an error or took longer than Limits.tool_seconds."""
    TOO_LONG = "too_long"
    """The answer has reached Limits.answer_characters."""
    TOO_MANY_ROUNDS = "too_many_rounds"
    """The model has asked for tools Limits.tool_rounds times in one turn of the caller."""
    UNEXPECTED = "unexpected"
    """A fault of our own."""


class Place(StrEnum):
    START = "start"
    """Before the first word of the answer to the caller's turn, or of the greeting."""
    SPEAKING = "mid_sentence"
    """Words of this answer have been said."""
    TOOL = "tool"
    """A tool has given its result, and nothing has been said of it yet."""


class Action(StrEnum):
    RETRY = "retry"
    """Ask the same model once more."""
    FALL_BACK = "fall_back"
    """Ask what stands by."""
    SAY = "sentence"
    """Say a sentence of ours; the caller's next turn goes to the model again."""
    TELL_MODEL = "tell_model"
    """The fault is the tool's result: the model says what there is to say."""
    CUT = "cut"
    """End the answer where it is."""
    TRANSFER = "transfer"
    """Say so and hand the caller over."""
    GOODBYE = "goodbye"
    """Say goodbye and hang up."""


@dataclass(frozen=True)
class FaultRule:
    faults: tuple[Fault, ...]
    places: tuple[Place, ...]
    tries: tuple[Action, ...]
    """The first that can be done is done; the last always can."""
    why: str


F, P, A = Fault, Place, Action
SILENT = (P.START, P.TOOL)
"""Nothing said yet: the question can be asked again, and nobody hears that it was."""
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
    FaultRule((F.STALLED,), SILENT, (A.FALL_BACK, A.SAY), "in the arguments of a tool"),
    FaultRule((F.TOO_LONG,), SILENT, (A.SAY,), "endless arguments of a tool"),
    FaultRule((F.TOO_LONG,), (P.SPEAKING,), (A.CUT,), "nobody listens so long"),
    FaultRule((F.TOOL_FAILED,), tuple(Place), (A.TELL_MODEL,), "it may know another way"),
    FaultRule((F.TOO_MANY_ROUNDS,), tuple(Place), (A.SAY,), "it goes round in circles"),
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
"""What can come of each fault, for those who count."""
RETRIES = 1
"""In one round: a second one seldom does better, and the caller waits."""
RETRY_S = 0.2
"""Before a retry, unless the server says how long."""
FALL_BACK_S = 60.0
"""So long what stands by keeps the call before the model is asked again."""


@dataclass(frozen=True)
class Limits:
    first_token_seconds: float = 6.0
    """From the question to the first word of the answer: all tries of one round together. With a
    stand-by the model itself has half of it."""
    between_tokens_seconds: float = 3.0
    """In an answer that has begun."""
    answer_characters: int = 4000
    """About four minutes of speech."""
    tool_rounds: int = 8
    """How often the model may ask for tools in one turn of the caller."""
    tool_seconds: float = 5.0
    """For a tool to do what it does, but for a transfer, which rings."""
    failures: int = 3
    """Turns in a row without an answer after which the agent gives up."""


@dataclass(frozen=True)
class Decision:
    action: Action
    occasion: Occasion | None = None
    """Of the sentence to be said."""
    pause_s: float = 0.0
    """Before the retry."""


class AgentFaults:
    """The model's failures in one call. `stands_by`: there is something to fall back to;
    `transfers`: there is somebody to give the caller to."""

    def __init__(self, limits: Limits, *, stands_by: bool = False, transfers: bool = False) -> None:
        self.limits = limits
        self.rounds = 0
        """Of tools, in this turn of the caller."""
        self._stands_by = stands_by
        self._transfers = transfers
        self._greeting = False
        self._retries = 0
        self._failures = 0
        self._deadline = 0.0
        self._fell_back: float | None = None
        """When; None: the model itself is asked."""

    def begin(self, now: float, *, tool_round: bool, greeting: bool) -> None:
        """The model is about to be asked: for the greeting, for an answer to the caller's turn, or
        for what follows from the result of a tool."""
        self.rounds = self.rounds + 1 if tool_round else 0
        self._greeting = greeting
        self._retries = 0
        self._deadline = now + self.limits.first_token_seconds
        if self._fell_back is not None and now - self._fell_back >= FALL_BACK_S:
            self._fell_back = None

    @property
    def fell_back(self) -> bool:
        """Whom to ask: what stands by."""
        return self._fell_back is not None

    @property
    def over(self) -> bool:
        """The turn has had all its rounds of tools."""
        return self.rounds > self.limits.tool_rounds

    def first_token_by(self, now: float) -> float:
        """When the first token of the try that begins now must be there."""
        if self._stands_by and not self.fell_back:
            return now + (self._deadline - now) / 2
        return self._deadline

    def failed(self, fault: Fault, place: Place, now: float, after_s: float = 0.0) -> Decision:
        """What to do now. `after_s`: so long the server asks us to wait (Retry-After)."""
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
        self._failures += 1
        if self._failures >= self.limits.failures:
            if self._transfers:
                return Decision(A.TRANSFER, Occasion.TRANSFER)
            return Decision(A.GOODBYE, Occasion.GOODBYE)
        if place is P.SPEAKING:
            return Decision(action, Occasion.BROKEN_OFF)
        return Decision(action, Occasion.GREETING if self._greeting else Occasion.TROUBLE)

    def answered(self) -> None:
        """The model has said what it had to say."""
        self._failures = 0
