"""A text as it is given to a voice: what a lexicon says otherwise is replaced, and what was heard
of it is told in the words that were written."""

import html
from collections import deque
from dataclasses import dataclass

from offhook.pipeline.speech.script.lexicon import Finder, Pronunciation

SPAN_CHARS = 400
"""Maximum length of a span that is spoken as written."""


@dataclass(frozen=True)
class Spoken:
    """A piece of the text, and what the voice is given for it."""

    written: str
    given: str


class Script:
    """Streaming text in, its pieces out; concatenated, what was written is the text."""

    def __init__(self, finder: Finder, ipa: bool) -> None:
        """`ipa`: the voice takes phonemes, as `<phoneme>`."""
        self._finder = finder
        self._ipa = ipa

    def feed(self, text: str, final: bool = False) -> list[Spoken]:
        """Adds text and returns the pieces that are now certain."""
        return [self._spoken(*piece) for piece in self._finder.feed(text, final)]

    def _spoken(self, written: str, entry: Pronunciation | None) -> Spoken:
        if entry is None:
            return Spoken(written, written)
        say = entry.say or written
        return Spoken(written, phoneme(entry.ipa, say) if self._ipa and entry.ipa else say)


def phoneme(ipa: str, text: str) -> str:
    """Returns a text that engines with phonemes speak as those, and others as it is written."""
    said = html.escape(text, quote=False)
    return f'<phoneme alphabet="ipa" ph="{html.escape(ipa)}">{said}</phoneme>'


class Spans:
    """What a voice was given and has not spoken yet, piece by piece."""

    def __init__(self) -> None:
        self._spans: deque[Spoken] = deque()

    def add(self, written: str, given: str) -> None:
        if written == given:
            for at in range(0, len(written), SPAN_CHARS):
                part = written[at : at + SPAN_CHARS]
                self._spans.append(Spoken(part, part))
        else:
            self._spans.append(Spoken(written, given))

    def take(self, characters: int) -> str:
        """Returns the written text of the next characters that the voice was given; of a piece that
        is said otherwise, with the last of them."""
        written = ""
        while characters > 0 and self._spans:
            span = self._spans.popleft()
            taken = min(characters, len(span.given))
            left = span.given[taken:]
            if span.written == span.given:
                written += span.written[:taken]
                if left:
                    self._spans.appendleft(Spoken(left, left))
            elif left:
                self._spans.appendleft(Spoken(span.written, left))
            else:
                written += span.written
            characters -= taken
        return written

    def rest(self) -> str:
        """Returns all that is left of the text as written."""
        written = "".join(span.written for span in self._spans)
        self._spans.clear()
        return written
