"""Detects turns by audio level, the meaning of `server_vad` in a realtime session. Sans-io.

OpenAI describes it as level-based too. A voice is what stands out from the noise of the last
seconds (`pipeline.speech.vad`), without a model, since the process that serves programs has none.
"""

from collections import deque
from dataclasses import dataclass
from math import ceil

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm, dbfs
from offhook.pipeline.speech.vad.vad import (
    WINDOW,
    SpeechDetector,
    SpeechSettings,
    SpeechStart,
    SpeechStop,
)
from offhook.web.realtime.protocol.session_object import ServerVad

MARGIN_DB = 20.0
"""Required level in dB above the noise at a threshold of 1."""
_MS = RATE_IN // 1000


@dataclass(frozen=True)
class TurnStarted:
    at_ms: int
    """Start of the turn's audio in the session, including the padding."""


@dataclass(frozen=True)
class TurnStopped:
    at_ms: int
    """End of the turn's audio in the session."""


@dataclass(frozen=True, eq=False)
class TurnSound:
    """Audio of the turn that has started."""

    pcm: Pcm


TurnEvent = TurnStarted | TurnSound | TurnStopped


class TurnDetector:
    def __init__(self, vad: ServerVad) -> None:
        windows = ceil(vad.silence_duration_ms * _MS / WINDOW)
        self._detector = SpeechDetector(
            SpeechSettings(
                start_margin=MARGIN_DB * vad.threshold,
                stop_margin=MARGIN_DB * vad.threshold / 2,
                stop_windows=max(1, windows),
            )
        )
        self._padding = vad.prefix_padding_ms * _MS
        kept = ceil(self._padding / WINDOW) + SpeechDetector.LOOK_BACK
        self._before: deque[Pcm] = deque(maxlen=kept)
        """Windows that may still belong to a turn."""
        self._rest = np.zeros(0, np.int16)
        self._judged = 0
        """Samples of the session processed so far."""
        self._in_turn = False

    def feed(self, pcm: Pcm) -> list[TurnEvent]:
        """Adds 16 kHz samples of any number."""
        sound = np.concatenate((self._rest, pcm))
        whole = len(sound) // WINDOW * WINDOW
        self._rest = sound[whole:]
        events: list[TurnEvent] = []
        for at in range(0, whole, WINDOW):
            events += self._window(sound[at : at + WINDOW])
        return events

    def end(self) -> Pcm:
        """Ends the turn from outside and returns its last audio; what follows belongs to the next
        one."""
        rest = self._rest if self._in_turn else self._rest[:0]
        self._judged += len(self._rest)
        self._rest = self._rest[:0]
        self._in_turn = self._detector.speaking = False
        self._before.clear()
        return rest

    def _window(self, pcm: Pcm) -> list[TurnEvent]:
        self._judged += WINDOW
        found = self._detector.window(1.0, dbfs(pcm), self._judged)
        if self._in_turn:
            sound: list[TurnEvent] = [TurnSound(pcm)]
            if any(isinstance(event, SpeechStop) for event in found):
                self._in_turn = False
                sound.append(TurnStopped(self._judged // _MS))
            return sound
        self._before.append(pcm)
        for event in found:
            if isinstance(event, SpeechStart):
                return self._start(event.at_sample)
        return []

    def _start(self, onset: int) -> list[TurnEvent]:
        kept = np.concatenate(self._before)
        self._before.clear()
        self._in_turn = True
        wanted = self._judged - (onset - self._padding)
        turn = kept[-min(wanted, len(kept)) :]
        return [TurnStarted((self._judged - len(turn)) // _MS), TurnSound(turn)]
