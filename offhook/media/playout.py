"""The sound queued to be said on one call, and the exact account of what has been sent of it.

    state     event                                   -> state
    IDLE      take(), a packet is queued *            -> PLAYING   on_started
    PLAYING   take(), all was sent and its utterance
              has ended                               -> IDLE      on_stopped
    any       pause()                                 -> PAUSED
    PAUSED    resume()                                -> PLAYING, or IDLE if nothing had started
    any       flush()                                 -> IDLE      on_stopped if it had started

    * or less than a packet, when no more is to come

Sound that is cut off, by pause, by flush or by running dry within an utterance, goes down in a
fade of 5 ms at the head of the very next packet. After a pause or a dry spell the faded samples
are said again, rising, so that no part of a word is lost.

Where the far end keeps a buffer of its own, what is queued is sent to it ahead of time: `peek`
shows it, `take` goes on counting it as the far end plays it, and `on_cut` says that what was sent
ahead must be taken back.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_OUT, SAMPLES_OUT, Pcm

LIMIT_MS = 60_000
"""Default bound of the queued sound."""
MARKS_LIMIT = 10_000
"""Bound of the marks queued, since a mark may come with no sound."""
FADE_SAMPLES = RATE_OUT * 5 // 1000

_RISE = (0.5 - 0.5 * np.cos(np.pi * (np.arange(FADE_SAMPLES) + 0.5) / FADE_SAMPLES)).astype(
    np.float32
)


class PlayoutFull(BufferError):
    """A write goes beyond the bound of the queued sound; nothing of it was taken."""


class PlayoutState(Enum):
    IDLE = auto()
    PLAYING = auto()
    PAUSED = auto()


@dataclass(frozen=True)
class Flushed:
    """What a flush found."""

    sent: int
    """Samples sent since the start of the call: the last that can have been heard."""
    dropped: int
    """Samples that were queued and will not be sent."""
    dropped_marks: tuple[object, ...]
    """Their marks, in order."""


class PlayoutListener:
    """Told what becomes of the sound queued. Each method does nothing unless overridden."""

    def on_started(self) -> None:
        """The first packet of sound after IDLE is about to be sent."""

    def on_stopped(self) -> None:
        """What had started is over: all was sent, or it was flushed."""

    def on_mark(self, mark: object, position: int) -> None:
        """A mark was passed: all sound before it is sent. `position` is the value of `sent` at its
        place in the sound."""

    def on_dropped(self, marks: Sequence[object]) -> None:
        """A flush dropped these marks, at least one, in order."""


class Playout:
    """What one call is to say, 24 kHz mono. Sans-io: the packet clock calls `take` each 20 ms."""

    def __init__(self, limit_ms: int = LIMIT_MS, on_cut: Callable[[], None] = lambda: None) -> None:
        """`on_cut` is called by `pause` and `flush` as soon as what is queued is not to be heard
        now: what was sent ahead has to be taken back."""
        self.state = PlayoutState.IDLE
        self.sent = 0
        """Samples of written sound sent; padding and fades that are said again do not count."""
        self.queued = 0
        """Samples written and waiting."""
        self.underruns = 0
        """How often the sound ran dry within an utterance."""
        self.listener = PlayoutListener()
        self.on_cut = on_cut
        self._limit = limit_ms * RATE_OUT // 1000
        self._chunks: deque[Pcm] = deque()
        self._offset = 0
        """Samples of the first chunk already sent."""
        self._marks: deque[tuple[int, object]] = deque()
        self._began: int | None = None
        """Where the open utterance begins, as a value of `sent`; None after its end."""
        self._started = False
        """on_started was called and on_stopped not yet."""
        self._last = np.zeros(SAMPLES_OUT, np.int16)
        self._up = False
        """The last packet ended in sound that goes on: silence now would be a click."""
        self._cut = False
        """The sound went down in a fade: it has to come up in one."""
        self._farewell: Pcm | None = None
        """The fade of what was flushed, due in the next packet."""

    @property
    def room(self) -> int:
        """Samples that may be written now."""
        return self._limit - self.queued

    @property
    def speaking(self) -> bool:
        """Between on_started and on_stopped: something is being said, or was paused in."""
        return self._started

    @property
    def _more(self) -> bool:
        """The utterance whose sound was written last is open."""
        return self._began is not None and self._began < self.sent + self.queued

    def begin(self) -> None:
        """An utterance begins with the next write: once it has sound, and until `end`, running dry
        is an underrun and less than a packet waits for more."""
        self._began = self.sent + self.queued

    def end(self) -> None:
        """All of the utterance has been written."""
        self._began = None

    def write(self, pcm: Pcm, mark: object | None = None) -> None:
        """Queue int16 samples of any number, zero included. The array is handed over: it is kept
        by reference and must not be changed afterwards. The mark is passed when the last sample
        written so far has been sent. Raises PlayoutFull."""
        if len(pcm) > self.room:
            raise PlayoutFull(f"{len(pcm)} samples written, room for {self.room}")
        if mark is not None:
            if len(self._marks) == MARKS_LIMIT:
                raise PlayoutFull(f"{MARKS_LIMIT} marks are queued")
            self._marks.append((self.sent + self.queued + len(pcm), mark))
        if len(pcm):
            self._chunks.append(np.ascontiguousarray(pcm))
            self.queued += len(pcm)

    def pause(self) -> None:
        """Be silent from the next packet on, and stay so whatever is written."""
        if self.state is not PlayoutState.PAUSED:
            self.state = PlayoutState.PAUSED
            self.on_cut()

    def resume(self) -> None:
        """Go on where the pause cut in. No-op unless paused."""
        if self.state is PlayoutState.PAUSED:
            self.state = PlayoutState.PLAYING if self._started else PlayoutState.IDLE

    def flush(self) -> Flushed:
        """Drop all that is queued and end utterance and pause; later writes begin anew."""
        if self._up:
            self._farewell = self._fade_out()
        flushed = Flushed(self.sent, self.queued, tuple(mark for _, mark in self._marks))
        self._chunks.clear()
        self._marks.clear()
        self._offset = self.queued = 0
        self._began = None
        self.on_cut()
        if flushed.dropped_marks:
            self.listener.on_dropped(flushed.dropped_marks)
        self._stop()
        return flushed

    def peek(self, offset: int, samples: int) -> Pcm | None:
        """The sound queued from `offset` samples after `sent` on, to be read only; None while
        paused, where nothing is queued there, and where less is queued and more is to come. The
        tail of an utterance is padded with zeros. Sound that was cut off before rises, as in
        `take`."""
        left = self.queued - offset
        if self.state is PlayoutState.PAUSED or left <= 0 or (left < samples and self._more):
            return None
        sound = self._ahead(samples, offset)
        return self._risen(sound) if self._cut and not offset else sound

    def take(self) -> Pcm | None:
        """The next 20 ms: 480 contiguous samples, to be read only, or None if there is nothing to
        send. The tail of an utterance is padded with zeros. Called once per 20 ms."""
        packet = self._packet()
        while self._marks and self._marks[0][0] <= self.sent:
            position, mark = self._marks.popleft()
            self.listener.on_mark(mark, position)
        return packet

    def _packet(self) -> Pcm | None:
        if self._farewell is not None:
            packet, self._farewell = self._farewell, None
            return packet
        if self.state is PlayoutState.PAUSED:
            return self._fade_out() if self._up else None
        if self.queued >= SAMPLES_OUT or (self.queued and not self._more):
            if self.state is PlayoutState.IDLE:
                self._start()
            return self._next()
        if self.state is PlayoutState.IDLE:
            return None
        if not self._more:
            self._stop()
            return None
        if self._up:
            self.underruns += 1
            return self._fade_out()
        return None

    def _start(self) -> None:
        self.state = PlayoutState.PLAYING
        self._started = True
        self.listener.on_started()

    def _stop(self) -> None:
        self.state = PlayoutState.IDLE
        self._up = self._cut = False
        if self._started:
            self._started = False
            self.listener.on_stopped()

    def _next(self) -> Pcm:
        """Send up to a packet of what is queued."""
        packet = self._ahead(SAMPLES_OUT)
        samples = min(self.queued, SAMPLES_OUT)
        self._advance(samples)
        if self._cut:
            packet = self._risen(packet)
            self._cut = False
        self._last = packet
        self._up = samples == SAMPLES_OUT
        return packet

    def _fade_out(self) -> Pcm:
        """A packet in which the sound goes down, without counting as sent."""
        if self.queued >= FADE_SAMPLES or not self._more:
            ahead = self._ahead(FADE_SAMPLES)
        else:
            # How the sound goes on is not written yet: mirrored, it goes on without a step.
            ahead = self._last[: -FADE_SAMPLES - 1 : -1]
        packet = np.zeros(SAMPLES_OUT, np.int16)
        packet[:FADE_SAMPLES] = _scale(ahead, _RISE[::-1])
        self._up, self._cut = False, True
        return packet

    def _ahead(self, samples: int, offset: int = 0) -> Pcm:
        """The samples queued from `offset` on, padded with zeros: a view where one chunk has them
        all."""
        start = self._offset + offset
        out: Pcm | None = None
        filled = 0
        for chunk in self._chunks:
            if start >= len(chunk):
                start -= len(chunk)
                continue
            if out is None:
                if len(chunk) - start >= samples:
                    return chunk[start : start + samples]
                out = np.zeros(samples, np.int16)
            piece = chunk[start : start + samples - filled]
            out[filled : filled + len(piece)] = piece
            filled += len(piece)
            start = 0
            if filled == samples:
                break
        return np.zeros(samples, np.int16) if out is None else out

    @staticmethod
    def _risen(sound: Pcm) -> Pcm:
        """The sound coming up after a cut."""
        risen = sound.copy()
        risen[:FADE_SAMPLES] = _scale(sound[:FADE_SAMPLES], _RISE)
        return risen

    def _advance(self, samples: int) -> None:
        self.sent += samples
        self.queued -= samples
        self._offset += samples
        while self._chunks and self._offset >= len(self._chunks[0]):
            self._offset -= len(self._chunks.popleft())


def _scale(pcm: Pcm, gain: npt.NDArray[np.float32]) -> Pcm:
    return np.asarray(np.rint(pcm * gain), np.int16)
