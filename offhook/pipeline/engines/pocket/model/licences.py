"""The voices of Pocket TTS whose recordings may be used for any purpose.

Kyutai made each voice from a recording, whose own licence counts; those of `kyutai/tts-voices` are
stated folder by folder. Not listed are `cosette` (Expresso) and `jean` (EARS), which are for
non-commercial use only, and `juergen` and `rafael`, the licence of whose recordings is not stated.
"""

CC0, CC_BY = "CC0-1.0", "CC-BY-4.0"
_DONATED = ("marius", "javert")
_VCTK = (
    *("anna", "vera", "fantine", "charles", "paul", "eponine", "azelma", "george", "mary", "jane"),
    *("michael", "eve"),
)
_VOICE_ZERO = ("bill_boerst", "peter_yearsley", "stuart_bell", "caro_davy")
_COMMON_VOICE = ("giovanni", "lola")
LICENCES = {
    "alba": CC_BY,
    **dict.fromkeys(_DONATED, CC0),
    **dict.fromkeys(_VCTK, CC_BY),
    **dict.fromkeys(_VOICE_ZERO, CC0),
    **dict.fromkeys(_COMMON_VOICE, CC0),
    "daan": CC_BY,  # CML-TTS
    "estelle": CC0,  # recorded by Kyutai
}
"""Licence of each voice's recording."""
DEFAULT = "alba"
NATIVE = {"fr": "estelle", "it": "giovanni", "es": "lola", "nl": "daan"}
"""The native speaker of a language, its default voice instead; the others speak English in the
recording."""


def listed(language: str) -> list[str]:
    """Returns the names of all voices, the default one of a language first."""
    return sorted(LICENCES, key=lambda name: name != NATIVE.get(language, DEFAULT))
