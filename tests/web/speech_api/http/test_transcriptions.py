"""Files to text over HTTP, as programs do it: OpenAI's own client, events as they are heard, and a
plain word for whatever cannot be."""

import asyncio
import io
import json
import os
import signal
import tempfile
import time
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import numpy as np
import openai
import pytest
from aiohttp import FormData, web
from openai.types.audio import (
    Transcription,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionVerbose,
)

from offhook.media.files import decoding_io
from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.errors import UnsupportedRequest
from offhook.pipeline.speech.recognizer import StreamOptions
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.remote.worker_client_io import WorkerClient, WorkerRefused
from offhook.pipeline.speech.remote.worker_protocol import Error, ErrorCode
from offhook.web.config.programs import Speech as Settings
from offhook.web.speech_api.http import transcriptions_io
from offhook.web.speech_api.server_io import SpeechServer
from tests.attack.files import LONG, MADE, POINTING, hostile_files
from tests.media.files.decoders import decoders
from tests.support.waiting import HANGS_S, until
from tests.web.speech_api.conftest import (
    Quick,
    ScriptedHearing,
    Served,
    at_once,
    client_of,
    listening,
    quickly_served,
)
from tests.web.speech_api.http.test_transcript import parse_srt, parse_vtt
from tests.web.speech_api.recordings import (
    QUESTION,
    encoded,
    spoken,
    tone,
    wav,
    write_pictures,
    write_video,
)

on_module_loop = pytest.mark.asyncio(loop_scope="module")
PATH = "/v1/audio/transcriptions"
STREAM = PATH + "/stream"
TRANSLATE = "/v1/audio/translations"
ENOUGH = 2
"""Words of the question that PocketSphinx must get right; it gets three to six."""


