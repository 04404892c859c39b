"""Another offhook as an engine: our clients of OpenAI's audio API against our own server of it."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.openai import synthesizer_io as openai_synthesizer_io
from offhook.pipeline.speech.openai.recognizer_io import OpenAiRecognizer
from offhook.pipeline.speech.openai.synthesizer_io import OpenAiSynthesizer
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions
from offhook.pipeline.speech.remote import recognizer_io as remote_recognizer_io
from offhook.pipeline.speech.remote import synthesizer_io as remote_synthesizer_io
from offhook.pipeline.speech.streams import utterance_stream_io
from offhook.pipeline.speech.synthesizer import Speech, UnknownVoice, VoiceOptions
from offhook.web.config.config import Log
from offhook.web.config.engines import Asr, Tts
from offhook.web.config.programs import Speech as Settings
from offhook.web.config.programs import SpeechKey
from offhook.web.http.logs_io import set_up
from offhook.web.speech_api.server_io import SpeechServer
from offhook.web.workers.engines import remote_engine_io as elsewhere_io
from offhook.web.workers.engines.remote_engines_io import (
    elsewhere_at,
    recognizer_of,
    synthesizer_of,
)
from offhook.web.workers.routes_io import ROUTES
from tests.pipeline.speech.openai.openai_server import openai_stub
from tests.pipeline.speech.openai.openai_server import status as failing
from tests.support.waiting import HANGS_S, until
from tests.web.speech_api.conftest import Served, listening, quickly_served
from tests.web.speech_api.recordings import wav

pytestmark = pytest.mark.asyncio(loop_scope="module")

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
        async with asyncio.timeout(HANGS_S):
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
    async with asyncio.timeout(HANGS_S):
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
            with pytest.raises(EngineError, match=r"valid API key.*\[asr\] api_key"):
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
        asr, tts = Asr(engine="openai", url=url), Tts(engine="openai", url=url)
        recognizer, synthesizer = recognizer_of(asr), synthesizer_of(tts)
        hears = elsewhere_at(asr, recognizer)
        for reached in (hears, elsewhere_at(tts, synthesizer)):
            one, two = await asyncio.gather(reached.get(), reached.get())
            assert one is two
            await reached.close()
            await one.close()
    nobody = elsewhere_at(asr, recognizer_of(asr))
    with pytest.raises(EngineError, match="no server responds there"):
        await nobody.get()
    await nobody.close()
    await nobody.engine.close()


async def test_the_configuration_names_the_engine() -> None:
    asr = Asr(engine="openai", url="http://gpu:8000/v1", model="Qwen/Qwen3-ASR-0.6B")
    recognizer = recognizer_of(asr)
    assert recognizer.name == "Qwen/Qwen3-ASR-0.6B at gpu:8000"
    await recognizer.close()


async def ran(*arguments: str) -> str:
    """What the command line prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "offhook", *arguments), stdout=asyncio.subprocess.PIPE
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


# --- what an upstream says is for the log ---

SECRET = "https://gpu7.upstream.example/v1 refused key sk-verysecretkey123456 of build.internal"
LEAKS = ("upstream.example", "sk-verysecret", "build.internal")


def refusing_upstream(status: int, code: str = "") -> web.Application:
    """Fails whatever it is asked, at length: as OpenAI's servers do, and as a worker of ours."""
    body = {"error": {"message": SECRET, "code": code or SECRET}, "detail": SECRET}

    async def answer(request: web.Request) -> web.StreamResponse:
        state = {"engine": "qwen3-tts", "model": "m", "error": SECRET}
        if request.path == "/readyz":  # code: it has loaded, and refuses what is asked of it
            return web.json_response(state, status=200 if code else 503)
        if code and request.path.startswith("/ws/"):
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            ended = code if code == "engine" else "bad_request"
            await socket.send_json({"type": "error", "code": ended, "message": SECRET})
            await socket.close()
            return socket
        return web.json_response(body, status=status, reason=SECRET)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


async def all_that_is_told(client: aiohttp.ClientSession) -> dict[str, tuple[int, str]]:
    """By route of the speech API: status, and all of headers and body or of the messages."""
    told: dict[str, tuple[int, str]] = {}
    recording = {"name": "amy", "consent": "true", "input": "Hello.", "language": "fr"}
    hello = {"model": "tts-1", "input": "Hello.", "voice": "amy", "language": "fr"}
    for route in ROUTES:
        name = f"{route.method} {route.path}"
        path = route.path.replace("{name}", "amy").replace("{model:.+}", "whisper-1")
        if "/ws" in path or path.endswith("realtime"):
            told[name] = 101, await _spoken_on(client, path)
            continue
        form: aiohttp.FormData | None = None
        if "transcriptions" in path or "translations" in path:
            form = aiohttp.FormData({"model": "whisper-1"})
            if "translations" not in path:
                form.add_field("language", "fr")
            form.add_field("file", wav(SOUND), filename="a.wav")
        elif path in ("/v1/audio/voices", "/v1/audio/clone") and route.method == "POST":
            fields = ("name", "consent") if "voices" in path else ("input", "consent", "language")
            form = aiohttp.FormData({field: recording[field] for field in fields})
            field = "audio_sample" if "voices" in path else "file"
            form.add_field(field, wav(SOUND), filename="a.wav")
        body = None if form or route.method != "POST" else hello
        async with client.request(route.method, path, data=form, json=body) as answer:
            text = await answer.text()
            headers = " ".join(f"{key.lower()}: {value}" for key, value in answer.headers.items())
            told[name] = answer.status, f"{answer.reason} {headers} {text}"
    return told


