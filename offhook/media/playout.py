"""The audio queued for one call, and an exact account of how much of it has been sent.

    state     event                                   -> state
    IDLE      pop(), a packet is queued *             -> PLAYING   on_started
    PLAYING   pop(), all was sent and its utterance
              has ended                               -> IDLE      on_stopped
    PLAYING,
    PAUSED    lower(), playback has started           -> LOWERED
    LOWERED   pop(), as in PLAYING                    -> IDLE      on_stopped
    any       pause()                                 -> PAUSED
    PAUSED,
    LOWERED   resume()                                -> PLAYING, or IDLE if not started
    any       flush()                                 -> IDLE      on_stopped if it had started

    * or less than a packet, if the utterance has ended

Audio cut off by a pause, a flush or an underrun fades out over 5 ms at the start of the very next
packet. After a pause or an underrun the faded samples are played again, fading in, so that no part
of a word is lost. Lowered audio is played on, and counts as sent.

If the far end has a buffer of its own, queued audio is sent to it ahead of time: `peek` returns
it, `pop` still counts it as the far end plays it, and `on_cut` says that what was sent ahead must
be discarded.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_OUT, SAMPLES_OUT, Pcm

LIMIT_MS = 60_000
"""Default limit in ms of the queued audio; more is refused with PlayoutFull, so writers wait for
room."""
MARKS_LIMIT = 10_000
"""Maximum queued marks, since a mark may come without audio; a further one is refused with
PlayoutFull."""
FADE_SAMPLES = RATE_OUT * 5 // 1000

_FADE_IN = (0.5 - 0.5 * np.cos(np.pi * (np.arange(FADE_SAMPLES) + 0.5) / FADE_SAMPLES)).astype(
    np.float32
)


AUDIBLE = 100
"""Samples beyond this are heard (-50 dB of full scale)."""


class PlayoutFull(BufferError):
    """A write would exceed the queue limit; nothing of it was queued."""


class PlayoutState(Enum):
    IDLE = auto()
    PLAYING = auto()
    LOWERED = auto()
    PAUSED = auto()


LOWERED_GAIN = 0.25
"""Gain of lowered audio, -12 dB: plainly in the background, and still understood."""
_PLAYING, _PAUSED = PlayoutState.PLAYING, PlayoutState.PAUSED
"""For what is done 50 times a second: Python 3.11 takes long to find a member of an enumeration."""


@dataclass(frozen=True)
class Flushed:
    """The result of `Playout.flush`."""

    sent: int
    """Samples sent since the start of the call: the last that can have been heard."""
    dropped: int
    """Samples that were queued and will not be sent."""
    dropped_marks: tuple[object, ...]
    """Marks of the dropped samples, in order."""


class PlayoutListener:
    """Notified of playout events. Each method does nothing unless overridden."""

    def on_started(self) -> None:
        """The first packet of audio after IDLE is about to be sent."""

    def on_stopped(self) -> None:
        """Playout has stopped: all audio was sent, or it was flushed."""

    def on_mark(self, mark: object, position: int) -> None:
        """A mark was reached: all audio before it is sent. `position` is the value of `sent` at
        the mark."""

    def on_dropped(self, marks: Sequence[object]) -> None:
        """A flush dropped these marks (at least one), in order."""


class Playout:
    """The playout queue of one call, 24 kHz mono. Sans-io: the packet clock calls `pop`."""

    def __init__(self, limit_ms: int = LIMIT_MS, on_cut: Callable[[], None] = lambda: None) -> None:
        """`on_cut` is called by `pause` and `flush` when queued audio must not be played now, so
        that audio already sent ahead is cleared."""
        self.state = PlayoutState.IDLE
        self.sent = 0
        """Samples sent so far; padding and repeated fades do not count."""
        self.queued = 0
        """Samples written and not yet sent."""
        self.underruns = 0
        """How often the queue ran empty within an utterance."""
        self.listener = PlayoutListener()
        self.on_cut = on_cut
        self._limit = limit_ms * RATE_OUT // 1000
        self._chunks: deque[Pcm] = deque()
        self._offset = 0
        """Samples of the first chunk already sent."""
        self._marks: deque[tuple[int, object]] = deque()
        self._began: int | None = None
        """Value of `sent` at which the open utterance begins; None once it has ended."""
        self._started = False
        """on_started was called and on_stopped not yet."""
        self._last = np.zeros(SAMPLES_OUT, np.int16)
        self._sounding = False
        """The last packet ended in audio that continues: silence now would click."""
        self._cut = False
        """The audio was faded out or lowered, so it must fade in again."""
        self._gain = 1.0
        """Gain at the end of the last packet with audio."""
        self._flush_fade: Pcm | None = None
        """Fade-out of the flushed audio, due in the next packet."""

    @property
    def room(self) -> int:
        """Samples that may be written now."""
        return self._limit - self.queued

    @property
    def speaking(self) -> bool:
        """Whether playback has started and not stopped; true while paused within it."""
        return self._started

    @property
    def audible_left_ms(self) -> int | None:
        """Time in ms up to the last audible sample that is queued; None while the utterance is
        open, so that more may come. It takes a look at all that is queued."""
        if self._more:
            return None
        left = self.queued
        for chunk in reversed(self._chunks):
            loud = np.flatnonzero(np.abs(chunk) > AUDIBLE)
            if len(loud):
                left -= len(chunk) - int(loud[-1]) - 1
                return max(0, left) * 1000 // RATE_OUT
            left -= len(chunk)
        return 0

    @property
    def _more(self) -> bool:
        """The utterance written last is still open."""
        return self._began is not None and self._began < self.sent + self.queued

    def begin(self) -> None:
        """Begin an utterance with the next write. Once it has audio, and until `end`, an empty
        queue is an underrun, and less than a packet waits for more."""
        self._began = self.sent + self.queued

    def end(self) -> None:
        """End the utterance: all of it has been written."""
        self._began = None

    def write(self, pcm: Pcm, mark: object | None = None) -> None:
        """Queue any number of int16 samples, kept by reference: do not change them afterwards. The
        mark is reported when the last sample written so far has been sent. Raises PlayoutFull."""
        if len(pcm) > self.room:
            raise PlayoutFull(f"{len(pcm)} samples written, room for {self.room}")
        if mark is not None:
            if len(self._marks) == MARKS_LIMIT:
                raise PlayoutFull(f"{MARKS_LIMIT} marks are already queued")
            self._marks.append((self.sent + self.queued + len(pcm), mark))
        if len(pcm):
            self._chunks.append(np.ascontiguousarray(pcm))
            self.queued += len(pcm)

    def pause(self) -> None:
        """Send silence from the next packet on, whatever is written, until `resume`."""
        if self.state is not PlayoutState.PAUSED:
            self.state = PlayoutState.PAUSED
            self.on_cut()

    def lower(self) -> None:
        """Play on at LOWERED_GAIN, from the next packet on, until `resume`. No-op unless playback
        has started."""
        if self._started and self.state is not PlayoutState.LOWERED:
            self.state = PlayoutState.LOWERED
            self.on_cut()

    def resume(self) -> None:
        """Continue where the pause cut in, or at the full level. No-op unless paused or lowered."""
        if self.state is PlayoutState.LOWERED:
            self.on_cut()
        if self.state in (PlayoutState.PAUSED, PlayoutState.LOWERED):
            self.state = PlayoutState.PLAYING if self._started else PlayoutState.IDLE

    def flush(self) -> Flushed:
        """Drop everything queued and end the utterance and any pause."""
        if self._sounding:
            self._flush_fade = self._fade_out()
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
        """Return the audio queued `offset` samples after `sent`, read-only. None while paused, if
        nothing is queued there, or if less is queued and the utterance is still open. The tail of
        an utterance is zero-padded. Audio cut off before fades in, as in `pop`."""
        left = self.queued - offset
        if self.state is _PAUSED or left <= 0 or (left < samples and self._more):
            return None
        sound = self._ahead(samples, offset)
        if self.state is PlayoutState.LOWERED:
            return _faded(sound, LOWERED_GAIN if offset else self._gain, LOWERED_GAIN)
        return _faded(sound, self._gain, 1.0) if self._cut and not offset else sound

    def pop(self) -> Pcm | None:
        """Return the next 20 ms: 480 contiguous samples, read-only, or None if there is nothing to
        send. The tail of an utterance is zero-padded. Call it once every 20 ms."""
        packet = self._within_chunk()
        if packet is None:
            packet = self._packet()
        while self._marks and self._marks[0][0] <= self.sent:
            position, mark = self._marks.popleft()
            self.listener.on_mark(mark, position)
        return packet

    def _within_chunk(self) -> Pcm | None:
        """Send a packet that the first chunk holds whole, the usual one, without further ado. None
        if there is anything else to it."""
        if self.state is not _PLAYING or self._cut or self._flush_fade is not None:
            return None
        if not self._chunks:
            return None
        chunk, start = self._chunks[0], self._offset
        end = start + SAMPLES_OUT
        if end > len(chunk):
            return None
        self._last = packet = chunk[start:end]
        self._sounding = True
        self.sent += SAMPLES_OUT
        self.queued -= SAMPLES_OUT
        if end == len(chunk):
            self._chunks.popleft()
            end = 0
        self._offset = end
        return packet

    def _packet(self) -> Pcm | None:
        if self._flush_fade is not None:
            packet, self._flush_fade = self._flush_fade, None
            return packet
        if self.state is PlayoutState.PAUSED:
            return self._fade_out() if self._sounding else None
        if self.queued >= SAMPLES_OUT or (self.queued and not self._more):
            if self.state is PlayoutState.IDLE:
                self._start()
            return self._next()
        if self.state is PlayoutState.IDLE:
            return None
        if not self._more:
            self._stop()
            return None
        if self._sounding:
            self.underruns += 1
            return self._fade_out()
        return None

    def _start(self) -> None:
        self.state = PlayoutState.PLAYING
        self._started = True
        self.listener.on_started()

    def _stop(self) -> None:
        self.state = PlayoutState.IDLE
        self._sounding = self._cut = False
        self._gain = 1.0
        if self._started:
            self._started = False
            self.listener.on_stopped()

    def _next(self) -> Pcm:
        """Send up to a packet of what is queued."""
        packet = self._ahead(SAMPLES_OUT)
        samples = min(self.queued, SAMPLES_OUT)
        self._advance(samples)
        if self.state is PlayoutState.LOWERED:
            packet = _faded(packet, self._gain, LOWERED_GAIN)
            self._gain, self._cut = LOWERED_GAIN, True
        elif self._cut:
            packet = _faded(packet, self._gain, 1.0)
            self._gain, self._cut = 1.0, False
        self._last = packet
        self._sounding = samples == SAMPLES_OUT
        return packet

    def _fade_out(self) -> Pcm:
        """A packet that fades the audio out, without counting as sent."""
        gains = _FADE_IN[::-1]
        if self.queued >= FADE_SAMPLES or not self._more:
            ahead, gains = self._ahead(FADE_SAMPLES), np.float32(self._gain) * gains
        else:
            # The continuation is not written yet: mirroring the last samples avoids a step.
            ahead = self._last[: -FADE_SAMPLES - 1 : -1]
        packet = np.zeros(SAMPLES_OUT, np.int16)
        packet[:FADE_SAMPLES] = _scale(ahead, gains)
        self._sounding, self._cut, self._gain = False, True, 0.0
        return packet

    def _ahead(self, samples: int, offset: int = 0) -> Pcm:
        """The samples queued from `offset` on, zero-padded: a view if one chunk holds them all."""
        if self._chunks:  # a far end with a buffer of its own is sent the end of what is queued
            last = self._chunks[-1]
            start = offset + len(last) - self.queued
            if 0 <= start <= len(last) - samples:
                return last[start : start + samples]
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

    def _advance(self, samples: int) -> None:
        self.sent += samples
        self.queued -= samples
        self._offset += samples
        while self._chunks and self._offset >= len(self._chunks[0]):
            self._offset -= len(self._chunks.popleft())


def _faded(sound: Pcm, before: float, after: float) -> Pcm:
    """Returns audio that goes from one gain to another within 5 ms."""
    faded = _scale(sound, np.float32(after)) if after < 1 else sound.copy()
    gains = before + (after - before) * _FADE_IN[: len(sound)]
    faded[:FADE_SAMPLES] = _scale(sound[:FADE_SAMPLES], gains)
    return faded


def _scale(pcm: Pcm, gain: npt.NDArray[np.float32] | np.float32) -> Pcm:
    return np.asarray(np.rint(pcm * gain), np.int16)
