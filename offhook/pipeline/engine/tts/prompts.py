"""What the talker is given before the first frame of a segment, as the model was trained.

Every position is the sum of a text embedding and a codec embedding; a `PromptPosition` says which.
First the
instructions, if any, and `<|im_start|>assistant\\n`, as text alone; then the tags, with tts_pad:
the language between think_bos and think_eos, the speaker, and at last codec_pad with tts_bos.
Frame 0 comes next: codec_bos with the first token of the text.

A voice cloned with its words goes on from a reference as if it had said that itself: codec_bos and
then the codes of the reference, a frame a position, and with them the tokens of its words, one
after another from the first position on, and right behind them the text to speak. So some of the
text is in the prompt, and frame 0 follows the reference's last frame.

That is for text that comes while it is spoken. Where all of it is there, it goes in before frame 0:
behind the tags the tokens of the text and tts_eos, with codec_pad, and then frame 0 is codec_bos
with tts_pad (`with_whole_text`). The voice then knows where a sentence goes.

The layouts are those of Qwen3-TTS: qwen_tts/core/models/modeling_qwen3_tts.py, `generate` and
`generate_icl_prompt` with and without `non_streaming_mode`. There, named and described voices are
given the whole text unless otherwise said, and cloned ones streaming text.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from offhook.pipeline.engine.tts.messages import PromptPosition
from offhook.pipeline.speech.synthesizer import UnknownVoice

if TYPE_CHECKING:
    from offhook.pipeline.models.qwen3_tts.model import TtsConfig

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
"""ISO 639 codes outside, names in the model's configuration."""
MAX_PREFIX = 512
"""Positions before the first frame: instructions of 500 tokens, or a reference of 40 s. As many are
left for frames."""
SMALL = "0b6"
"""The size that was not trained to follow instructions."""


class Tokenizer(Protocol):
    """See models.tokenizer."""

    im_start: int
    im_end: int

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True)
class VoicePrompt:
    """All that a segment's prompt is made of but the text."""

    key: Hashable
    """Of `rows`: two with the same key have the same rows and vectors."""
    rows: tuple[PromptPosition, ...]
    """The same for every text."""
    vectors: object | None = None
    """A tensor [n, hidden] on the device, that `PromptPosition.vector` counts in."""
    open: tuple[PromptPosition, ...] = ()
    """Positions behind `rows` that take a token of the text each."""
    lead: tuple[int, ...] = ()
    """Tokens that go in with the first frames, before the text."""
    reference: object | None = None
    """What the runner's `begin` is given: the codes of the reference."""
    beside_text: int = -1
    """Code beside each token of a text that goes in before frame 0 as a whole; -1: the text goes in
    with the frames."""

    @property
    def start(self) -> int:
        """Position of frame 0, or of a whole text before it."""
        return len(self.rows) + len(self.open)

    @property
    def whole_text(self) -> bool:
        return self.beside_text >= 0


@dataclass(frozen=True)
class Clone:
    """A voice out of a recording, on the device."""

    key: Hashable
    vectors: object
    """[1 + frames, hidden]: the speaker's vector, then for each frame of the reference the sum of
    the embeddings of its codes."""
    frames: int = 0
    """Of the reference; 0: its words are not known, the speaker's vector is all."""
    words: str = ""
    """What is said in the reference."""
    reference: object | None = None
    """Its codes [frames, codebooks]."""


def follows_instructions(config: "TtsConfig") -> bool:
    """Whether the model speaks as it is told to. Others are given no instructions: the official
    package drops them for the small model, and has no place for them with a clone."""
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
    """One of the model's own speakers, in upper or lower case. `language`: ISO 639 code; empty: the
    model finds out, and speaks the speaker's dialect where it has one. Raises UnknownVoice, and
    ValueError for a language the model does not speak or instructions that are too long."""
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
    """A voice as the words say. Raises ValueError as `named_voice` does."""
    spoken = _language(config, language)
    rows = (*_instructions(tokenizer, description), *_tags(config, tokenizer, spoken))
    return _bounded(VoicePrompt(("described", spoken, description), rows))


def cloned_voice(
    config: "TtsConfig", tokenizer: Tokenizer, clone: Clone, language: str = ""
) -> VoicePrompt:
    """The voice of a recording. Raises ValueError as `named_voice` does, and for a reference that
    is too long."""
    spoken = _language(config, language)
    tags = _tags(config, tokenizer, spoken, PromptPosition(config.tts_pad, vector=0))
    key = ("cloned", clone.key, spoken)
    if not clone.frames:
        return _bounded(VoicePrompt(key, tags, clone.vectors))
    # The reference's last frame is what comes before frame 0, which is no row of the prompt.
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
    """For texts that are there before the first frame. Not for a voice with a reference."""
    return replace(prompt, beside_text=config.codec_pad)


def _language(config: "TtsConfig", code: str) -> str:
    """Its name in the model's configuration; empty: to be found out."""
    name = LANGUAGES.get(code, "")
    if code and name not in config.languages:
        known = ", ".join(code for code, name in LANGUAGES.items() if name in config.languages)
        raise ValueError(f"the model does not speak {code!r}; it speaks {known}")
    return name


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
