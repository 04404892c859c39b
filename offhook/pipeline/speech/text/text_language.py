"""Which language a text is written in, by its script and by py3langid's n-grams.

A voice model wants to be told, and an agent seldom says.
"""

import re
from collections.abc import Collection
from functools import lru_cache

from py3langid.langid import MODEL_FILE, LanguageIdentifier

UNKNOWN = "en"
"""For a text without letters, and where none of the languages would do."""
MAX_CHARS = 400
"""Of the text looked at; more makes no difference."""
_KANA = re.compile("[\u3041-\u30ff]")
_SCRIPTS = (
    ("ja", re.compile("[\u3041-\u30ff\u3400-\u9fff]")),
    ("ko", re.compile("[\uac00-\ud7a3\u1100-\u11ff]")),
    ("zh", re.compile("[\u3400-\u9fff]")),
    ("ru", re.compile("[\u0400-\u04ff]")),
)
"""Scripts of one language each, among those a voice model speaks; Japanese is what of Han has kana
among it."""
_LETTERS = re.compile(r"[^\W\d_]")
_NAMES = re.compile(r"\S*(?:://|@|www\.)\S*")


@lru_cache(4)
def _identifier(languages: frozenset[str]) -> LanguageIdentifier:
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    identifier.set_languages(sorted(languages & set(identifier.labels)))
    return identifier


def language_of(text: str, supported: Collection[str]) -> str:
    """The ISO 639-1 code of the text's language, one of `supported` or "en".

    A text of two words is enough in most cases, one of none at all is not.
    """
    text = _NAMES.sub(" ", text[:MAX_CHARS])
    letters = len(_LETTERS.findall(text))
    kana = 10 * len(_KANA.findall(text)) >= letters
    for language, script in _SCRIPTS:
        if language == "ja" and not kana:
            continue
        # A few foreign letters, as a name in its own script, do not make the text.
        if language in supported and 3 * len(script.findall(text)) >= letters > 0:
            return language
    candidates = frozenset(supported) - {language for language, _ in _SCRIPTS}
    if not letters or len(candidates) < 2:
        return next(iter(candidates), UNKNOWN) if letters else UNKNOWN
    return str(_identifier(candidates).classify(text)[0])
