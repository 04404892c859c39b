"""Builds the talker's prompt before the first frame of a segment, as the model was trained.

Every position is the sum of a text embedding and a codec embedding; a `PromptPosition` names them.
First come the instructions, if any, and `<|im_start|>assistant\\n`, as text only; then, with
tts_pad, the tags: the language between think_bos and think_eos, the speaker, and codec_pad with
tts_bos. Frame 0 follows: codec_bos with the first token of the text.

A voice cloned with a transcript continues a reference as its own speech: codec_bos and the
reference's codes, one frame per position, and alongside them the tokens of the transcript from the
first position on, directly followed by the text to speak. So part of the text is in the prompt, and
frame 0 follows the reference's last frame.

This layout serves text that arrives while it is spoken. If the whole text is known, it precedes
frame 0: after the tags the text tokens and tts_eos, with codec_pad, and frame 0 is codec_bos with
tts_pad (`with_whole_text`). The voice then knows how a sentence continues.

The layouts are those of Qwen3-TTS: qwen_tts/core/models/modeling_qwen3_tts.py, `generate` and
`generate_icl_prompt` with and without `non_streaming_mode`. By default it uses the whole text for
named and described voices, and streaming text for cloned ones.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from offhook.pipeline.engines.shared.synthesis.messages import PromptPosition
from offhook.pipeline.speech.synthesizer import UnknownVoice

if TYPE_CHECKING:
    from offhook.pipeline.engines.qwen3_tts.model.config import TtsConfig

LANGUAGES = {
    "zh": "chinese",
    "en": "english",
    "de": "german",
    "es": "spanish",
    "fr": "french",
    "it": "italian",
    "ja": "japanese",
    "ko": "korean",
    "pt": "portuguese",
    "ru": "russian",
}
"""ISO 639 codes to the language names in the model's configuration."""
MAX_PREFIX = 512
"""Maximum positions before the first frame: instructions of 500 tokens or a reference of 40 s. As
many are left for frames."""
SMALL = "0b6"
"""The model size that was not trained to follow instructions."""


class Tokenizer(Protocol):
    """The part of `shared.qwen3.tokenizer.Tokenizer` used here."""

    im_start: int
    im_end: int

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True)
class VoicePrompt:
    """Everything in a segment's prompt except the text."""

    key: Hashable
    """Identifies `rows`: equal keys mean equal rows and vectors."""
    rows: tuple[PromptPosition, ...]
    """Positions that are the same for every text."""
    vectors: object | None = None
    """Tensor [n, hidden] on the device, indexed by `PromptPosition.vector`."""
    open: tuple[PromptPosition, ...] = ()
    """Positions after `rows` that each take one text token."""
    lead: tuple[int, ...] = ()
    """Tokens fed with the first frames, before the text."""
    reference: object | None = None
    """Codes of the reference, passed to the runner's `begin`."""
    beside_text: int = -1
    """Code paired with each token of a text that precedes frame 0; -1: the text is fed with the
    frames."""

    @property
    def start(self) -> int:
        """Position of frame 0, or of a whole text before it."""
        return len(self.rows) + len(self.open)

    @property
    def whole_text(self) -> bool:
        return self.beside_text >= 0


@dataclass(frozen=True)
class Clone:
    """A voice cloned from a recording, on the device."""

    key: Hashable
    vectors: object
    """[1 + frames, hidden]: the speaker's vector, then per reference frame the sum of its codes'
    embeddings."""
    frames: int = 0
    """Frames of the reference; 0: no transcript, only the speaker's vector is used."""
    words: str = ""
    """Transcript of the reference."""
    reference: object | None = None
    """Codes of the reference, [frames, codebooks]."""


def follows_instructions(config: "TtsConfig") -> bool:
    """Returns whether the model follows instructions. Other models get none: the official package
    drops them for the small model and does not support them with clones."""
    if config.kind == "custom_voice":
        return config.size != SMALL
    return config.kind == "voice_design"


