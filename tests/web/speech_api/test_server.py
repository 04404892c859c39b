"""What holds for every request of the speech API, whichever it is."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import aiohttp
import numpy as np
import openai
import pytest
from loguru import logger
from prometheus_client import CollectorRegistry

from offhook.media.pcm import RATE_IN
from offhook.web.config.config import Config
from offhook.web.config.engines import Asr, Tts
from offhook.web.config.programs import Speech as Settings
from offhook.web.config.programs import SpeechKey
from offhook.web.config.server import Server
from offhook.web.speech_api.admission import Admission, Limits
from offhook.web.speech_api.disconnect_io import LOOK_S
from offhook.web.speech_api.metrics import MAX_VOICES, Labels, SpeechMetrics
from offhook.web.speech_api.server_io import SpeechServer, fault_of
from offhook.web.workers.engines.remote_engines_io import recognizer_of, synthesizer_of
from tests.support.waiting import HANGS_S, until
from tests.web.speech_api.conftest import (
    Quick,
    ScriptedRecognizer,
    at_once,
    listening,
    quickly_served,
)

TEXT = {"input": "one two three four five six", "voice": "tone", "model": "tts-1"}
BOUNDARY = "end-of-part"
LONG = " ".join(["word"] * 200)


@contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    """The fields of all that is logged, its words as `message`."""
    lines: list[dict[str, Any]] = []

    def note(message: Any) -> None:
        record = message.record
        lines.append({**record["extra"], "message": record["message"], "level": record["level"]})

    sink = logger.add(note, level="DEBUG")
    yield lines
    logger.remove(sink)


def wav(seconds: float = 0.5) -> bytes:
    """A tone, as a file."""
    samples = int(seconds * RATE_IN)
    tone = (9000 * np.sin(np.arange(samples) / 8)).astype("<i2").tobytes()
    head = b"RIFF" + (36 + len(tone)).to_bytes(4, "little") + b"WAVEfmt \x10\0\0\0\x01\0\x01\0"
    rates = RATE_IN.to_bytes(4, "little") + (2 * RATE_IN).to_bytes(4, "little")
    return head + rates + b"\x02\0\x10\0data" + len(tone).to_bytes(4, "little") + tone


def upload(file: bytes) -> bytes:
    """The body of a request to transcribe it."""
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n'
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    return head.encode() + file + f"\r\n--{BOUNDARY}--\r\n".encode()


class Wire:
    """A client that does exactly what a test says, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send_head(self, path: str, length: int, kind: str, *more: str) -> None:
        lines = (f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}")
        self.writer.write("\r\n".join((*lines, f"Content-Type: {kind}", *more, "", "")).encode())
        await self.writer.drain()

    async def ask_to_speak(self, text: str, *more: str) -> None:
        body = json.dumps({**TEXT, "input": text}).encode()
        await self.send_head("/v1/audio/speech/pcm", len(body), "application/json", *more)
        self.writer.write(body)
        await self.writer.drain()

    async def ask_to_hear(self, file: bytes) -> None:
        body, kind = upload(file), f"multipart/form-data; boundary={BOUNDARY}"
        await self.send_head("/v1/audio/transcriptions", len(body), kind)
        self.writer.write(body)

    async def status(self) -> int:
        async with asyncio.timeout(HANGS_S):
            return int((await self.reader.readuntil(b"\r\n")).split()[1])

    async def headers(self) -> dict[str, str]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        return {name.lower(): value for name, _, value in (ln.partition(": ") for ln in lines)}

    async def leave(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@asynccontextmanager
async def wire(quick: Quick) -> AsyncIterator[Wire]:
    port = int(quick.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


async def error_of(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    error = (await answer.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def keys(*named: SpeechKey) -> Settings:
    return Settings(keys=named)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# --- ids, times, logs, metrics ---


async def test_a_request_has_an_id_in_its_answer_and_in_every_line_of_the_log(quick_server: Quick):
    with logged() as lines:
        asked = {"X-Request-Id": "my.request-1"}
        async with quick_server.client.post("/v1/audio/speech", json=TEXT, headers=asked) as ok:
            assert ok.headers["X-Request-Id"] == "my.request-1"
            await ok.read()
        await until(lambda: any("status" in line for line in lines))
    assert {line["request"] for line in lines} == {"my.request-1"}


@pytest.mark.parametrize("given", ["", "two words", "x" * 65, "ünlaut", "a/b"])
async def test_an_id_that_is_none_is_replaced(quick_server: Quick, given: str):
    asked = {"X-Request-Id": given}
    async with quick_server.client.get("/v1/models", headers=asked) as answer:
        assert len(answer.headers["X-Request-Id"]) == 32


async def test_the_times_of_a_request_are_in_its_headers_its_log_line_and_the_metrics(
    quick_server: Quick,
):
    quick_server.voice.slow_s = 0.02
    with logged() as lines:
        async with quick_server.client.post(
            "/v1/audio/speech",
            json={**TEXT, "voice": "low", "stream": False, "response_format": "wav"},
        ) as answer:
            assert answer.status == 200
            await answer.read()
        await until(lambda: any("status" in line for line in lines))
    told = {name: float(value) for name, value in answer.headers.items() if "Latency" in name}
    assert {name.lower() for name in told} == {
        *("x-latency-queue-ms", "x-latency-load-ms", "x-latency-infer-ms"),
        *("x-latency-encode-ms", "x-latency-total-ms"),
    }
    total = told["X-Latency-Total-Ms"]
    assert 0 < told["X-Latency-Infer-Ms"] <= total
    assert sum(told.values()) - total <= total + 1
    (line,) = [line for line in lines if "status" in line]
    assert (line["endpoint"], line["status"], line["kind"]) == ("/v1/audio/speech", 200, "speech")
    assert line["queued_ms"] <= line["received_ms"] + line["queued_ms"] <= line["done_ms"]
    assert line["inferred_ms"] == pytest.approx(told["X-Latency-Infer-Ms"], abs=0.2)
    async with quick_server.client.get("/metrics") as answer:
        text = await answer.text()
    for series in (
        'offhook_speech_requests_total{endpoint="/v1/audio/speech",status="200"} 1.0',
        'offhook_speech_request_seconds_count{endpoint="/v1/audio/speech",status="200"} 1.0',
        'offhook_speech_queue_seconds_count{kind="speech"} 1.0',
        'offhook_speech_inference_seconds_count{kind="speech",language="",length="short",'
        'voice="low"} 1.0',
        'offhook_speech_first_byte_seconds_count{endpoint="/v1/audio/speech"} 1.0',
        'offhook_speech_waiting{kind="speech"} 0.0',
        'offhook_speech_running{kind="speech"} 0.0',
        'offhook_speech_streams{kind="transcription"} 0.0',
    ):
        assert series in text
    assert 'offhook_speech_audio_seconds_total{kind="speech"} 1.5' in text


def test_the_labels_of_metrics_are_bounded_whatever_clients_send():
    registry = CollectorRegistry()
    limits = Limits({"speech": 1, "transcription": 1}, 1, 1)
    metrics = SpeechMetrics(registry, Admission(limits, {}))
    for number in range(2 * MAX_VOICES):
        labels = Labels.of_speech("mp3", f"voice {number}", f"x{number}", "word " * number)
        metrics.count_inference("speech", labels, 0.1)
    (family,) = [m for m in registry.collect() if m.name == "offhook_speech_inference_seconds"]
    counts = [sample for sample in family.samples if sample.name.endswith("_count")]
    voices = {sample.labels["voice"] for sample in counts}
    assert len(voices) == MAX_VOICES + 1
    assert {sample.labels["language"] for sample in counts} == {"other"}
    assert {sample.labels["length"] for sample in counts} == {"short", "medium"}
    assert sum(sample.value for sample in counts) == 2 * MAX_VOICES


# --- turns ---


async def test_beyond_the_queue_it_is_503_before_the_body_is_asked_for():
    async with (
        quickly_served(Settings(speeches=1, queue=1)) as quick,
        wire(quick) as first,
        wire(quick) as second,
        wire(quick) as third,
    ):
        quick.voice.slow_s = 0.05
        lane = quick.server.admission.lanes["speech"]
        await first.ask_to_speak(LONG)
        await until(lambda: quick.voice.open_streams)
        await second.ask_to_speak("hello", "Expect: 100-continue")
        assert await second.status() == 100
        assert await second.reader.readline() == b"\r\n"
        await until(lambda: lane.waiting)
        await third.send_head(
            "/v1/audio/speech/pcm", 1 << 20, "application/json", "Expect: 100-continue"
        )
        assert await third.status() == 503
        headers = await third.headers()
        assert 1 <= int(headers["retry-after"]) <= 60
        error = json.loads(await third.reader.readexactly(int(headers["content-length"])))
        assert error["error"]["code"] == "queue_full"
        await first.leave()
        assert await second.status() == 200


async def test_what_is_too_large_is_not_asked_for():
    async with quickly_served(Settings(max_upload_mb=1)) as quick:
        for path, kind in (
            ("/v1/audio/speech", "application/json"),
            ("/v1/audio/transcriptions", f"multipart/form-data; boundary={BOUNDARY}"),
        ):
            async with wire(quick) as client:
                await client.send_head(path, 2 << 20, kind, "Expect: 100-continue")
                assert await client.status() == 413


async def test_a_slash_at_the_end_of_a_path_is_named():
    async with quickly_served(Settings()) as quick, wire(quick) as client:
        await client.send_head("/v1/audio/speech/", 0, "application/json")
        assert await client.status() == 404
        headers = await client.headers()
        body = await client.reader.readexactly(int(headers["content-length"]))
        assert "leave out the /" in json.loads(body)["error"]["message"]


async def test_a_sender_that_does_not_wait_to_be_told_is_refused_as_soon():
    async with quickly_served(Settings(transcriptions=1, queue=0)) as quick:
        quick.ears.slow_s = 3600
        async with wire(quick) as first, wire(quick) as second:
            await first.ask_to_hear(wav())
            await until(lambda: quick.ears.open_streams)
            kind = f"multipart/form-data; boundary={BOUNDARY}"
            await second.send_head("/v1/audio/transcriptions", 500 << 20, kind)
            second.writer.write(bytes(1 << 16))
            assert await second.status() == 503


async def test_turns_come_to_all_who_wait():
    async with quickly_served(Settings(speeches=2, queue=20)) as quick:
        quick.voice.slow_s = 0.005

        async def speak() -> int:
            async with quick.client.post("/v1/audio/speech/pcm", json=TEXT) as answer:
                return len(await answer.read())

        assert len(set(await asyncio.gather(*(speak() for _ in range(20))))) == 1
        assert max(len(quick.voice.opened), 1) <= 20
        assert not quick.server.admission.is_busy


async def test_a_server_that_stops_takes_no_more(quick_server: Quick):
    quick_server.server.draining = True
    async with quick_server.client.post("/v1/audio/speech", json=TEXT) as answer:
        assert answer.status == 503
        assert "Retry-After" in answer.headers


async def test_streams_have_a_number_and_no_queue(quick_server: Quick):
    async with quickly_served(Settings(streams=1)) as quick:
        path = "/v1/audio/speech/ws"
        async with quick.client.ws_connect(path):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await quick.client.ws_connect(path)
            assert refused.value.status == 503
        await until(lambda: not quick.server.admission.is_busy)
        async with quick.client.ws_connect(path):
            pass


# --- clients that leave ---


async def test_a_client_that_leaves_while_it_is_spoken_to_frees_the_voice(quick_server: Quick):
    quick_server.voice.slow_s = 0.05
    async with wire(quick_server) as client:
        await client.ask_to_speak(LONG)
        assert await client.status() == 200
        await client.leave()
        (stream,) = quick_server.voice.opened
        await until(lambda: stream.was_cancelled)
    await until(lambda: not quick_server.server.admission.is_busy)
    async with quick_server.client.get("/metrics") as answer:
        cancelled = 'offhook_speech_cancelled_total{endpoint="/v1/audio/speech/pcm"} 1.0'
        assert cancelled in await answer.text()


async def test_a_client_that_leaves_before_the_first_sound_frees_the_voice(quick_server: Quick):
    quick_server.voice.slow_s = 3600
    async with wire(quick_server) as client:
        await client.ask_to_speak("hello")
        await until(lambda: quick_server.voice.opened)
        await client.leave()
        await until(lambda: not quick_server.voice.open_streams)


async def test_a_client_that_leaves_while_it_is_heard_frees_the_ears(quick_server: Quick):
    quick_server.ears.slow_s = 3600
    async with wire(quick_server) as client:
        await client.ask_to_hear(wav())
        await until(lambda: quick_server.ears.open_streams)
        await client.leave()
        await until(lambda: not quick_server.ears.open_streams)
    await until(lambda: not quick_server.server.admission.is_busy)


async def test_a_client_that_leaves_in_the_middle_of_its_file_is_noted_as_gone(quick_server: Quick):
    with logged() as lines:
        async with wire(quick_server) as client:
            body = upload(wav(10))
            kind = f"multipart/form-data; boundary={BOUNDARY}"
            await client.send_head("/v1/audio/transcriptions", len(body), kind)
            client.writer.write(body[:-1000])
            await until(lambda: quick_server.server.admission.is_busy)
            await asyncio.sleep(0.1)  # for what came to be read
            await client.leave()
            await until(lambda: lines)
    assert [(line["status"], line["level"].name) for line in lines] == [(499, "INFO")]


async def test_a_client_that_leaves_in_the_queue_leaves_it():
    async with quickly_served(Settings(transcriptions=1, queue=5)) as quick:
        quick.ears.slow_s = 3600
        lane = quick.server.admission.lanes["transcription"]
        async with wire(quick) as first, wire(quick) as second:
            await first.ask_to_hear(wav())
            await until(lambda: quick.ears.open_streams)
            await second.ask_to_hear(wav())
            await until(lambda: lane.waiting)
            await asyncio.sleep(2 * LOOK_S)
            assert lane.waiting
            second.writer.transport.abort()
            await until(lambda: not lane.waiting)
            assert lane.running


# --- uploads ---


async def test_uploads_that_drip_in_keep_nobody_from_being_heard():
    """Twenty of them hold nothing but their connections: one is heard while all of them drip."""
    async with quickly_served(Settings(transcriptions=2, queue=2)) as quick, AsyncExitStack() as s:
        kind, body = f"multipart/form-data; boundary={BOUNDARY}", upload(wav(60))
        slow = [await s.enter_async_context(wire(quick)) for _ in range(20)]
        for one in slow:
            await one.send_head("/v1/audio/transcriptions", len(body), kind)
            one.writer.write(body[:6000])
        lane = quick.server.admission.lanes["transcription"]
        await until(lambda: len(lane.receiving) == len(slow))
        async with wire(quick) as one:
            await one.ask_to_hear(wav())
            assert await one.status() == 200
        assert len(lane.receiving) == len(slow)
        assert not lane.waiting
    await until(lambda: not quick.server.admission.is_busy)
    assert quick.server.uploads.taken == 0


# --- who may ask ---


async def test_with_a_key_it_is_wanted_of_everybody():
    async with quickly_served(key="secret") as quick:
        async with aiohttp.ClientSession(quick.url) as stranger:
            for headers in ({}, bearer("wrong"), {"Authorization": "Basic secret"}):
                async with stranger.get("/v1/models", headers=headers) as answer:
                    assert answer.status == 401
                    error = await error_of(answer)
                    assert (error["type"], error["code"]) == (
                        "authentication_error",
                        "invalid_api_key",
                    )
            page = {"Origin": "https://elsewhere.example", **bearer("secret")}
            async with stranger.get("/v1/models", headers=page) as answer:
                assert answer.status == 403
                assert "[server] origins" in (await error_of(answer))["message"]
            with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
                await stranger.ws_connect("/v1/audio/speech/ws")
            protocols = ("realtime", "openai-insecure-api-key.secret")
            async with stranger.ws_connect("/v1/audio/speech/ws", protocols=protocols):
                pass
        assert (await quick.openai.models.list()).data


async def test_each_program_has_a_key_and_limits_of_its_own():
    one = SpeechKey(name="one", key="k1", max_requests=1)
    two = SpeechKey(name="two", key="k2", requests_per_minute=2)
    with logged() as lines:
        async with quickly_served(keys(one, two)) as quick:
            quick.voice.slow_s = 0.1
            path = "/v1/audio/speech"
            async with quick.client.post(path, json=TEXT, headers=bearer("k1")) as running:
                assert running.status == 200
                async with quick.client.post(path, json=TEXT, headers=bearer("k1")) as refused:
                    assert refused.status == 429
                    assert "Retry-After" in refused.headers
                    assert (await error_of(refused))["type"] == "rate_limit_error"
            quick.voice.slow_s = 0.0
            left = []
            for _ in range(3):
                async with quick.client.post(path, json=TEXT, headers=bearer("k2")) as answer:
                    left.append((answer.status, answer.headers["x-ratelimit-remaining-requests"]))
                    await answer.read()
            assert left == [(200, "1"), (200, "0"), (429, "0")]
            async with quick.client.get("/v1/models", headers=bearer("k2")) as answer:
                assert answer.status == 200  # nothing that costs
    assert {"one", "two"} <= {line.get("key") for line in lines}
    assert not any("k1" in str(line) or "k2" in str(line) for line in lines)


async def test_the_stock_client_understands_our_refusals():
    limited = SpeechKey(name="one", key="k", requests_per_minute=1)
    async with quickly_served(keys(limited)) as quick:
        client = quick.openai.with_options(api_key="k")
        await client.audio.speech.create(model="tts-1", input="hello", voice="tone")
        with pytest.raises(openai.RateLimitError) as limit:
            await client.audio.speech.create(model="tts-1", input="hello", voice="tone")
        assert limit.value.response.headers["retry-after"]
        with pytest.raises(openai.AuthenticationError):
            await quick.openai.models.list()


async def test_pages_of_other_sites_and_rebound_names_are_refused(quick_server: Quick):
    for headers in ({"Origin": "https://elsewhere.example"}, {"Host": "evil.example"}):
        async with quick_server.client.get("/v1/models", headers=headers) as answer:
            assert answer.status == 403
            await error_of(answer)


# --- what there is, and what goes wrong ---


async def test_models_are_the_engines_own_and_the_names_that_programs_send(quick_server: Quick):
    names = [model.id for model in (await quick_server.openai.models.list()).data]
    assert names[:2] == ["scripted-ears", "scripted"]
    assert {"whisper-1", "tts-1", "scripted-voice"} <= set(names)
    assert (await quick_server.openai.models.retrieve("whisper-1")).owned_by == "offhook"
    with pytest.raises(openai.NotFoundError) as missing:
        await quick_server.openai.models.retrieve("gpt-5")
    assert missing.value.code == "model_not_found"


async def test_a_model_that_is_not_here_is_not_answered_by_another(quick_server: Quick):
    for model, status in (("tts-1", 200), ("scripted-voice", 200), ("scripted", 200)):
        async with quick_server.client.post(
            "/v1/audio/speech", json={**TEXT, "model": model}
        ) as answer:
            assert answer.status == status
    for model in ("whisper-1", "gpt-5", "scripted-ears"):
        with pytest.raises(openai.NotFoundError) as missing:
            await quick_server.openai.audio.speech.create(model=model, input="a", voice="tone")
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")


async def test_names_of_other_servers_mean_what_the_configuration_says():
    aliases = {"whisper-large-v3": "transcription", "kokoro": "speech", "af_heart": "low"}
    async with quickly_served(Settings(aliases=aliases)) as quick:
        await quick.openai.audio.speech.create(model="kokoro", input="one", voice="af_heart")
        assert quick.voice.opened[-1].options.voice == "low"
        file = ("a.wav", wav())
        heard = await quick.openai.audio.transcriptions.create(model="whisper-large-v3", file=file)
        assert heard.text == "hello world"
        assert set(aliases) - {"af_heart"} <= {m.id async for m in quick.openai.models.list()}
        for model, voice in (("whisper-large-v3", "low"), ("kokoro", "bm_daniel")):
            with pytest.raises(openai.APIStatusError, match="there is no"):
                await quick.openai.audio.speech.create(model=model, input="one", voice=voice)
        with pytest.raises(openai.BadRequestError, match="kokoro"):
            await quick.openai.audio.speech.create(model="tts-1", input="one", voice="kokoro")
        query = {"voice": "af_heart"}
        async with quick.client.ws_connect("/v1/audio/speech/ws", params=query) as socket:
            await socket.send_json({"type": "text", "text": "one"})
            await socket.send_json({"type": "end"})
            await until(lambda: len(quick.voice.opened) > 1)
        assert quick.voice.opened[-1].options.voice == "low"
        async with quick.client.ws_connect("/v1/audio/speech/ws") as socket:
            await socket.send_json({"input": "one", "voice": "af_heart", "model": "kokoro"})
            await until(lambda: len(quick.voice.opened) > 2)
        assert quick.voice.opened[-1].options.voice == "low"


async def test_an_address_as_openais_clients_have_it_is_that_of_a_worker_too(quick_server: Quick):
    url = f"{quick_server.url}/v1"
    engines = (
        recognizer_of(Asr.model_construct(url=url)),
        synthesizer_of(Tts.model_construct(url=f"{url}/")),
    )
    for engine in engines:
        await engine.start()
        assert engine.name == "scripted"
        await engine.close()


@pytest.mark.parametrize("lenient", [False, True])
async def test_fields_that_are_not_known_are_refused_or_passed_over(lenient: bool):
    async with quickly_served(Settings(lenient=lenient)) as quick:
        more = {"lang_code": "a", "normalization_options": {}}
        async with quick.client.post("/v1/audio/speech", json={**TEXT, **more}) as answer:
            assert answer.status == (200 if lenient else 400)
            if not lenient:
                assert (await error_of(answer))["param"] == "lang_code"
        form = aiohttp.FormData({"vad_filter": "true", "hotwords": "x"})
        form.add_field("file", wav(), filename="a.wav")
        async with quick.client.post("/v1/audio/transcriptions", data=form) as answer:
            assert answer.status == (200 if lenient else 400)
            if not lenient:
                assert (await error_of(answer))["param"] == "vad_filter"


async def test_an_engine_elsewhere_that_is_not_known_yet_takes_any_name():
    hears = at_once(ScriptedRecognizer(), "", "")
    server = SpeechServer(Settings(), hears, None)  # type: ignore[arg-type]
    server.check_model("transcription", "anything")


async def test_an_engine_that_is_full_or_fails_says_so(quick_server: Quick):
    for full, fails, code in ((True, "", "engine_full"), (False, "no GPU", "engine_error")):
        quick_server.ears.full, quick_server.ears.fails = full, fails
        form = aiohttp.FormData({"model": "whisper-1"})
        form.add_field("file", wav(), filename="a.wav")
        async with quick_server.client.post("/v1/audio/transcriptions", data=form) as answer:
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) > 0
            error = await error_of(answer)
            assert error["type"] == "server_error"
            assert error["code"] == code
            assert not fails or fails not in error["message"]


async def test_without_an_engine_its_routes_are_not_there():
    server = SpeechServer(Settings(), None, None)
    async with listening(server) as url, aiohttp.ClientSession(url) as client:
        async with client.post("/v1/audio/speech", json=TEXT) as answer:
            assert answer.status == 404
            await error_of(answer)
        with pytest.raises(Exception, match="no TTS engine is configured") as none:
            await server.synthesizer()
        assert fault_of(none.value, "").status == 501  # type: ignore[arg-type]


async def test_what_nobody_foresaw_is_500_and_tells_only_the_log(quick_server, monkeypatch):
    def fail(options: object) -> None:
        raise KeyError("a secret of the server")

    monkeypatch.setattr(quick_server.voice, "open", fail)
    with logged() as lines:
        async with quick_server.client.post("/v1/audio/speech", json=TEXT) as answer:
            assert answer.status == 500
            text, request = await answer.text(), answer.headers["X-Request-Id"]
    assert "secret" not in text
    (failed,) = [line for line in lines if line["level"].name == "ERROR"]
    assert failed["request"] == request


async def test_a_connection_that_fails_behind_us_is_not_taken_for_the_client(
    quick_server, monkeypatch
):
    def fail(options: object) -> None:
        raise ConnectionRefusedError("a database")

    monkeypatch.setattr(quick_server.voice, "open", fail)
    async with quick_server.client.post("/v1/audio/speech", json=TEXT) as answer:
        assert answer.status == 500


async def test_a_body_that_is_broken_is_400(quick_server: Quick):
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    async with quick_server.client.post(
        "/v1/audio/transcriptions", data=bytes(1 << 20), headers={"Content-Type": kind}
    ) as answer:
        assert answer.status == 400
        await error_of(answer)
    async with wire(quick_server) as client:
        chunked = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n"
        chunked += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.writer.write(f"{chunked}5\r\nhello\r\nnot a length\r\n".encode())
        assert await client.status() == 400


async def test_paths_and_methods_that_are_none_are_answered_in_json(quick_server: Quick):
    async with quick_server.client.get("/v1/nothing") as answer:
        assert answer.status == 404
        await error_of(answer)
    async with quick_server.client.put("/v1/audio/speech", json=TEXT) as answer:
        assert answer.status == 405
        assert "POST" in answer.headers["Allow"]
        await error_of(answer)


async def test_a_path_that_is_none_asks_for_the_key_too_and_every_refusal_has_an_id():
    async with quickly_served(key="secret") as quick:
        for path in ("/v1/nothing", "/v1/models"):
            async with quick.client.get(path, headers=bearer("wrong")) as answer:
                assert answer.status == 401
                assert len(answer.headers["X-Request-Id"]) == 32
                assert (await error_of(answer))["code"] == "invalid_api_key"
        async with quick.client.post("/v1/nothing", data=b"x") as answer:
            assert answer.status == 404
            assert answer.headers["X-Request-Id"]
            await error_of(answer)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
async def test_the_scheme_of_a_key_is_of_any_case(scheme: str):
    async with quickly_served(key="secret") as quick:
        key = {"Authorization": f"{scheme} secret"}
        async with quick.client.get("/v1/models", headers=key) as answer:
            assert answer.status == 200


async def test_probes_want_no_key_and_metrics_as_it_is_set():
    async with quickly_served(key="secret") as quick, aiohttp.ClientSession(quick.url) as nobody:
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200)):
            assert (await nobody.get(path)).status == status
    hears = at_once(ScriptedRecognizer(), "scripted", "")
    server = SpeechServer(Settings(), hears, None)  # type: ignore[arg-type]
    keyed = Config(server=Server(api_key="secret", metrics="key"))
    async with (
        listening(server, keyed.access(gateway=True)) as url,
        aiohttp.ClientSession(url) as client,
    ):
        assert (await client.get("/readyz")).status == 200
        assert (await client.get("/metrics")).status == 401
        assert (await client.get("/metrics", headers=bearer("secret"))).status == 200


async def test_head_is_answered_where_get_is(quick_server: Quick):
    paths = ("/v1/models", "/v1/models/whisper-1", "/v1/audio/voices", "/openapi.json", "/healthz")
    for path in paths:
        async with quick_server.client.head(path) as head, quick_server.client.get(path) as got:
            assert head.status == got.status == 200
            assert head.headers["Content-Type"] == got.headers["Content-Type"]
            assert await head.read() == b""
            assert head.headers["X-Request-Id"]


async def test_the_description_is_of_what_is_there(quick_server: Quick):
    async with quick_server.client.get("/openapi.json") as answer:
        paths = (await answer.json())["paths"]
    assert {"/v1/models", "/v1/audio/speech", "/v1/audio/transcriptions"} <= set(paths)
