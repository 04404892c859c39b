"""When each side of a conversation was heard, and how long the caller waited."""

from bisect import bisect_right
from dataclasses import dataclass, field

from offhook.media.pcm import PACKET_MS

PACKET_S = PACKET_MS / 1000
MERGED_S = 0.05
"""Gap in s below which sound goes on."""
EARLY_S = 0.05
"""Time in s by which a turn's sound may precede the report that the turn was begun."""


@dataclass
class Spans:
    """Stretches of sound, in the order of time: begin and end, in s."""

    all: list[tuple[float, float]] = field(default_factory=list)
    _cut: float | None = None

    def note(self, begin: float, end: float) -> None:
        """There was sound from `begin` to `end`."""
        gap_s = begin - self.all[-1][1] if self.all else MERGED_S
        is_cut = self._cut is not None and begin > self._cut and gap_s > PACKET_S / 2
        if gap_s < MERGED_S and not is_cut:
            self.all[-1] = self.all[-1][0], end
            return
        self._cut = None
        self.all.append((begin, end))

    def cut(self, at: float) -> None:
        """Sound behind the next gap after this moment is not that from before, however short the
        gap."""
        self._cut = at

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
    unscripted: bool = False
    """Whether what the caller says is not known before: each thing that the agent is given is a
    turn."""
    _given: list[float] = field(default_factory=list)
    """When the agent was given what the caller had said."""
    _turns: list[tuple[float, bool]] = field(default_factory=list)
    """When each turn of the scenario was begun, and whether the caller speaks in it."""
    _asked: list[int] = field(default_factory=list)
    """Numbers of the turns in which the caller said something."""
    _sent: dict[int, int] = field(default_factory=dict)
    """Numbers of the messages as which turns were sent."""

    def give(self, now: float) -> None:
        """The agent was given what the caller has said: what it says from now on may answer it."""
        if self.unscripted:
            before = self._given[-1] if self._given else 0.0
            sounds = (begin for begin, _ in self.caller.all if begin > before)
            self._asked.append(len(self._turns))
            self._turns.append((next(sounds, now), False))
        self._given.append(now)
        self.agent.cut(now)

    def go_on(self, now: float) -> None:
        """What the agent was saying when it was given the caller's words was over only now."""
        self._given[-1] = now
        self.agent.cut(now)

    def is_older(self, begun: float) -> bool:
        """Returns whether something had begun before the agent was given the caller's last
        words."""
        return bool(self._given) and begun < self._given[-1]

    def begin_turn(self, now: float, *, by_message: bool, spoken: bool) -> None:
        """A turn was begun: with a message, with speech, or only to listen."""
        if by_message or spoken:
            self._asked.append(len(self._turns))
        if by_message:
            self._sent[len(self._turns)] = len(self._sent)
        self._turns.append((now, spoken))

    def turn_at(self, at: float) -> int:
        """Returns the number of the turn in which something happened; -1: before all. A first turn
        that only listens has begun with the call."""
        first = 0 if self.turns and 0 not in self._asked else -1
        return max(first, bisect_right([self._begin(turn) for turn in range(self.turns)], at) - 1)

    def _begin(self, turn: int) -> float:
        """Returns when a turn began: where the caller speaks, that is the first sound, and where a
        message is sent, when that reaches the agent."""
        begun, spoken = self._turns[turn]
        if self._sent.get(turn, len(self.messages)) < len(self.messages):
            return self.messages[self._sent[turn]]
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

    def _answer(self, turn: int) -> list[tuple[float, float]]:
        """Returns the sound of the answer to a turn. It begins after the agent was given the turn:
        what is heard before is a greeting, or the end of the answer before."""
        begin, end = self._window(turn)
        asked = self._end_of_question(turn)
        given = [at for at in self._given if begin <= at < end]
        return self.agent.within(max(asked, *given) if given else asked, end)

    @property
    def turns(self) -> int:
        return len(self._turns)

    @property
    def answered(self) -> bool:
        """Whether an answer to what the caller has said last was heard, or anything at all where
        the caller has said nothing."""
        return bool(self._answer(self._asked[-1]) if self._asked else self.agent.all)

    def began(self, since: float) -> float | None:
        """Returns when the agent first began to speak after a moment; None: it did not."""
        return next((begin for begin, _ in self.agent.all if begin >= since), None)

    def answer_ms(self, turn: int) -> int | None:
        """Returns the time from the caller's last sound of a turn to the agent's answer; None:
        there is none."""
        asked, answer = self._end_of_question(turn), self._answer(turn)
        return round((answer[0][0] - asked) * 1000) if answer else None

    def silence_ms(self, turn: int) -> int | None:
        """Returns the longest time in which the caller heard nothing, from the caller's last sound
        of a turn to the end of the answer; None: there is no answer."""
        if not (answer := self._answer(turn)):
            return None
        last, longest = self._end_of_question(turn), 0.0
        for begin, until in self.agent.all:
            if last < until and begin <= answer[-1][0]:
                longest, last = max(longest, begin - last), until
        return round(longest * 1000)

    def answers_ms(self) -> list[int]:
        """Returns `answer_ms` of all turns in which the caller said something that was answered."""
        taken = (self.answer_ms(turn) for turn in self._asked)
        return [ms for ms in taken if ms is not None]
