"""Cutting an agent's text, as it comes token by token, into clauses to be spoken one by one.

The first clause is cut early, because the caller waits for it; the later ones are cut where a
speaker would breathe, because a voice sounds best over a whole sentence. A place to cut is always
a white space (or a dash), so nothing inside a number, a time, an address or a link is one.

Each place is judged by the text up to it alone, one after an abbreviation that may end a sentence
("at 9 a.m.") also by the first letter or digit that follows: the clauses do not depend on how the
text was chunked, and their concatenation is the text.
"""

FIRST_COMMA_WORDS = 2
FIRST_MAX_WORDS = 8
COMMA_WORDS = 8
MAX_WORDS = 30
MAX_CHARS = 400
"""Even a text without any white space is cut here: no clause is longer."""

SENTENCE_ENDS = ".!?…"
COMMAS = ",;:—–"
CLOSERS = "\"')]}”’»*_"
"""May stand between the punctuation and the white space: quotes, brackets, Markdown emphasis."""
OPENERS = "\"'([{“‘«*_"
NEVER_LAST = (
    *("dr", "mr", "mrs", "ms", "prof", "rev", "hon", "gen", "col", "sgt", "capt", "lt", "sen"),
    *("rep", "gov", "sr", "st", "mt", "dept", "vs", "cf", "approx", "est", "fig", "vol"),
    *("e.g", "i.e", "u.s", "u.k"),
)
"""Abbreviations that something belongs to: a name, a number, the rest of the sentence."""
MAYBE_LAST = (
    *("jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"),
    *("mon", "tue", "tues", "wed", "thu", "thur", "thurs", "fri"),
    *("ave", "blvd", "rd", "hwy", "apt", "ste", "ext", "tel", "no", "nos", "etc"),
    *("jr", "inc", "ltd", "co", "corp"),
)
"""And those that end a sentence where a capital letter follows. "No." is a word as well."""


def ends_sentence(word: str) -> bool:
    """Whether a written word can end a sentence."""
    word = word.rstrip(CLOSERS)
    if not word or word[-1] not in SENTENCE_ENDS:
        return False
    stem = _abbreviated(word)
    initials = all(len(part) == 1 and part.isupper() for part in stem.split("."))
    return not ((initials and stem != "I") or stem.lower() in NEVER_LAST)


def is_maybe_last(word: str) -> bool:
    """Whether a word that can end a sentence may as well be an abbreviation in the middle of one:
    "Jan." or, by its dots, "Ph.D."."""
    stem = _abbreviated(word.rstrip(CLOSERS))
    parts = stem.split(".")
    dotted = len(parts) > 1 and all(len(part) <= 3 and part.isalpha() for part in parts)
    return ends_sentence(word) and (dotted or stem.lower() in MAYBE_LAST)


def _abbreviated(word: str) -> str:
    """What stands before its last dot; nothing when it has none."""
    return word[:-1].lstrip(OPENERS) if word.endswith(".") else ""


def ends_clause(word: str) -> bool:
    """Whether a written word ends with a comma or its like."""
    word = word.rstrip(CLOSERS)
    return bool(word) and word[-1] in COMMAS


class ClauseSplitter:
    """Text in, whole clauses out; ``end`` gives the rest."""

    def __init__(self) -> None:
        self._text = ""
        self._first = True
        self._restart()

    def _restart(self) -> None:
        self._seen = 0
        self._word_start = 0
        self._words = 0
        self._doubtful: int | None = None
        """A place that is to be cut if a capital letter follows."""

    def write(self, text: str) -> list[str]:
        """Take the next piece of text; return the clauses it completes."""
        self._text += text
        clauses = []
        while (cut := self._next_cut()) is not None:
            clauses.append(self._text[:cut])
            self._text = self._text[cut:]
            self._first = False
            self._restart()
        return clauses

    def end(self) -> list[str]:
        """Return what is left and begin anew."""
        rest, self._text = self._text, ""
        self._first = True
        self._restart()
        return [rest] if rest else []

    def _next_cut(self) -> int | None:
        while self._seen < len(self._text):
            place = self._seen
            self._seen += 1
            if self._doubtful is not None and (char := self._text[place]).isalnum():
                if char.isupper():
                    return self._doubtful
                self._doubtful = None
            if self._is_cut(place):
                return self._seen
        return None

    def _is_cut(self, place: int) -> bool:
        """Whether a clause ends with the character at `place`; called for each place in turn."""
        char = self._text[place]
        if self._seen >= MAX_CHARS:
            return True
        if not (char.isspace() or char == "—"):
            return False
        word = self._text[self._word_start : place + 1].rstrip()
        self._word_start = place + 1
        if any(map(str.isalnum, word)):
            self._words += 1
        if not word or self._words == 0:
            return char == "\n" and self._words > 0
        if char != "\n" and is_maybe_last(word):
            self._doubtful = self._seen
            return False
        return self._is_breath(word, char)

    def _is_breath(self, word: str, space: str) -> bool:
        if self._words >= (FIRST_MAX_WORDS if self._first else MAX_WORDS):
            return True
        if ends_clause(word):
            return self._words >= (FIRST_COMMA_WORDS if self._first else COMMA_WORDS)
        # "1." that opens a list is no sentence.
        return space == "\n" or (ends_sentence(word) and not word[:-1].isdigit())
