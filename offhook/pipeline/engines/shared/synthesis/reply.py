"""The part of a reply that all voice models share: text is read as the engine needs it, and samples
become pieces that end with words. It uses no event loop and no thread.

The engine gets text only as far ahead as it needs; the rest waits here, and all of it while too
much audio is undelivered.
"""

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.speech.synthesizer import Speech, TextTooLong, VoiceOptions
from offhook.pipeline.speech.text.spoken_text import SpokenWord, TextReader
from offhook.pipeline.speech.text.text_language import UNKNOWN, language_of
from offhook.pipeline.speech.voice.word_marks import Pace, WordMarks

MAX_WAITING_CHARS = 100_000
"""Maximum text not yet spoken, in characters, about two hours; further text is refused, and the
stream gets the error `behind`."""
READ_CHARS = 400
"""Characters read at a time, so that a long text does not block other replies."""
LIVE_S = 30
"""Undelivered audio in s beyond which the engine gets no more text."""
FILE_S = 10
"""Undelivered audio in s of a reply that is not live beyond which the engine gets no more text."""
SHORT_CHARS = 500
SHORT_S = 45
"""Replies longer than this, in s, are not cached, since they rarely recur verbatim."""
MARK_SAMPLES = RATE_OUT * 80 // 1000
"""Audio in which words are looked for at a time."""
NOT_LATIN = re.compile("[\u0370-\u1cff\u2e80-\ufb00]")
"""A letter of another script than Latin."""
FEWEST_WORDS, MOST_WORDS = 2, 12
"""Words of the text's start that decide its language."""
MORE_WORDS = 1.5
"""Of them, by those of the last time, with which it is detected again."""
NO_SOUND: Pcm = np.zeros(0, np.int16)


@dataclass
class VoiceProfile:
    """Pace and gain learned from earlier replies of a voice."""

    pace: Pace = field(default_factory=Pace)
    gain: float = 1.0


class TextPart(Protocol):
    """Text for the engine."""

    @property
    def tokens(self) -> Sequence[int]: ...


P = TypeVar("P", bound=TextPart)
E = TypeVar("E")


class EngineReply(ABC, Generic[P, E]):
    """One reply between its text and its audio: parts of the text go out by `parts`, events of the
    engine come in by `receive`."""

    def __init__(
        self,
        language: str,
        languages: Collection[str],
        options: VoiceOptions,
        profile: VoiceProfile,
        most_tokens: int,
    ) -> None:
        """`language` is the ISO 639-1 code of the text; empty: detected from its first words, among
        `languages`. At most `most_tokens` are with the engine and not yet with its model."""
        self._language = language
        self._languages = languages
        self._reader = TextReader(language or UNKNOWN, options.normalise)
        self._detected_words = 0
        """Words from which the language was last detected."""
        self._profile = profile
        self._most_tokens = most_tokens
        self._most_samples = RATE_OUT * (LIVE_S if options.live else FILE_S)
        self.short_text: str | None = ""
        """All text written; None if it is long."""
        self.short_speech: list[Speech] | None = []
        """All audio produced; None if it is long."""
        self._unread: deque[str] = deque()
        self._waiting: deque[P] = deque()
        self._given = 0  # tokens given to the engine
        self._taken = 0
        self._waiting_chars = 0
        self._pieces: deque[Speech] = deque()
        self._unread_samples = self._made = 0  # samples
        # whether the text has ended, and whether all of it has been read
        self._ended = self._finished = False
        self.over = False
        """No more speech follows."""

    # --- text ---

    def write(self, text: str) -> None:
        """Adds text. Raises TextTooLong, adding none."""
        if self._waiting_chars + len(text) > MAX_WAITING_CHARS:
            raise TextTooLong(f"more than {MAX_WAITING_CHARS} characters are waiting to be spoken")
        self._waiting_chars += len(text)
        if self.short_text is not None:
            self.short_text += text
            if not self._language:
                self._find_language(self.short_text)
            if len(self.short_text) > SHORT_CHARS:
                self.short_text = None
        self._unread.extend(text[i : i + READ_CHARS] for i in range(0, len(text), READ_CHARS))

    def _find_language(self, text: str) -> None:
        """Detects the language of the words so far. A single word is not enough except by its
        script, so the first may be read in the wrong language; that affects numbers and symbols,
        which rarely come first."""
        words = len(text.split()) - (not text[-1:].isspace())
        if words >= FEWEST_WORDS and words < MORE_WORDS * self._detected_words:
            return  # text may come in parts of a few letters, which change little
        if words >= FEWEST_WORDS or NOT_LATIN.search(text):
            self._detected_words = words
            language = language_of(text, self._languages)
            self._reader.read_in(language)
            if words >= MOST_WORDS:
                self._language = language

    def end(self) -> None:
        self._ended = True

    def parts(self) -> list[P]:
        """Returns the text to give to the engine now. Sound that waited for it can be delivered."""
        found = []
        while (
            self._given - self._taken < self._most_tokens
            and self._unread_samples < self._most_samples
        ):
            if self._waiting:
                found.append(self._waiting.popleft())
                self._given += len(found[-1].tokens)
            elif not self._read():
                break
        return found

    @property
    def end_of_text(self) -> bool:
        """Whether no more text follows."""
        return self._finished and not self._waiting

    def _read(self) -> bool:
        """Reads more of the text; returns False if there is none at present."""
        if self._unread:
            self._say(self._reader.feed(self._unread.popleft()))
        elif self._ended and not self._finished:
            self._finished = True
            self._say(self._reader.finish())
            self._say_rest()
        else:
            return False
        return True

    @abstractmethod
    def _say(self, words: list[SpokenWord]) -> None:
        """Adds words to what waits for the engine."""

    @abstractmethod
    def _say_rest(self) -> None:
        """Adds what is still incomplete, at the end of the text."""

    # --- sound ---

    @abstractmethod
    def receive(self, told: E) -> None:
        """Handles an event of the engine."""

    def _unread_text(self) -> list[str]:
        """Returns the text that has not been read."""
        held = [] if self._finished else [word.text for word in self._reader.finish()]
        return [*held, *self._unread]

    def _track_words(self, marks: WordMarks, pcm: Pcm) -> None:
        """Cuts the audio where words end."""
        begin = end = 0
        for texts in marks.feed_parts(pcm, MARK_SAMPLES):
            end += MARK_SAMPLES
            if texts:
                self._put(pcm[begin:end], texts)
                begin = end
        self._put(pcm[begin:], [])

    def _put(self, pcm: Pcm, texts: list[str]) -> None:
        text = "".join(texts)
        if len(pcm) or text:
            self._made += len(pcm)
            self._unread_samples += len(pcm)
            self._pieces.append(Speech(pcm, text))
            if self.short_speech is not None:
                self.short_speech.append(self._pieces[-1])
                if self._made > SHORT_S * RATE_OUT:
                    self.short_speech = None

    def play(self, pieces: list[Speech]) -> None:
        """Plays a cached reply instead, before any audio has been produced."""
        self._pieces.extend(pieces)
        self._unread_samples = sum(len(piece.pcm) for piece in pieces)
        self.over = True

    @property
    def has_speech(self) -> bool:
        """Whether a piece of speech can be delivered."""
        return bool(self._pieces)

    def speech(self) -> Speech | None:
        """Returns the next piece of speech, or None if there is none yet."""
        if not self._pieces:
            return None
        piece = self._pieces.popleft()
        self._unread_samples -= len(piece.pcm)
        self._waiting_chars -= len(piece.text)
        return piece
