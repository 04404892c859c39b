"""When each side of a conversation was heard, and how long the caller waited."""

from bisect import bisect_right
from dataclasses import dataclass, field

MERGED_S = 0.05
"""Gap in s below which sound goes on."""
EARLY_S = 0.05
"""Time in s by which a turn's sound may precede the report that the turn was begun."""


@dataclass
class Spans:
    """Stretches of sound, in the order of time: begin and end, in s."""

    all: list[tuple[float, float]] = field(default_factory=list)

    def note(self, begin: float, end: float) -> None:
        """There was sound from `begin` to `end`."""
        if self.all and begin - self.all[-1][1] < MERGED_S:
            self.all[-1] = self.all[-1][0], end
        else:
            self.all.append((begin, end))

    def within(self, begin: float, end: float) -> list[tuple[float, float]]:
        """Returns those that begin in a window."""
        return [span for span in self.all if begin <= span[0] < end]


@dataclass
class Sounds:
    """What was heard in a conversation, by its turns."""

    caller: Spans = field(default_factory=Spans)
    agent: Spans = field(default_factory=Spans)
    messages: list[float] = field(default_factory=list)
    """When the caller sent a text, or keys."""
    _turns: list[tuple[float, bool]] = field(default_factory=list)
    """When each turn of the scenario was begun, and whether the caller speaks in it."""
    _asked: list[int] = field(default_factory=list)
    """Numbers of the turns in which the caller said something."""
    _by_message: int = 0
    """Turns so far that were sent as messages."""

    def begin_turn(self, now: float, *, by_message: bool, spoken: bool) -> None:
        """A turn was begun: with a message, with speech, or only to listen."""
        began = now
        if by_message or spoken:
            self._asked.append(len(self._turns))
        if by_message and self._by_message < len(self.messages):
            began = self.messages[self._by_message]
        self._by_message += by_message
        self._turns.append((began, spoken))

    def turn_at(self, at: float) -> int:
        """Returns the number of the turn in which something happened; -1: before all."""
        return bisect_right([self._begin(turn) for turn in range(self.turns)], at) - 1

    def _begin(self, turn: int) -> float:
        """Returns when a turn began: where the caller speaks, that is the first sound."""
        begun, spoken = self._turns[turn]
        first = next((at for at, _ in self.caller.all if at >= begun - EARLY_S), begun)
        return first if spoken else begun

    def _window(self, turn: int) -> tuple[float, float]:
        end = self._begin(turn + 1) if turn + 1 < self.turns else float("inf")
        return self._begin(turn), end

    def _end_of_question(self, turn: int) -> float:
        """Returns when the caller was done in a turn."""
        begin, end = self._window(turn)
        spans = self.caller.within(begin, end)
        return spans[-1][1] if spans else begin

    @property
    def turns(self) -> int:
        return len(self._turns)

    @property
    def answered(self) -> bool:
        """Whether the agent was heard after the caller's last sound or message."""
        ends = [self.caller.all[-1][1]] if self.caller.all else []
        asked = max((*ends, *self.messages[-1:]), default=0.0)
        return bool(self.agent.all) and self.agent.all[-1][1] > asked

    def answer_ms(self, turn: int) -> int | None:
        """Returns the time from the caller's last sound of a turn to the agent's first after it;
        None: there is none."""
        asked, (_, end) = self._end_of_question(turn), self._window(turn)
        answers = self.agent.within(asked, end)
        return round((answers[0][0] - asked) * 1000) if answers else None

    def silence_ms(self, turn: int) -> int | None:
        """Returns the longest time in which the caller heard nothing, from the caller's last sound
        of a turn to the end of the answer; None: there is no answer."""
        last, (_, end) = self._end_of_question(turn), self._window(turn)
        longest = None
        for begin, until in self.agent.within(last, end):
            longest = max(longest or 0.0, begin - last)
            last = until
        return None if longest is None else round(longest * 1000)

    def answers_ms(self) -> list[int]:
        """Returns `answer_ms` of all turns in which the caller said something that was answered."""
        taken = (self.answer_ms(turn) for turn in self._asked)
        return [ms for ms in taken if ms is not None]
