"""A Leg as a Pipecat transport, so that any Pipecat bot can run on the edges of offhook.

Inbound audio enters Pipecat in coarse frames. Outbound audio goes straight into the leg's playout.
Frames that must stay in order with the audio (the words of the reply, the end of speech) are queued
there as marks and pushed downstream once the audio before them has been sent, so the context holds
the words that were played, not all that were generated.
"""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import soxr
from loguru import logger
from pipecat.audio.dtmf.types import KeypadEntry
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    CancelFrame,
    ClientConnectedFrame,
    ControlFrame,
    EndFrame,
    Frame,
    InputAudioRawFrame,
    InputDTMFFrame,
    InputTransportMessageFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    OutputAudioRawFrame,
    OutputDTMFFrame,
    OutputDTMFUrgentFrame,
    OutputTransportMessageFrame,
    OutputTransportMessageUrgentFrame,
    OutputTransportReadyFrame,
    StartFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.processors.frameworks.rtvi.frames import RTVIServerMessageFrame
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import BaseTransport, TransportParams

from offhook.media.end_reason import EndReason
from offhook.media.leg import Leg, LegError, LegListener
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.media.playout import PlayoutListener
from offhook.media.untrusted_json import read_json
from offhook.pipeline.conversation.reply import Reply

FRAME_MS = 80
"""Length in ms of an inbound frame; a frame costs Pipecat the same for 20 ms and for 80."""
PLAYOUT_AHEAD_MS = 20_000
"""Maximum ms of audio queued; a synthesizer faster than real time waits beyond it."""
DRAIN_TIMEOUT_S = 30
"""Maximum time in s to wait for queued speech when a call ends; then the rest is not played, and a
warning is logged."""
VOICE_S = 2.0
"""Timeout in seconds for the voice to start an urgent sentence."""
MESSAGE_QUEUE = 128
"""Maximum client messages and keys queued for the pipeline; beyond it messages are refused with an
error and keys are dropped."""
_BUTTONS = {button.value: button for button in KeypadEntry}
NO_SOUND = np.empty(0, np.int16)
SETTLE_TURNS = 4
"""Event-loop iterations that let words already played reach the context before an interruption
closes it: two tasks of the next processor, twice over."""


@dataclass
class HeardFrame(ControlFrame):
    """Notifies the sender when all speech before it has been played and BotStoppedSpeaking is on
    its way."""

    heard: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class UtteranceStartedFrame(TTSStartedFrame):
    """The start of an utterance, which is told where in the call's output it begins."""

    begins_at: int | None = field(default=None, init=False)
    """Samples sent before it since the start of the call; None while it is not queued."""


class TransportListener:
    """Receives events that also pass the pipeline as frames, without that delay. Each method does
    nothing unless overridden."""

    def on_key(self, key: str) -> None:
        """The caller pressed a key: one of 0-9 * # A-D."""

    def on_held(self, held: bool) -> None:
        """The far end put the call on hold or resumed it."""

    def on_first_packet(self) -> None:
        """The first audio of a reply is about to be sent."""


