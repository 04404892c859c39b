"""What was said in an assistant's audio, and what remains of it if it was not heard to its end."""

from dataclasses import dataclass, field

from offhook.media.pcm import RATE_OUT
from offhook.web.realtime.protocol.session_object import EventError

MAX_EXCESS_MS = 1_000
"""Time in ms by which `audio_end_ms` may exceed the audio, since clients that count stream time
overshoot by a little: up to here the end is meant, and beyond it the event gets the error
`invalid_value`."""
MAX_WORDS = 1 << 14
"""Maximum words of an answer whose times are kept; later ones are not found when it is
truncated."""
_MS = RATE_OUT // 1000


@dataclass
class SpokenText:
    """Text and audio of one item, and at which time of the audio each word ends."""

    text: str = ""
    bytes_per_ms: int = 48
    """Of the audio as it is stored."""
    samples: int = 0
    """At 24 kHz."""
    truncated_ms: int | None = None
    """Set once: then nothing is added any more."""
    _words: list[tuple[int, int]] = field(default_factory=list)
    """Of each word: the characters up to its end, and the ms of audio up to its end."""
    _found: int = 0

    @property
    def duration_ms(self) -> int:
        """The audio's duration, or what a truncation left of it."""
        return self.samples // _MS if self.truncated_ms is None else self.truncated_ms

    @property
    def remaining(self) -> str:
        """The text, or the words that a truncation left."""
        if self.truncated_ms is None:
            return self.text
        ends = [chars for chars, end_ms in self._words if end_ms <= self.truncated_ms]
        return self.text[: max(ends, default=0)].rstrip()

    def word(self, text: str, end_ms: int) -> None:
        """Note that a word, or a few, of the text end at `end_ms` of the audio. What does not occur
        in the text, such as a number spelt out, counts as spoken with the next word that does."""
        word = text.strip()
        at = self.text.find(word, self._found) if word else -1
        if at >= 0 and len(self._words) < MAX_WORDS:
            self._found = at + len(word)
            self._words.append((self._found, end_ms))

    def truncation(self, audio_end_ms: int) -> int:
        """Return where a truncation at `audio_end_ms` takes place. Raises EventError beyond
        MAX_EXCESS_MS after the end."""
        duration_ms = self.duration_ms
        if audio_end_ms > duration_ms + MAX_EXCESS_MS:
            words = f"audio of {duration_ms} ms is already shorter than {audio_end_ms} ms"
            raise EventError(words, "invalid_value", "audio_end_ms")
        return min(audio_end_ms, duration_ms)

    def truncate(self, at_ms: int) -> None:
        """Keep the audio up to `at_ms`, and the words that end there or before."""
        self.truncated_ms = at_ms
