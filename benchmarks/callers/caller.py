"""The behaviour of one caller: it speaks, listens, interrupts, presses keys and hangs up.

Sans-io: `step(now)` is called every 20 ms and returns the payload to send.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from random import Random

from benchmarks.callers.ear import Ear
from benchmarks.callers.records import CallRecord, TurnRecord
from benchmarks.speech.number_words import LEAD_MS, NUMBERS, WORD_MS, level_of
from offhook.media.pcm import PACKET_MS

GREETING_S = 4.0
"""Time in s for an agent to begin its greeting."""
SILENCE_S = 0.7
"""Silence in s after which a reply of unknown length is over."""
REST_S = 0.3
"""The same when all its words have been heard."""
GAP_S = 3.0
"""Silence in s after which a reply is over although words are missing."""
REPLY_S = 10.0
"""Time in s within which a reply begins."""
PAUSE_S = (0.3, 1.5)
"""Range of the time in s between a reply and the next line."""
OVER_AGENT_S = (0.5, 1.8)
"""Range of the time in s after which an interruption begins."""
STOPPED_S = 0.25
"""Silence in s that shows that the agent has stopped."""
LATE_S = 0.060
"""Lateness in s of a packet from which its word is not judged: a jitter buffer may have run dry."""
STRETCHED_PACKETS = 50
"""Packets after such a one of which words are not judged either: a jitter buffer that has run dry
makes words longer, by a pitch period a packet, until it is deep enough for the next."""
STALL_S = 0.5
"""Lateness in s that a clock of packets makes up for; after more it begins anew."""
LEAD_PACKETS = LEAD_MS // PACKET_MS
WORD_PACKETS = WORD_MS // PACKET_MS


@dataclass(frozen=True)
class SpokenLine:
    """A line, encoded in packets of 20 ms."""

    payloads: Sequence[bytes]
    words: tuple[int, ...] = ()
    """Levels of its number words."""


@dataclass(frozen=True)
class Habits:
    """How callers behave."""

    interrupting: float = 0.2
    """Share of the replies that are interrupted."""
    pressing: float = 0.05
    """Share of the turns that are a key."""
    call_s: float = 60.0
    """Mean length in s of a call."""


def heard_in(text: str) -> list[int]:
    """Returns the levels of the number words of a transcript, which may have keys too."""
    return [level_of(word) for word in text.split() if word.strip(" .,;:!?").lower() in NUMBERS]


def inaudible(words: int, dropped: Sequence[int], late: Sequence[int]) -> list[int]:
    """Returns the places of the words of a line that had a packet dropped or late: no server can
    be sure to hear them, since what conceals a packet hides one word in thirty. Packets are counted
    from 0."""
    last = words - 1
    return sorted(
        {
            min(max(0, packet - LEAD_PACKETS) // WORD_PACKETS, last)
            for packet in (*dropped, *late)
            if last >= 0
        }
    )


class Punctuality:
    """How late one caller's packets are sent, compared with its most punctual one."""

    def __init__(self) -> None:
        self._packets = 0
        self._start = float("inf")
        """When the first packet was due."""

    def late_s(self, now: float) -> float:
        """Returns the lateness in s of the next packet, which is sent `now`."""
        start = now - self._packets * PACKET_MS / 1000
        self._packets += 1
        self._start = max(min(self._start, start), start - STALL_S)
        return start - self._start


class _Doing(Enum):
    GREETED = auto()
    PAUSING = auto()
    SAYING = auto()
    WAITING = auto()
    LISTENING = auto()
    OVER = auto()


