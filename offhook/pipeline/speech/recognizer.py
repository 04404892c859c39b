"""The contract of speech recognition: what every engine offers and the call relies on."""

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from offhook.media.pcm import Pcm

UPDATE_MS_MIN, UPDATE_MS, UPDATE_MS_MAX = 80, 400, 1120
"""The least, the usual and the most sound between two partials."""
MAX_CONTEXT_CHARS = 4000
"""More context costs every update time and helps no name to be heard."""
LANGUAGE_TAG = re.compile("([A-Za-z]{2,3})(?:[-_]([A-Za-z]{4}))?(?:[-_]([A-Za-z]{2}|[0-9]{3}))?")
"""Language, script and region of a tag of BCP 47; no other subtags are used for speech."""

Loss = Literal["crashed", "hung"]
"""How a recogniser's process was lost; its utterances are heard again by another."""

Progress = Callable[[float, str], None]
"""Told while an engine loads: the fraction done, 0..1, and what is being done, in words."""


@dataclass(frozen=True)
class StreamOptions:
    """How one stream is to be heard. Raises ValueError for what no engine can do."""

    update_ms: int = UPDATE_MS
    """Sound between two partials, 80..1120 ms. An engine that updates in steps of its own keeps to
    those, and takes the largest of them that is not over this."""
    context: str = ""
    """Names and words to expect, or what the talk is about; engines that cannot use it do not."""
    language: str | None = None
    """A tag of BCP 47, as "en" or "pt-BR", in any case; None: found out by the engine. An engine
    that does not know the region takes the language (lookup of RFC 4647 section 3.4)."""
    words: bool = False
    """Whether `Final.words` is needed; an engine that has the times anyway may always give them."""
    live: bool = True
    """Somebody waits for the words as they are spoken. Otherwise the sound is a file: streams that
    are live come first, and partials may be left out."""
    gate: bool = False
    """Only sound with speech in it goes to the engine; of the rest the text is empty at once.
    Whoever opens engines sees to it (`speech_gate_io`), the engines do not."""
    timing: bool = False
    """Whether events are to tell their `Timing`; engines that are not asked make none."""

    def __post_init__(self) -> None:
        if not UPDATE_MS_MIN <= self.update_ms <= UPDATE_MS_MAX:
            raise ValueError(f"update_ms is {self.update_ms}, not {UPDATE_MS_MIN}..{UPDATE_MS_MAX}")
        if len(self.context) > MAX_CONTEXT_CHARS:
            raise ValueError(f"context is over {MAX_CONTEXT_CHARS} characters")
        if self.language is not None:
            object.__setattr__(self, "language", canonical_tag(self.language))

    def demands(self) -> str:
        """What it asks of the engine beyond hearing, in words: "the language 'fr'"; else empty."""
        language = f"the language {self.language!r}" if self.language else ""
        parts = (language, "times of words" * self.words, "a prompt" * bool(self.context))
        return " and ".join(filter(None, parts))

    @property
    def language_code(self) -> str | None:
        """The ISO 639 code of `language`: "pt" of "pt-BR"."""
        return self.language and self.language.partition("-")[0]


def canonical_tag(text: str) -> str:
    """A language tag with its usual separators and case (RFC 5646 section 2.1.1): "pt_br" is
    "pt-BR". Raises ValueError for what is none."""
    tag = LANGUAGE_TAG.fullmatch(text)
    if tag is None:
        raise ValueError(f"language is {text[:50]!r}, not a code such as 'en' or 'pt-BR'")
    language, script, region = tag.groups(default="")
    return "-".join(filter(None, (language.lower(), script.title(), region.upper())))


DEFAULT_OPTIONS = StreamOptions()


@dataclass(frozen=True)
class Word:
    """One recognised or spoken word; times in ms of the stream's own audio."""

    text: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class Timing:
    """When the newest sound behind a text was where, in s of time.monotonic()."""

    begun: float
    """The first sound of this update came; the last update had everything before it."""
    buffered: float
    """All the sound that the update needed was there, or its end had been asked for."""
    started: float
    """Its batch began."""
    done: float
    """The model was done."""
    routed: float = 0.0
    """The event was in the stream's mailbox on the event loop; 0: not there yet."""


@dataclass(frozen=True)
class Partial:
    """What is heard so far of the utterance. The first `stable_chars` are never taken back."""

    text: str
    stable_chars: int
    audio_ms: int
    """How much audio of this utterance the text covers."""
    timing: Timing | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Final:
    """The utterance as finally heard; text is empty when there were no words."""

    text: str
    audio_ms: int
    words: tuple[Word, ...] = field(default=())
    language: str = "en"
    """ISO 639 code; "und": not determined."""
    continues: bool = False
    """Nobody asked for it: the utterance grew beyond a bound of the engine, and goes on."""
    timing: Timing | None = field(default=None, compare=False)
    lost: bool = field(default=False, compare=False)
    """The engine could not hear it, whatever was tried: its words are for the speaker to say
    again."""


class RecognizerStream(Protocol):
    """One utterance after another of one caller.

    ``feed`` audio, then ``finish`` to end the utterance; its `Final` is the last event of it, and
    the next ``feed`` begins the next utterance. ``cancel`` drops the utterance: no Final comes.
    ``close`` ends the stream and with it the iteration of events, which raises EngineError when the
    engine cannot go on. An utterance longer than the engine bears comes in several Finals, all but
    the last with `continues`.
    """

    def feed(self, pcm: Pcm) -> None:
        """Take 16 kHz samples. Never blocks; an engine that falls behind drops nothing but
        answers later."""

    def finish(self) -> None: ...

    def cancel(self) -> None: ...

    def events(self) -> AsyncIterator[Partial | Final]: ...

    async def close(self) -> None: ...


class Recognizer(Protocol):
    """An engine, shared by all calls of the process."""

    name: str

    async def start(self) -> None:
        """Load and warm up; raises EngineError saying what is missing and what to do."""

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> RecognizerStream:
        """A stream for one speaker. Raises NotPossible when it cannot be heard as asked;
        EngineFull, EngineError."""

    async def close(self) -> None: ...


EngineFault = Literal["failed", "unloaded", "loading", "unreachable", "timeout", "refused", "full"]
"""Why an engine does not do its work, as anybody may be told: see `web.speech.errors`."""


class EngineError(RuntimeError):
    """An engine cannot run. The message says why and what to do next to whoever runs the server: it
    may name addresses and quote another server. Whoever asked for speech is told `fault`."""

    def __init__(self, message: str = "", fault: EngineFault = "failed") -> None:
        super().__init__(message)
        self.fault = fault


class NotPossible(EngineError, ValueError):
    """The engine runs and cannot do what was asked for, as a language that it does not know. The
    message is for whoever asked: it quotes no other server."""


class EngineBroken(EngineError):
    """An engine that was running cannot go on: only a new process helps."""


class EngineFull(EngineError):
    """It has as many streams as it can have: one more when another has ended."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message, "full")


class AudioOverrun(ValueError):
    """More audio was fed to an engine's stream than may wait there."""
