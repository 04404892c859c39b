"""The utterances of one recognizer stream, from their first sound to their finals. Sans-io: time is
given, in s of time.monotonic().

Sound is counted in samples from the stream's start, with what was dropped or cancelled.
`LIFE_CYCLE` is what can happen to an utterance. Finals are told in the order spoken, each once;
partials only of the oldest utterance. The sound of an utterance is kept until its final, to be
heard again when whoever hears it is lost; with `replays` off only until it has been sent.

What is bounded, and what happens when it is full:

============================  =====================  ==========================================
of one stream                 at most                then
============================  =====================  ==========================================
sound of one utterance        MAX_UTTERANCE_S        it ends, and goes on as the next
sound kept, live              MAX_KEPT_S             sound is dropped until a final comes
sound kept, of a file         MAX_KEPT_S             the stream fails
utterances without a final    MAX_WAITING            the oldest is given up; a file's stream fails
a server's, from its client   MAX_UNHEARD_S or       it reads no further until a result comes
                              MAX_WAITING
============================  =====================  ==========================================
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import ClassVar, Generic, TypeVar

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import Final, Partial
from offhook.pipeline.speech.streams.audio_chunks import SEARCH_S, split
from offhook.pipeline.speech.streams.languages import UNKNOWN
from offhook.pipeline.speech.streams.partials import without_prefix
from offhook.pipeline.speech.streams.retry import Losses
from offhook.pipeline.speech.streams.rolling_text import samples
from offhook.pipeline.speech.timing import Arrivals

MAX_UTTERANCE_S = 60
"""Limit of an utterance in s; a longer one is split, and its first Final `continues`."""
MAX_UNHEARD_S = 180
"""Audio of one stream, in s, that a server has read and no partial or final has covered; then it
reads no further until one comes, and a client that has not flushed gets the error `behind`."""
MAX_KEPT_S = 270
"""Audio of one stream, in s, that is kept until its final; then that of a call is dropped until a
final comes, and a file's stream fails. A server that reads up to MAX_UNHEARD_S may exceed it by one
message of 16 s and by an utterance of MAX_UTTERANCE_S covered by partials; all of it must fit."""
MAX_WAITING = 64
"""Finished utterances of one stream without a final; then the oldest of a call is given up, a
file's stream fails, and a server reads no further."""
SAMPLES_PER_MS = RATE_IN // 1000
NOTHING = Partial("", 0, 0)


class UtteranceState(Enum):
    OPEN = auto()
    """Audio is still being added."""
    FINISHED = auto()
    """It is complete and waits for its final."""
    DONE = auto()
    """Its final has been received."""
    FAILED = auto()
    """It was given up: its final is empty and `lost`."""
    CANCELLED = auto()


class Event(Enum):
    SOUND = auto()
    FINISH = auto()
    TOO_LONG = auto()
    CANCEL = auto()
    PARTIAL = auto()
    PART = auto()
    """A final that `continues`, covering the beginning of the utterance."""
    FINAL = auto()
    LOSS = auto()
    """The connection or process that was recognizing it is lost."""
    GIVE_UP = auto()


class Action(Enum):
    KEEP = auto()
    CLOSE = auto()
    """No more audio is added."""
    CUT = auto()
    """As CLOSE, and the final `continues`, since the speaker did not end the utterance."""
    DROP = auto()
    """Drop its audio and its pending finals."""
    TELL = auto()
    FORGET = auto()
    """Emit the final and drop the audio that it covers."""
    SETTLE = auto()
    """Emit the final after those of earlier utterances."""
    REPLAY = auto()
    """Send all of its audio again."""
    NOTHING = auto()


