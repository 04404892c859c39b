"""One reply between its text and its audio: feeds words as tokens to the engine and cuts its
samples into pieces that end with words. It uses no event loop and no thread.

The engine gets words only as far ahead as it needs; the rest waits here, and all of it while too
much audio is undelivered.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.engine.tts.messages import FRAME_SAMPLES, Break, Ended, EngineEvent, Spoken
from offhook.pipeline.engine.tts.prompts import LANGUAGES
from offhook.pipeline.models.qwen3.token_stream import TokenStream, Vocabulary
from offhook.pipeline.speech.synthesizer import Speech, TextTooLong, VoiceOptions
from offhook.pipeline.speech.text.spoken_text import SpokenWord, TextReader
from offhook.pipeline.speech.text.text_language import UNKNOWN, language_of
from offhook.pipeline.speech.voice.voice_sound import VoiceSound
from offhook.pipeline.speech.voice.word_marks import Pace, WordMarks, punctuation

MAX_WAITING_CHARS = 100_000
"""Limit of text not yet spoken, in characters: about two hours."""
LIVE_TOKENS = 256
"""Tokens given to the engine but not yet to its model: more than a minute of speech."""
READ_CHARS = 400
"""Characters read at a time, so that a long text does not block other replies."""
FILE_TOKENS = 96
"""The same limit for a reply that is not live: half a minute of speech. It exceeds the length of a
segment (`streams.token_limit`), or a prompt with the whole text would never start."""
LIVE_S = 30
"""Undelivered audio in s beyond which the engine gets no more words."""
FILE_S = 10
FLUENT_SAMPLES = RATE_OUT * 3 // 10
"""Initial audio of a reply, in samples, delivered without waiting for text: the first words arrive
one by one, slightly slower than speech, and the listener is waiting."""
SHORT_CHARS = 500
SHORT_S = 45
"""Replies longer than this, in s, are not cached, since they rarely recur verbatim."""
_NOT_LATIN = re.compile("[\u0370-\u1cff\u2e80-\ufb00]")
BREAKS = {"": Break.WORD, ",": Break.CLAUSE, ".": Break.SENTENCE}
FEWEST_WORDS, MOST_WORDS = 2, 12
"""Words of the text's start that decide its language."""
NO_SOUND: Pcm = np.zeros(0, np.int16)


class WordTokens(NamedTuple):
    """Tokens for the engine, with the boundary after them."""

    tokens: list[int]
    ends: Break


@dataclass
class VoiceProfile:
    """Pace and gain learned from earlier replies of a voice."""

    pace: Pace = field(default_factory=Pace)
    gain: float = 1.0


class Reply:
    def __init__(
        self, vocabulary: Vocabulary, language: str, options: VoiceOptions, profile: VoiceProfile
    ) -> None:
        """`language` is the ISO 639-1 code of the text; empty: detected from its first words."""
        self._language = language
        self._reader = TextReader(language or UNKNOWN, options.normalise)
        self._tokens = TokenStream(vocabulary)
        self._profile = profile
        self._marks = WordMarks(options.speed, profile.pace)
        self._sound = VoiceSound(options.speed, profile.gain)
        self._most_tokens = LIVE_TOKENS if options.live else FILE_TOKENS
        self._most_samples = RATE_OUT * (LIVE_S if options.live else FILE_S)
        self.short_text: str | None = ""
        """All text written; None if it is long."""
        self.short_speech: list[Speech] | None = []
        """All audio produced; None if it is long."""
        self._unread: deque[str] = deque()
        self._letters = 0  # tokens of the text read so far
        # per word: its end in tokens and its boundary
        self._ends: deque[tuple[int, Break]] = deque()
        self._open: list[int] = []  # tokens of a word that has not ended
        self._waiting: deque[WordTokens] = deque()
        self._given = 0  # tokens given to the engine
        self._taken = 0
        self._waiting_chars = 0
        self._pieces: deque[Speech] = deque()
        self._unread_samples = self._made = 0  # samples
        self._heard = 0  # samples received from the engine
        self._starved = False
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
        if words >= FEWEST_WORDS or _NOT_LATIN.search(text):
            language = language_of(text, LANGUAGES)
            self._reader.read_in(language)
            if words >= MOST_WORDS:
                self._language = language

    def end(self) -> None:
        self._ended = True

    def words(self) -> list[WordTokens]:
        """Returns the words to give to the engine now."""
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
        if found or self.end_of_text:
            self._starved = False
        return found

    @property
    def end_of_text(self) -> bool:
        """Whether no more words follow."""
        return self._finished and not self._waiting

    def _read(self) -> bool:
        """Reads more of the text; returns False if there is none at present."""
        if self._unread:
            self._say(self._reader.feed(self._unread.popleft()))
        elif self._ended and not self._finished:
            self._finished = True
            self._say(self._reader.finish())
            self._add("", Break.SENTENCE, over=True)
        else:
            return False
        return True

    def _say(self, words: list[SpokenWord]) -> None:
        for word in words:
            self._marks.write(word)
            if word.spoken:
                # After white space the next word starts with a space, or this one ends its
                # sentence.
                over = word.text[-1].isspace()
                self._add(word.spoken, BREAKS[punctuation(word.spoken)], over)

    def _add(self, spoken: str, ends: Break, over: bool) -> None:
        tokens = self._tokens.feed(spoken, over)
        letters = self._letters + sum(length for _, length in tokens)
        self._ends.append((letters + self._tokens.waiting, ends))
        for token, length in tokens:
            self._open.append(token)
            self._letters += length
            self._close_words()

    def _close_words(self) -> None:
        """Emits the words that end with the last token."""
        ended = []
        while self._ends and self._ends[0][0] <= self._letters:
            ended.append(self._ends.popleft()[1])
        if ended and self._open:
            self._waiting.append(WordTokens(self._open, max(ended)))
            self._open = []

    # --- sound ---

    def receive(self, told: EngineEvent) -> None:
        """Handles an event of the engine."""
        if isinstance(told, Spoken):
            self._taken = told.tokens
            self._sound.starved(self._starved and self._heard > FLUENT_SAMPLES)
            self._heard += len(told.pcm)
            self._track_words(self._sound.push(told.pcm))
        elif isinstance(told, Ended):
            self._track_words(self._sound.finish())
            self._put(NO_SOUND, [*self._marks.finish(), *self._unsaid()])
            self._profile.gain = self._sound.gain
            self.over = True
        elif not self._waiting and not self._unread:
            self._starved = True

    def _unsaid(self) -> list[str]:
        """Returns the text that the model left unspoken."""
        held = [] if self._finished else [word.text for word in self._reader.finish()]
        return [*held, *self._unread]

    def _track_words(self, pcm: Pcm) -> None:
        """Cuts the audio where words end."""
        begin = 0
        for at in range(0, len(pcm), FRAME_SAMPLES):
            texts = self._marks.feed(pcm[at : at + FRAME_SAMPLES])
            if texts:
                self._put(pcm[begin : at + FRAME_SAMPLES], texts)
                begin = at + FRAME_SAMPLES
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

    def speech(self) -> Speech | None:
        """Returns the next piece of speech, or None if there is none yet."""
        if not self._pieces:
            return None
        piece = self._pieces.popleft()
        self._unread_samples -= len(piece.pcm)
        self._waiting_chars -= len(piece.text)
        return piece
