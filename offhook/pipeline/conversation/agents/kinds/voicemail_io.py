"""Makes the agent of a call that takes a message, or in which they are played to whom they are for.

    greeting    its words, or its file, were played, or could not be     → tone
    tone        it was played                                            → message, recorded
    message     the caller hangs up, presses #, is silent for SILENCE_S,
                or has spoken for as long as a message may be            → over

A message counts if something was said after the tone: whoever hangs up at once has left none.
"""

import asyncio
from pathlib import Path

import numpy as np
from loguru import logger
from pipecat.frames.frames import Frame, StartFrame
from pipecat.processors.frame_processor import FrameDirection

from offhook.media.end_reason import End
from offhook.media.files.decoding_io import DecoderUnavailable
from offhook.media.files.formats import FileError
from offhook.media.files.sound_io import read_sound
from offhook.media.line_recording import NotRecorded
from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.conversation.agents.agents_io import SilentAgent
from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentContext
from offhook.pipeline.conversation.agents.kinds.voicemail import VOICEMAIL, VoicemailSettings
from offhook.pipeline.conversation.agents.mailbox.owner_io import Owner
from offhook.pipeline.conversation.agents.mailbox.playing_io import play
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.digits import without_keys
from offhook.pipeline.conversation.events import (
    AgentFailed,
    AgentTurn,
    CallEnded,
    CallerPartial,
    CallerTurn,
    Dtmf,
    Event,
    SpeechStarted,
    VoicemailLeft,
)
from offhook.pipeline.conversation.turns.turn import TurnState

GREETING_S = 180.0
"""Time in s after which the tone comes even if the voice does not say that the greeting is over."""
GREETING_FILE_S = 60.0
"""Maximum length in s of a greeting's file; of a longer one nothing is played but the tone."""
SILENCE_S = 8.0
"""Seconds of silence after which a message is over, and the call ends."""
ENDS = "#"
"""Key with which a caller ends the message."""
TONE_HZ = 1000
TONE_S = 0.4
LOOK_S = 0.1
"""Interval in s at which the length of the message and the silence are looked at."""


class _Voicemail(SilentAgent):
    """Takes one message. What is said is recognized as in every call, and answered by nothing."""

    def __init__(self, call: Call, settings: VoicemailSettings, *, greets: bool) -> None:
        super().__init__()
        self._call = call
        self._settings = settings
        self._greets = greets
        self._greeted = asyncio.Event()
        self._ended = asyncio.Event()
        """The caller has pressed ENDS."""
        self._recording: asyncio.Task[None] | None = None
        self._began_ms: int | None = None
        """When the tone was over."""
        self._quiet_ms = 0
        """When the caller was last heard."""
        self._spoke = False
        self._words: list[str] = []
        self._unfinished = ""
        call.listeners.append(self._listen)

    def _listen(self, event: Event) -> None:
        if isinstance(event, AgentTurn | AgentFailed):
            self._greeted.set()
        if self._began_ms is None:
            return
        match event:
            case SpeechStarted():
                self._spoke = True
            case CallerPartial(text=text):
                self._spoke, self._unfinished = True, text
            case CallerTurn(text=text):
                self._spoke, self._unfinished = True, ""
                self._words.append(without_keys(text).strip())
            case Dtmf(digit=digit) if digit == ENDS:
                self._ended.set()
            case CallEnded(at_ms=at_ms):
                self._report(at_ms)

    def _report(self, at_ms: int) -> None:
        if self._began_ms is None or not self._spoke:
            return
        seconds = round((at_ms - self._began_ms) / 1000, 1)
        text = " ".join(filter(None, (*self._words, self._unfinished)))
        info, self._began_ms = self._call.leg.info, None
        mailbox = info.diverted_from or info.called
        self._call.emit(VoicemailLeft(at_ms, mailbox, info.caller, seconds, text))

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, StartFrame):
            self._recording = self.create_task(self._record_message(), "record a message")

    async def cleanup(self) -> None:
        if self._recording is not None:
            await self.cancel_task(self._recording)
        await super().cleanup()

    async def _record_message(self) -> None:
        leg = self._call.leg
        if self._settings.greeting_file:
            await self._play_greeting(Path(self._settings.greeting_file))
        elif self._greets:
            try:
                await asyncio.wait_for(self._greeted.wait(), GREETING_S)
            except TimeoutError:
                logger.warning("{}: the greeting was not played", leg.call_id)
        await play(leg, _tone())
        try:
            leg.recording.start("agent")
        except NotRecorded as error:
            logger.error("{}: a message is kept in words only: {}", leg.call_id, error)
        self._began_ms = self._quiet_ms = leg.heard_ms
        await self._until_over(self._began_ms + self._settings.max_seconds * 1000)
        await self._call.hang_up(End.MESSAGE_LEFT if self._spoke else End.CALLER_SILENT)

    async def _until_over(self, until_ms: float) -> None:
        leg, hearing = self._call.leg, self._call.hearing
        while leg.heard_ms < until_ms and leg.heard_ms - self._quiet_ms < SILENCE_S * 1000:
            if hearing.state in (TurnState.HEARING, TurnState.ENDING):
                self._quiet_ms = leg.heard_ms
            try:
                await asyncio.wait_for(self._ended.wait(), LOOK_S)
            except TimeoutError:
                continue
            return

    async def _play_greeting(self, file: Path) -> None:
        try:
            sound = await asyncio.to_thread(_read, file)
        except (FileError, DecoderUnavailable) as error:
            logger.error("{}: no greeting: {}", self._call.leg.call_id, error)
        else:
            await play(self._call.leg, sound)


def _read(file: Path) -> Pcm:
    """Raises FileError and DecoderUnavailable."""
    return read_sound(file.expanduser(), GREETING_FILE_S)


def _tone() -> Pcm:
    time = np.arange(int(TONE_S * RATE_OUT)) / RATE_OUT
    return (8000 * np.sin(2 * np.pi * TONE_HZ * time)).astype(np.int16)


def make(context: AgentContext) -> Agent:
    if context.mailbox is not None:
        owner = Owner(context.call, context.mailbox, context.table.time_zone)
        return Agent(VOICEMAIL.name, owner)
    settings: VoicemailSettings = context.settings
    greets = bool(context.greeting) and not settings.greeting_file
    processor = _Voicemail(context.call, settings, greets=greets)
    return Agent(VOICEMAIL.name, processor, greeting_interruptible=False)