LIFE_CYCLE: dict[tuple[UtteranceState, Event], tuple[UtteranceState, Action]] = {
    (UtteranceState.OPEN, Event.SOUND): (UtteranceState.OPEN, Action.KEEP),
    (UtteranceState.OPEN, Event.FINISH): (UtteranceState.FINISHED, Action.CLOSE),
    (UtteranceState.OPEN, Event.TOO_LONG): (UtteranceState.FINISHED, Action.CUT),
    (UtteranceState.OPEN, Event.CANCEL): (UtteranceState.CANCELLED, Action.DROP),
    (UtteranceState.OPEN, Event.PARTIAL): (UtteranceState.OPEN, Action.TELL),
    (UtteranceState.OPEN, Event.PART): (UtteranceState.OPEN, Action.FORGET),
    # The engine ended the utterance by itself; what follows still belongs to it.
    (UtteranceState.OPEN, Event.FINAL): (UtteranceState.OPEN, Action.FORGET),
    (UtteranceState.OPEN, Event.LOSS): (UtteranceState.OPEN, Action.REPLAY),
    # Its final `continues`: the speaker goes on in the next utterance.
    (UtteranceState.OPEN, Event.GIVE_UP): (UtteranceState.FAILED, Action.SETTLE),
    (UtteranceState.FINISHED, Event.CANCEL): (UtteranceState.CANCELLED, Action.DROP),
    (UtteranceState.FINISHED, Event.PARTIAL): (UtteranceState.FINISHED, Action.TELL),
    (UtteranceState.FINISHED, Event.PART): (UtteranceState.FINISHED, Action.FORGET),
    (UtteranceState.FINISHED, Event.FINAL): (UtteranceState.DONE, Action.SETTLE),
    (UtteranceState.FINISHED, Event.LOSS): (UtteranceState.FINISHED, Action.REPLAY),
    (UtteranceState.FINISHED, Event.GIVE_UP): (UtteranceState.FAILED, Action.SETTLE),
    # Their finals still wait for those of earlier utterances.
    (UtteranceState.DONE, Event.CANCEL): (UtteranceState.CANCELLED, Action.DROP),
    (UtteranceState.FAILED, Event.CANCEL): (UtteranceState.CANCELLED, Action.DROP),
}
"""Missing transitions change nothing: results for a cancelled or completed utterance were in flight
and are ignored."""
SETTLED = (UtteranceState.DONE, UtteranceState.FAILED)


