"""Splits an agent's streaming text into clauses that are synthesized one by one.

The first clause is short, because the caller is waiting; later ones end where a speaker would
breathe, because a voice sounds best over a whole sentence. A split is at white space, a dash or an
ideographic full stop, so never inside a number, time, address or link of a usual length. A longer
run of characters is split anywhere: a voice that has to speak all of it at once is silent until it
has, and so are the others that share its thread.

Each position is judged by the preceding text only (after an abbreviation that may end a sentence,
"at 9 a.m.", also by the next letter or digit), so the clauses do not depend on how the text was
chunked. Concatenated, they are the text.
"""

FIRST_COMMA_WORDS = 2
FIRST_MAX_WORDS = 8
COMMA_WORDS = 8
MAX_WORDS = 30
MAX_CHARS = 400
"""Maximum length of a clause."""
MAX_WORD_CHARS = 60
"""Maximum length of a run without white space, which is split before the next letter or digit, and
after as many other signs at the latest."""
LONG_CHARS = MAX_CHARS - MAX_WORD_CHARS
"""Length from which a clause ends with its word."""
DIGIT_CHARS = 5
"""What a digit or another sign counts: it is spoken as a word."""

READ_CHARS = 400
"""Characters split at a time, so that a long text does not hold up what else the process does."""

SENTENCE_PAUSE_MS = 250
COMMA_PAUSE_MS = 120
WORD_PAUSE_MS = 30
"""Pause between clauses split without punctuation."""

SENTENCE_ENDS = ".!?…。！？"
IDEOGRAPHIC_ENDS = "。！？"
"""Those that no white space follows."""
COMMAS = ",;:—–"
CLOSERS = "\"')]}”’»*_"
"""Characters allowed between punctuation and white space: quotes, brackets, Markdown emphasis."""
OPENERS = "\"'([{“‘«*_"
NEVER_LAST = (
    *("dr", "mr", "mrs", "ms", "prof", "rev", "hon", "gen", "col", "sgt", "capt", "lt", "sen"),
    *("rep", "gov", "sr", "st", "mt", "dept", "vs", "cf", "approx", "est", "fig", "vol"),
    *("e.g", "i.e", "u.s", "u.k"),
)
"""Abbreviations that never end a sentence: a name, a number or the rest of the sentence follows."""
MAYBE_LAST = (
    *("jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"),
    *("mon", "tue", "tues", "wed", "thu", "thur", "thurs", "fri"),
    *("ave", "blvd", "rd", "hwy", "apt", "ste", "ext", "tel", "no", "nos", "etc"),
    *("jr", "inc", "ltd", "co", "corp"),
)
"""Abbreviations that end a sentence if a capital letter follows. "No." is also a word."""


def ends_sentence(word: str) -> bool:
    """Returns whether a written word can end a sentence."""
    word = word.rstrip(CLOSERS)
    if not word or word[-1] not in SENTENCE_ENDS:
        return False
    stem = _abbreviated(word)
    initials = all(len(part) == 1 and part.isupper() for part in stem.split("."))
    return not ((initials and stem != "I") or stem.lower() in NEVER_LAST)


def is_maybe_last(word: str) -> bool:
    """Returns whether a word that can end a sentence may also be an abbreviation within one: "Jan."
    or, by its dots, "Ph.D."."""
    stem = _abbreviated(word.rstrip(CLOSERS))
    parts = stem.split(".")
    dotted = len(parts) > 1 and all(len(part) <= 3 and part.isalpha() for part in parts)
    return ends_sentence(word) and (dotted or stem.lower() in MAYBE_LAST)


def _abbreviated(word: str) -> str:
    """Returns the part before its last dot; empty if there is none."""
    return word[:-1].lstrip(OPENERS) if word.endswith(".") else ""


def ends_clause(word: str) -> bool:
    """Returns whether a written word ends with a comma or similar."""
    word = word.rstrip(CLOSERS)
    return bool(word) and word[-1] in COMMAS


def pause_after_ms(clause: str) -> int:
    """Returns the pause in ms that a speaker makes after the clause."""
    words = clause.split()
    if words and ends_sentence(words[-1]):
        return SENTENCE_PAUSE_MS
    if (words and ends_clause(words[-1])) or clause.endswith("\n"):
        return COMMA_PAUSE_MS
    return WORD_PAUSE_MS


class ClauseSplitter:
    """Streaming text in, clauses out; `end` returns the rest.

    No clause but the last has fewer than `least_words`; the first is split after `first_words` at
    the latest, whatever their punctuation."""

    def __init__(self, least_words: int = 1, first_words: int = FIRST_MAX_WORDS) -> None:
        self._least_words, self._first_words = least_words, first_words
        self._text = ""
        self._first = True
        self._restart()

    def _restart(self) -> None:
        self._seen = 0
        self._word_start = 0
        self._words = 0
        self._length = 0
        """Of what was seen, with a sign counted as DIGIT_CHARS."""
        self._doubtful: int | None = None
        """A position to split at if a capital letter follows."""

    def write(self, text: str) -> list[str]:
        """Adds text and returns the clauses that it completes."""
        self._text += text
        clauses = []
        while (cut := self._next_cut()) is not None:
            clauses.append(self._text[:cut])
            self._text = self._text[cut:]
            self._first = False
            self._restart()
        return clauses

    @property
    def holds_sentence(self) -> bool:
        """Whether what has not been returned ends with a whole sentence."""
        words = self._text.split()
        return bool(words) and ends_sentence(words[-1])

    def end(self) -> list[str]:
        """Returns the rest and resets."""
        rest, self._text = self._text, ""
        self._first = True
        self._restart()
        return [rest] if rest else []

    def _next_cut(self) -> int | None:
        while self._seen < len(self._text):
            place = self._seen
            run = place - self._word_start
            # What ends a sentence stays with the word before it.
            if run >= (MAX_WORD_CHARS if self._text[place].isalnum() else 2 * MAX_WORD_CHARS):
                return place
            self._seen += 1
            if self._doubtful is not None and (char := self._text[place]).isalnum():
                if char.isupper():
                    return self._doubtful
                self._doubtful = None
            if self._is_cut(place):
                return self._seen
        return None

    def _is_cut(self, place: int) -> bool:
        """Returns whether a clause ends with the character at `place`; call it for each position in
        turn."""
        char = self._text[place]
        plain = char.isalpha() or char.isspace()
        self._length += 1 if plain else DIGIT_CHARS
        if not (char.isspace() or char == "—" or char in IDEOGRAPHIC_ENDS):
            return False
        if self._length >= LONG_CHARS:
            return True
        word = self._text[self._word_start : place + 1].rstrip()
        self._word_start = place + 1
        if any(map(str.isalnum, word)):
            self._words += 1
        if self._words < self._least_words:
            return False
        if not word:
            return char == "\n"
        if char != "\n" and is_maybe_last(word):
            self._doubtful = self._seen
            return False
        return self._is_breath(word, char)

    def _is_breath(self, word: str, space: str) -> bool:
        if self._words >= (self._first_words if self._first else MAX_WORDS):
            return True
        if ends_clause(word):
            return self._words >= (FIRST_COMMA_WORDS if self._first else COMMA_WORDS)
        # "1." that starts a list item is not a sentence.
        return space == "\n" or (ends_sentence(word) and not word[:-1].isdigit())
