"""What a text says without its markup: HTML, SSML, Markdown, TeX, citations, stage directions.

Each kind is a row of a table, tried where its first character is. A text may come in any pieces:
what may yet become markup waits for the next piece.
"""

import html
import re
from collections.abc import Callable
from dataclasses import dataclass

from offhook.pipeline.speech.text.word_lists import table, words

MAX_MARKUP = 200
"""Maximum characters of a tag, an address or a line of code that is waited for."""
MAX_IPA = 1200
"""The same for phonemes, with the entities in them."""


@dataclass(frozen=True)
class _Kind:
    whole: re.Pattern[str]
    partial: re.Pattern[str]
    """Matches the end of a text that may become `whole`."""
    says: Callable[[re.Match[str]], str | None]
    """Returns what is said instead; None if it is no markup."""
    open_end: bool = False
    """Whether the next character decides."""


def _kind(
    whole: str, partial: str, says: Callable[[re.Match[str]], str | None], open_end: bool = False
) -> _Kind:
    return _Kind(re.compile(whole), re.compile(rf"(?:{partial})\Z"), says, open_end)


def _nothing(match: re.Match[str]) -> str:
    return ""


def _itself(match: re.Match[str]) -> str:
    return match[0]


def _box(match: re.Match[str]) -> str:
    """The box of a task in a list."""
    return ""


# --- HTML and SSML

_BLOCKS = words(
    "br p div li tr ul ol dl dt dd h1 h2 h3 h4 h5 h6 hr table blockquote pre section article"
)
"""Elements that are lines of their own."""
_APART = words("td th break")
"""Elements between which there is space."""


def _tag(match: re.Match[str]) -> str:
    name = match["name"].lower()
    return "\n" if name in _BLOCKS else " " if name in _APART else ""


def _entity(match: re.Match[str]) -> str | None:
    said = html.unescape(match[0])
    return None if said == match[0] else said.replace("\u00a0", " ")


# --- phonemes

IPA_BEGINS, IPA_ENDS = "\ue000", "\ue001"
"""Private characters around a word in IPA, for engines that take it."""


def _ipa(match: re.Match[str]) -> str:
    said = html.unescape(match["ipa"]).split()
    return " ".join(f"{IPA_BEGINS}{word}{IPA_ENDS}" for word in said)


# --- stage directions

_ACTS = words(
    "laughs laughing chuckles chuckling giggles sighs sighing smiles smiling grins nods "
    "winks gasps coughs shrugs whispers whispering groans yawns clears pauses beams cries "
    "sniffs hums sings "
    "lacht lächelt seufzt nickt kichert grinst zwinkert räuspert hustet flüstert zögert schmunzelt "
    "rit sourit soupire hoche tousse chuchote rigole glousse ricane "
    "ríe sonríe suspira asiente tose susurra guiña carraspea"
)
"""Verbs of stage directions."""
_SCENES = _ACTS | words(
    "laughter applause music silence pause beat laugh sigh chuckle inaudible crosstalk cough gasp "
    "lachen gelächter applaus musik stille seufzen rires rire musique soupir applaudissements "
    "risas risa aplausos música suspiro pausa"
)
"""Words of stage directions in brackets."""
MAX_STAGE_WORDS = 5


def _is_stage(text: str, signs: frozenset[str]) -> bool:
    said = text.lower().split()
    return len(said) <= MAX_STAGE_WORDS and not signs.isdisjoint(word.strip(".,!") for word in said)


def _act(match: re.Match[str]) -> str | None:
    return "" if _is_stage(match["text"], _ACTS) else None


def _scene(match: re.Match[str]) -> str | None:
    return "" if _is_stage(match["text"], _SCENES) else None


# --- TeX

_TEX = table(
    r"times = × | cdot = · | div = ÷ | pm = ± | mp = ∓ | leq = ≤ | le = ≤ | geq = ≥ | ge = ≥ | "
    r"neq = ≠ | ne = ≠ | approx = ≈ | to = → | rightarrow = → | infty = ∞ | degree = ° | "
    r"left = | right = | displaystyle = | quad = | qquad = | ldots = …"
)
_GREEK = words(
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi "
    "psi omega"
)
_SPACED = frozenset("×·÷±∓≤≥≠≈→")
_GROUP = r"\{(?:[^{}\n]|\{[^{}\n]*\}){0,60}\}"
_PARTIAL_GROUP = r"\{[^\n]{0,60}"
_TEX_FRACTION = re.compile(rf"\\[dt]?frac(?P<upper>{_GROUP})(?P<lower>{_GROUP})")
_TEX_COMMAND = re.compile(rf"\\(?P<name>sqrt|text\w*|math\w+|operatorname)(?P<group>{_GROUP})")
_TEX_NAME = re.compile(r"\\(?P<name>[A-Za-z]+)\s?")
_TEX_INDEX = re.compile(r"([\^_])\{([^{}]*)\}")


