"""A text as it is given to a voice: what a lexicon or SSML says otherwise is replaced, its pauses,
rates and languages stand apart, and what was heard is told in the text that was written."""

import html
from collections import deque
from dataclasses import dataclass

from offhook.pipeline.speech.script import ssml
from offhook.pipeline.speech.script.lexicon import MAX_CHARS, Finder, Pronunciation

SPAN_CHARS = 400
"""Maximum length of a span that is spoken as written."""
MAX_DEPTH = 32
"""Elements within each other that change rate or language; those within these do not."""


@dataclass(frozen=True)
class Spoken:
    """A piece of the text, and what the voice is given for it."""

    written: str
    given: str


@dataclass(frozen=True)
class Pause:
    written: str
    ms: int


@dataclass(frozen=True)
class Delivery:
    """How the text is spoken from here on."""

    written: str
    rate: float
    """How much faster than the reply."""
    language: str
    """ISO 639 code; empty: that of the reply."""


Part = Spoken | Pause | Delivery


class Script:
    """Streaming text in, its parts out; concatenated, what was written is the text."""

    def __init__(self, finder: Finder, ipa: bool) -> None:
        """`ipa`: the voice takes phonemes, as `<phoneme>`."""
        self._finder = finder
        self._ipa = ipa
        self._rest = ""
        self._within: list[tuple[str, float, str]] = []
        """The elements around that change rate or language: names, rates and languages."""
        self._too_deep: list[str] = []
        """Names of those within them that change nothing."""

    def feed(self, text: str, final: bool = False) -> list[Part]:
        """Adds text and returns the parts that are now certain."""
        self._rest += text
        parts: list[Part] = []
        place = 0
        while place < len(self._rest):
            if self._rest[place] == "<":
                part = self._element(place, final)
                if part is None:
                    break
                parts += self._plain("", final=True)
                parts.append(part)
                place += len(part.written)
                continue
            stop = self._rest.find("<", place)
            end = len(self._rest) if stop < 0 else stop
            parts += self._plain(self._rest[place:end])
            place = end
        self._rest = self._rest[place:]
        return [*parts, *self._plain("", final=True)] if final else parts

    def _plain(self, text: str, final: bool = False) -> list[Spoken]:
        """Returns text without elements as it is spoken; with `final`, a word ends with it."""
        return [self._pronounced(*piece) for piece in self._finder.feed(text, final)]

    def _pronounced(self, written: str, entry: Pronunciation | None) -> Spoken:
        if entry is None:
            return Spoken(written, written)
        say = entry.say or written
        return Spoken(written, phoneme(entry.ipa, say) if self._ipa and entry.ipa else say)

    # --- SSML ---

    def _element(self, place: int, final: bool) -> Part | None:
        """Returns what is at a "<"; None if that is not known yet."""
        tag = ssml.tag(self._rest, place, final)
        if not isinstance(tag, ssml.Tag):
            return None if tag is None else Spoken("<", "<")
        match tag.name:
            case "break":
                return Pause(tag.written, 0 if tag.is_end else ssml.break_ms(tag.attributes))
            case "prosody" | "lang":
                return self._delivery(tag)
            case "sub" if "alias" not in tag.attributes:  # HTML's
                return Spoken(tag.written, tag.written)
            case "speak":
                return Spoken(tag.written, "")
        if tag.is_end or tag.is_empty:
            return Spoken(tag.written, "")
        inside = ssml.content(self._rest, place + len(tag.written), tag.name, final)
        if not isinstance(inside, tuple):
            return None if inside is None else Spoken(tag.written, "")
        written, text = inside
        return Spoken(tag.written + written, self._content(tag, text))

    def _content(self, tag: ssml.Tag, text: str) -> str:
        """Returns what is given for the content of an element."""
        attributes = tag.attributes
        if tag.name == "sub":
            return attributes["alias"]
        if tag.name == "say-as":
            return ssml.spelled(text, attributes, self._language or self._finder.language)
        ipa = attributes.get("ph", "")
        is_ipa = attributes.get("alphabet", "ipa").lower() == "ipa" and 0 < len(ipa) <= MAX_CHARS
        return phoneme(ipa, text) if self._ipa and is_ipa else text

    @property
    def _language(self) -> str:
        return next((code for _, _, code in reversed(self._within) if code), "")

    def _delivery(self, tag: ssml.Tag) -> Part:
        before = self._delivery_now("")
        if tag.is_end:
            if self._too_deep:
                self._too_deep.pop()
            elif self._within and tag.name in (name for name, _, _ in self._within):
                while self._within.pop()[0] != tag.name:
                    pass
        elif not tag.is_empty:
            if len(self._within) == MAX_DEPTH:
                self._too_deep.append(tag.name)
            else:
                code = tag.attributes.get("xml:lang", "").partition("-")[0].lower()
                known = (
                    code if tag.name == "lang" and code.isascii() and len(code) in (2, 3) else ""
                )
                rate = ssml.rate(tag.attributes) if tag.name == "prosody" else 1.0
                self._within.append((tag.name, rate, known if known.isalpha() else ""))
        after = self._delivery_now(tag.written)
        same = (before.rate, before.language) == (after.rate, after.language)
        return Spoken(tag.written, "") if same else after

    def _delivery_now(self, written: str) -> Delivery:
        rate = 1.0
        for _, each, _ in self._within:
            rate *= each
        return Delivery(written, rate, self._language)


def phoneme(ipa: str, text: str) -> str:
    """Returns a text that engines with phonemes speak as those, and others as it is written."""
    said = html.escape(text, quote=False)
    return f'<phoneme alphabet="ipa" ph="{html.escape(ipa)}">{said}</phoneme>'


@dataclass(frozen=True)
class _Span:
    written: str
    left: str
    """What the voice has not spoken of what it was given."""
    as_written: bool


class Spans:
    """What a voice was given and has not spoken yet, piece by piece."""

    def __init__(self) -> None:
        self._spans: deque[_Span] = deque()

    def add(self, written: str, given: str) -> None:
        if written == given:
            parts = (written[at : at + SPAN_CHARS] for at in range(0, len(written), SPAN_CHARS))
            self._spans.extend(_Span(part, part, as_written=True) for part in parts)
        else:
            self._spans.append(_Span(written, given, as_written=False))

    def pop(self, characters: int) -> str:
        """Returns the written text of the next characters that the voice was given; of a piece that
        is said otherwise, with the last of them."""
        written = ""
        while characters > 0 and self._spans:
            span = self._spans.popleft()
            left = span.left[characters:]
            characters -= len(span.left) - len(left)
            if not left:
                written += span.written
            elif span.as_written:
                at = len(span.written) - len(left)
                written += span.written[:at]
                self._spans.appendleft(_Span(left, left, as_written=True))
            else:
                self._spans.appendleft(_Span(span.written, left, as_written=False))
        return written

    def rest(self) -> str:
        """Returns all that is left of the text as written."""
        written = "".join(span.written for span in self._spans)
        self._spans.clear()
        return written
