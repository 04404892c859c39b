"""IPA in eSpeak NG's phoneme mnemonics, which a text has in double square brackets.

Source: docs/phonemes.md of eSpeak NG. What a voice lacks it leaves out.
"""

import re
import unicodedata

from offhook.pipeline.speech.text.markup import IPA_BEGINS, IPA_ENDS

MNEMONICS = {
    **{char: char for char in "abdefhijklmnopstuvwxz"},
    "ɡ": "g",
    "g": "g",
    "ɹ": "r",
    "r": "r",
    "ʁ": "r",
    "ʀ": "r",
    "ɾ": "*",
    "ɫ": "L",
    "ɑ": "A",
    "ɒ": "0",
    "ɔ": "O",
    "ə": "@",
    "ɛ": "E",
    "ɜ": "3",
    "ɝ": "3:",
    "ɚ": "3",
    "æ": "a",
    "ɪ": "I",
    "ɨ": "i",
    "ʊ": "U",
    "ʌ": "V",
    "ɐ": "a#",
    "ø": "Y",
    "œ": "W",
    "y": "y",
    "ʏ": "y",
    "ŋ": "N",
    "ɲ": "n^",
    "ʃ": "S",
    "ʒ": "Z",
    "θ": "T",
    "ð": "D",
    "ç": "C",
    "χ": "X",
    "ʎ": "l^",
    "β": "B",
    "ɣ": "Q",
    "ʔ": "?",
    "ɕ": "S;",
    "ʑ": "Z;",
    "ʋ": "v",
    "ɥ": "j",
    "ʍ": "w",
    "ˈ": "'",
    "'": "'",
    "ˌ": ",",
    "ː": ":",
    ":": ":",
    "\u0303": "~",
    # Two letters are one sound, and have a mnemonic of their own.
    "aɪ": "aI",
    "aʊ": "aU",
    "eɪ": "eI",
    "oʊ": "oU",
    "əʊ": "oU",
    "ɔɪ": "OI",
    "ɔʏ": "OY",
    "tʃ": "tS",
    "dʒ": "dZ",
    "ts": "ts",
    "pf": "pF",
    "øː": "Y:",
    "œː": "W:",
}
_SOUND = re.compile("|".join(map(re.escape, sorted(MNEMONICS, key=len, reverse=True))))


def mnemonics(ipa: str) -> str:
    """Returns the phonemes of a word; what has no mnemonic is left out."""
    letters = unicodedata.normalize("NFD", ipa.replace("ç", "\ue010")).replace("\ue010", "ç")
    return "".join(MNEMONICS[sound] for sound in _SOUND.findall(letters))


def with_mnemonics(word: str) -> str:
    """Returns a word as eSpeak NG takes it."""
    before, begins, rest = word.partition(IPA_BEGINS)
    ipa, _, after = rest.partition(IPA_ENDS)
    return f"{before}[[{mnemonics(ipa)}]]{after}" if begins else word
