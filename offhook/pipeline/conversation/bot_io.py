"""Runs a Pipecat user's bot file, unchanged, on one of our legs.

The file has `async def bot(runner_args)`, as for Pipecat's development runner. It gets a "webrtc"
transport from `create_transport` or creates a `SmallWebRTCTransport`; both are our `LegTransport`,
since the class is replaced in this process.
"""

import asyncio
import importlib.util
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from loguru import logger
from pipecat.runner.types import SmallWebRTCRunnerArguments
from pipecat.transports.base_transport import TransportParams

from offhook.media.end_reason import End
from offhook.media.leg import Leg, LegListener
from offhook.media.pcm import Pcm
from offhook.media.tasks_io import end_all
from offhook.pipeline.conversation import rtvi_io
from offhook.pipeline.conversation.call_info import as_dict
from offhook.pipeline.conversation.transport_io import LegTransport
from offhook.pipeline.conversation.turns.echo import EchoDetector
from offhook.pipeline.conversation.turns.turn import TurnSettings
from offhook.pipeline.speech.vad.vad import SpeechDetector
from offhook.pipeline.speech.vad.vad_io import VadBatch

Bot = Callable[[Any], Awaitable[None]]

BOT_TITLE = "A bot answers"
"""What callers are told before the call."""
FAREWELL_S = 10
"""Time in s that a bot may run after its caller has left."""
_INTERRUPT_MS = TurnSettings().interrupt_speech
CANCEL_S = 1.0
"""Time limit in s for a cancelled bot to end; then it is no longer waited for."""


class BotError(RuntimeError):
    """Raised when the bot file cannot be used; the message says why."""


class BotTransport(LegTransport):
    """`LegTransport` with the arguments of Pipecat's `SmallWebRTCTransport`."""

    def __init__(
        self,
        webrtc_connection: Leg,
        params: TransportParams,
        input_name: str | None = None,
        output_name: str | None = None,
    ) -> None:
        super().__init__(webrtc_connection, params)
        self._input_name, self._output_name = input_name, output_name
        _TRANSPORTS[webrtc_connection] = self


_TRANSPORTS: WeakKeyDictionary[Leg, BotTransport] = WeakKeyDictionary()
"""Transports that bots have created for their legs."""


def load_bot(path: Path) -> Bot:
    """Loads the `bot` function of a file. Raises BotError."""
    import pipecat.transports.smallwebrtc.transport as smallwebrtc

    rtvi_io.use_for_all()
    smallwebrtc.SmallWebRTCTransport = BotTransport  # type: ignore[assignment,misc]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise BotError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        raise BotError(f"{path}: {type(error).__name__}: {error}") from error
    bot = getattr(module, "bot", None)
    if not callable(bot):
        raise BotError(f"{path} has no function bot(runner_args)")
    return bot  # type: ignore[no-any-return]


class BotCall:
    """A call answered by a bot."""

    def __init__(
        self,
        bot: Bot,
        leg: Leg,
        body: dict[str, Any],
        closing: str = "",
        speak: Callable[[str], Awaitable[Pcm]] | None = None,
    ) -> None:
        """`closing` is spoken when the server ends the call, by the bot's voice or, if it has none,
        with the audio from `speak`."""
        self._bot, self._leg, self._body = bot, leg, body
        self._closing, self._speak = closing, speak
        self._task: asyncio.Task[None]
        self._replaced = False
        """Whether the bot was ended while the line is still up: for a last sentence, or because the
        caller was transferred."""

    async def run(self) -> None:
        """Runs until the bot ends; a bot that ignores its caller's leaving is cancelled. The body
        has the call's data as `call`, except for calls from a browser."""
        leg, body = self._leg, self._body
        if leg.info.edge != "webrtc":
            body = {**body, "call": as_dict(leg.info)}
        arguments = SmallWebRTCRunnerArguments(
            webrtc_connection=leg, body=body, session_id=leg.call_id
        )
        guarded = _guarded(self._bot, arguments)
        task = self._task = asyncio.create_task(guarded, name=f"bot {leg.call_id}")
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=1)
                if leg.closed is not None:
                    await asyncio.wait((task,), timeout=FAREWELL_S)
                    break
            if self._replaced:
                await leg.until_closed()
        finally:
            await end_all(lambda: (task,))
            await leg.hang_up(End.BOT_ENDED)

    async def transfer(self, target: str) -> None:
        """Transfers the caller to `target`, a number or SIP address, and ends the bot's part.
        Raises LegError if the transfer fails; the bot then continues."""
        await self._leg.transfer(target)
        await self._replace()

    async def _replace(self) -> None:
        """Ends the bot, and what it was saying, but not the call."""
        self._replaced = True
        if (transport := _TRANSPORTS.get(self._leg)) is not None:
            transport.output().hand_over()
        self._leg.playout.flush()
        self._task.cancel()
        await asyncio.wait((self._task,), timeout=CANCEL_S)

    async def end_with_a_word(self) -> None:
        """Tells the caller that the server ends the call, interrupting other speech; not while on
        hold."""
        leg = self._leg
        if leg.held or leg.closed is not None or not self._closing:
            return
        transport = _TRANSPORTS.get(leg)
        if (transport is not None and await transport.say_instead(self._closing)) or not (
            self._speak
        ):
            return
        sound = await self._speak(self._closing)
        vad = await asyncio.to_thread(VadBatch)  # loading takes longer than a packet
        await self._replace()
        leg.playout.write(sound)
        attention = Attention(leg, vad)
        try:
            while leg.closed is None and (leg.playout.queued or leg.playout.speaking):
                await asyncio.sleep(0.02)
        finally:
            attention.close()
            vad.close()


class Attention(LegListener):
    """Lets the caller interrupt what is played, by a key or by speech, where no bot listens any
    more. What is played pauses for each sound of the caller, as it does for any reply."""

    def __init__(self, leg: Leg, vad: VadBatch) -> None:
        self._leg, self._vad = leg, vad
        self._echo = EchoDetector()
        self._detector = SpeechDetector()
        self._stream = vad.open(self._window)
        self._paused = False
        leg.listener = self
        self._stop = leg.listen(self._tick)

    def close(self) -> None:
        self._stop()
        self._stream.close()

    def on_dtmf(self, digit: str) -> None:
        self._leg.playout.flush()

    def _window(self, probability: float, level: float, end_sample: int) -> None:
        self._detector.window(probability, level, end_sample)

    def _tick(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        self._echo.sent(said)
        self._echo.add_received(heard)
        self._stream.feed(heard)
        self._vad.run()
        detector, playout = self._detector, self._leg.playout
        spoke_ms = detector.speech_ms if detector.speaking else 0
        if spoke_ms and not self._paused and self._echo.is_echo():
            return
        if spoke_ms >= _INTERRUPT_MS:
            playout.flush()
        elif spoke_ms and not self._paused:
            playout.pause()
        elif not spoke_ms and self._paused:
            playout.resume()
        self._paused = 0 < spoke_ms < _INTERRUPT_MS


async def _guarded(bot: Bot, arguments: SmallWebRTCRunnerArguments) -> None:
    try:
        await bot(arguments)
    except Exception:  # user code must not crash the server
        logger.exception("{}: the bot failed", arguments.session_id)
