"""The contract of engines that speak with the voice of a recording, and say what voices they have.

A `Synthesizer` may be a `ClonesVoices` too; those that are not have the voices they were made with.
"""

import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from offhook.pipeline.speech.recognizer import EngineError
from offhook.pipeline.speech.synthesizer import SynthesizerStream, VoiceOptions

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NAME_RULE = "a voice is called by letters, digits, - and _, up to 64 of them"
MIN_S, MAX_S = 3, 30
"""Of a recording that are used, with little silence around them."""
LENGTH_RULE = f"{MIN_S} to {MAX_S} s of one person speaking are needed"
CONSENT_RULE = (
    "a voice is cloned only with its speaker's consent: say that the person agreed "
    "(consent: true), if that is so"
)


class VoiceError(EngineError):
    """A voice cannot be made, or no longer be had. The message says why and what to do."""


class NoConsent(VoiceError):
    """Nobody said that the speaker agreed."""


class CannotClone(VoiceError):
    """This engine, or this model, clones no voices."""


class VoiceTaken(VoiceError):
    """There is a voice of that name."""


class TooManyClones(VoiceError):
    """So many are being made that this one must be asked for later."""


@dataclass(frozen=True)
class KnownVoice:
    """One that an engine speaks with."""

    name: str
    kind: str = "speaker"
    """speaker: the engine's own; design: described in words; clone: of a recording."""
    languages: tuple[str, ...] = ()
    """ISO 639 codes; empty: not known."""
    created_s: int = 0
    """Seconds since the epoch; 0: with the engine."""


@dataclass(frozen=True)
class Sample:
    """A recording of one person."""

    file: bytes
    """An audio or video file, as it was sent: hostile until it is decoded."""
    text: str = ""
    """What is said in it; empty: not known, and the likeness is not so near."""
    consent: bool = False
    """The speaker agreed."""


@runtime_checkable
class ClonesVoices(Protocol):
    """All raise EngineError when the engine cannot go on."""

    async def known_voices(self) -> list[KnownVoice]:
        """The usual one first."""

    async def add_voice(self, name: str, sample: Sample, language: str = "") -> KnownVoice:
        """Clone the voice and keep it under a name, for all who share the folder. `language`: what
        it speaks when nobody says; empty: found out from the text. Raises VoiceError."""

    async def remove_voice(self, name: str) -> None:
        """Raises UnknownVoice, VoiceError."""

    async def open_clone(self, sample: Sample, options: VoiceOptions) -> SynthesizerStream:
        """Begin a reply with the voice of the sample, which gets no name. Raises VoiceError here or
        from the iteration, ValueError for what the engine cannot do."""