class LegInput(BaseInputTransport, LegListener):
    """Turns the caller's audio and messages into Pipecat frames and the line's state into
    events."""

    def __init__(self, transport: "LegTransport", params: TransportParams, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self._transport = transport
        self._leg = transport.leg
        self._happened: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)
        if self._tasks:
            return
        self._leg.attach(self)
        self._tasks.append(self.create_task(self._report()))
        if self._params.audio_in_enabled:
            self._tasks.append(self.create_task(self._pump()))

    async def stop(self, frame: EndFrame) -> None:
        await super().stop(frame)
        await self._end()

    async def cancel(self, frame: CancelFrame) -> None:
        await super().cancel(frame)
        await self._end()

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._end()

    async def _end(self) -> None:
        for task in self._tasks:
            await self.cancel_task(task)
        self._tasks.clear()

    async def _pump(self) -> None:
        rate = self.sample_rate
        resample = None
        if rate != RATE_IN:  # "QQ" delays less than 1 ms, the default over 50 ms
            resample = soxr.ResampleStream(RATE_IN, rate, 1, dtype="int16", quality="QQ")
        async for pcm in self._leg.frames(FRAME_MS):
            if self._leg.held:  # hold music: not for the bot
                pcm = np.zeros_like(pcm)
            if resample is not None:
                pcm = resample.resample_chunk(pcm)
            await self.push_audio_frame(InputAudioRawFrame(pcm.tobytes(), rate, 1))

    def on_connected(self) -> None:
        self._happened.put_nowait(("connected", None))

    def on_closed(self, reason: EndReason) -> None:
        self._happened.put_nowait(("closed", reason))

    def on_dtmf(self, digit: str) -> None:
        button = _BUTTONS.get(digit)
        if button is not None and self._happened.qsize() < MESSAGE_QUEUE:
            self._happened.put_nowait(("key", button))
        else:  # Pipecat has no keys A to D
            logger.debug("{}: key {}: not for the pipeline", self._leg.call_id, digit)
        self._transport.listener.on_key(digit)

    def on_held(self, held: bool) -> None:
        """Pause speech until the far end resumes the call."""
        if held:
            self._leg.playout.pause()
        else:
            self._leg.playout.resume()
        self._transport.listener.on_held(held)

    def on_message(self, text: str) -> None:
        """Handle a client message: queue it if it is JSON, otherwise answer with the error."""
        try:
            message = read_json(text)
            if not isinstance(message, dict):
                raise ValueError("not an object")
            if message.get("type") == "signalling":  # of SmallWebRTC itself, not for the bot
                return
        except ValueError as error:
            self._refuse(f"message is not JSON: {error}")
            return
        # Only messages are bounded: the closing of the line is never dropped.
        if self._happened.qsize() < MESSAGE_QUEUE:
            self._happened.put_nowait(("message", message))
        else:
            self._refuse("too many messages at once: dropped")

    def _refuse(self, error: str) -> None:
        data = {"error": error, "fatal": False}
        self._leg.send_message(json.dumps({"label": "rtvi-ai", "type": "error", "data": data}))

    async def _report(self) -> None:
        """Report in order: line connected, messages, keys, line closed."""
        while True:
            match await self._happened.get():
                case "connected", _:
                    await self._transport.emit("on_client_connected", self._leg)
                    await self.push_frame(ClientConnectedFrame())
                case "closed", _:
                    await self._transport.emit("on_client_disconnected", self._leg)
                case "key", button:
                    await self.push_frame(InputDTMFFrame(button))
                case "message", message:
                    await self.broadcast_frame(InputTransportMessageFrame, message=message)
                    await self._transport.emit("on_app_message", message, self._leg.call_id)


