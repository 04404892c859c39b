"""Which language a call is in: the agent follows the caller, but not at once.

A name, a word that both languages have, or a wrong guess of the recognizer must not turn a call
around: it takes a long sentence in another language of the agent, or two turns of some words.
"""

import re
from collections.abc import Callable, Sequence
from enum import Enum, auto
from importlib.util import find_spec
from typing import NamedTuple

from offhook.pipeline.speech.streams.languages import NAMES
from offhook.pipeline.speech.text.word_lists import words

LEAST_WORDS = 3
"""Words of a turn that say something of its language; names and words of all languages count for
none."""
LONG_WORDS = 8
"""Words of a turn that decide alone."""
HAN_PER_WORD = 2
"""Ideographs, kana or Hangul that count as a word."""
_WORDS = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_SENTENCE_ENDS = re.compile(r"(?:^|[.!?…]\s+)$")
_UNSPACED = re.compile("[\u3041-\u30ff\u3400-\u9fff\uac00-\ud7a3]")
INTERNATIONAL = words(
    "ok okay hello hallo hi hey no ja si ciao bye pardon sorry super taxi hotel restaurant bar "
    "pizza sushi computer laptop internet online email mail app web link wifi router software "
    "service ticket party film radio video euro dollar a b c e g h m o um uh ah eh hm mm"
)
"""Words that say nothing of a language."""


def detected(text: str, languages: Sequence[str]) -> str:
    """Returns the language of a text, one of these; "" where the package for that is not
    installed."""
    if find_spec("py3langid") is None:
        return ""
    from offhook.pipeline.speech.text.text_language import language_of  # it loads a model

    return language_of(text, languages)


class Evidence(Enum):
    """What a turn says of the language."""

    NOTHING = auto()
    OWN = auto()
    """Some words of the language that the call is in."""
    OTHER = auto()
    """Some words of another one."""
    LONG = auto()
    """Many of another one."""


class LanguageState(Enum):
    SETTLED = auto()
    DOUBTED = auto()
    """The last turn that said something was in another language."""


class Step(NamedTuple):
    state: LanguageState
    changes: bool = False
    """Whether the call is in the other language from now on."""


TABLE: dict[tuple[LanguageState, Evidence], Step] = {
    (LanguageState.SETTLED, Evidence.NOTHING): Step(LanguageState.SETTLED),
    (LanguageState.SETTLED, Evidence.OWN): Step(LanguageState.SETTLED),
    (LanguageState.SETTLED, Evidence.OTHER): Step(LanguageState.DOUBTED),
    (LanguageState.SETTLED, Evidence.LONG): Step(LanguageState.SETTLED, changes=True),
    # A short answer in between decides nothing.
    (LanguageState.DOUBTED, Evidence.NOTHING): Step(LanguageState.DOUBTED),
    (LanguageState.DOUBTED, Evidence.OWN): Step(LanguageState.SETTLED),
    (LanguageState.DOUBTED, Evidence.OTHER): Step(LanguageState.SETTLED, changes=True),
    (LanguageState.DOUBTED, Evidence.LONG): Step(LanguageState.SETTLED, changes=True),
}


class CallLanguage:
    """The language of a call. `languages` are ISO 639 codes, that in which it begins first;
    `detect` returns which of them a text is in, or "" if it cannot."""

    def __init__(
        self, languages: Sequence[str], detect: Callable[[str, Sequence[str]], str]
    ) -> None:
        self.languages = languages
        self.current = languages[0] if languages else ""
        self.state = LanguageState.SETTLED
        self._detect = detect
        self._has_changed = False
        self._other = ""
        """The language that is suspected."""

    @property
    def instruction(self) -> str:
        """Returns what the model is told; "" as long as the language was never another one."""
        name = NAMES.get(self.current, self.current)
        return f"The caller now speaks {name}; answer in {name}." if self._has_changed else ""

    @property
    def is_first(self) -> bool:
        """Whether it is the one in which the call began."""
        return self.current == (self.languages[0] if self.languages else "")

    def turn(self, text: str, recognized: str) -> bool:
        """Notes a turn of the caller, with its language as the recognizer has it, an ISO 639 code
        or anything else for none; returns whether the call is in another language now."""
        if len(self.languages) < 2:
            return False
        count = telling_words(text)
        spoken = recognized.partition("-")[0].lower()
        if count >= LEAST_WORDS and spoken not in self.languages:
            spoken = self._detect(text, self.languages)
        evidence = self._evidence(count, spoken)
        if evidence is Evidence.OTHER and self._other not in ("", spoken):
            self.state = LanguageState.SETTLED
        self.state, changes = TABLE[self.state, evidence]
        if changes:
            self.current, self._has_changed = spoken, True
        if evidence is not Evidence.NOTHING:
            self._other = spoken if self.state is LanguageState.DOUBTED else ""
        return changes

    def _evidence(self, count: int, spoken: str) -> Evidence:
        if count < LEAST_WORDS or spoken not in self.languages:
            return Evidence.NOTHING
        if spoken == self.current:
            return Evidence.OWN
        return Evidence.LONG if count >= LONG_WORDS else Evidence.OTHER


def telling_words(text: str) -> int:
    """Returns how many words say something of the language: names, which a capital letter shows
    within a sentence, do not."""
    count = 0
    for found in _WORDS.finditer(_UNSPACED.sub(" ", text)):
        begins = _SENTENCE_ENDS.search(text, 0, found.start()) is not None
        word = found[0]
        is_name = word[0].isupper() and not begins and not text.isupper()
        count += not is_name and word.lower() not in INTERNATIONAL
    return count + len(_UNSPACED.findall(text)) // HAN_PER_WORD
