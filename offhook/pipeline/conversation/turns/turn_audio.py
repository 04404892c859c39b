"""The audio of a turn, for recognizers that understand it best as one utterance."""

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import RecognizerStream, WholeTurns

WHOLE_S = 30
"""Longest audio of a turn, in s, that is recognized again from its beginning: what Whisper hears at
once. A longer turn is recognized in parts of about this length."""


class TurnAudio:
    """What a recognizer was fed of the turn in progress; kept only if it `whole_turns`."""

    def __init__(self, stream: RecognizerStream) -> None:
        self.text = ""
        """What was recognized of it before it was fed again; counts if that fails."""
        self._stream = stream if isinstance(stream, WholeTurns) else None
        self._parts: list[Pcm] = []
        self._samples = 0

    def add(self, pcm: Pcm) -> None:
        """Adds what was fed, 16 kHz."""
        if self._stream is not None and self._stream.whole_turns:
            self._samples += len(pcm)
            if self._samples <= WHOLE_S * RATE_IN:
                self._parts.append(pcm)
            else:
                self._parts.clear()

    def clear(self) -> None:
        self._parts.clear()
        self._samples, self.text = 0, ""

    def feed_again(self, text: str) -> int | None:
        """Feeds it again, as the beginning of the next utterance. `text` is what was recognized of
        it. Returns how many finals that were due will not come; None if nothing was fed: it is too
        long, or the recognizer gains nothing by it."""
        if self._stream is None or not self._parts:
            return None
        self.text = text
        withdrawn = self._stream.drop_finished()
        self._stream.feed(np.concatenate(self._parts))
        return withdrawn
