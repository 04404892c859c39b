"""LiveKit's agents with a Realtime model of ours: livekit-agents and livekit-plugins-openai, which
are not among the packages of the tests; run with 1.8.9."""

import asyncio
import logging
import time
from typing import Any

import pytest

from offhook.media.pcm import RATE_OUT, Pcm
from tests.pipeline.conversation.phone import COUNT, model
from tests.support.waiting import HANGS_S
from tests.web.realtime.test_openai_python import question
from tests.web.realtime.test_webrtc import edge_for
from tests.web.realtime.turns import HEARD_S, SAID, TURNS, check_turns, observed

agents: Any = pytest.importorskip("livekit.agents", reason="livekit-agents is not installed")
plugin: Any = pytest.importorskip("livekit.plugins.openai", reason="its OpenAI plugin is missing")
rtc: Any = pytest.importorskip("livekit.rtc")
voice_io: Any = pytest.importorskip("livekit.agents.voice.io")

__all__ = ["question"]
PIECE = RATE_OUT // 50


class Microphone(voice_io.AudioInput):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(label="microphone")
        self._pieces: asyncio.Queue[Any] = asyncio.Queue()

    async def __anext__(self) -> Any:
        return await self._pieces.get()

    async def speak(self, pcm: Pcm) -> None:
        for at in range(0, len(pcm) - PIECE, PIECE):
            self._pieces.put_nowait(
                rtc.AudioFrame(pcm[at : at + PIECE].tobytes(), RATE_OUT, 1, PIECE)
            )
            await asyncio.sleep(0.02)


class Speaker(voice_io.AudioOutput):  # type: ignore[misc]
    """Plays what it is given without a pause, as a clock that makes no sound."""

    def __init__(self) -> None:
        can = voice_io.AudioOutputCapabilities(pause=False)
        super().__init__(label="speaker", capabilities=can, sample_rate=RATE_OUT)
        self._begun = self._length_s = 0.0
        self._end: asyncio.TimerHandle | None = None

    @property
    def is_silent(self) -> bool:
        return self._length_s == 0

    async def capture_frame(self, frame: Any) -> None:
        await super().capture_frame(frame)
        if self.is_silent:
            self._begun = time.monotonic()
            self.on_playback_started(created_at=time.time())
        self._length_s += frame.duration

    def flush(self) -> None:
        super().flush()
        if not self.is_silent:
            left_s = self._begun + self._length_s - time.monotonic()
            self._end = asyncio.get_running_loop().call_later(max(0, left_s), self._stop)

    def clear_buffer(self) -> None:
        if not self.is_silent:
            self._stop()

    def _stop(self) -> None:
        if self._end is not None:
            self._end.cancel()
        length_s, self._length_s = self._length_s, 0.0
        played_s = min(length_s, time.monotonic() - self._begun)
        self.on_playback_finished(playback_position=played_s, interrupted=played_s < length_s)


class Desk(agents.Agent):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(instructions="Sell.")
        self.asked: list[str] = []

    @agents.function_tool
    async def stock(self, what: str) -> str:
        """How many are there."""
        self.asked.append(what)
        return "12"


@pytest.mark.slow
async def test_ten_turns_of_an_agent(
    question: Pcm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "livekit")
    sizes, sessions = observed(monkeypatch)
    desk, microphone, speaker = Desk(), Microphone(), Speaker()
    said: list[str] = []
    troubles: list[Any] = []

    def noted(event: Any) -> None:
        if event.item.type == "message":
            said.append(event.item.text_content)

    async with model(*TURNS) as there, edge_for(there) as (_, url):
        base_url = url.removesuffix("/realtime")
        async with agents.AgentSession(
            llm=plugin.realtime.RealtimeModel(base_url=base_url, api_key="none")
        ) as session:
            session.input.audio, session.output.audio = microphone, speaker
            session.on("error", lambda event: troubles.append(event.error))
            session.on("conversation_item_added", noted)
            await session.start(desk)
            async with asyncio.timeout(HANGS_S):
                await session.generate_reply(instructions="Greet.")
            for text in SAID:
                async with asyncio.timeout(HANGS_S):
                    await microphone.speak(question)
                    while speaker.is_silent:
                        await asyncio.sleep(0.05)
                    if text == COUNT:
                        await asyncio.sleep(HEARD_S)
                        continue
                    while text not in said:
                        await asyncio.sleep(0.05)
                await asyncio.sleep(0.5)
    assert desk.asked == ["bells"]
    assert troubles == []
    assert [record for record in caplog.records if record.name.startswith("livekit")] == []
    check_turns(there, sizes, sessions)