class LegOutput(BaseOutputTransport, PlayoutListener):
    """Plays the agent's audio and sends its messages on the leg."""

    def __init__(self, transport: "LegTransport", params: TransportParams, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self._transport = transport
        self._leg = transport.leg
        self._said: deque[Frame] = deque()
        self._heard: list[HeardFrame] = []
        """Frames reached while the utterance before them is still being played."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._resampler: soxr.ResampleStream | None = None
        self._resampler_rate = RATE_OUT
        self._handed_over = False
        """The line is others': what is played there is theirs."""
        self.voiceless = False
        """Set when a text reaches the output unspoken: no processor before it has a voice."""
        self.reply = Reply()

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self._leg.playout.listener = self
        self._task = self.create_task(self._follow())
        await self.push_frame(OutputTransportReadyFrame(), FrameDirection.UPSTREAM)

    async def stop(self, frame: EndFrame) -> None:
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                playout = self._leg.playout
                while playout.queued or playout.speaking:
                    if self._leg.closed is not None or self._leg.held or self._handed_over:
                        break  # nobody is there to hear it
                    await asyncio.sleep(0.02)
        except TimeoutError:
            logger.warning("{}: the last words did not drain", self._leg.call_id)
        await self._push_spoken()
        await self._end()

    async def cancel(self, frame: CancelFrame) -> None:
        if not self._handed_over:
            self._leg.playout.flush()
        await self._end()

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._end()

    def hand_over(self) -> None:
        """Leave the line to whom the caller was transferred: the agent's speech is dropped, what is
        queued and what is still to come."""
        self._handed_over = True
        self._leg.playout.flush()

    async def _end(self) -> None:
        self._leg.playout.listener = PlayoutListener()
        if self._task is not None:
            await self.cancel_task(self._task)
            self._task = None

    async def _handle_frame(self, frame: Frame) -> None:
        playout = self._leg.playout
        if self._handed_over:
            return
        if isinstance(frame, InterruptionFrame):
            playout.flush()
            if self._leg.held:
                playout.pause()
            self.reply.end()
            self.reply.cut = False
            await self._report_interrupted()
        elif self.reply.cut and frame.interruptible:
            return
        elif isinstance(frame, OutputAudioRawFrame):
            await self._write(self._at_playout_rate(_mono(frame), frame.sample_rate))
        else:
            if isinstance(frame, TTSSpeakFrame):
                self.voiceless = True
            elif isinstance(frame, TTSStartedFrame):
                playout.begin()
                if isinstance(frame, UtteranceStartedFrame):
                    frame.begins_at = playout.sent + playout.queued
            elif isinstance(frame, TTSStoppedFrame):
                playout.end()
            elif isinstance(frame, TTSTextFrame):
                self.reply.queue(frame.text)
            playout.write(NO_SOUND, frame)

    async def _report_interrupted(self) -> None:
        """Tell the client which words were heard, behind these and the interruption itself."""
        words, self.reply.interrupted = self.reply.interrupted, None
        if words is not None:
            data = {"type": "interrupted", "heard": words[0], "unheard": words[1]}
            await self.push_frame(RTVIServerMessageFrame(data=data))

    async def _write(self, pcm: Pcm) -> None:
        """Queue audio of any length; waits while too much is queued."""
        playout, ahead = self._leg.playout, PLAYOUT_AHEAD_MS * RATE_OUT // 1000
        for start in range(0, len(pcm), ahead):
            while playout.queued > ahead and not self._leg.closed:
                await asyncio.sleep(0.1)
            if not (self._leg.closed or self.reply.cut or self._handed_over):
                playout.write(pcm[start : start + ahead])

    def _at_playout_rate(self, pcm: Pcm, rate: int) -> Pcm:
        if rate == RATE_OUT:
            return pcm
        if self._resampler is None or self._resampler_rate != rate:
            self._resampler = soxr.ResampleStream(rate, RATE_OUT, 1, dtype="int16", quality="QQ")
            self._resampler_rate = rate
        resampled: Pcm = self._resampler.resample_chunk(pcm)
        return resampled

    # --- marks: from playout back into Pipecat ---

    def on_started(self) -> None:
        self._transport.listener.on_first_packet()
        self.on_mark(BotStartedSpeakingFrame(), 0)

    def on_stopped(self) -> None:
        self.on_mark(BotStoppedSpeakingFrame(), 0)
        self._report_heard()

    def _report_heard(self) -> None:
        for frame in self._heard:
            frame.heard.set()
        self._heard.clear()

    def on_mark(self, mark: object, position: int) -> None:
        """Handle a mark: all audio before it has been sent."""
        assert isinstance(mark, Frame)
        playout = self._leg.playout
        if isinstance(mark, TTSTextFrame):
            self.reply.say()
        elif isinstance(mark, TTSStartedFrame) and playout.speaking and playout.queued:
            self._transport.listener.on_first_packet()  # it follows another without a gap
        elif isinstance(mark, HeardFrame):
            self._heard.append(mark)
            if not playout.speaking:
                self._report_heard()
        elif isinstance(mark, (LLMFullResponseEndFrame, TTSStoppedFrame)):
            self.reply.finish()
        self._said.append(mark)
        self._wake.set()

    def on_dropped(self, marks: Sequence[object]) -> None:
        """Handle marks dropped by an interruption; Pipecat's uninterruptible frames (such as
        function call results) are still pushed."""
        for mark in marks:
            assert isinstance(mark, Frame)
            if isinstance(mark, HeardFrame):
                if not mark.interruptible:
                    mark.heard.set()
            elif not mark.interruptible:
                self._said.append(mark)
                self._wake.set()

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._push_spoken()

    async def _push_spoken(self) -> None:
        while self._said:
            frame = self._said.popleft()
            if isinstance(frame, (BotStartedSpeakingFrame, BotStoppedSpeakingFrame)):
                await self.broadcast_frame(type(frame))
            elif isinstance(frame, OutputTransportMessageFrame):
                await self.send_message(frame)
            elif isinstance(frame, OutputDTMFFrame):
                await self.write_dtmf(frame)
            else:
                await self.push_frame(frame)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, InterruptionFrame):
            if not self._handed_over:  # no word may follow it
                self.reply.cut = True
                self._leg.playout.pause()
            await self._push_spoken()
            for _ in range(SETTLE_TURNS):
                await asyncio.sleep(0)
        await super().process_frame(frame, direction)

    async def send_message(
        self, frame: OutputTransportMessageFrame | OutputTransportMessageUrgentFrame
    ) -> None:
        self._leg.send_message(json.dumps(frame.message))

    async def write_dtmf(self, frame: OutputDTMFFrame | OutputDTMFUrgentFrame) -> None:
        """Send DTMF keys. If the line cannot, the bot gets an error and the call continues."""
        try:
            self._leg.send_dtmf(frame.to_string())
        except LegError as error:
            await self.push_error(f"no keys were sent: {error}", error)


