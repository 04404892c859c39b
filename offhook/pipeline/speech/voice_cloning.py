"""The interface of engines that clone voices from recordings.

A `Synthesizer` may also be a `VoiceCloner`; others have only built-in voices.
"""

import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import KnownVoice, SynthesizerStream, VoiceOptions

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NAME_RULE = "a voice is called by letters, digits, - and _, up to 64 of them"
MIN_S, MAX_S = 3, 30
"""Minimum and maximum length of a recording in s, with little silence around the speech."""
LENGTH_RULE = f"{MIN_S} to {MAX_S} s of one person speaking are needed"
CONSENT_RULE = (
    "a voice is cloned only with its speaker's consent: say that the person agreed "
    "(consent: true), if that is so"
)


class VoiceError(EngineError):
    """Raised when a voice cannot be created or used. The message says why and what to do."""


class ConsentMissing(VoiceError):
    """Raised when the speaker's consent was not stated."""


class CloningUnsupported(VoiceError):
    """Raised when the engine or model does not support voice cloning."""


class VoiceExists(VoiceError):
    """Raised when a voice of that name exists."""


class TooManyClones(VoiceError):
    """Raised when too many voices are being cloned; try again later."""


@dataclass(frozen=True)
class Sample:
    """A recording of one person."""

    file: bytes
    """An uploaded audio or video file; untrusted."""
    text: str = ""
    """Transcript; empty: unknown, with less similarity."""
    consent: bool = False
    """Whether the speaker has consented."""


@runtime_checkable
class VoiceCloner(Protocol):
    """Clones voices. All methods raise EngineError if the engine fails."""

    async def add_voice(self, name: str, sample: Sample, language: str = "") -> KnownVoice:
        """Clones a voice and stores it under a name for everyone who shares the folder. `language`
        is its default; empty: detected from the text. Raises VoiceError."""

    async def remove_voice(self, name: str) -> None:
        """Removes a voice. Raises UnknownVoice, VoiceError."""

    async def open_clone(self, sample: Sample, options: VoiceOptions) -> SynthesizerStream:
        """Opens a reply with a one-time clone of the sample. Raises VoiceError, here or from the
        iteration, and ValueError for unsupported options."""
