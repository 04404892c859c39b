"""One reply between its text and its sound: words to tokens for the engine, and the samples of the
engine to pieces of speech that end with the words written. No loop, no thread.

The engine is given the words as far as it needs them ahead. The rest waits here, and so does all of
it while too much sound waits to be taken.
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
"""Text written and not yet spoken, about two hours of it."""
LIVE_TOKENS = 256
"""Given to the engine and not yet in its model: more than a minute of speech."""
READ_CHARS = 400
"""That are read at a time: a long text must not keep all others waiting."""
FILE_TOKENS = 96
"""Of a reply that nobody listens to, which is spoken as fast as it can be: half a minute. More than
a segment has (`tts_streams.token_limit`), or one whose whole text is to be known never begins."""
LIVE_S = 30
"""s of sound that nobody has taken, with which the engine gets no more words."""
FILE_S = 10
FLUENT_SAMPLES = RATE_OUT * 3 // 10
"""Of a reply, before sound is held back for want of text: the first words come one by one, a little
slower than they could be spoken, and all wait for the first sound."""
SHORT_CHARS = 500
SHORT_S = 45
"""What is longer is hardly said again word by word."""
_NOT_LATIN = re.compile("[\u0370-\u1cff\u2e80-\ufb00]")
BREAKS = {"": Break.WORD, ",": Break.CLAUSE, ".": Break.SENTENCE}
FEWEST_WORDS, MOST_WORDS = 2, 12
"""Of the beginning of a text, by which its language is judged."""
NO_SOUND: Pcm = np.zeros(0, np.int16)


class Given(NamedTuple):
    """Tokens for the engine, and what ends with them."""

    tokens: list[int]
    ends: Break


@dataclass
class VoiceProfile:
    """What is learnt of a voice, reply by reply."""

    pace: Pace = field(default_factory=Pace)
    gain: float = 1.0


class Reply:
    def __init__(
        self, vocabulary: Vocabulary, language: str, options: VoiceOptions, manner: VoiceProfile
    ) -> None:
        """`language`: ISO 639-1 code of the text; empty: found out from its first words."""
        self._language = language
        self._reader = TextReader(language or UNKNOWN, options.normalise)
        self._tokens = TokenStream(vocabulary)
        self._manner = manner
        self._marks = WordMarks(options.speed, manner.pace)
        self._sound = VoiceSound(options.speed, manner.gain)
        self._most_tokens = LIVE_TOKENS if options.live else FILE_TOKENS
        self._most_samples = RATE_OUT * (LIVE_S if options.live else FILE_S)
        self.short_text: str | None = ""
        """All that was written; None when it is long."""
        self.short_speech: list[Speech] | None = []
        """All that was made; None when it is long."""
        self._unread: deque[str] = deque()
        self._letters = 0  # of the text, in tokens
        self._ends: deque[tuple[int, Break]] = deque()  # of words: how many letters, and what ends
        self._open: list[int] = []  # tokens of a word that has not ended
        self._waiting: deque[Given] = deque()
        self._given = 0  # tokens
        self._taken = 0
        self._waiting_chars = 0
        self._pieces: deque[Speech] = deque()
        self._untaken = self._made = 0  # samples
        self._heard = 0  # samples of the engine's
        self._starved = False
        self._ended = self._finished = False  # the text, and the reading of it
        self.over = False
        """No more speech will come."""

    # --- text ---

    def write(self, text: str) -> None:
        """Raises TextTooLong, taking none."""
        if self._waiting_chars + len(text) > MAX_WAITING_CHARS:
            raise TextTooLong(f"more than {MAX_WAITING_CHARS} characters wait to be spoken")
        self._waiting_chars += len(text)
        if self.short_text is not None:
            self.short_text += text
            if not self._language:
                self._find_language(self.short_text)
            if len(self.short_text) > SHORT_CHARS:
                self.short_text = None
        self._unread.extend(text[i : i + READ_CHARS] for i in range(0, len(text), READ_CHARS))

    def _find_language(self, text: str) -> None:
        """What the words so far are in. One alone does not tell unless by its letters, so the first
        may be read wrongly: that matters to numbers and signs, which hardly ever come first."""
        words = len(text.split()) - (not text[-1:].isspace())
        if words >= FEWEST_WORDS or _NOT_LATIN.search(text):
            language = language_of(text, LANGUAGES)
            self._reader.read_in(language)
            if words >= MOST_WORDS:
                self._language = language

    def end(self) -> None:
        self._ended = True

    def words(self) -> list[Given]:
        """What the engine is to be given now."""
        found = []
        while self._given - self._taken < self._most_tokens and self._untaken < self._most_samples:
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
        """No more words will come."""
        return self._finished and not self._waiting

    def _read(self) -> bool:
        """More of the text; False: there is none for now."""
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
            self._marks.written(word)
            if word.spoken:
                # Behind white space the next word begins with a space, or ends this one's sentence.
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
        """Words that end with the last token."""
        ended = []
        while self._ends and self._ends[0][0] <= self._letters:
            ended.append(self._ends.popleft()[1])
        if ended and self._open:
            self._waiting.append(Given(self._open, max(ended)))
            self._open = []

    # --- sound ---

    def receive(self, told: EngineEvent) -> None:
        """What the engine tells."""
        if isinstance(told, Spoken):
            self._taken = told.tokens
            self._sound.starved(self._starved and self._heard > FLUENT_SAMPLES)
            self._heard += len(told.pcm)
            self._track_words(self._sound.push(told.pcm))
        elif isinstance(told, Ended):
            self._track_words(self._sound.finish())
            self._put(NO_SOUND, [*self._marks.finish(), *self._unsaid()])
            self._manner.gain = self._sound.gain
            self.over = True
        elif not self._waiting and not self._unread:
            self._starved = True

    def _unsaid(self) -> list[str]:
        """Text that the model ended before."""
        held = [] if self._finished else [word.text for word in self._reader.finish()]
        return [*held, *self._unread]

    def _track_words(self, pcm: Pcm) -> None:
        """Cut where words end."""
        begin = 0
        for at in range(0, len(pcm), FRAME_SAMPLES):
            texts = self._marks.heard(pcm[at : at + FRAME_SAMPLES])
            if texts:
                self._put(pcm[begin : at + FRAME_SAMPLES], texts)
                begin = at + FRAME_SAMPLES
        self._put(pcm[begin:], [])

    def _put(self, pcm: Pcm, texts: list[str]) -> None:
        text = "".join(texts)
        if len(pcm) or text:
            self._made += len(pcm)
            self._untaken += len(pcm)
            self._pieces.append(Speech(pcm, text))
            if self.short_speech is not None:
                self.short_speech.append(self._pieces[-1])
                if self._made > SHORT_S * RATE_OUT:
                    self.short_speech = None

    def play(self, pieces: list[Speech]) -> None:
        """All of the reply, from elsewhere; nothing was made of it yet."""
        self._pieces.extend(pieces)
        self._untaken = sum(len(piece.pcm) for piece in pieces)
        self.over = True

    def speech(self) -> Speech | None:
        """The next piece; None: there is none yet."""
        if not self._pieces:
            return None
        piece = self._pieces.popleft()
        self._untaken -= len(piece.pcm)
        self._waiting_chars -= len(piece.text)
        return piece