def _tex(text: str) -> str:
    """Returns what TeX says, in signs that the readers know."""
    text = re.sub(r"\^\{?\\circ\}?", "°", text)
    for _ in range(3):  # groups within groups
        text = _TEX_INDEX.sub(lambda found: f"{found[1].replace('_', ' ')}{found[2]}", text)
        text = _TEX_FRACTION.sub(_over, text)
        text = _TEX_COMMAND.sub(
            lambda found: ("√" if found["name"] == "sqrt" else "") + found["group"][1:-1], text
        )
    text = _TEX_NAME.sub(lambda found: _tex_sign(found["name"]), text)
    text = re.sub(r"\\[,;:! ]|~", " ", text)
    return re.sub(r"\\([%$_{}&#])", r"\1", text).replace("{", "").replace("}", "")


def _over(found: re.Match[str]) -> str:
    upper, lower = found["upper"][1:-1], found["lower"][1:-1]
    return f"{upper}/{lower}" if (upper + lower).isdecimal() else f"{upper} ÷ {lower}"


def _tex_sign(name: str) -> str:
    sign = _TEX.get(name, f" {name} ")
    return f" {sign} " if sign in _SPACED else sign


def _tex_alone(match: re.Match[str]) -> str | None:
    """A command outside of a formula; others are left, since paths have the same shape."""
    name = re.match(r"\\(\w+)", match[0])
    known = name and (name[1] in _TEX or name[1].lower() in _GREEK or "{" in match[0])
    return _tex(match[0]) if known else None


def _formula(match: re.Match[str]) -> str:
    return _tex(match["text"])


_TEX_ENDS = r"\$\$|\\\[|\\\]|\\\(|\\\)"
_TAG_ATTRIBUTES = r"""(?:\s+[\w:.-]+\s*=\s*(?:"[^"<>]*"|'[^'<>]*'|[^\s"'<>]+))"""
_TEXT = rf"[^\]\n]{{0,{MAX_MARKUP}}}"
_LINK_END = rf"\]\((?:[^\s()]|\([^\s()]*\)){{0,{MAX_MARKUP}}}"

KINDS: dict[str, tuple[_Kind, ...]] = {
    "<": (
        _kind(
            rf"<(?P<text>(?:https?://|mailto:)[^>\s]{{1,{MAX_MARKUP}}}|[\w.+-]+@[\w.-]+)>",
            rf"<(?:[A-Za-z0-9][^<>\s]{{0,{MAX_MARKUP}}})?",
            lambda match: match["text"],
        ),
        _kind(
            rf"""<phoneme\s+alphabet="ipa"\s+ph="(?P<ipa>[^"<>]{{1,{MAX_IPA}}})"\s*>[^<>]{{0,{MAX_MARKUP}}}</phoneme>""",
            rf"""<phoneme(?:\s[^<>]{{0,{MAX_IPA}}}(?:>[^<>]{{0,{MAX_MARKUP}}}(?:</?p?h?o?n?e?m?e?)?)?)?""",
            _ipa,
        ),
        _kind(r"<!--[^>]{0,200}>", r"<!?-?-?[^>]{0,200}", _nothing),
        _kind(
            rf"</?(?P<name>[A-Za-z][\w:-]*){_TAG_ATTRIBUTES}{{0,8}}\s*/?>",
            rf"</?(?:[A-Za-z][^<>\n]{{0,{MAX_MARKUP}}})?",
            _tag,
        ),
    ),
    "&": (
        _kind(
            r"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]\w{1,30});",
            r"&(?:#[xX]?[0-9A-Fa-f]{0,7}|[A-Za-z]\w{0,30})?",
            _entity,
        ),
    ),
    "【": (_kind(r"【[^】\n]{0,80}】", r"【[^】\n]{0,80}", _nothing),),
    "[": (
        _kind(r"\[[ xX]\](?!\()", r"\[[ xX]?\]?", _box, open_end=True),
        _kind(
            r"\[(?P<text>\^?\d{1,3}(?:\s?[,–-]\s?\d{1,3})*|citation needed|sic)\](?!\()",
            r"\[[\^\d,– a-z-]{0,20}\]?",
            _nothing,
            open_end=True,
        ),
        _kind(
            r"\[(?P<text>[^\W\d][^\W\d_ .,'’-]*(?:[ .,'’-]+[^\W\d]+){0,4}[.!]?)\](?!\()",
            r"\[(?:[^\W\d][^\[\]\n\d]{0,60}\]?)?",
            _scene,
            open_end=True,
        ),
    ),
    "]": (
        _kind(
            rf"""{_LINK_END}(?:\s+(?:"[^"\n]{{0,80}}"|'[^'\n]{{0,80}}'))?\s?\)|\]\[[^\]\n]{{0,40}}\]""",
            rf"""\](?:\[[^\]\n]{{0,40}}|\({_TEXT})?""",
            _nothing,
        ),
    ),
    "(": (
        _kind(
            r"\((?P<text>[^\W\d_]{3,20}(?: [^\W\d_]{1,20}){0,3})\)",
            r"\((?:[^\W\d_]{1,20}(?: [^\W\d_]{0,20}){0,3})?",
            _scene,
        ),
    ),
    "*": (
        _kind(r"\*{2,}", r"\*+", _itself, open_end=True),
        _kind(r"\*(?P<text>[^\s*][^*\n]{1,60})\*", r"\*(?:[^\s*][^*\n]{0,60})?", _act),
    ),
    "\\": (
        _kind(_TEX_ENDS, r"\\", _nothing),
        _kind(
            rf"\\[dt]?frac{_GROUP}{_GROUP}|\\(?:sqrt|text\w*|math\w+){_GROUP}",
            rf"\\[a-z]{{0,12}}|\\[a-z]{{1,12}}(?:{_GROUP})?{_PARTIAL_GROUP}|\\[dt]?frac{_GROUP}",
            _tex_alone,
        ),
        _kind(r"\\[A-Za-z]{2,12}", r"\\[A-Za-z]{0,12}", _tex_alone, open_end=True),
        _kind(r"\\[%$_{}&#*`.!()<>+-]", r"\\", lambda match: match[0][1:]),
    ),
    "$": (
        _kind(r"\$\$", r"\$", _nothing),
        _kind(
            r"\$(?P<text>[A-Za-z\\({](?:[^$\n]{0,80}[^$\s])?)\$(?!\d)",
            r"\$(?:[A-Za-z\\({][^$\n]{0,80}\$?)?",
            _formula,
            open_end=True,
        ),
    ),
    "^": (
        _kind(
            r"\^\{?\\circ\}?|\^\{[^{}\s]{1,12}\}",
            r"\^(?:\{[^{}\s]{0,12}|\\[a-z]{0,4})?",
            lambda match: _tex(match[0]),
            open_end=True,
        ),
    ),
}
_TRIGGER = re.compile(f"[{re.escape(''.join(KINDS))}`~]")
_FENCE = re.compile(r"(?P<fence>`{3,}|~{3,})[^`\n]{0,60}\n")
_PARTIAL_FENCE = re.compile(r"(?:`{0,2}|~{0,2}|(?:`{3,}|~{3,})[^`\n]{0,60})\Z")