@dataclass(eq=False)
class Utterance:
    """One utterance of a stream until its final is emitted. Recognizers subclass it to add their
    own state."""

    replays: ClassVar[bool] = True
    """Whether its audio is kept until its final."""
    cut_at_quiet: ClassVar[bool] = False
    """Whether an overlong utterance is split at a quiet place, SEARCH_S before or after the limit,
    in the part that has not been sent."""
    start: int
    """Start of its audio not covered by a final, in samples of the stream."""
    number: int = 0
    """Index in its stream, from 0."""
    state: UtteranceState = UtteranceState.OPEN
    pcm: bytearray = field(default_factory=bytearray)
    """Audio kept, 16-bit little-endian at 16 kHz."""
    fed: int = 0
    """Samples from `start` on."""
    covered: int = 0
    """Samples covered by the last partial."""
    forgotten: int = 0
    """Samples before `start`, which have a final."""
    sent: int = 0
    """Bytes of `pcm` sent."""
    finish_sent: bool = False
    continues: bool = False
    """Whether it was split rather than ended by the speaker."""
    losses: Losses = field(default_factory=Losses)
    shown: Partial = NOTHING
    """The last partial emitted."""
    finals: list[Final] = field(default_factory=list)
    """Finals that wait for those of earlier utterances."""
    finished_at: float = 0.0
    arrivals: Arrivals | None = None
    """Arrival times for a `Timing`, if requested."""

    @property
    def audio_ms(self) -> int:
        return self.fed // SAMPLES_PER_MS

    def apply(self, event: Event) -> Action:
        """Applies an event and returns the action to take; see `LIFE_CYCLE`."""
        unchanged = (self.state, Action.NOTHING)
        self.state, action = LIFE_CYCLE.get((self.state, event), unchanged)
        return action

    def next_to_send(self, most_bytes: int) -> bytes | None:
        """Returns the next audio to send; after all of it, once, empty bytes if it is finished;
        None if there is nothing to send."""
        if self.state not in (UtteranceState.OPEN, UtteranceState.FINISHED):
            return None
        if self.sent < len(self.pcm):
            piece = bytes(self.pcm[self.sent : self.sent + most_bytes])
            if self.replays:
                self.sent += len(piece)
            else:
                del self.pcm[: len(piece)]
            return piece
        if self.state is UtteranceState.FINISHED and not self.finish_sent:
            self.finish_sent = True
            return b""
        return None

    def rewind(self) -> None:
        """Marks all audio to be sent again."""
        self.sent, self.finish_sent = 0, False

    def keep(self, data: bytes, now: float) -> None:
        self.pcm += data
        self.count(len(data) // 2, now)

    def count(self, samples: int, now: float) -> None:
        """Counts audio that is added."""
        self.fed += samples
        if self.arrivals is not None:
            self.arrivals.add(samples, now)

    def close(self, now: float) -> None:
        self.finished_at = now
        if self.arrivals is not None:
            self.arrivals.ended(now)

    def forget(self, audio_ms: int) -> None:
        """Drops the beginning, which has a final."""
        size = min(self.fed, audio_ms * SAMPLES_PER_MS)
        self.start += size
        self.forgotten += size
        self.fed -= size
        self.covered, self.shown = 0, NOTHING
        if self.replays:
            del self.pcm[: 2 * size]
            self.sent = max(0, self.sent - 2 * size)
        if self.arrivals is not None:
            self.arrivals.forget(size)

    def cut(self) -> bytes | None:
        """Splits an overlong utterance and returns the audio for the next one."""
        most = 2 * MAX_UTTERANCE_S * RATE_IN
        search = 2 * int(SEARCH_S) * RATE_IN if self.cut_at_quiet else 0
        if not self.replays or len(self.pcm) <= most + search:
            return None
        if self.cut_at_quiet:
            most = max(2 * split(samples(self.pcm), MAX_UTTERANCE_S)[0][1], self.sent)
        rest = bytes(self.pcm[most:])
        del self.pcm[most:]
        self.fed -= len(rest) // 2
        return rest


U = TypeVar("U", bound=Utterance)


class UtteranceQueue(Generic[U]):
    """Utterances, oldest first; only the newest can be open. `make` creates one that starts at a
    sample of the stream. `timed` adds `arrivals`; `language` is used for utterances given up. If
    `bounded`, audio beyond MAX_KEPT_S is refused; otherwise the caller checks `full`."""

    def __init__(
        self,
        make: Callable[[int], U],
        *,
        timed: bool = False,
        language: str = UNKNOWN,
        bounded: bool = True,
    ) -> None:
        self._make = make
        self._timed = timed
        self._language = language
        self._bounded = bounded
        self._utterances: deque[U] = deque()
        self._samples = self._count = 0

    def __iter__(self) -> Iterator[U]:
        """Yields those without an emitted final; they may be settled or cancelled during the
        iteration."""
        return iter(tuple(self._utterances))

    # --- the speaker's side ---

    def feed(self, pcm: Pcm, now: float) -> bool:
        """Adds 16 kHz samples; returns False if they were dropped for lack of room."""
        self._samples += len(pcm)
        kept = sum(len(utterance.pcm) for utterance in self._utterances) // 2
        if self._bounded and kept + len(pcm) > MAX_KEPT_S * RATE_IN:
            return False
        data: bytes | None = pcm.astype("<i2", copy=False).tobytes()
        while data:
            utterance = self.open or self._begin(len(data) // 2)
            if utterance.apply(Event.SOUND) is Action.KEEP:
                utterance.keep(data, now)
            if (data := utterance.cut()) is not None:
                self._end(utterance, Event.TOO_LONG, now)
        return True

    def count(self, samples: int, now: float) -> None:
        """Counts audio that has been sent already; all before it must have been."""
        self._samples += samples
        utterance = self.open or self._begin(samples)
        if utterance.apply(Event.SOUND) is Action.KEEP:
            utterance.count(samples, now)

    def finish(self, now: float) -> None:
        """Ends the open utterance (an empty one if there is none)."""
        self._end(self.open or self._begin(0), Event.FINISH, now)

    def cancel(self) -> U | None:
        """Drops and returns the newest utterance without an emitted final."""
        if not self._utterances:
            return None
        utterance = self._utterances.pop()
        if utterance.apply(Event.CANCEL) is Action.DROP:
            utterance.pcm.clear()
            utterance.finals.clear()
        return utterance

    # --- the recognizer's side ---

    def receive(self, utterance: U, event: Partial | Final) -> list[Partial | Final]:
        """Records a result and returns the events to emit, in order, with what they cover counted
        from `start`."""
        if isinstance(event, Partial):
            return self._receive_partial(utterance, event)
        match utterance.apply(Event.PART if event.continues else Event.FINAL):
            case Action.FORGET:
                utterance.finals.append(replace(event, continues=True))
                utterance.forget(event.audio_ms)
            case Action.SETTLE:
                utterance.finals.append(replace(event, continues=utterance.continues))
        return self._settled_events()

    def lose(self, utterance: U, now: float, worker: str = "", *, has_others: bool = False) -> bool:
        """Records a loss of `worker`; returns whether the utterance is to be sent again rather than
        given up. `has_others`: whether there are other workers."""
        if utterance.apply(Event.LOSS) is Action.REPLAY:
            utterance.rewind()
            utterance.losses.add(now, worker)
        return not utterance.losses.are_too_many(now, has_others=has_others)

    def give_up(self, utterance: U) -> list[Partial | Final]:
        """Gives up the utterance and returns the events to emit."""
        continues = utterance.continues or utterance.state is UtteranceState.OPEN
        if utterance.apply(Event.GIVE_UP) is Action.SETTLE:
            final = Final("", utterance.audio_ms, (), self._language, continues, lost=True)
            utterance.finals.append(final)
        return self._settled_events()

    # --- its state ---

    @property
    def samples(self) -> int:
        """Samples of the stream so far."""
        return self._samples

    @property
    def open(self) -> U | None:
        """The utterance to which audio is being added."""
        newest = self._utterances[-1] if self._utterances else None
        return newest if newest is not None and newest.state is UtteranceState.OPEN else None

    @property
    def oldest(self) -> U | None:
        """The utterance whose final is emitted next."""
        return self._utterances[0] if self._utterances else None

    @property
    def waiting(self) -> int:
        """Number of finished utterances."""
        return len(self._utterances) - (self.open is not None)

    @property
    def overdue(self) -> U | None:
        """The oldest utterance if too many wait, by `finish` or a cut in `feed`: it must be given
        up."""
        return self.oldest if self._bounded and self.waiting > MAX_WAITING else None

    @property
    def full(self) -> bool:
        """Whether no more audio should be read from the client."""
        unheard = sum(utterance.fed - utterance.covered for utterance in self._utterances)
        return unheard > MAX_UNHEARD_S * RATE_IN or self.waiting >= MAX_WAITING

    def _begin(self, fed: int) -> U:
        utterance = self._make(self._samples - fed)
        utterance.number = self._count
        utterance.arrivals = Arrivals() if self._timed else None
        self._count += 1
        self._utterances.append(utterance)
        return utterance

    def _end(self, utterance: U, event: Event, now: float) -> None:
        utterance.continues = utterance.apply(event) is Action.CUT
        utterance.close(now)

    def _receive_partial(self, utterance: U, partial: Partial) -> list[Partial | Final]:
        if utterance.apply(Event.PARTIAL) is not Action.TELL or utterance is not self.oldest:
            return []
        told = without_prefix(utterance.shown, partial)
        if told is None:
            return []
        utterance.shown = told
        utterance.covered = min(utterance.fed, told.audio_ms * SAMPLES_PER_MS)
        return [told]

    def _settled_events(self) -> list[Partial | Final]:
        told: list[Partial | Final] = []
        while self._utterances:
            oldest = self._utterances[0]
            told += oldest.finals
            oldest.finals.clear()
            if oldest.state not in SETTLED:
                break
            self._utterances.popleft()
        return told
