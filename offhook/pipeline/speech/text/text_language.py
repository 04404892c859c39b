"""Detects the language of a text by its script and py3langid's n-grams.

Voice models need the language, and agents rarely state it.
"""

import re
from collections.abc import Collection
from functools import lru_cache

from py3langid.langid import MODEL_FILE, LanguageIdentifier

UNKNOWN = "en"
"""Result for a text without letters or in an unsupported language."""
MAX_CHARS = 400
"""Maximum characters examined; more makes no difference."""
_KANA = re.compile("[\u3041-\u30ff]")
_SCRIPTS = (
    ("ja", re.compile("[\u3041-\u30ff\u3400-\u9fff]")),
    ("ko", re.compile("[\uac00-\ud7a3\u1100-\u11ff]")),
    ("zh", re.compile("[\u3400-\u9fff]")),
    ("ru", re.compile("[\u0400-\u04ff]")),
)
"""Scripts used by only one of a voice model's languages; Han with kana is Japanese."""
_LETTERS = re.compile(r"[^\W\d_]")
_NAMES = re.compile(r"\S*(?:://|@|www\.)\S*")


@lru_cache(4)
def _identifier(languages: frozenset[str]) -> LanguageIdentifier:
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    identifier.set_languages(sorted(languages & set(identifier.labels)))
    return identifier


def language_of(text: str, supported: Collection[str]) -> str:
    """Returns the ISO 639-1 code of the text's language, one of `supported` or "en".

    Two words are usually enough, a single one is not.
    """
    text = _NAMES.sub(" ", text[:MAX_CHARS])
    letters = len(_LETTERS.findall(text))
    kana = 10 * len(_KANA.findall(text)) >= letters
    for language, script in _SCRIPTS:
        if language == "ja" and not kana:
            continue
        # A few foreign letters, such as a name in its own script, do not decide.
        if language in supported and 3 * len(script.findall(text)) >= letters > 0:
            return language
    candidates = frozenset(supported) - {language for language, _ in _SCRIPTS}
    if not letters or len(candidates) < 2:
        return next(iter(candidates), UNKNOWN) if letters else UNKNOWN
    return str(_identifier(candidates).classify(text)[0])
