"""Whether a person who was asked to speak with a caller says yes or no. Sans-io.

A word counts in any of the languages: a person may answer in another one than the briefing's, and
none of the words means the opposite elsewhere. Both in one sentence are no decision.
"""

import re
from typing import Literal

Decision = Literal["accept", "decline"]
KEYS: dict[str, Decision] = {"1": "accept", "2": "decline"}
_ACCEPT = (
    r"yes|yeah|yep|yup|sure|ok|okay|of course|go ahead|accept|connect|put (?:him|her|them|it|me)"
    r"|i(?:'ll| will) (?:take|speak|talk)|no problem|no worries"
    r"|ja|jawohl|gerne?|klar|natürlich|annehmen|verbinden|kein problem|stellen sie .*durch"
    r"|oui|ouais|d'accord|bien sûr|volontiers|passez|pas de problème"
    r"|sí|claro|vale|por supuesto|páseme|de acuerdo|sì|certo|va bene|volentieri|mi passi"
    r"|sim|claro|com certeza|pode passar|prima|akkoord|graag|verbind"
)
_DECLINE = (
    r"no|nope|nah|not now|i can ?not|i can't|busy|decline|later|don't"
    r"|nein|nee|nicht|keine zeit|ablehnen|später|non|pas maintenant|plus tard|occupé"
    r"|ahora no|más tarde|ocupado|rechazar|não|agora não|più tardi|occupato|niet|straks"
)
_DECLINED, _ACCEPTED = (re.compile(rf"\b(?:{words})\b") for words in (_DECLINE, _ACCEPT))
_WITH_NO = re.compile(r"\b(?:no problem|no worries|kein problem|pas de problème)\b")
_CHINESE_OR_JAPANESE: tuple[tuple[Decision, str], ...] = (
    ("decline", "不|没空|いいえ|いえ|無理|断|結構です|だめ"),
    ("accept", "好|可以|接吧|行|はい|ええ|お願い|つないで|大丈夫"),
)


def decision(text: str) -> Decision | None:
    """Returns what the words of a person mean; None: neither, or both."""
    heard = text.lower().replace("\u2019", "'")
    accepts = bool(_ACCEPTED.search(heard))
    declines = bool(_DECLINED.search(_WITH_NO.sub("", heard)))
    if accepts != declines:
        return "accept" if accepts else "decline"
    if not accepts:
        for meaning, words in _CHINESE_OR_JAPANESE:
            if re.search(words, heard):
                return meaning
    return None