async def _spoken_on(client: aiohttp.ClientSession, path: str) -> str:
    sound = base64.b64encode(bytes(48000)).decode()
    said: dict[str, list[bytes | dict[str, Any]]] = {
        "/ws/transcribe": [bytes(32000), {"type": "flush"}],
        "/v1/realtime": [
            {"type": "session.update", "model": "whisper-1"},
            {"type": "input_audio_buffer.append", "audio": sound},
            {"type": "input_audio_buffer.commit", "final": True},
        ],
        "/v1/audio/speech/ws": [{"input": "Hello.", "voice": "amy"}, {"event": "close"}],
        "/ws/speak": [{"type": "text", "text": "Hello."}, {"type": "end"}],
    }
    told = []
    async with client.ws_connect(path) as socket:
        for message in said[path]:
            if isinstance(message, bytes):
                await socket.send_bytes(message)
            else:
                await socket.send_json(message)
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                async for frame in socket:
                    told.append(str(frame.data))
    return " ".join(told)


@pytest.mark.parametrize(
    ("engine", "status", "code"),
    [
        *(("openai", status, "") for status in (400, 401, 404, 429, 500)),
        *(("worker", status, "") for status in (401, 500)),
        ("worker", 400, "bad_request"),
        ("worker", 503, "engine"),
        ("worker", 409, "voice_exists"),
        ("openai", 0, ""),
        ("worker", 0, ""),
    ],
)
async def test_what_an_upstream_says_is_in_the_log_and_in_no_answer(
    engine: str,
    status: int,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in (remote_recognizer_io, remote_synthesizer_io, openai_synthesizer_io):
        monkeypatch.setattr(module, "GIVE_UP_S", 0.2)
    monkeypatch.setattr(openai_synthesizer_io, "FILE_GIVE_UP_S", 0.2)
    monkeypatch.setattr(utterance_stream_io, "FILE_GIVE_UP_S", 0.2)
    monkeypatch.setattr(utterance_stream_io, "LIVE_GIVE_UP_S", 0.2)
    monkeypatch.setattr(elsewhere_io, "TRIES", 1)
    runner = web.AppRunner(refusing_upstream(status, code), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    place = f"127.0.0.1:{runner.addresses[0][1]}"
    if not status:
        await site.stop()
    url = f"http://{place}/v1" if engine == "openai" else f"http://{place}"
    asr = Asr(engine="openai" if engine == "openai" else "qwen3-asr", url=url)
    tts = Tts(engine="openai" if engine == "openai" else "qwen3-tts", url=url)
    recognizer, synthesizer = recognizer_of(asr), synthesizer_of(tts)
    hears = elsewhere_at(asr, recognizer)
    speaks = elsewhere_at(tts, synthesizer)
    server = SpeechServer(Settings(), hears.handle(), speaks.handle())
    set_up(Log())
    try:
        async with listening(server) as at, aiohttp.ClientSession(at) as client:
            told = await all_that_is_told(client)
    finally:
        await server.close()
        await hears.close()
        await speaks.close()
        await recognizer.close()
        await synthesizer.close()
        await runner.cleanup()
    assert len(told) == len(ROUTES)
    for route, (_, text) in told.items():
        for leak in (*LEAKS, place):
            assert leak not in text, route
    logged = capsys.readouterr().err
    assert "sk-verysecret" not in logged
    assert ("upstream.example" in logged) or not status
    answered, text = told["POST /v1/audio/speech"]
    table = json.loads(text[text.index('{"error"') :])["error"]
    assert table["type"] == ("invalid_request_error" if answered < 500 else "server_error")
    assert table["code"]
    assert table["message"]
    if answered >= 500:
        asked_as = table["message"].partition("(request ")[2].rstrip(")")
        assert f"x-request-id: {asked_as}" in text
        assert asked_as in logged or place in logged


async def test_what_a_request_asks_for_in_vain_is_named() -> None:
    """The upstream hears English, and refuses French in words that go no further."""
    async with openai_stub() as stub:
        asr = Asr(engine="openai", url=stub.url)
        recognizer = recognizer_of(asr)
        hears = elsewhere_at(asr, recognizer)
        server = SpeechServer(Settings(), hears.handle(), None)
        async with listening(server) as at, aiohttp.ClientSession(at) as client:
            for language, status in (("en", 200), ("fr", 400)):
                if status == 400:
                    stub.faults.extend([failing(400, f"no such language: {SECRET}")] * 4)
                form = aiohttp.FormData({"model": "whisper-1", "language": language})
                form.add_field("file", wav(SOUND), filename="a.wav")
                async with client.post("/v1/audio/transcriptions", data=form) as answer:
                    table = await answer.json()
                    assert answer.status == status, table
        assert "the language 'fr'" in table["error"]["message"]
        assert table["error"]["type"] == "invalid_request_error"
        await hears.close()
        await recognizer.close()
