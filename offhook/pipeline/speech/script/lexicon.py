"""How names and words are said: entries of a lexicon, found in streaming text as whole words.

A text is tokens: words with their combining marks, single ideographs, white space, other signs. An
entry is a sequence of them, compared in Unicode's composed form and, unless it is case-sensitive,
without case, so that what is a part of a longer word is never found. The longest entry wins.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from offhook.pipeline.speech.text.written_words import IDEOGRAPHS

MAX_ENTRIES = 5000
"""Maximum entries of a lexicon; with more the server does not start."""
MAX_CHARS = 200
"""Maximum length of an entry, and of what it says."""
MAX_HELD = 2 * MAX_CHARS
"""Characters that wait for the rest of a word; a longer run is no entry."""
_IDEOGRAPH = re.compile(f"[{IDEOGRAPHS}]")
_NO_IPA = re.compile(
    r"[^A-Za-z\xc0-\u03ff\u1d00-\u1dff\u2016\u203f\u2190-\u21ff\ua700-\ua71f .,|/'!-]"
)
"""Matches what is neither a letter, a mark, a tone nor a pause of the International Phonetic
Alphabet: voices pass over it in silence."""
_QUOTES = str.maketrans("’‘", "''")


class LexiconError(ValueError):
    """Raised for an entry that cannot be used; the message names it."""


@dataclass(frozen=True)
class Pronunciation:
    """An entry: how a word or a phrase is said."""

    written: str
    say: str = ""
    """The word as a voice is to read it; empty: `ipa` alone says how."""
    ipa: str = ""
    """Its phonemes in the International Phonetic Alphabet, for engines that take them."""
    language: str = ""
    """ISO 639 code of the only language for which it is; empty: all."""
    voice: str = ""
    """Name of the only voice for which it is; empty: all."""
    case_sensitive: bool = False

    @property
    def exact(self) -> str:
        return _composed(" ".join(self.written.split()))


@dataclass
class _Node:
    """What may follow the tokens that lead here."""

    after: "dict[str, _Node]" = field(default_factory=dict)
    entries: list[Pronunciation] = field(default_factory=list)
    """Those that end here; the ones that are for the fewest replies first."""


@dataclass(frozen=True)
class Lexicon:
    entries: tuple[Pronunciation, ...] = ()
    """Of several for the same words, the first that fits a reply is used."""

    @classmethod
    def of_table(cls, table: Mapping[str, Any]) -> "Lexicon":
        """Returns the lexicon of a TOML table: of each word its respelling, a table of the fields
        of `Pronunciation`, or several. Raises LexiconError."""
        entries: list[Pronunciation] = []
        for word, value in table.items():
            for each in value if isinstance(value, list) else [value]:
                entries.append(_entry(word, {"say": each} if isinstance(each, str) else each))
        if len(entries) > MAX_ENTRIES:
            raise LexiconError(f"there are more than {MAX_ENTRIES} entries")
        return cls(tuple(entries))

    def __or__(self, other: "Lexicon") -> "Lexicon":
        """Returns both, this one before the other."""
        return Lexicon(self.entries + other.entries) if self.entries else other

    @cached_property
    def digest(self) -> str:
        """A name of its content, for caches; empty without entries."""
        return hashlib.sha256(repr(self.entries).encode()).hexdigest() if self.entries else ""

    @cached_property
    def _root(self) -> _Node:
        root = _Node()
        for entry in self.entries:
            node = root
            for token in _tokens(entry.written.strip()):
                node = node.after.setdefault(_key(token), _Node())
            node.entries.append(entry)
            node.entries.sort(key=lambda e: -sum(map(bool, (e.voice, e.language))))
        return root

    def finder(self, language: str = "", voice: str = "") -> "Finder":
        """Returns what finds entries in a reply in a language, an ISO 639 code, with a voice; of
        either, empty is unknown."""
        return Finder(self._root, language, voice)


NO_LEXICON = Lexicon()


class Finder:
    """Streaming text in, pieces of it out, each with its entry or none."""

    def __init__(self, root: _Node, language: str, voice: str) -> None:
        self.language, self.voice = language, voice
        self._root = root
        self._rest = ""
        self._in_word = False
        """Whether what came last is a word, without white space after it."""

    def feed(self, text: str, final: bool = False) -> list[tuple[str, Pronunciation | None]]:
        """Adds text and returns the pieces that are now certain; concatenated they are the text.
        With `final`, a word ends here."""
        if not self._root.after:
            return [(text, None)] if text else []
        self._rest += text
        tokens = list(_tokens(self._rest))
        pieces: list[tuple[str, Pronunciation | None]] = []
        plain, place = "", 0
        while place < len(tokens):
            match = self._match(tokens, place, final)
            if match is None:
                break
            end, entry = match
            written = "".join(tokens[place:end])
            if entry is None:
                plain += written
            else:
                pieces += [(plain, None)] if plain else []
                pieces.append((written, entry))
                plain = ""
            self._in_word = _is_word(tokens[end - 1])
            place = end
        self._rest = "".join(tokens[place:])
        if final:
            self._in_word = False
        return [*pieces, (plain, None)] if plain else pieces

    def _match(
        self, tokens: list[str], place: int, final: bool
    ) -> tuple[int, Pronunciation | None] | None:
        """Returns the end of the longest entry at a token, and the entry; the next token and no
        entry if there is none; None if that is not certain yet."""

        def is_open(at: int) -> bool:
            """Whether a token may yet come, or grow."""
            if final or not (at == len(tokens) or (at == len(tokens) - 1 and _is_word(tokens[at]))):
                return False
            return sum(map(len, tokens[place:])) <= MAX_HELD

        found: tuple[int, Pronunciation | None] = place + 1, None
        if is_open(place):
            return None
        if self._in_word and _is_sign(tokens[place]):
            return found
        node, at = self._root, place
        while node.after:
            if is_open(at):
                return None
            child = node.after.get(_key(tokens[at])) if at < len(tokens) else None
            if child is None:
                break
            node, at = child, at + 1
            if (entry := self._fitting(node, tokens[place:at])) is None:
                continue
            if _is_sign(tokens[at - 1]):
                if at == len(tokens) and is_open(at):
                    return None
                if at < len(tokens) and _is_word(tokens[at]):
                    continue
            found = at, entry
        return found

    def _fitting(self, node: _Node, tokens: list[str]) -> Pronunciation | None:
        exact = _composed("".join(" " if token.isspace() else token for token in tokens))
        for entry in node.entries:
            if (
                entry.language in ("", self.language)
                and entry.voice in ("", self.voice)
                and (not entry.case_sensitive or entry.exact == exact)
            ):
                return entry
        return None


def _entry(word: str, table: Any) -> Pronunciation:
    """Raises LexiconError."""
    known = Pronunciation.__dataclass_fields__.keys() - {"written"}
    if not isinstance(table, dict) or (unknown := table.keys() - known):
        what = f"has {sorted(unknown)[0]!r}" if isinstance(table, dict) else "is no text or table"
        raise LexiconError(f"{word!r} {what}: an entry has {', '.join(sorted(known))}")
    for name, value in table.items():
        if not isinstance(value, bool if name == "case_sensitive" else str):
            raise LexiconError(f"{word!r}: {name} is {value!r}")
    entry = Pronunciation(word, **table)
    if not (entry.say.strip() or entry.ipa.strip()):
        raise LexiconError(f"{word!r} needs say, a respelling, or ipa")
    if not any(map(str.isalnum, word)) or max(map(len, (word, entry.say, entry.ipa))) > MAX_CHARS:
        raise LexiconError(f"{word!r}: a word, and what it says, has 1 to {MAX_CHARS} characters")
    if odd := _NO_IPA.search(entry.ipa):
        raise LexiconError(f"{word!r}: ipa has {odd[0]!r}, which is no sign of IPA")
    if entry.language and not re.fullmatch("[a-z]{2,3}", entry.language):
        raise LexiconError(f"{word!r}: language is {entry.language!r}, not a code such as 'en'")
    return entry


@cache
def _token() -> re.Pattern[str]:
    codes = range(0x300, 0x1F000)
    marks = "".join(char for char in map(chr, codes) if unicodedata.category(char)[0] == "M")
    letter = rf"[^\W{IDEOGRAPHS}]"
    return re.compile(rf"{letter}(?:{letter}|[{marks}])*|\s+|.", re.DOTALL)


def _tokens(text: str) -> Iterator[str]:
    return (found[0] for found in _token().finditer(text))


def _is_word(token: str) -> bool:
    """Returns whether it is a word, which further letters would change."""
    return not (token.isspace() or _IDEOGRAPH.match(token)) and (
        token[0].isalnum() or token[0] == "_"
    )


def _is_sign(token: str) -> bool:
    """Returns whether it is no word of its own, as a dot or a plus."""
    return not (token.isspace() or _IDEOGRAPH.match(token) or _is_word(token))


def _composed(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text).translate(_QUOTES)


def _key(token: str) -> str:
    if token.isspace():
        return " "
    return _composed(token).casefold()
