"""One reply of Qwen3-TTS between its text and its audio: words go to the engine as tokens."""

from collections import deque
from typing import NamedTuple

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.engines.qwen3_tts.prompts import LANGUAGES
from offhook.pipeline.engines.shared.qwen3.token_stream import TokenStream, Vocabulary
from offhook.pipeline.engines.shared.synthesis.messages import Break, Ended, EngineEvent, Spoken
from offhook.pipeline.engines.shared.synthesis.reply import NO_SOUND, EngineReply, VoiceProfile
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.pipeline.speech.text.spoken_text import SpokenWord
from offhook.pipeline.speech.voice.voice_sound import VoiceSound
from offhook.pipeline.speech.voice.word_marks import WordMarks, punctuation

LIVE_TOKENS = 256
"""Tokens given to the engine but not yet to its model: more than a minute of speech."""
FILE_TOKENS = 96
"""The same limit for a reply that is not live: half a minute of speech. It exceeds the length of a
segment (`streams.token_limit`), or a prompt with the whole text would never start."""
FLUENT_SAMPLES = RATE_OUT * 3 // 10
"""Initial audio of a reply, in samples, delivered without waiting for text: the first words arrive
one by one, slightly slower than speech, and the listener is waiting."""
BREAKS = {"": Break.WORD, ",": Break.CLAUSE, ".": Break.SENTENCE}


class WordTokens(NamedTuple):
    """Tokens for the engine, with the boundary after them."""

    tokens: list[int]
    ends: Break


class Reply(EngineReply[WordTokens, EngineEvent]):
    def __init__(
        self, vocabulary: Vocabulary, language: str, options: VoiceOptions, profile: VoiceProfile
    ) -> None:
        """`language` is the ISO 639-1 code of the text; empty: detected from its first words."""
        most = LIVE_TOKENS if options.live else FILE_TOKENS
        super().__init__(language, LANGUAGES, options, profile, most)
        self._tokens = TokenStream(vocabulary)
        self._marks = WordMarks(options.speed, profile.pace)
        self._sound = VoiceSound(options.speed, profile.gain)
        self._letters = 0  # tokens of the text read so far
        # per word: its end in tokens and its boundary
        self._ends: deque[tuple[int, Break]] = deque()
        self._open: list[int] = []  # tokens of a word that has not ended
        self._heard = 0  # samples received from the engine
        self._starved = False

    # --- text ---

    def parts(self) -> list[WordTokens]:
        found = super().parts()
        if self._starved and (found or self.end_of_text):
            # The next piece may be a while: the engine believes that what waits here was played.
            self._starved = False
            self._sound.starved(False)
            self._track_words(self._marks, self._sound.push(NO_SOUND))
        return found

    def _say(self, words: list[SpokenWord]) -> None:
        for word in words:
            self._marks.write(word)
            if word.spoken:
                # After white space the next word starts with a space, or this one ends its
                # sentence.
                over = word.text[-1].isspace()
                self._add(word.spoken, BREAKS[punctuation(word.spoken)], over)

    def _say_rest(self) -> None:
        self._add("", Break.SENTENCE, over=True)

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
        if isinstance(told, Spoken):
            self._taken = told.tokens
            self._sound.starved(self._starved and self._heard > FLUENT_SAMPLES)
            self._heard += len(told.pcm)
            self._track_words(self._marks, self._sound.push(told.pcm))
        elif isinstance(told, Ended):
            self._track_words(self._marks, self._sound.finish())
            self._put(NO_SOUND, [*self._marks.finish(), *self._unread_text()])
            self._profile.gain = self._sound.gain
            self.over = True
        elif not self._waiting and not self._unread:
            self._starved = True
