"""The text of one stream: what the model has consumed, and where segments end.

The model consumes one token per frame and speaks about 3.5 frames per token, so text is consumed
long before it is heard. A segment is therefore ended through its text, at the end of a sentence,
and then runs for the frames that the rest of the text needs.
"""

from bisect import bisect_left
from collections.abc import Sequence

from offhook.pipeline.engines.shared.synthesis.messages import Break

MAX_TEXT = 4096
"""Limit of a stream's unspoken text in tokens: about 20 minutes of speech."""
SEGMENT_TOKENS = 64
"""Tokens (18 s of speech) after which a segment ends with the sentence: short enough that the voice
does not drift, long enough that most replies are one segment."""
CUT_TOKENS = 24
"""Tokens before its limit at which a segment ends at a comma, if no sentence has ended before."""
WORD_TOKENS = 8
"""Tokens before its limit at which a segment ends at any word; longer words are rare."""
NOTHING = -1


class TextOverrun(RuntimeError):
    """Raised when more text would wait than MAX_TEXT; none of it was added."""


class Script:
    """The text of one stream. Positions are token counts since the start of the stream."""

    __slots__ = (
        "_after",
        "_base",
        "_eos",
        "_in_prompt",
        "_kinds",
        "_lead",
        "_lead_tokens",
        "_pad",
        "_places",
        "_tokens",
        "_until",
        "closed",
        "ended",
        "first",
        "limit",
        "stop",
        "taken",
        "written",
    )

    def __init__(self, eos: int, pad: int) -> None:
        self.written = 0
        self.taken = 0
        self.ended = False
        """No more text will be written."""
        self.first = 0
        """Start of the segment."""
        self.limit = 0
        """Maximum tokens of the segment."""
        self.closed = True
        """The segment has all of its text; tts_eos and then padding follow."""
        self.stop = 0
        """Tokens up to this position can be consumed without further planning."""
        self._eos, self._pad = eos, pad
        self._after = eos
        self._tokens: list[int] = []
        self._base = 0  # position of the first of them
        # Word ends in ascending order, and their boundaries.
        self._places: list[int] = []
        self._kinds: list[Break] = []
        self._lead: list[int] = []  # in reverse order
        self._lead_tokens = 0
        self._in_prompt = 0
        self._until = -1

    @property
    def left(self) -> int:
        """Tokens that the model has not consumed."""
        return self.written - self.taken

    @property
    def tokens(self) -> int:
        """Tokens of the segment so far."""
        return self.taken - self.first

    @property
    def spent(self) -> bool:
        """Whether the model has consumed the segment's text and tts_eos."""
        return self.closed and self._after == self._pad

    @property
    def at_sentence_end(self) -> bool:
        """Whether the model has consumed all text and it consists of whole sentences."""
        return self.taken == self.written and self._kind(self.taken) is Break.SENTENCE

    def write(self, tokens: Sequence[int], ends: Break) -> None:
        """Adds a word with the boundary after it. Raises TextOverrun."""
        if self.left + len(tokens) > MAX_TEXT:
            raise TextOverrun(
                f"{self.left} tokens are waiting to be spoken, the limit is {MAX_TEXT}"
            )
        self._tokens += tokens
        self.written += len(tokens)
        self._places.append(self.written)
        self._kinds.append(ends)

    def begin(self, limit: int, lead: Sequence[int] = (), least: int = 0) -> None:
        """Starts a segment of at most `limit` tokens, preceded by the tokens of `lead`. With fewer
        than `least` tokens it ends with the last whole sentence; see `ready`."""
        del self._tokens[: self.taken - self._base]
        self._base = self.first = self.stop = self.taken
        old = bisect_left(self._places, self.taken)
        del self._places[:old], self._kinds[:old]
        self.limit = limit
        self.closed = False
        self._after = self._eos
        self._lead = list(reversed(lead))
        self._lead_tokens = len(lead)
        self._in_prompt = 0
        self._until = self._last_sentence() if self.left < least and not self.ended else -1

    def ready(self, least: int, whole: bool = False) -> bool:
        """Returns whether a segment can start that needs `least` tokens, or all of its text. With
        `whole`, a sentence does not count as all while more may follow."""
        if self.left >= max(1, least):
            return True
        sentence = not whole and self._last_sentence() > self.taken
        return self.left > 0 and (self.ended or sentence)

    def next_token(self) -> int:
        """Returns the token for the next frame, or NOTHING if the text has not arrived yet."""
        if self.taken == self.stop:
            if self._lead:
                return self._lead.pop()
            if not self.closed:
                self._plan()
            if self.closed:
                token, self._after = self._after, self._pad
                return token
            if self.taken == self.stop:
                return NOTHING
        self.taken += 1
        return self._tokens[self.taken - 1 - self._base]

    def prompt_tokens(self, count: int) -> list[int]:
        """Returns the first `count` tokens of a new segment, which go into its prompt."""
        taken = [self.next_token() for _ in range(count)]
        self._in_prompt = self.tokens
        return taken

    def whole_text(self) -> list[int]:
        """Returns the whole text of a new segment with tts_eos, which precedes its first frame; the
        segment must have been `ready` for more tokens than its limit."""
        taken = []
        while not self.spent:
            taken.append(self.next_token())
        self._in_prompt = self.tokens
        return taken

    def close(self) -> None:
        """Ends the segment's text with what the model has consumed."""
        self.closed, self.stop = True, self.taken

    def after(self, frames: int) -> int:
        """Returns the text position consumed after `frames` frames of the segment."""
        return min(self.taken, self.first + self._in_prompt + max(0, frames - self._lead_tokens))

    def return_tokens(self, taken: int) -> None:
        """Returns the tokens after `taken`, fed too late in an ended segment, to the text."""
        self.taken = taken
        self.close()

    def skip(self) -> None:
        """Drops the rest of the text."""
        self.ended = True
        self.taken = self.written
        self.close()

    # --- where a segment ends ---

    def _plan(self) -> None:
        """Called when `stop` is reached: ends the segment or finds the next stop."""
        if (self.ended and self.taken == self.written) or self._ends_here():
            self.close()
        else:
            self.stop = self._next_stop()

    def _kind(self, place: int) -> Break | None:
        index = bisect_left(self._places, place)
        if index < len(self._places) and self._places[index] == place:
            return self._kinds[index]
        return None

    def _last_sentence(self) -> int:
        """Returns the end of the last complete sentence waiting; `taken` if there is none."""
        for place, kind in zip(reversed(self._places), reversed(self._kinds), strict=True):
            if kind is Break.SENTENCE:
                return max(place, self.taken)
        return self.taken

    def _ends_here(self) -> bool:
        tokens = self.tokens
        if tokens == 0:
            return False
        if tokens >= self.limit or self.taken == self._until:
            return True
        rest, known = self._rest_of_sentence()
        fits = tokens + rest <= self.limit
        kind = self._kind(self.taken)
        if kind is Break.SENTENCE:
            whole = self.ended and tokens + self.left <= self.limit
            return not fits or (tokens >= SEGMENT_TOKENS and not whole)
        if kind is None or (fits and known):
            return False
        return tokens >= self.limit - (CUT_TOKENS if kind is Break.CLAUSE else WORD_TOKENS)

    def _rest_of_sentence(self) -> tuple[int, bool]:
        """Returns the tokens up to the next sentence end and True, or the tokens known so far and
        False."""
        for index in range(bisect_left(self._places, self.taken + 1), len(self._places)):
            if self._kinds[index] is Break.SENTENCE:
                return self._places[index] - self.taken, True
        return self.left, self.ended

    def _next_stop(self) -> int:
        """Returns the next position where the segment might end."""
        last = self.first + self.limit
        rest, known = self._rest_of_sentence()
        if known and self.taken + rest <= last:
            return self.taken + rest
        for place in self._places[bisect_left(self._places, self.taken + 1) :]:
            if place >= last - CUT_TOKENS:
                return min(place, last)
        return min(self.written, last)