def _mono(frame: OutputAudioRawFrame) -> Pcm:
    pcm = np.frombuffer(frame.audio, np.int16)
    if frame.num_channels > 1:
        pcm = pcm.reshape(-1, frame.num_channels).mean(axis=1).astype(np.int16)
    return pcm


class LegTransport(BaseTransport):
    """Pipecat's transport interface over one Leg.

    Events, with the leg as client: on_client_connected once the line is up and the pipeline runs,
    on_client_disconnected when the line closes, on_app_message for messages of the client. Keys are
    Pipecat's DTMF frames in both directions. While the far end holds the call, the bot receives
    silence and its speech is paused.
    """

    def __init__(self, leg: Leg, params: TransportParams) -> None:
        super().__init__()
        self.leg = leg
        self.listener = TransportListener()
        self._params = params
        self._input: LegInput | None = None
        self._output: LegOutput | None = None
        for event in ("on_client_connected", "on_client_disconnected", "on_app_message"):
            self._register_event_handler(event)

    def input(self) -> LegInput:
        if self._input is None:
            self._input = LegInput(self, self._params, name=self._input_name)
        return self._input

    def output(self) -> LegOutput:
        if self._output is None:
            self._output = LegOutput(self, self._params, name=self._output_name)
        return self._output

    async def say_instead(self, text: str) -> bool:
        """Speak a text in place of current speech, with the pipeline's voice. Returns True once it
        was played or interrupted; False without a voice, or if none starts within VOICE_S."""
        line, output, playout = self.input(), self.output(), self.leg.playout
        spoken = HeardFrame()
        spoken.interruptible = False  # it tells of the end whatever that is
        await line.broadcast_interruption()
        playout.flush()
        before = playout.sent
        await line.push_frame(TTSSpeakFrame(text))
        await line.push_frame(spoken)
        with suppress(TimeoutError):
            async with asyncio.timeout(VOICE_S):
                while playout.sent == before and not spoken.heard.is_set():
                    await asyncio.sleep(0.02)
        if playout.sent == before or output.voiceless:
            return False
        await spoken.heard.wait()
        return not output.voiceless

    def get_client_id(self, client: Any) -> str:
        return str(client.call_id)

    async def emit(self, event: str, *arguments: Any) -> None:
        """Call the handlers registered by the bot for an event."""
        await self._call_event_handler(event, *arguments)
