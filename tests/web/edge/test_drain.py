"""What callers hear whom a draining server cuts off, whatever answers them."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soxr
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    OutputAudioRawFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.conversation.bot_io import Bot, BotTransport
from offhook.pipeline.conversation.sentences import SENTENCES, Occasion
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.web.config.config import Config
from offhook.web.edge.edge_io import Edge
from tests.pipeline.conversation.phone import PhoneLeg
from tests.support.waiting import HANGS_S
from tests.telephony.sip.phones import is_tone

FloatArray = npt.NDArray[np.float64]
pytestmark = pytest.mark.asyncio

CLOSING = SENTENCES["en"][Occasion.CLOSING]
CONFIG = Config.model_validate(
    {"server": {"port": 0, "drain_seconds": 0.3}, "webrtc": {"addresses": ["127.0.0.1"]}}
)
STORY_HZ, CLOSING_HZ = 440, 880
HEARD_BEFORE = 30
"""Packets."""
PACKETS = 30
"""Of the sentence, after which the caller speaks."""
LOUD = 1000
NO_SOUND: Pcm = np.zeros(0, np.int16)


class Line(PhoneLeg):
    """Keeps what the caller hears."""

    def __init__(self) -> None:
        super().__init__()
        self.packets: list[Pcm] = []

    def _send(self, said: Pcm | None, now: float) -> None:
        super()._send(said, now)
        if said is not None:
            self.packets.append(said.copy())


class Voice(TTSService):
    """A stock synthesizer as programs have them. All that it says are tones."""

    closing_s = 1

    def __init__(self) -> None:
        super().__init__(push_start_frame=True, push_stop_frames=True, sample_rate=RATE_OUT)

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        closing = text.strip() == CLOSING
        hz, seconds = (CLOSING_HZ, self.closing_s) if closing else (STORY_HZ, 30)
        tone = 8000 * np.sin(2 * np.pi * hz / RATE_OUT * np.arange(int(RATE_OUT * seconds)))
        audio = tone.astype(np.int16).tobytes()
        yield TTSAudioRawFrame(audio, RATE_OUT, 1, context_id=context_id)


class HangingVoice(Voice):
    """Speaks of everything but of the end."""

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        if text.strip() == CLOSING:
            await asyncio.Event().wait()
        async for frame in super().run_tts(text, context_id):
            yield frame


class Echo(FrameProcessor):
    """Sends back what it hears, without end."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InputAudioRawFrame):
            loud = np.full(len(frame.audio) // 2, 99, np.int16).tobytes()
            frame = OutputAudioRawFrame(loud, frame.sample_rate, 1)
        await self.push_frame(frame, direction)


def bot_with(make: Callable[[], FrameProcessor]) -> Bot:
    """A user's bot file, with this between the ends of the line. It has much to say."""

    async def bot(arguments: Any) -> None:
        params = TransportParams(audio_in_enabled=True, audio_out_enabled=True)
        transport = BotTransport(arguments.webrtc_connection, params)
        worker = PipelineWorker(Pipeline([transport.input(), make(), transport.output()]))

        @transport.event_handler("on_client_connected")
        async def on_client_connected(transport: Any, client: Any) -> None:
            await worker.queue_frame(TTSSpeakFrame("A long story."))

        @transport.event_handler("on_client_disconnected")
        async def on_client_disconnected(transport: Any, client: Any) -> None:
            await worker.cancel()

        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        await runner.run()

    return bot


async def by_hand(arguments: Any) -> None:
    """A bot that has no pipeline at all."""
    leg = arguments.webrtc_connection
    leg.playout.write(np.full(30 * RATE_OUT, 99, np.int16))
    await leg.until_closed()


async def cut_off(bot: Bot) -> Pcm:
    """What a caller hears whom a draining server cuts off."""
    edge = Edge(CONFIG, bot)
    await edge.start()
    line = Line()
    call = asyncio.create_task(edge.run_call(line, ""))
    line.connect()
    try:
        async with asyncio.timeout(HANGS_S):
            while len(line.packets) < HEARD_BEFORE:
                await asyncio.sleep(0.02)
            await edge.drain()
            assert line.closed is None
    finally:
        await edge.close()
        await call
    assert line.closed == "the server is shutting down"
    return np.concatenate(line.packets)


async def test_a_bot_says_with_its_own_voice_that_the_server_ends_the_call() -> None:
    heard = await cut_off(bot_with(Voice))
    assert is_tone(heard[: RATE_OUT // 2], RATE_OUT, STORY_HZ)
    assert is_tone(heard[-RATE_OUT * 9 // 10 :], RATE_OUT, CLOSING_HZ)


AT_MOST_LATE = 20
"""Steps of `loudness` by which the sentence may lie elsewhere: what ends a call takes its time."""


@pytest.mark.parametrize(
    "bot",
    [
        bot_with(HangingVoice),
        *(pytest.param(bot, marks=pytest.mark.slow) for bot in (bot_with(Echo), by_hand)),
    ],
)
async def test_for_a_bot_without_a_voice_the_server_says_it(bot: Bot) -> None:
    """A speech-to-speech model has none that says given words; another's server may be gone."""
    heard = await cut_off(bot)
    sound = loudness(await closing_by_flite())
    heard = np.append(loudness(heard), np.zeros(AT_MOST_LATE))
    places = range(len(heard) - len(sound) - 2 * AT_MOST_LATE, len(heard) - len(sound) + 1)
    alike = [np.corrcoef(heard[at : at + len(sound)], sound)[0, 1] for at in places if at >= 0]
    assert max(alike) > 0.8  # on a busy machine a packet or two is concealed


class Interruptible(Voice):
    """Its bot takes loud sound of the caller for an interruption."""

    closing_s = 5

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        sound = frame.audio if isinstance(frame, InputAudioRawFrame) else b""
        if np.abs(np.frombuffer(sound, np.int16)).max(initial=0) > LOUD:
            await self.broadcast_interruption()


@pytest.mark.parametrize("bot", [bot_with(Interruptible), by_hand])
async def test_the_caller_interrupts_what_a_draining_server_says(bot: Bot) -> None:
    """By speaking over it, whether the bot has a voice for it or the server says it."""
    edge = Edge(CONFIG, bot)
    await edge.start()
    line, caller = Line(), await spoken("Wait, wait, please wait a moment, I am not done yet.")
    call = asyncio.create_task(edge.run_call(line, ""))
    line.connect()

    def begun() -> bool:
        last = np.concatenate([NO_SOUND, *line.packets[-PACKETS:]])
        if bot is by_hand:
            return int(np.abs(last).max(initial=0)) > LOUD
        return len(last) > 0 and is_tone(last, RATE_OUT, CLOSING_HZ)

    try:
        async with asyncio.timeout(HANGS_S):
            while len(line.packets) < HEARD_BEFORE:
                await asyncio.sleep(0.02)
            draining = asyncio.create_task(edge.drain())
            while not begun():
                await asyncio.sleep(0.02)
            begun_at = line.playout.sent
            line.feed(soxr.resample(caller, RATE_OUT, RATE_IN))
            await draining
        assert line.closed is None
        assert not line.playout.queued
        whole = len(await spoken(CLOSING)) if bot is by_hand else 5 * RATE_OUT
        assert line.playout.sent - begun_at < whole // 2
    finally:
        await edge.close()
        await call


def loudness(pcm: Pcm) -> FloatArray:
    """Of each 50 ms, from the end back: Flite never speaks twice with the same samples."""
    frame = RATE_OUT // 20
    whole = pcm[len(pcm) % frame :].astype(np.float64).reshape(-1, frame)
    return np.sqrt(np.mean(whole**2, axis=1))


async def closing_by_flite() -> Pcm:
    return await spoken(CLOSING)


async def spoken(text: str) -> Pcm:
    synthesizer = FliteSynthesizer()
    await synthesizer.start()
    stream = synthesizer.open()
    stream.write(text)
    stream.end()
    sound = np.concatenate([speech.pcm async for speech in stream])
    await synthesizer.close()
    return sound
