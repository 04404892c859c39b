"""The speech recognition interface that every engine implements."""

import re
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol, runtime_checkable

from annotated_types import Ge

from offhook.media.pcm import Pcm

UPDATE_MS_MIN, UPDATE_MS, UPDATE_MS_MAX = 80, 400, 1120
"""Minimum, default and maximum audio in ms between two partials."""
MAX_CONTEXT_CHARS = 4000
"""Maximum length of the context; a longer one is refused. It would slow down every update without
improving recognition."""
MAX_ALIGNED_S = 180
"""Maximum audio in s whose text can be aligned, the limit of the published aligner."""
LANGUAGE_TAG = re.compile("([A-Za-z]{2,3})(?:[-_]([A-Za-z]{4}))?(?:[-_]([A-Za-z]{2}|[0-9]{3}))?")
"""Matches language, script and region of a BCP 47 tag; other subtags are not used for speech."""

Loss = Literal["crashed", "hung"]
"""How a recognizer process was lost; another one recognizes its utterances again."""

Progress = Callable[[float, str], None]
"""Called while an engine loads with the fraction done, 0..1, and a description of the step."""


@dataclass(frozen=True)
class StreamOptions:
    """Options of a recognition stream. Raises ValueError for what no engine supports."""

    update_ms: int = UPDATE_MS
    """Audio between two partials, 80..1120 ms. An engine with fixed steps uses the largest that
    does not exceed this."""
    context: str = ""
    """Names and words to expect, or the topic; engines without this feature ignore it."""
    language: str | None = None
    """BCP 47 tag such as "en" or "pt-BR", in any case; None: detected. An engine that does not know
    the region uses the language (lookup, RFC 4647 section 3.4)."""
    words: bool = False
    """Whether `Final.words` is needed; engines that have word times anyway may always return
    them."""
    live: bool = True
    """Whether words are awaited as they are spoken. Otherwise the audio is a file: live streams
    have priority and partials may be omitted."""
    gate: bool = False
    """Whether only audio with speech reaches the engine; the text of the rest is empty. Implemented
    by `speech_gate_io` rather than by engines."""
    timing: bool = False
    """Whether events carry a `Timing`."""

    def __post_init__(self) -> None:
        if not UPDATE_MS_MIN <= self.update_ms <= UPDATE_MS_MAX:
            raise ValueError(f"update_ms is {self.update_ms}, not {UPDATE_MS_MIN}..{UPDATE_MS_MAX}")
        if len(self.context) > MAX_CONTEXT_CHARS:
            raise ValueError(f"context is over {MAX_CONTEXT_CHARS} characters")
        if self.language is not None:
            object.__setattr__(self, "language", canonical_tag(self.language))

    def demands(self) -> str:
        """Describes the options that an engine may not support, e.g. "the language 'fr'"; empty if
        none."""
        language = f"the language {self.language!r}" if self.language else ""
        parts = (language, "times of words" * self.words, "a prompt" * bool(self.context))
        return " and ".join(filter(None, parts))

    @property
    def language_code(self) -> str | None:
        """The ISO 639 code of `language`: "pt" for "pt-BR"."""
        return self.language and self.language.partition("-")[0]


def canonical_tag(text: str) -> str:
    """Normalizes separators and case of a language tag (RFC 5646 section 2.1.1): "pt_br" becomes
    "pt-BR". Raises ValueError if it is not a tag."""
    tag = LANGUAGE_TAG.fullmatch(text)
    if tag is None:
        raise ValueError(f"language is {text[:50]!r}, not a code such as 'en' or 'pt-BR'")
    language, script, region = tag.groups(default="")
    return "-".join(filter(None, (language.lower(), script.title(), region.upper())))


DEFAULT_OPTIONS = StreamOptions()


@dataclass(frozen=True)
class Word:
    """A recognized or spoken word; times in ms of the stream's own audio."""

    text: str
    start_ms: Annotated[int, Ge(0)]
    end_ms: Annotated[int, Ge(0)]


@dataclass(frozen=True)
class Timing:
    """Times in s of time.monotonic() at which the newest audio of a text passed each stage."""

    begun: float
    """The first audio of this update arrived."""
    buffered: float
    """All audio that the update needed had arrived, or the utterance had been ended."""
    started: float
    """Its batch started."""
    done: float
    """The model was done."""
    routed: float = 0.0
    """The event reached the stream's mailbox on the event loop; 0: not yet."""


