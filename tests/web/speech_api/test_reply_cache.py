"""What the speech API said before: said again at once, and never in the place of something else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.script.lexicon import Lexicon
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, KnownVoice, Synthesizer, VoiceOptions
from offhook.pipeline.speech.voice_cloning import Sample
from offhook.web.config.programs import Speech as Settings
from offhook.web.speech_api.http.audio_encoder import FORMATS
from offhook.web.speech_api.reply_cache_io import MAX_CHARS
from offhook.web.speech_api.server_io import SpeechServer
from tests.pipeline.speech.voice.test_audio_cache import redis_server
from tests.web.speech_api import conftest
from tests.web.speech_api.conftest import WORD_S, Quick, ScriptedSynthesizer, quickly_served
from tests.web.speech_api.http.test_audio_encoder import decoded
from tests.web.speech_api.http.test_speech import PATH, WORDS


@asynccontextmanager
async def remembering(
    monkeypatch: pytest.MonkeyPatch, url: str = "", voice: Synthesizer | None = None
) -> AsyncIterator[Quick]:
    """A server on this voice; `url`: of a Redis."""
    if voice is not None:
        monkeypatch.setattr(conftest, "ScriptedSynthesizer", lambda: voice)
    async with quickly_served(audio_cache=url) as quick:
        yield quick


async def say(quick: Quick, headers: dict[str, str] | None = None, **fields: Any) -> str:
    """What X-Cache says; the sound is checked."""
    path = f"{PATH}/pcm" if "response_format" not in fields else PATH
    async with quick.client.post(path, json=fields, headers=headers) as response:
        assert response.status == 200, await response.text()
        heard, rate = decoded(await response.read(), fields.get("response_format", "pcm"))
        words = len(fields["input"].split())
        assert len(heard) / rate / words * fields.get("speed", 1) == pytest.approx(WORD_S, rel=0.2)
        return response.headers["X-Cache"]


async def ended() -> Synthesizer:
    raise EngineError("the worker has ended")


async def test_what_was_said_before_is_said_again_without_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with remembering(monkeypatch) as quick:
        quick.voice.slow_s = 0.05
        assert await say(quick, input=WORDS) == "miss"
        assert await say(quick, input=WORDS) == "hit"
        for form in FORMATS:
            assert await say(quick, input=WORDS, response_format=form) == "hit"
        assert await say(quick, input=WORDS, voice="alloy", stream=False) == "hit"
        assert len(quick.voice.opened) == 1
        engines = quick.server.engines
        engines["speech"] = replace(engines["speech"], get=ended)
        assert await say(quick, input=WORDS) == "hit"
        text = await (await quick.client.get("/metrics")).text()
    assert "offhook_speech_cache_hits_total 9.0" in text
    assert "offhook_speech_cache_misses_total 1.0" in text


async def test_what_sounds_otherwise_is_spoken_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with remembering(monkeypatch) as quick:
        for _ in range(2):
            for fields in ({}, {"voice": "low"}, {"speed": 2}, {"seed": 1}, {"normalise": False}):
                await say(quick, input="one two three", **fields)
        assert len(quick.voice.opened) == 5
        assert await say(quick, input="one two three", speed=4) == "hit"  # made of speed 2


async def test_what_is_long_or_private_or_broken_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with remembering(monkeypatch) as quick:
        for _ in range(2):
            assert await say(quick, input="word " * (MAX_CHARS // 5 + 1)) == "miss"
            private = {"Cache-Control": "max-age=0, no-store"}
            assert await say(quick, private, input="a secret") == "miss"
            anew = {"Cache-Control": "no-cache"}
            assert await say(quick, anew, input="with new words") == "miss"
        # Nor does an engine that keeps replies of its own.
        kept = [speaking.options.cache for speaking in quick.voice.opened]
        assert kept == [True, False, False] * 2
        assert await say(quick, input="a secret") == "miss"
        assert await say(quick, input="with new words") == "hit"
        quick.voice.fails_after = 1
        with pytest.raises(aiohttp.ClientPayloadError):
            await say(quick, input="one two")
        quick.voice.fails_after = None
        assert await say(quick, input="one two") == "miss"
        assert await say(quick, input="one two") == "hit"


async def test_a_word_that_is_said_otherwise_is_another_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with remembering(monkeypatch) as quick:
        assert await say(quick, input="a Kia") == "miss"
        quick.server.lexicon = Lexicon.of_table({"Kia": "car"})
        assert await say(quick, input="a Kia") == "miss"
        assert await say(quick, input="a Kia") == "hit"
        assert len(quick.voice.opened) == 2


async def test_a_server_that_is_to_keep_nothing_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with remembering(monkeypatch, "off") as quick:
        for _ in range(2):
            assert await say(quick, input="a secret") == "miss"
        assert [speaking.options.cache for speaking in quick.voice.opened] == [False, False]


async def test_the_cache_is_as_large_as_is_said() -> None:
    handle = conftest.at_once(ScriptedSynthesizer(), "scripted", "scripted-voice")
    server = SpeechServer(Settings(), None, handle, audio_cache_mb=2)
    assert server.replies is not None
    assert server.replies.limit_bytes == 2 << 20
    await server.close()


async def test_servers_share_what_they_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("redis")
    with redis_server(tmp_path) as url:
        async with remembering(monkeypatch, url) as quick:
            assert await say(quick, input="welcome") == "miss"
            assert await say(quick, input="welcome", voice="low") == "miss"
            assert await say(quick, input="welcome", voice="alloy") == "hit"
        async with remembering(monkeypatch, url) as other:
            engines = other.server.engines
            engines["speech"] = replace(engines["speech"], get=ended)
            for voice in ("", "alloy", "low"):
                assert await say(other, input="welcome", voice=voice) == "hit"
            assert other.voice.opened == []


class Cloning(ScriptedSynthesizer):
    """With a voice that somebody may make anew."""

    made_at = 1
    broken = False
    asked = 0

    async def known_voices(self) -> list[KnownVoice]:
        self.asked += 1
        if self.broken:
            raise EngineError("the worker does not answer")
        anna = KnownVoice("low", "clone", created_s=self.made_at)
        return [KnownVoice("tone"), anna]

    async def add_voice(self, name: str, sample: Sample, language: str = "") -> KnownVoice:
        raise NotImplementedError

    async def remove_voice(self, name: str) -> None:
        raise NotImplementedError

    async def open_clone(self, sample: Sample, options: VoiceOptions) -> conftest.ScriptedSpeaking:
        raise NotImplementedError


async def test_a_voice_made_anew_does_not_sound_like_the_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    voice = Cloning()
    async with remembering(monkeypatch, voice=voice) as quick:
        for name in ("low", "tone", "alloy"):
            assert await say(quick, input="hello", voice=name) == "miss"
            assert await say(quick, input="hello", voice=name) == "hit"
        voice.made_at = 2
        assert await say(quick, input="hello", voice="low") == "miss"
        assert await say(quick, input="hello", voice="low") == "hit"
        voice.broken = True
        assert await say(quick, input="hello", voice="tone") == "hit"
        assert await say(quick, input="hello", voice="low") == "miss"


async def test_a_voice_of_the_model_is_asked_for_once_without_a_cache_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    voice = Cloning()
    async with remembering(monkeypatch, "off", voice=voice) as quick:
        for name in ("tone", "tone", "low", "low"):
            assert await say(quick, input="hello", voice=name) == "miss"
    assert voice.asked == 3  # the other may be made anew


class RemoteEngine(ScriptedSynthesizer):
    """That does not say which voices it has."""

    def voices(self) -> list[str]:
        return []

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> conftest.ScriptedSpeaking:
        self.opened.append(conftest.ScriptedSpeaking(self, options))
        return self.opened[-1]


async def test_a_server_elsewhere_is_asked_for_any_voice(monkeypatch: pytest.MonkeyPatch) -> None:
    async with remembering(monkeypatch, voice=RemoteEngine()) as quick:
        assert await say(quick, input="hello", voice="nova") == "miss"
        assert quick.voice.opened[0].options.voice == "nova"
        assert await say(quick, input="hello", voice="low") == "miss"
        assert await say(quick, input="hello", voice="low") == "hit"