def question(times: int = 1) -> bytes:
    return wav(np.tile(np.pad(spoken(), RATE_IN // 3), times))


def is_understood(text: str) -> bool:
    return len(set(text.split()) & set(QUESTION.split())) >= ENOUGH


# --- the stock client, a real engine ---


@on_module_loop
async def test_the_stock_client_gets_every_format(speech_server: Served) -> None:
    transcriptions = speech_server.openai.audio.transcriptions
    given: dict[str, Any] = {"file": ("a.wav", question()), "model": "whisper-1", "language": "en"}
    plain = await transcriptions.create(**given)
    assert isinstance(plain, Transcription)
    assert is_understood(plain.text)
    assert plain.usage is not None
    assert plain.usage.type == "duration"
    assert await transcriptions.create(**given, response_format="text") == plain.text + "\n"
    verbose = await transcriptions.create(
        **given, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert isinstance(verbose, TranscriptionVerbose)
    TranscriptionVerbose.model_validate(verbose.model_dump())
    assert verbose.language == "english"
    assert verbose.words is not None
    assert " ".join(word.word for word in verbose.words) == verbose.text == plain.text
    times = [time for word in verbose.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert times[-1] <= verbose.duration == round(len(wav_samples(question())) / RATE_IN, 3)
    for form, parse in (("srt", parse_srt), ("vtt", parse_vtt)):
        cues = parse(await transcriptions.create(**given, response_format=form))
        assert " ".join(text for _, _, text in cues).replace("\n", " ") == plain.text
        assert cues[-1][1] <= max(1000 * verbose.duration, cues[-1][0] + 1000)


def wav_samples(data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(data[44:], np.int16)


@on_module_loop
async def test_the_stock_client_without_a_loop(speech_server: Served) -> None:
    def ask() -> tuple[str, list[object], str]:
        with openai.OpenAI(
            base_url=f"{speech_server.url}/v1", api_key="none", max_retries=0
        ) as client:
            given: dict[str, Any] = {"file": ("a.wav", question()), "model": "whisper-1"}
            plain = client.audio.transcriptions.create(**given)
            events = list(client.audio.transcriptions.create(**given, stream=True))
            return plain.text, events, client.audio.translations.create(**given).text

    text, events, english = await asyncio.to_thread(ask)
    assert is_understood(text)
    assert isinstance(events[-1], TranscriptionTextDoneEvent)
    assert english == text


@pytest.mark.slow
@on_module_loop
async def test_deltas_come_while_the_engine_hears(speech_server: Served) -> None:
    data, began = question(11), time.monotonic()
    assert len(wav_samples(data)) / RATE_IN > 30
    events, at = [], []
    async for event in await speech_server.openai.audio.transcriptions.create(
        file=("a.wav", data), model="gpt-4o-mini-transcribe", stream=True
    ):
        events.append(event)
        at.append(time.monotonic() - began)
    *deltas, done = events
    assert len(deltas) >= 4
    assert all(isinstance(delta, TranscriptionTextDeltaEvent) for delta in deltas)
    assert isinstance(done, TranscriptionTextDoneEvent)
    assert "".join(delta.delta for delta in deltas) == done.text
    assert at[0] < at[-1] / 2.5  # the first of eight pieces, and the shortest
    assert max(b - a for a, b in pairwise(at)) < 0.7 * at[-1]


@on_module_loop
async def test_a_film_is_heard(speech_server: Served, tmp_path: Path) -> None:
    pcm = np.pad(spoken(), RATE_IN // 2)
    heard = await speech_server.openai.audio.transcriptions.create(
        file=write_video(tmp_path / "film.mp4", pcm), model="en-us"
    )
    assert is_understood(heard.text)


@on_module_loop
async def test_another_language_than_the_engines_is_refused(speech_server: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="English") as refused:
        await speech_server.openai.audio.transcriptions.create(
            file=("a.wav", question()), model="whisper-1", language="French"
        )
    assert refused.value.param == "language"


# --- scripted engines ---


async def ask(
    quick: Quick, data: bytes, path: str = PATH, name: str = "a.wav", **fields: str
) -> tuple[int, str]:
    async with quick.client.post(path, data=form(data, name, **fields)) as answer:
        return answer.status, await answer.text()


def form(data: bytes, name: str = "a.wav", **fields: str) -> FormData:
    body = FormData(fields)
    body.add_field("file", data, filename=name)
    return body


async def events_of(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """Name and data of each, strictly: lines of event and data, and an empty one."""
    event = ""
    async for line in answer.content:
        text = line.decode().removesuffix("\n")
        if text.startswith("event: "):
            event = text.removeprefix("event: ")
        elif text:
            assert text.startswith("data: ")
            yield event, json.loads(text.removeprefix("data: "))
            event = ""


async def test_each_segment_is_told_when_it_is_done(quick_server: Quick) -> None:
    quick_server.ears.says = ["one two", "three", "four five six", "seven"]
    quick_server.ears.permits = asyncio.Semaphore(1)  # the next waits for what is told of the last
    events = []
    posting = quick_server.client.post(STREAM, data=form(wav(tone(25))))
    async with asyncio.timeout(HANGS_S), posting as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["X-Accel-Buffering"] == "no"
        async for name, data in events_of(answer):
            assert name == data["type"]
            events.append(data)
            if name == "segment":
                quick_server.ears.permits.release()
    segments = [event for event in events if event["type"] == "segment"]
    assert [segment["text"] for segment in segments][:3] == ["one two", "three", "four five six"]
    assert [segment["id"] for segment in segments] == list(range(len(segments)))
    assert segments[0]["start"] == 0
    assert all(a["end"] == b["start"] for a, b in pairwise(segments))
    assert segments[1]["words"][0]["start"] == pytest.approx(segments[1]["start"], abs=0.01)
    progress = [event for event in events if event["type"] == "progress"]
    assert progress
    assert progress[0]["duration"] == 25
    assert progress[0]["fraction"] == pytest.approx(progress[0]["seconds"] / 25, abs=0.001)
    done = events[-1]
    assert done["text"] == " ".join(segment["text"] for segment in segments)
    assert (done["language"], done["duration"]) == ("english", 25)
    assert done["usage"] == {"type": "duration", "seconds": 25}
    assert {"first_byte_ms", "inferred_ms"} <= done["stages"].keys()


async def test_a_delta_leaves_before_the_next_piece_is_heard(quick_server: Quick) -> None:
    quick_server.ears.says = ["first", "second", "third"]
    quick_server.ears.permits = asyncio.Semaphore(1)
    stream = await quick_server.openai.audio.transcriptions.create(
        file=("a.wav", wav(tone(9))), model="whisper-1", stream=True
    )
    first = await anext(aiter(stream))
    assert isinstance(first, TranscriptionTextDeltaEvent)
    assert first.delta == "first"
    for _ in range(2):
        quick_server.ears.permits.release()
    rest = [event async for event in stream]
    assert [getattr(event, "delta", "") for event in rest[:-1]] == [" second", " third"]


async def test_the_prompt_and_the_language_reach_the_engine(quick_server: Quick) -> None:
    fields = {"prompt": "Offhook", "language": "en-US", "model": "scripted", "temperature": "0"}
    assert (await ask(quick_server, wav(tone(2)), **fields))[0] == 200
    options = quick_server.ears.opened[0].options
    assert options == StreamOptions(context="Offhook", language="en-US", live=False)


async def test_times_of_words_are_asked_for_only_where_they_serve(quick_server: Quick) -> None:
    for fields, words in [
        ({}, False),
        ({"response_format": "srt"}, True),
        ({"response_format": "verbose_json", "timestamp_granularities[]": "word"}, True),
    ]:
        assert (await ask(quick_server, wav(tone(2)), **fields))[0] == 200
        assert quick_server.ears.opened[-1].options.words is words


async def test_captions_do_without_times_of_words_where_there_are_none(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = quick_server.ears.open

    async def without(options: StreamOptions) -> ScriptedHearing:
        if options.words:
            raise UnsupportedRequest("no times of words without --aligner")
        return await usual(options)

    monkeypatch.setattr(quick_server.ears, "open", without)
    status, text = await ask(quick_server, wav(tone(2)), response_format="vtt")
    assert status == 200
    assert len(parse_vtt(text)) == 1
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    status, text = await ask(quick_server, wav(tone(2)), **fields)
    error = json.loads(text)["error"]
    assert (status, error["param"]) == (400, "timestamp_granularities[]")
    assert "--aligner" in error["message"]


async def test_raw_samples_are_heard(quick_server: Quick) -> None:
    body = FormData()
    samples = tone(3).tobytes()
    body.add_field("file", samples, filename="a", content_type="audio/pcm;rate=16000")
    async with quick_server.client.post(PATH, data=body) as answer:
        assert (await answer.json())["usage"]["seconds"] == 3


def zipped() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("talk.wav", wav(tone(1)))
    return data.getvalue()


def pictures() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write_pictures(Path(folder) / "silent.mp4").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", lambda: b"There is nothing to hear in a text.", "no audio or video"),
        ("a.wav", zipped, "no audio or video"),
        ("a.mp4", pictures, "there is no audio track in it"),
        ("a.wav", lambda: b"", "the file is empty"),
        ("a.wav", lambda: wav(tone(0)), "there is no sound in it"),
        ("a.m3u8", lambda: b"#EXTM3U\n#EXTINF:1,\n/etc/hosts\n", "no audio or video"),
        ("a.flac", lambda: encoded(np.zeros(70 * RATE_IN, np.int16), "flac", "flac"), "1 minutes"),
    ],
)
async def test_what_cannot_be_heard_is_refused_and_nothing_stays(
    name: str, content: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "uploads"))
    (tmp_path / "uploads").mkdir()
    async with quickly_served(Settings(max_audio_minutes=1)) as quick:
        for path, fields in [(PATH, {}), (PATH, {"stream": "true"}), (STREAM, {})]:
            status, text = await ask(quick, content(), path, name, **fields)
            error = json.loads(text)["error"]
            assert (status, error["param"]) == (400, "file"), text
            assert says in error["message"]
            assert "uploads" not in text  # nothing of where we keep it
        assert quick.ears.open_streams == 0
        assert not any((tmp_path / "uploads").iterdir())


async def test_of_a_file_cut_off_what_is_there_is_heard(quick_server: Quick) -> None:
    data = encoded(tone(20), "ogg", "libopus")
    status, text = await ask(quick_server, data[: len(data) // 2])
    assert (status, json.loads(text)["text"]) == (200, "hello world")


async def test_silence_is_no_text_and_costs_no_engine(quick_server: Quick) -> None:
    data = encoded(np.zeros(200 * RATE_IN, np.int16), "flac", "flac")
    status, text = await ask(quick_server, data)
    heard = {"text": "", "usage": {"type": "duration", "seconds": 200}}
    assert (status, json.loads(text)) == (200, heard)
    assert quick_server.ears.count == 0
    status, text = await ask(quick_server, data, stream="true")
    assert text.count("data: ") == 1
    status, text = await ask(quick_server, data, response_format="srt")
    assert text == ""


async def test_what_is_wrong_in_the_form_is_named(quick_server: Quick) -> None:
    for fields, status, param in [
        ({"model": "gpt-9"}, 404, "model"),
        ({"response_format": "xml"}, 400, "response_format"),
        ({"language": "klingon"}, 400, "language"),
        ({"beam_size": "5"}, 400, "beam_size"),
    ]:
        answered, text = await ask(quick_server, wav(tone(1)), **fields)
        assert (answered, json.loads(text)["error"]["param"]) == (status, param)
    assert quick_server.ears.opened == []


async def test_an_engine_that_fails_is_said_before_the_answer_begins(quick_server: Quick) -> None:
    quick_server.ears.fails_within = "the device is gone"
    for path, fields in [(PATH, {}), (PATH, {"stream": "true"}), (STREAM, {})]:
        status, text = await ask(quick_server, wav(tone(5)), path, **fields)
        assert status == 503
        assert "the speech engine failed" in json.loads(text)["error"]["message"]
    assert quick_server.ears.open_streams == 0
    quick_server.ears.full = True
    async with quick_server.client.post(PATH, data=form(wav(tone(1)))) as answer:
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) > 0


async def test_an_engine_that_fails_later_is_the_last_event(quick_server: Quick) -> None:
    async def fail_soon() -> None:
        await until(lambda: quick_server.ears.count)
        quick_server.ears.fails_within = "the device is gone"

    quick_server.ears.slow_s = 0.1
    failing = asyncio.create_task(fail_soon())
    async with quick_server.client.post(STREAM, data=form(wav(tone(60)))) as answer:
        events = [event async for event in events_of(answer)]
    assert events[0][0] == "segment"
    assert events[-1][0] == "error"
    assert "the speech engine failed" in events[-1][1]["error"]["message"]
    await failing
    quick_server.ears.fails_within, quick_server.ears.count = "", 0
    failing = asyncio.create_task(fail_soon())
    stream = await quick_server.openai.audio.transcriptions.create(
        file=("a.wav", wav(tone(60))), model="whisper-1", stream=True
    )
    with pytest.raises(openai.APIError, match="the speech engine failed"):
        _ = [event async for event in stream]
    await failing
    await until(lambda: quick_server.ears.open_streams == 0)


@pytest.mark.parametrize("files", ["short", pytest.param("long", marks=pytest.mark.slow)])
async def test_files_made_to_hurt_are_heard_or_refused(quick_server: Quick, files: str) -> None:
    wanted = [name for name in (*MADE, *POINTING) if (name in LONG) == (files == "long")]
    got = await hostile_files(quick_server.url, 300, files=wanted)
    answers, _, rest = got.partition("; longest")
    counts = {what: int(count) for count, what in (a.split(" × ") for a in answers.split(", "))}
    assert counts.keys() <= {"200", "400"}, got
    assert sum(counts.values()) == len(wanted)
    assert "asked of the host" not in rest


async def test_a_file_that_ends_its_decoder_is_refused_and_the_next_is_heard(
    quick_server: Quick,
) -> None:
    quick_server.ears.slow_s = 0.5
    asking = asyncio.create_task(ask(quick_server, wav(tone(600))))
    await until(lambda: bool(decoders()))
    for pid in decoders():
        os.kill(pid, signal.SIGSEGV)
    status, body = await asking
    assert status == 400
    assert json.loads(body)["error"]["message"] == "the file: its decoder crashed (SIGSEGV)"
    quick_server.ears.slow_s = 0
    assert (await ask(quick_server, wav(tone(2))))[0] == 200


async def test_without_decoders_it_is_no_fault_of_the_file(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding_io, "_HOST", decoding_io._Host())
    monkeypatch.setattr(decoding_io, "COMMAND", ("/nonexistent/python",))
    status, body = await ask(quick_server, wav(tone(2)))
    assert (status, json.loads(body)["error"]["code"]) == (503, "decoder_unavailable")


@pytest.mark.parametrize("path", [PATH, STREAM])
async def test_a_client_that_leaves_frees_the_stream_and_the_file(
    quick_server: Quick, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    quick_server.ears.slow_s = 60
    asking = asyncio.create_task(ask(quick_server, wav(tone(300)), path))
    await until(lambda: quick_server.ears.open_streams)
    assert os.listdir(tmp_path)
    asking.cancel()
    await until(lambda: quick_server.ears.open_streams == 0, 30)  # not after 60 s
    await until(lambda: not decoders())
    await until(lambda: not os.listdir(tmp_path))


async def test_a_client_that_takes_nothing_is_left(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcriptions_io, "UNREAD_S", 0.2)
    quick_server.ears.says = ["word " * 200_000]
    async with quick_server.client.post(STREAM, data=form(wav(tone(60)))) as answer:
        assert answer.status == 200
        await until(lambda: quick_server.ears.open_streams == 0)


async def test_the_log_says_how_far_a_long_file_is(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loguru import logger

    monkeypatch.setattr(transcriptions_io, "LOG_S", 0.0)
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message} {extra[request]}")
    try:
        async with quick_server.client.post(PATH, data=form(wav(tone(60)))) as answer:
            request_id = answer.headers["X-Request-Id"]
    finally:
        logger.remove(sink)
    told = [line.strip() for line in lines if "of a file" in line]
    assert len(told) >= 2
    assert told[-1] == f"heard 60 s of a file, 100% {request_id}"


async def test_the_sound_heard_is_counted(quick_server: Quick) -> None:
    assert (await ask(quick_server, wav(tone(30))))[0] == 200
    audio = quick_server.server.metrics.audio["transcription"]
    assert audio._value.get() == pytest.approx(30)


@pytest.mark.parametrize(
    ("cause", "status", "param"),
    [
        (WorkerRefused(Error(ErrorCode.BAD_REQUEST, "it hears English only")), 400, "language"),
        (
            WorkerRefused(Error(ErrorCode.BAD_REQUEST, "http://secret:1 hears English")),
            400,
            "language",
        ),
        (WorkerRefused(Error(ErrorCode.ENGINE, "it is broken")), 503, None),
        (WorkerRefused(Error(ErrorCode.STOPPING, "it is stopping")), 503, None),
        (ConnectionRefusedError("nobody there"), 503, None),
    ],
)
async def test_a_worker_that_cannot_is_told_from_one_that_is_not_there(
    cause: Exception, status: int, param: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerClient, "connect", AsyncMock(side_effect=cause))
    hears = at_once(RemoteRecognizer("unix:/run/secret.sock"), "remote", "")
    async with (
        listening(SpeechServer(Settings(), hears, None)) as url,
        aiohttp.ClientSession(url) as client,
        client.post(PATH, data=form(wav(tone(1)), language="de")) as answer,
    ):
        error = (await answer.json())["error"]
        assert (answer.status, error["param"]) == (status, param)
        assert (str(cause) in error["message"]) == (str(cause) == "it hears English only")
        assert "secret" not in error["message"]


# --- translation ---


@asynccontextmanager
async def chat_server(*answers: str, status: int = 200) -> AsyncIterator[tuple[str, list[Any]]]:
    """A chat server that gives these answers, one a request: its address, and what it was asked."""
    asked: list[Any] = []

    async def complete(request: web.Request) -> web.Response:
        asked.append(await request.json() | {"key": request.headers.get("Authorization")})
        message = {"role": "assistant", "content": answers[min(len(asked), len(answers)) - 1]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
        return web.json_response({**body, "choices": [choice]}, status=status)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", asked
    finally:
        await runner.cleanup()


async def test_what_is_english_is_translated_by_itself(quick_server: Quick) -> None:
    client = client_of(quick_server.url)
    heard = await client.audio.translations.create(
        file=("a.wav", wav(tone(2))), model="whisper-1", response_format="verbose_json"
    )
    assert (heard.text, heard.language) == ("hello world", "english")
    await client.close()


async def test_another_language_needs_a_server_that_translates(quick_server: Quick) -> None:
    status, text = await ask(quick_server, wav(tone(2)), TRANSLATE, language="de")
    error = json.loads(text)["error"]
    assert (status, error["code"]) == (400, "translation_unavailable")
    assert "this is German" in error["message"]
    assert "translate_url" in error["message"]


async def test_another_language_is_put_into_english_piece_by_piece() -> None:
    async with chat_server("Good day.", "Goodbye.") as (url, asked):
        settings = Settings(translate_url=url, translate_model="m", translate_api_key="secret")
        async with quickly_served(settings) as quick:
            quick.ears.says = ["Guten Tag.", "Auf Wiedersehen."]
            fields = {"language": "german", "response_format": "verbose_json"}
            status, text = await ask(quick, wav(tone(12)), TRANSLATE, **fields)
    table = json.loads(text)
    assert (status, table["text"]) == (200, "Good day. Goodbye.")
    assert (table["task"], table["language"]) == ("translate", "english")
    assert [segment["text"] for segment in table["segments"]] == ["Good day.", "Goodbye."]
    assert table["segments"][-1]["end"] == 12
    assert asked[0]["key"] == "Bearer secret"
    said = [message["content"] for message in asked[1]["messages"][1:]]
    assert said == ["Guten Tag.", "Good day.", "Auf Wiedersehen."]


@pytest.mark.parametrize(("status", "answer"), [(401, "no"), (200, "  ")])
async def test_a_translation_server_that_fails_is_said(status: int, answer: str) -> None:
    async with (
        chat_server(answer, status=status) as (url, _),
        quickly_served(Settings(translate_url=url, translate_model="m")) as quick,
    ):
        answered, text = await ask(quick, wav(tone(2)), TRANSLATE, language="de")
    error = json.loads(text)["error"]
    assert (answered, error["code"]) == (502, "translation_failed")
    assert error["message"] == "the translation could not be made"