@dataclass(frozen=True)
class Partial:
    """The text of an utterance so far. Its first `stable_chars` characters never change."""

    text: str
    stable_chars: int
    audio_ms: int
    """Audio of the utterance that the text covers, in ms."""
    timing: Timing | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Final:
    """The final text of an utterance; empty if it has no words."""

    text: str
    audio_ms: int
    words: tuple[Word, ...] = field(default=())
    language: str = "en"
    """ISO 639 code; "und": undetermined."""
    continues: bool = False
    """Whether the utterance continues: it was split because it exceeded a limit of the engine."""
    timing: Timing | None = field(default=None, compare=False)
    lost: bool = field(default=False, compare=False)
    """Whether recognition failed despite all retries, so the speaker has to repeat the words."""


class RecognizerStream(Protocol):
    """Recognizes one utterance after another of one speaker.

    Call `feed` with audio, then `finish` to end the utterance; its `Final` is its last event, and
    the next `feed` starts the next utterance. `cancel` discards the utterance without a Final.
    `close` ends the stream and the iteration of events, which raises EngineError if the engine
    fails. An utterance that exceeds an engine's limit comes in several Finals, all but the last
    with `continues`.
    """

    def feed(self, pcm: Pcm) -> None:
        """Adds 16 kHz int16 samples. Never blocks; an engine under load answers later but drops
        nothing."""

    def finish(self) -> None:
        """Ends the utterance; its `Final` follows."""

    def cancel(self) -> None:
        """Discards the utterance in progress, if any."""

    def events(self) -> AsyncIterator[Partial | Final]:
        """Yields the events in order until `close`. Raises EngineError if the engine fails."""

    async def close(self) -> None: ...


@runtime_checkable
class JudgesTurns(Protocol):
    """A `RecognizerStream` that can also say whether its speaker's turn is over."""

    @property
    def judges_turns(self) -> bool:
        """Whether it would answer now: streams come and go between engines that do and do not."""

    async def turn_probability(self) -> float | None:
        """Returns the probability, 0..1, that the turn ends with the audio fed so far; None if it
        cannot say. It may take as long as the engine is busy: limit the time and cancel it."""


@runtime_checkable
class WholeTurns(Protocol):
    """A `RecognizerStream` that recognizes an utterance at its end, from all of its audio. A turn
    with pauses is understood better as one utterance than in parts."""

    @property
    def whole_turns(self) -> bool:
        """Whether it does so now."""

    def feed(self, pcm: Pcm) -> None: ...

    def drop_finished(self) -> int:
        """Drops the utterances that have ended and whose finals have not been told; returns how
        many there were."""


@runtime_checkable
class AlignsText(Protocol):
    """A `Recognizer` that can also say when the words of a known text are spoken."""

    async def align(self, pcm: Pcm, text: str, language: str) -> tuple[Word, ...]:
        """Returns all words of the text, as written, with their times. `pcm` is 16 kHz, of up to
        MAX_ALIGNED_S; `language` is an ISO 639 code. Raises EngineError; UnsupportedRequest for
        what cannot be aligned, and without an aligner."""


class TurnAnswers(Protocol):
    """What answers whether speakers' turns are over, wherever the model is."""

    async def probability(self, pcm: Pcm, call: Hashable) -> float | None:
        """Returns the probability that a turn of the call ends with `pcm`; None: decide by
        silence."""


class Recognizer(Protocol):
    """A speech recognition engine, shared by all calls of the process. A class that inherits from
    it has what follows the name by default, and may set it in its body."""

    name: str

    @property
    def languages(self) -> tuple[str, ...]:
        """BCP 47 tags, complete once it has loaded; empty: unknown."""
        return ()

    @property
    def max_streams(self) -> int | None:
        """Streams that its device follows in real time when all are in use; None: unknown, or not
        yet known."""
        return None

    @property
    def max_open_streams(self) -> int | None:
        """Streams, in use or not, for which it has memory; None: unknown, or not yet known."""
        return None

    @property
    def turns(self) -> TurnAnswers | None:
        """What answers whether speakers' turns are over; None: nothing does."""
        return None

    @property
    def losses(self) -> Mapping[Loss, int]:
        """How often a process of its own was lost, so far."""
        return {}

    async def start(self) -> None:
        """Loads and warms up. Raises EngineError saying what is missing and how to fix it."""

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> RecognizerStream:
        """Opens a stream for one speaker. Raises UnsupportedRequest, EngineOverloaded,
        EngineError."""

    async def close(self) -> None: ...
