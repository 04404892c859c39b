"""What a call is made of: what answers the caller, and the engines that hear and speak for it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loguru import logger
from pipecat.processors.frame_processor import FrameProcessor

from offhook.pipeline.conversation.call.silences import SilenceStep
from offhook.pipeline.conversation.directed_io import Direction, Infer
from offhook.pipeline.conversation.turns.user_turn_io import TurnDetection
from offhook.pipeline.conversation.turns.utterance_feed import UserAudioListener
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Recognizer,
    RecognizerStream,
    StreamOptions,
)
from offhook.pipeline.speech.script.lexicon import NO_LEXICON, Lexicon
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Synthesizer, VoiceOptions

IDLE_S = 12
"""Seconds of silence from both sides after which the agent is notified that the caller is idle."""


@dataclass
class Agent:
    """What answers the caller: a Pipecat LLM service, or any processor in its place."""

    name: str
    processor: FrameProcessor
    tools: list[Any] = field(default_factory=list)
    on_cut: Callable[[str], None] = lambda heard: None
    """Called at an interruption with the words of the reply that were heard."""
    on_unspoken: Callable[[bool], None] | None = None
    """Called when the voice has made no sound of a reply, or of its end (True); None: the caller
    hears an apology."""
    on_idle: Callable[[], Awaitable[None]] | None = None
    """Called when nobody has spoken for IDLE_S."""
    on_returned: Callable[[], Awaitable[None]] | None = None
    """Called when the call continues one whose transfer has failed; None: the caller hears a
    sentence."""
    think_ahead: Callable[[str], None] = lambda text: None
    """Called in a pause with the caller's words so far, which may be the turn, and with none when
    the caller goes on."""
    standby: FrameProcessor | None = None
    """Fallback that answers the LLMContextFrames that `processor` passes on unanswered."""
    direction: Direction | None = None
    """Set if the agent answers only on request."""
    takes_images: bool = False
    """Whether messages may have images."""
    infer: Infer | None = None
    """Answers outside the conversation; None for an agent that is no language model."""
    user_audio: UserAudioListener | None = None
    """Receives the audio of the caller's turns."""
    played_words: Callable[[str], Awaitable[str]] | None = None
    """Returns what was played of the reply just interrupted, given our estimate of it."""
    dialog: Callable[[], dict[str, Any]] = dict
    """Returns the state that the agent has beside the conversation, as JSON."""
    restore: Callable[[dict[str, Any]], None] = lambda dialog: None
    """Restores what `dialog` returned at another server. Raises ValueError, changing nothing."""
    greeting: str = ""
    """First words, spoken without asking the agent; empty: it finds its own."""
    greeting_interruptible: bool = True
    notice: str = ""
    """What the caller hears before all else; nobody can talk over it."""
    silences: Sequence[SilenceStep] = ()
    """What happens when nobody speaks; replaces `on_idle`."""
    goodbye: str = ""
    """Last words before the call is ended by a silence or its maximum length; empty: none, and the
    usual sentence."""


@dataclass
class Engines:
    """The speech engines shared by all calls of a process."""

    turn_detection: TurnDetection
    recognizer: Recognizer
    synthesizer: Synthesizer
    hearing: StreamOptions = DEFAULT_OPTIONS
    speaking: VoiceOptions = DEFAULT_VOICE
    lexicon: Lexicon = NO_LEXICON
    languages: Mapping[str, VoiceOptions] = field(default_factory=dict)
    """How the agent speaks each language in which it follows the caller, by its ISO 639 code, that
    in which the call begins first; empty: it speaks as `speaking` says."""

    async def reopen(self, before: StreamOptions, call_id: str) -> RecognizerStream | None:
        """Open a recognizer stream for a call that has one with the options `before`; None if that
        is to go on."""
        if self.hearing == before:
            return None
        try:
            return await self.recognizer.open(self.hearing)
        except EngineError as error:
            logger.warning("{}: the recognizer goes on as before: {}", call_id, error)
            return None

    async def close(self) -> None:
        await self.recognizer.close()
        await self.synthesizer.close()
        await self.turn_detection.close()
