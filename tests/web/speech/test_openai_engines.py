"""Another offhook as an engine: our clients of OpenAI's audio API against our own server of it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from offhook.media.pcm import RATE_IN, Pcm
from offhook.media.resample import Resampler
from offhook.pipeline.openai_recognizer_io import OpenAiRecognizer
from offhook.pipeline.openai_synthesizer_io import OpenAiSynthesizer
from offhook.pipeline.recognizer import EngineError, Final, Partial, StreamOptions
from offhook.pipeline.synthesizer import Speech, UnknownVoice, VoiceOptions
from offhook.web.config import Engines, SpeechKey
from offhook.web.config import Speech as Settings
from offhook.web.remote_engines_io import (
    hears_at,
    recognizer_of,
    speaks_at,
    synthesizer_of,
)
from tests.web.speech.conftest import Served, quickly_served, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOON = 20
SOUND = np.random.default_rng(1).integers(-3000, 3000, RATE_IN, np.int16)
QUESTION = "Are you open on Sunday?"


@asynccontextmanager
async def reaching(served: Served, key: str = "") -> AsyncIterator[OpenAiRecognizer]:
    recognizer = OpenAiRecognizer(f"{served.url}/v1", key)
    yield recognizer
    await recognizer.close()


async def heard(
    recognizer: OpenAiRecognizer, pcm: Pcm, options: StreamOptions
) -> list[Partial | Final]:
    stream = await recognizer.open(options)
    events: list[Partial | Final] = []
    try:
        for at in range(0, len(pcm), RATE_IN // 5):
            stream.feed(pcm[at : at + RATE_IN // 5])
            await asyncio.sleep(0)
        stream.finish()
        async with asyncio.timeout(SOON):
            async for event in stream.events():
                events.append(event)
                if isinstance(event, Final):
                    break
    finally:
        await stream.close()
    return events


async def spoken(synthesizer: OpenAiSynthesizer, text: str, options: VoiceOptions) -> list[Speech]:
    stream = synthesizer.open(options)
    stream.write(text)
    stream.end()
    async with asyncio.timeout(SOON):
        return [piece async for piece in stream]


def without_marks(text: str) -> str:
    return "".join(filter(lambda char: char.isalnum() or char == " ", text.lower()))


async def test_a_file_is_heard_with_the_times_of_its_words() -> None:
    async with quickly_served() as quick, reaching(quick) as recognizer:
        quick.ears.says = ["good morning"]
        (final,) = await heard(recognizer, SOUND, StreamOptions(words=True, live=False))
    assert isinstance(final, Final)
    assert (final.text, final.audio_ms) == ("good morning", 1000)
    assert [word.text for word in final.words] == ["good", "morning"]
    assert 0 <= final.words[0].start_ms < final.words[1].end_ms <= 1000
    assert final.language == "en"
    assert not quick.ears.opened[-1].options.live


async def test_a_live_stream_is_heard_over_realtime() -> None:
    options = StreamOptions(language="de", context="Müller")
    async with quickly_served() as quick, reaching(quick) as recognizer:
        await recognizer.start(options)
        assert recognizer._realtime
        quick.ears.says = ["guten tag herr müller"]
        events = await heard(recognizer, SOUND, options)
        assert quick.ears.opened[-1].options.live
        assert quick.ears.opened[-1].options.language == "de"
        assert quick.ears.opened[-1].options.context == "Müller"
        await until(lambda: not quick.ears.open_streams)
    assert events[-1] == Final("guten tag herr müller", 1000, language="de")
    assert all("guten tag herr müller".startswith(event.text) for event in events)


async def test_what_is_cancelled_frees_the_other_server() -> None:
    async with quickly_served() as quick, reaching(quick) as recognizer:
        quick.ears.slow_s = 30
        stream = await recognizer.open(StreamOptions(live=False))
        stream.feed(SOUND)
        stream.finish()
        await until(lambda: quick.ears.open_streams)
        stream.cancel()
        await until(lambda: not quick.ears.open_streams)
        await stream.close()


async def test_a_full_server_is_asked_again() -> None:
    settings = Settings(transcriptions=1, queue=0)
    async with quickly_served(settings) as quick, reaching(quick) as recognizer:
        quick.ears.slow_s = 0.3
        options = StreamOptions(live=False)
        finals = await asyncio.gather(*(heard(recognizer, SOUND, options) for _ in range(2)))
    assert [events[-1].text for events in finals] == ["hello world"] * 2


async def test_a_wrong_key_is_told_in_words() -> None:
    settings = Settings(keys=(SpeechKey(name="us", key="sesame"),))
    async with quickly_served(settings) as quick:
        async with reaching(quick, "wrong") as recognizer:
            with pytest.raises(EngineError, match=r"valid API key.*asr_api_key"):
                await recognizer.start(StreamOptions(live=False))
        async with reaching(quick, "sesame") as recognizer:
            await recognizer.start(StreamOptions(live=False))


async def test_a_reply_is_spoken_and_marked() -> None:
    async with quickly_served() as quick:
        synthesizer = OpenAiSynthesizer(f"{quick.url}/v1")
        await synthesizer.start()
        assert synthesizer.voices() == ["tone", "low"]
        text = "One two. Three four five."
        pieces = await spoken(synthesizer, text, VoiceOptions("low", "en", speed=1.25))
        assert "".join(piece.text for piece in pieces) == text
        assert sum(len(piece.pcm) for piece in pieces) > 4800
        options = quick.voice.opened[-1].options
        assert (options.voice, options.language, options.speed) == ("low", "en", 1.25)
        with pytest.raises(UnknownVoice):
            synthesizer.open(VoiceOptions("eve"))
        quick.voice.slow_s = 0.2
        stream = synthesizer.open()
        stream.write("one two three four five six seven eight. ")
        await until(lambda: quick.voice.open_streams)
        stream.cancel()
        await until(lambda: not quick.voice.open_streams)
        await synthesizer.close()


async def test_what_one_offhook_says_another_hears(speech_server: Served) -> None:
    url = f"{speech_server.url}/v1"
    synthesizer = OpenAiSynthesizer(url)
    await synthesizer.start()
    pieces = await spoken(synthesizer, QUESTION, VoiceOptions())
    assert "".join(piece.text for piece in pieces) == QUESTION
    await synthesizer.close()
    pcm = np.concatenate([piece.pcm for piece in pieces])
    pcm = Resampler(24_000, RATE_IN).process(pcm[: len(pcm) // 3 * 3])
    async with reaching(speech_server) as recognizer:
        for options in (StreamOptions(live=False), StreamOptions()):
            events = await heard(recognizer, pcm, options)
            assert "on sunday" in without_marks(events[-1].text)


async def test_a_gateway_reaches_a_server_when_somebody_asks() -> None:
    async with quickly_served() as quick:
        url = f"{quick.url}/v1"
        engines = Engines(asr="openai", asr_url=url, tts="openai", tts_url=url)
        recognizer, synthesizer = recognizer_of(engines), synthesizer_of(engines)
        for reached in (hears_at(engines, recognizer), speaks_at(engines, synthesizer)):
            one, two = await asyncio.gather(reached.get(), reached.get())
            assert one is two
            await reached.close()
            await one.close()
    nobody = hears_at(engines, recognizer_of(engines))
    with pytest.raises(EngineError, match="no server answers there"):
        await nobody.get()
    await nobody.close()
    await nobody.engine.close()


async def test_the_configuration_names_the_engine() -> None:
    engines = Engines(asr="openai", asr_url="http://gpu:8000/v1", asr_model="Qwen/Qwen3-ASR-0.6B")
    recognizer = recognizer_of(engines)
    assert recognizer.name == "Qwen/Qwen3-ASR-0.6B at gpu:8000"
    await recognizer.close()


async def ran(*arguments: str) -> str:
    """What the command line prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "offhook.web.cli", *arguments), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_the_command_line_uses_such_a_server(tmp_path: Path) -> None:
    settings = Settings(keys=(SpeechKey(name="us", key="sesame"),))
    async with quickly_served(settings) as quick:
        quick.ears.says = ["silence is golden"]
        server = ("--engine", "openai", "--url", f"{quick.url}/v1", "--api-key", "sesame")
        sound = str(tmp_path / "speech.wav")
        told = json.loads(await ran("speak", "One two three.", *server, "-o", sound, "--json"))
        assert told["engine"].startswith("tts-1 at 127.0.0.1")
        told = json.loads(await ran("transcribe", sound, *server, "--json", "--words"))
    (segment,) = told["segments"]
    assert segment["text"] == "silence is golden"
    assert len(segment["words"]) == 3
