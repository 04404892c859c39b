"""The text of one stream: what the model has had of it, and where its segments end.

The model takes one token a frame, and speaks some 3.5 frames for each: text goes in long before it
is heard. So a segment cannot be ended by its frames; it is ended by its text, at the end of a
sentence, and then goes on for as many frames as the rest of the text needs.
"""

from bisect import bisect_left
from collections.abc import Sequence

from offhook.pipeline.engine.tts.messages import Break

MAX_TEXT = 4096
"""Tokens of a stream that wait to be spoken: about 20 minutes of speech."""
SEGMENT_TOKENS = 64
"""After so many (18 s of speech) a segment ends with the sentence: short enough for the voice not
to drift, long enough for most replies to be one segment."""
CUT_TOKENS = 24
"""So long before its limit a segment ends at a comma, if no sentence ended before."""
WORD_TOKENS = 8
"""And so long before it at any word; longer words are few."""
NOTHING = -1


class TextOverrun(RuntimeError):
    """More text than may wait; none of it was taken."""


class Script:
    """Positions are numbers of tokens since the stream's beginning."""

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
        """No more will be written."""
        self.first = 0
        """Where the segment begins."""
        self.limit = 0
        """Tokens that the segment may have."""
        self.closed = True
        """The segment has all of its text; its end and then padding goes in."""
        self.stop = 0
        """Up to here tokens can be taken without a thought."""
        self._eos, self._pad = eos, pad
        self._after = eos
        self._tokens: list[int] = []
        self._base = 0  # position of the first of them
        # Where words end, ascending, and what ends there.
        self._places: list[int] = []
        self._kinds: list[Break] = []
        self._lead: list[int] = []  # last first
        self._lead_tokens = 0
        self._in_prompt = 0
        self._until = -1

    @property
    def left(self) -> int:
        """Tokens the model has not had."""
        return self.written - self.taken

    @property
    def tokens(self) -> int:
        """Of the segment, so far."""
        return self.taken - self.first

    @property
    def spent(self) -> bool:
        """The segment's text is in the model, and that it has ended, too."""
        return self.closed and self._after == self._pad

    @property
    def at_sentence_end(self) -> bool:
        """All that was written is in the model, and it is whole sentences."""
        return self.taken == self.written and self._kind(self.taken) is Break.SENTENCE

    def write(self, tokens: Sequence[int], ends: Break) -> None:
        """A word, and what ends with it. Raises TextOverrun."""
        if self.left + len(tokens) > MAX_TEXT:
            raise TextOverrun(f"{self.left} tokens wait to be spoken, {MAX_TEXT} may")
        self._tokens += tokens
        self.written += len(tokens)
        self._places.append(self.written)
        self._kinds.append(ends)

    def begin(self, limit: int, lead: Sequence[int] = (), least: int = 0) -> None:
        """A new segment of at most `limit` tokens, after `lead` which is not of the text. Where
        fewer than `least` are there, it ends with the last whole sentence; see `ready`."""
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
        """A segment may begin that needs `least` tokens, or all of its text, at once. `whole`: a
        sentence is not all of it while more may come."""
        if self.left >= max(1, least):
            return True
        sentence = not whole and self._last_sentence() > self.taken
        return self.left > 0 and (self.ended or sentence)

    def next_token(self) -> int:
        """What goes in with the next frame; NOTHING: the text for it is not there yet."""
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
        """Of a segment just begun: what goes in before its first frame, in as many positions."""
        taken = [self.next_token() for _ in range(count)]
        self._in_prompt = self.tokens
        return taken

    def whole_text(self) -> list[int]:
        """Of a segment just begun that was `ready` with more tokens than its limit: all of its text
        and the end of it, which go in before its first frame."""
        taken = []
        while not self.spent:
            taken.append(self.next_token())
        self._in_prompt = self.tokens
        return taken

    def close(self) -> None:
        """What the model has had is all of the segment's text."""
        self.closed, self.stop = True, self.taken

    def after(self, frames: int) -> int:
        """How much of the text was in the model after so many frames of the segment."""
        return min(self.taken, self.first + self._in_prompt + max(0, frames - self._lead_tokens))

    def return_tokens(self, taken: int) -> None:
        """The segment is over, and the tokens after `taken` went in too late."""
        self.taken = taken
        self.close()

    def skip(self) -> None:
        """Nothing more of the text is spoken."""
        self.ended = True
        self.taken = self.written
        self.close()

    # --- where a segment ends ---

    def _plan(self) -> None:
        """All up to `stop` is taken: end the segment, or look how far it goes now."""
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
        """Where the last whole sentence ends that waits; `taken` when there is none."""
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
        """Tokens until the next sentence's end, and whether that is known; else, how many there
        are at least."""
        for index in range(bisect_left(self._places, self.taken + 1), len(self._places)):
            if self._kinds[index] is Break.SENTENCE:
                return self._places[index] - self.taken, True
        return self.left, self.ended

    def _next_stop(self) -> int:
        """The next place where the segment might end."""
        last = self.first + self.limit
        rest, known = self._rest_of_sentence()
        if known and self.taken + rest <= last:
            return self.taken + rest
        for place in self._places[bisect_left(self._places, self.taken + 1) :]:
            if place >= last - CUT_TOKENS:
                return min(place, last)
        return min(self.written, last)
