"""What the weights of a Pocket TTS model do not tell: its language, the text it was trained on, and
how it was tuned. All sizes are read from the tensors (see `sizes`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from offhook.pipeline.speech.errors import EngineError

FRAMES_PER_S = 12.5
FRAME_SAMPLES = 1920
"""Samples of a frame of 80 ms at 24 kHz."""

APOSTROPHES = {"’": "'", "‘": "'"}
DASHES = {"–": ",", "—": ","}
QUOTES = dict.fromkeys('"“”„«»', "")
BRACKETS = dict.fromkeys("()[]", "")
BOOK = {**QUOTES, **APOSTROPHES, **BRACKETS, "–": ","}
"""Characters absent from the read books that most languages were trained on; a model makes up
syllables for them."""


@dataclass(frozen=True)
class PocketConfig:
    language: str
    """ISO 639 code."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Characters to replace before a clause is tokenized, also by nothing."""
    drifting: bool = False
    """Whether the flow head without time conditions turns noise into the latent; otherwise it
    returns the difference."""
    decoder_head_size: int = 64
    decoder_context: int = 250
    """Steps of 5 ms that the decoder's transformer attends to, including the current one."""
    end_threshold: float = -4.0
    """A clause ends where the logit of the end exceeds it."""
    temperature: float = 0.3
    """Variance of the noise by default."""
    max_tokens: int = 50
    """Tokens of the longest clause that is read without leaving out words."""

    @property
    def max_frames(self) -> int:
        """The most frames of a clause."""
        return frame_limit(self.max_tokens)


def frame_limit(tokens: int) -> int:
    """Returns the frames after which a clause is cut: three tokens a second, and two seconds."""
    return math.ceil((tokens / 3 + 2) * FRAMES_PER_S)


_ENGLISH = PocketConfig("en", APOSTROPHES)
_SMALL = PocketConfig(
    "en",
    {**APOSTROPHES, **DASHES},
    drifting=True,
    decoder_head_size=32,
    decoder_context=50,
    end_threshold=-1.0,
)
_SMALLEST = replace(_SMALL, drifting=False)
_LANGUAGES = {
    "french": PocketConfig("fr", {**BOOK, ":": ",", ";": ","}),
    "german": PocketConfig("de", {**BOOK, "—": ",", ";": ","}),
    "spanish": PocketConfig("es", {**BOOK, "¡": "", "¿": ""}),
    "italian": PocketConfig("it", BOOK),
    "portuguese": PocketConfig("pt", BOOK),
    "dutch": PocketConfig("nl", BOOK),
}
CONFIGS = {
    "english": _ENGLISH,
    "english_2026-09_24l": _ENGLISH,
    "english_18m_2026-10": _SMALL,
    "english_18m_refl_2026-10": _SMALL,
    "english_7m_2026-10": _SMALL,
    "english_7m_refl_2026-10": _SMALL,
    "english_2m_2026-10": _SMALLEST,
    "english_2m_refl_2026-10": _SMALLEST,
    **_LANGUAGES,
    **{f"{name}_24l": config for name, config in _LANGUAGES.items()},
}
"""By the name of the model's folder in the repository on the hub. english_2026-10 has the same
weights as english, but no tokenizer."""


def config_of(folder: Path) -> PocketConfig:
    """Returns the configuration of the model in a folder named as on the hub. Raises
    EngineError."""
    if folder.name not in CONFIGS:
        raise EngineError(
            f"{folder.name!r} is no Pocket TTS model; the folder must be named as on the hub: "
            f"{', '.join(CONFIGS)}"
        )
    return CONFIGS[folder.name]


def config_named(model: str) -> PocketConfig:
    """Returns the configuration of a model: a folder, or a name of CONFIGS, with "@" and a revision
    if wanted. Raises EngineError."""
    folder, name = Path(model).expanduser(), model.partition("@")[0]
    if folder.is_dir():
        return config_of(folder)
    if name not in CONFIGS:
        known = ", ".join(CONFIGS)
        raise EngineError(f"there is no folder {model}, and no Pocket TTS of that name: {known}")
    return CONFIGS[name]