class Caller:
    """One call. `record` and the turns in `turns` are what it reports."""

    def __init__(
        self,
        record: CallRecord,
        turns: list[TurnRecord],
        ear: Ear,
        lines: Sequence[SpokenLine],
        silence: Sequence[bytes],
        habits: Habits,
        chance: Random,
        late_ms: "array[float]",
    ) -> None:
        """Adds to `late_ms` how late each packet is sent."""
        self.record = record
        self.ear = ear
        self.key = ""
        """A key to press; whoever sends it clears it."""
        self._turns = turns
        self._lines, self._silence = lines, silence
        self._habits, self._chance = habits, chance
        self._doing = _Doing.GREETED
        self._until = 0.0
        self._leave_at = 0.0
        self._left: list[bytes] = []
        self._packet: int | None = None
        """Number within the line of the packet that `step` has returned; None in silence."""
        self._dropped: list[int] = []
        """Packets of the line that were dropped on purpose."""
        self._delayed: list[int] = []
        """Packets of the line that were sent too late, or shortly after such a one."""
        self._stretched_until = 0
        """The last tick shortly after a packet that was sent too late."""
        self._old_voice = False
        """Whether the agent still speaks the reply that the line was to interrupt."""
        self._punctuality, self._late_ms = Punctuality(), late_ms
        self._line_at = 0
        """Place of the last line in the words of the call."""
        self._ticks = 0
        self._turn: TurnRecord | None = None
        """The turn in progress."""
        self._onset = 0.0
        """When the first packet of the line was sent."""
        self._transcript: list[int] = []

    @property
    def over(self) -> bool:
        """Whether the caller wants to hang up."""
        return self._doing is _Doing.OVER

    def connect(self, now: float) -> None:
        self._until = now + GREETING_S
        self._leave_at = now + self._chance.uniform(0.5, 1.5) * self._habits.call_s

    def step(self, now: float) -> bytes:
        """Advances by 20 ms and returns the payload to send."""
        self._ticks += 1
        late_s = self._punctuality.late_s(now)
        self._late_ms.append(late_s * 1000)
        ear, turn = self.ear, self._turn
        match self._doing:
            case _Doing.GREETED if self._greeting_is_over(now):
                self._pause(now)
            case _Doing.PAUSING if now >= self._until:
                self._begin_turn(now)
            case _Doing.WAITING if self._old_voice and now < self._until:
                if now - ear.loud_at > STOPPED_S:
                    self._old_voice = False
                    ear.expect_reply()
            case _Doing.WAITING if ear.began_at is not None and turn and not self._old_voice:
                turn.response_ms = max(0.0, ear.began_at - turn.at) * 1000
                cut = self._chance.random() < self._habits.interrupting
                self._until = now + self._chance.uniform(*OVER_AGENT_S) if cut else float("inf")
                self._doing = _Doing.LISTENING
            case _Doing.WAITING if now >= self._until:
                self._end_turn(False)
                self._pause(now)
            case _Doing.LISTENING if self._reply_is_over(now):
                self._end_turn(True)
                self._pause(now)
            case _Doing.LISTENING if now >= self._until:
                self._end_turn(False)
                self._begin_line(now, interrupts=True)
        if late_s > LATE_S:
            self._stretched_until = self._ticks + STRETCHED_PACKETS
        if self._doing is not _Doing.SAYING:
            self._packet = None
            return self._silence[self._ticks % len(self._silence)]
        self._packet = 0 if self._packet is None else self._packet + 1
        if self._ticks < self._stretched_until:
            self._delayed.append(self._packet)
        payload = self._left.pop()
        if not self._left:
            self._end_line(now)
        return payload

    def lose(self) -> None:
        """Notes that the packet returned by `step` is dropped on purpose."""
        self.record.dropped += 1
        if self._packet is not None:
            self._dropped.append(self._packet)

    def _greeting_is_over(self, now: float) -> bool:
        ear = self.ear
        return now >= self._until if ear.began_at is None else now - ear.loud_at > SILENCE_S

    def _reply_is_over(self, now: float) -> bool:
        turn, silent = self._turn, now - self.ear.loud_at
        if turn is None or not turn.words:
            return silent > SILENCE_S
        expected = len(self._transcript or turn.words)
        return silent > (REST_S if len(self.ear.counter.levels) >= expected else GAP_S)

    def _pause(self, now: float) -> None:
        if now >= self._leave_at:
            self._doing = _Doing.OVER
        else:
            self._doing, self._until = _Doing.PAUSING, now + self._chance.uniform(*PAUSE_S)

    def _begin_turn(self, now: float) -> None:
        if self._chance.random() >= self._habits.pressing:
            self._begin_line(now)
            return
        self.key = self._chance.choice("0123456789")
        self._turn = TurnRecord(self.record.call, self.record.kind, now, key=self.key)
        self._await_reply(now)

    def _begin_line(self, now: float, interrupts: bool = False) -> None:
        self._judge_line()
        line, record = self._chance.choice(self._lines), self.record
        self._turn = TurnRecord(
            record.call, record.kind, now, words=list(line.words), interrupts=interrupts
        )
        self._line_at = len(record.words)
        record.words += line.words
        self._left, self._onset = list(reversed(line.payloads)), now
        self._transcript = []
        self._doing = _Doing.SAYING

    def _judge_line(self) -> None:
        """Notes what was inaudible of the last line."""
        record = self.record
        places = inaudible(len(record.words) - self._line_at, self._dropped, self._delayed)
        record.inaudible += [self._line_at + place for place in places]
        self._dropped, self._delayed = [], []

    def _end_line(self, now: float) -> None:
        turn = self._turn
        assert turn is not None
        turn.at = now
        stopped = now - self.ear.loud_at > STOPPED_S
        self._old_voice = turn.interrupts and not stopped
        if turn.interrupts and stopped:
            turn.stop_ms = max(0.0, self.ear.loud_at - self._onset) * 1000
        self._await_reply(now)

    def _await_reply(self, now: float) -> None:
        self.ear.expect_reply()
        self._doing, self._until = _Doing.WAITING, now + REPLY_S

    def _end_turn(self, complete: bool) -> None:
        turn = self._turn
        if turn is None:
            return
        turn.complete = complete
        turn.voice = list(self.ear.counter.levels)
        turn.inaudible = self.ear.inaudible
        turn.holes_ms = [round(ms, 1) for ms in self.ear.holes_ms]
        self._turns.append(turn)
        self._turn = None

    # --- what the server says of the conversation; only some callers receive it ---

    def receive_transcript(self, text: str, now: float) -> None:
        """A final transcript; a turn may come in several."""
        levels = heard_in(text)
        self.record.transcript = [*(self.record.transcript or ()), *levels]
        turn = self._turn
        if turn is None or turn.key or self._doing is _Doing.LISTENING:
            return
        self._transcript += levels
        turn.transcript = list(self._transcript)
        if self._doing is _Doing.WAITING:
            turn.final_ms = (now - turn.at) * 1000

    def receive_spans(self, spans: list[dict[str, object]]) -> None:
        if self._turn is not None and not self._turn.spans:
            self._turn.spans = spans

    def end(self, now: float, by_server: bool) -> None:
        """The call is over."""
        turn = self._turn
        self._judge_line()
        if turn is not None and not turn.key and turn.response_ms is None:
            self.record.due = self._line_at  # the transcript of the last line was still to come
        if self._doing is _Doing.LISTENING or (by_server and self._doing is not _Doing.SAYING):
            self._end_turn(False)
        ear, record = self.ear, self.record
        record.ended, record.ended_by = now, "server" if by_server else "caller"
        record.packets, record.missing = ear.packets, ear.missing
        record.dropped, record.late = record.dropped + ear.dropped, ear.late
        record.delay_ms = round(ear.delay_ms, 1)