class Markup:
    """Streaming text in, pairs of the text written and what it says out."""

    def __init__(self, ipa: bool = False) -> None:
        """With `ipa`, `<phoneme>` says its words in IPA, between IPA_BEGINS and IPA_ENDS."""
        self._ipa = ipa
        self._rest = ""
        self._before = ""
        self._new_line = True
        """Whether only white space is before it on its line."""
        self._fence = ""
        """What ends the code that is being left out."""

    def feed(self, text: str, final: bool = False) -> list[tuple[str, str]]:
        """Adds text and returns the pairs that are now certain."""
        self._rest += text
        pairs: list[tuple[str, str]] = []
        place = 0
        while place < len(self._rest):
            pair = self._code(place, final) if self._fence else self._pair(place, final)
            if pair is None:
                break
            pairs.append(pair)
            self._pass(pair[0])
            place += len(pair[0])
        self._rest = self._rest[place:]
        return pairs

    def _pass(self, written: str) -> None:
        self._before = written[-1]
        line = written[written.rfind("\n") + 1 :]
        self._new_line = not line.strip() and (self._new_line or len(line) < len(written))

    def _pair(self, place: int, final: bool) -> tuple[str, str] | None:
        """Returns what starts at `place`; None if unknown yet."""
        rest = self._rest
        trigger = _TRIGGER.search(rest, place)
        stop = trigger.start() if trigger else len(rest)
        if stop > place:
            return rest[place:stop], rest[place:stop]
        if self._new_line and rest[place] in "`~":
            if fence := _FENCE.match(rest, place):
                self._fence = fence["fence"][0] * 3
                return fence[0], "\n"
            if not final and _PARTIAL_FENCE.match(rest, place):
                return None
        for kind in KINDS.get(rest[place], ()):
            if not self._applies(kind, rest[place]):
                continue
            match = kind.whole.match(rest, place)
            undecided = not final and (
                kind.partial.match(rest, place)
                if match is None
                else kind.open_end and match.end() == len(rest)
            )
            if undecided:
                return None
            if match and (said := kind.says(match)) is not None:
                return match[0], said
        return rest[place], rest[place]

    def _applies(self, kind: _Kind, char: str) -> bool:
        """Returns whether markup of a kind can be here: a star within a word starts nothing, and
        neither does a number in brackets that starts a line."""
        if kind.says is _ipa:
            return self._ipa
        if kind.says is _act:
            return not (self._before.isalnum() or self._before in tuple("*_/="))
        if kind.says is _box:
            return not self._before.isalnum()
        return not (char == "[" and kind.says is _nothing and self._new_line)

    def _code(self, place: int, final: bool) -> tuple[str, str] | None:
        """Returns a line of code."""
        end = self._rest.find("\n", place, place + MAX_MARKUP) + 1
        if not end and len(self._rest) - place < MAX_MARKUP and not final:
            return None
        line = self._rest[place : end or place + MAX_MARKUP]
        if self._new_line and line.strip().startswith(self._fence):
            self._fence = ""
            return line, "\n" if line.endswith("\n") else ""
        return line, ""