def named_voice(
    config: "TtsConfig",
    tokenizer: Tokenizer,
    speaker: str,
    language: str = "",
    instructions: str = "",
) -> VoicePrompt:
    """Returns the prompt of one of the model's own speakers (case-insensitive). `language` is an
    ISO 639 code; empty: detected by the model, with the speaker's dialect if there is one. Raises
    UnknownVoice, and ValueError for an unsupported language or too long instructions."""
    name = speaker.lower()
    if name not in config.speakers:
        known = ", ".join(sorted(config.speakers))
        raise UnknownVoice(f"there is no voice {speaker!r}; the model has {known}")
    spoken = _language(config, language)
    if spoken in ("", "chinese") and config.dialects.get(name):
        spoken = str(config.dialects[name])
    told = instructions if follows_instructions(config) else ""
    rows = (
        *_instructions(tokenizer, told),
        *_tags(config, tokenizer, spoken, PromptPosition(config.tts_pad, config.speakers[name])),
    )
    return _bounded(VoicePrompt(("named", name, spoken, told), rows))


def described_voice(
    config: "TtsConfig", tokenizer: Tokenizer, description: str, language: str = ""
) -> VoicePrompt:
    """Returns the prompt of a described voice. Raises ValueError like `named_voice`."""
    spoken = _language(config, language)
    rows = (*_instructions(tokenizer, description), *_tags(config, tokenizer, spoken))
    return _bounded(VoicePrompt(("described", spoken, description), rows))


def cloned_voice(
    config: "TtsConfig", tokenizer: Tokenizer, clone: Clone, language: str = ""
) -> VoicePrompt:
    """Returns the prompt of a cloned voice. Raises ValueError like `named_voice`, and for a too
    long reference."""
    spoken = _language(config, language)
    tags = _tags(config, tokenizer, spoken, PromptPosition(config.tts_pad, vector=0))
    key = ("cloned", clone.key, spoken)
    if not clone.frames:
        return _bounded(VoicePrompt(key, tags, clone.vectors))
    # The reference's last frame precedes frame 0 and is no row of the prompt.
    said = [
        PromptPosition(codec=config.codec_bos),
        *(PromptPosition(vector=i) for i in range(1, clone.frames)),
    ]
    words = tokenizer.encode(clone.words)
    known = [row._replace(text=word) for row, word in zip(said, words, strict=False)]
    return _bounded(
        VoicePrompt(
            key,
            (*tags, *known),
            clone.vectors,
            open=tuple(said[len(known) :]),
            lead=tuple(words[len(known) :]),
            reference=clone.reference,
        )
    )


def with_whole_text(config: "TtsConfig", prompt: VoicePrompt) -> VoicePrompt:
    """Returns the prompt for a text that is known before the first frame; not for a voice with a
    reference."""
    return replace(prompt, beside_text=config.codec_pad)


def languages_of(config: "TtsConfig") -> tuple[str, ...]:
    """Returns the ISO 639 codes of the languages that the model speaks."""
    return tuple(code for code, name in LANGUAGES.items() if name in config.languages)


def _language(config: "TtsConfig", code: str) -> str:
    """Returns the language's name in the model's configuration; empty: to be detected. Raises
    ValueError."""
    known = languages_of(config)
    if code and code not in known:
        raise ValueError(f"the model does not speak {code!r}; it speaks {', '.join(known)}")
    return LANGUAGES.get(code, "")


def _instructions(tokenizer: Tokenizer, told: str) -> list[PromptPosition]:
    if not told:
        return []
    ids = [tokenizer.im_start, *tokenizer.encode(f"user\n{told}"), tokenizer.im_end]
    return [PromptPosition(text) for text in (*ids, *tokenizer.encode("\n"))]


def _tags(
    config: "TtsConfig", tokenizer: Tokenizer, language: str, speaker: PromptPosition | None = None
) -> tuple[PromptPosition, ...]:
    turn = [tokenizer.im_start, *tokenizer.encode("assistant\n")]
    think: tuple[int, ...]
    if language:
        think = (config.think, config.think_bos, config.languages[language], config.think_eos)
    else:
        think = (config.nothink, config.think_bos, config.think_eos)
    return (
        *(PromptPosition(text) for text in turn),
        *(PromptPosition(config.tts_pad, code) for code in think),
        *([speaker] if speaker else []),
        PromptPosition(config.tts_bos, config.codec_pad),
    )


def _bounded(prompt: VoicePrompt) -> VoicePrompt:
    positions = prompt.start + len(prompt.lead)
    if positions > MAX_PREFIX:
        raise ValueError(
            f"instructions or the reference take {positions} positions before the text, "
            f"{MAX_PREFIX} at most: make them shorter"
        )
    return prompt
