"""What a client has said into a stream and what of it has no final yet. Sans-io; time is given."""

from collections import deque
from dataclasses import dataclass
from math import gcd
from typing import Protocol

import numpy as np

from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import Final, Partial


class InputResampler:
    """Sound at the client's rate to 16 kHz, in whatever pieces it comes."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._step = max(1, rate // gcd(rate, RATE_IN))
        self.forget()

    def forget(self) -> None:
        """The next sound does not follow the last."""
        self._rest = np.zeros(0, np.int16)
        self._resampler = Resampler(self._rate, RATE_IN) if self._rate != RATE_IN else None

    def hear(self, pcm: Pcm) -> Pcm:
        if self._resampler is None:
            return pcm
        waiting = np.concatenate((self._rest, pcm))
        whole = len(waiting) // self._step * self._step
        self._rest = waiting[whole:]
        return self._resampler.process(waiting[:whole])


@dataclass
class PendingUtterance:
    """One that has no final yet."""

    number: int
    fed: int = 0
    """Samples at 16 kHz."""
    heard: int = 0
    """Samples that the events so far cover."""
    before: int = 0
    """Of those, samples in Finals that do not end it."""
    flushed_at: float | None = None


class Utterances:
    """Of one stream, numbered from 0. Those flushed wait for their finals, oldest first; only the
    last can be in progress."""

    def __init__(self) -> None:
        self._waiting: deque[PendingUtterance] = deque()
        self._count = 0

    @property
    def unheard(self) -> int:
        """Samples that no event has covered."""
        return sum(utterance.fed - utterance.heard for utterance in self._waiting)

    @property
    def waiting(self) -> int:
        """Flushed and without a final."""
        return len(self._waiting) - self.in_progress

    @property
    def in_progress(self) -> bool:
        return bool(self._waiting) and self._waiting[-1].flushed_at is None

    def current(self) -> PendingUtterance:
        """The one that is being spoken; a new one when there is none."""
        if not self.in_progress:
            self._waiting.append(PendingUtterance(self._count))
            self._count += 1
        return self._waiting[-1]

    def flush(self, now: float) -> None:
        """The one in progress is complete, be it empty."""
        self.current().flushed_at = now

    def cancel(self) -> bool:
        """Drop the one in progress; False when there is none."""
        if not self.in_progress:
            return False
        self._waiting.pop()
        return True

    def hear(self, event: Partial | Final) -> PendingUtterance | None:
        """Whose the engine's next event is; None: of one that was cancelled."""
        if not self._waiting:
            return None
        utterance = self._waiting[0]
        utterance.heard = utterance.before + event.audio_ms * RATE_IN // 1000
        if isinstance(event, Final):
            utterance.before = utterance.heard
            if not event.continues:
                self._waiting.popleft()
        return utterance


class FinalHandler(Protocol):
    def feed(self, pcm: Pcm) -> None: ...

    def finish(self) -> None: ...

    def cancel(self) -> None: ...


class BufferedRecognizerStream:
    """A recognizer's stream before there is one: it is told what was said when it comes."""

    def __init__(self) -> None:
        self._hears: FinalHandler | None = None
        self._said: list[bytearray | None] = []
        """The sound of each utterance; None where it ends."""

    def begin(self, hears: FinalHandler) -> None:
        self._hears = hears
        for said in self._said:
            if said is None:
                hears.finish()
            else:
                hears.feed(np.frombuffer(said, np.int16))
        self._said.clear()

    def feed(self, pcm: Pcm) -> None:
        if self._hears is not None:
            self._hears.feed(pcm)
            return
        if not self._said or self._said[-1] is None:
            self._said.append(bytearray())
        assert self._said[-1] is not None
        self._said[-1] += pcm.tobytes()

    def finish(self) -> None:
        if self._hears is not None:
            self._hears.finish()
        else:
            self._said.append(None)

    def cancel(self) -> None:
        """The utterance in progress."""
        if self._hears is not None:
            self._hears.cancel()
        elif self._said and self._said[-1] is not None:
            self._said.pop()
