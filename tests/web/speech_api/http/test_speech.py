"""POST /v1/audio/speech and its kin, as programs use them: the stock client, curl's way, SSE."""

import asyncio
import base64
import json
import socket
import time
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
import numpy as np
import openai
import pytest

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.engines.embedded.espeak_io import EspeakSynthesizer
from offhook.pipeline.speech.synthesizer import (
    MAX_INSTRUCTIONS_CHARS,
    Synthesizer,
)
from offhook.web.speech_api.http import speech_io as speeches_io
from offhook.web.speech_api.http import synthesis_io as saying_io
from offhook.web.speech_api.http.audio_encoder import FORMATS, MEDIA_TYPES, Format, StreamEncoder
from offhook.web.workers.engines.engines_io import open_synthesizer
from tests.support.waiting import until
from tests.web.speech_api import conftest
from tests.web.speech_api.conftest import WORD_S, Quick, ScriptedSynthesizer, Served, quickly_served
from tests.web.speech_api.http.test_audio_encoder import decoded, loudest_hz

on_module_loop = pytest.mark.asyncio(loop_scope="module")
TEXT = "Good morning, this is the front desk. How can I help you?"
WORDS = " ".join(f"word{number}" for number in range(20))
PATH = "/v1/audio/speech"


# --- the stock client ---


@on_module_loop
@pytest.mark.parametrize("form", FORMATS)
async def test_the_stock_client_gets_every_format(speech_server: Served, form: Format) -> None:
    speech = speech_server.openai.audio.speech
    whole = await speech.create(model="tts-1", voice="alloy", input=TEXT, response_format=form)
    heard, rate = decoded(whole.content, form)
    assert 2 < len(heard) / rate < 6
    async with speech.with_streaming_response.create(
        model="gpt-4o-mini-tts",
        voice={"id": "ash"},
        input=TEXT,
        response_format=form,
        instructions="cheerfully",
        speed=2,
    ) as response:
        assert response.headers["Content-Type"] == MEDIA_TYPES[form]
        data = b"".join([block async for block in response.iter_bytes()])
    faster, rate = decoded(data, form)
    assert len(faster) == pytest.approx(len(heard) / 2, rel=0.12)


@on_module_loop
async def test_the_stock_client_gets_events(speech_server: Served) -> None:
    async with speech_server.openai.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="coral", input=TEXT, stream_format="sse"
    ) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        events = [json.loads(line[6:]) async for line in response.iter_lines() if line]
    *deltas, done = events
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    heard, rate = decoded(b"".join(base64.b64decode(event["audio"]) for event in deltas), "mp3")
    assert done["type"] == "speech.audio.done"
    assert done["seconds"] == pytest.approx(len(heard) / rate, abs=0.1)
    usage = done["usage"]
    assert usage["input_tokens"] == 15
    assert usage["output_tokens"] == pytest.approx(done["seconds"] * 12.5, abs=1)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert done["latency"]["inferred_ms"] > 0


@on_module_loop
async def test_the_stock_client_is_told_what_is_wrong(speech_server: Served) -> None:
    speech = speech_server.openai.audio.speech
    with pytest.raises(openai.BadRequestError, match="there is no voice") as refused:
        await speech.create(model="tts-1", voice="nobody", input="x")
    assert refused.value.param == "voice"
    with pytest.raises(openai.NotFoundError) as missing:
        await speech.create(model="whisper-1", voice="alloy", input="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match=r"no field 'spead' \(did you mean speed"):
        await speech.create(model="tts-1", voice="alloy", input="x", extra_body={"spead": 1})
    with pytest.raises(openai.BadRequestError, match="nothing to say"):
        await speech.create(model="tts-1", voice="alloy", input="…")
    with pytest.raises(openai.BadRequestError, match="this voice speaks English only") as unspoken:
        await speech.create(model="tts-1", voice="alloy", input="我们九点开门。")
    assert unspoken.value.param == "input"


@on_module_loop
@pytest.mark.parametrize(
    "text",
    [
        "<think>They ask when.</think>At nine.",
        "They ask when.</think>At nine.",
        '<tool_call>{"name": "f"}</tool_call>At nine.',
        "<|im_start|>assistant\nAt nine.<|im_end|>",
        "<think>" + "When do we open, again? " * 500 + "</think>At nine.",
    ],
)
async def test_what_a_model_writes_beside_its_answer_is_not_spoken(
    speech_server: Served, text: str
) -> None:
    speech = speech_server.openai.audio.speech
    options: Any = {"model": "tts-1", "voice": "alloy", "response_format": "pcm"}
    plain, marked = [await speech.create(input=each, **options) for each in ("At nine.", text)]
    assert marked.content == plain.content


# --- as it is made ---


async def arrivals(
    response: aiohttp.ClientResponse, voice: ScriptedSynthesizer
) -> tuple[bytes, list[int]]:
    """The body, and how many words had been said each time that a part of it came."""
    parts, said = [], []
    async for part in response.content.iter_any():
        parts.append(part)
        said.append(voice.opened[-1].said)
    return b"".join(parts), said


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_the_first_byte_comes_long_before_the_last(
    quick_server: Quick, form: Format, stream_format: str
) -> None:
    quick_server.voice.slow_s = 0.02
    fields = {"input": WORDS, "response_format": form, "stream_format": stream_format}
    StreamEncoder(form).finish()  # FFmpeg is loaded
    async with quick_server.client.post(f"{PATH}/stream", json=fields) as response:
        assert response.status == 200
        assert response.headers["X-Accel-Buffering"] == "no"
        assert "Content-Length" not in response.headers
        data, said = await arrivals(response, quick_server.voice)
    assert said[0] <= 4
    assert len(set(said)) > 8
    if stream_format == "sse":
        events = [json.loads(line[6:]) for line in data.split(b"\n\n") if line]
        data = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    heard, rate = decoded(data, form)
    assert len(heard) / rate == pytest.approx(20 * WORD_S, abs=0.11)


async def test_bare_samples_are_as_they_were_made(quick_server: Quick) -> None:
    async with quick_server.client.post(f"{PATH}/pcm", json={"input": "one two"}) as response:
        assert response.headers["Content-Type"] == MEDIA_TYPES["pcm"]
        pcm = np.frombuffer(await response.read(), "<i2")
    assert len(pcm) == 2 * WORD_S * RATE_OUT
    assert loudest_hz(pcm, RATE_OUT) == pytest.approx(440, abs=4)


async def test_an_answer_at_once_has_its_length_and_all_its_times(quick_server: Quick) -> None:
    fields = {"input": WORDS, "response_format": "wav", "stream": False}
    async with quick_server.client.post(PATH, json=fields) as response:
        data = await response.read()
        assert int(response.headers["Content-Length"]) == len(data)
        for stage in ("Queue", "Load", "Infer", "Encode", "Total"):
            assert float(response.headers[f"X-Latency-{stage}-Ms"]) >= 0
    with wave.open(BytesIO(data)) as file:
        assert file.getnframes() == 20 * WORD_S * RATE_OUT
    assert not quick_server.voice.opened[-1].options.live
    refused = await quick_server.client.post(f"{PATH}/stream", json={**fields})
    assert refused.status == 400
    await quick_server.client.post(PATH, json={"input": "hello"})
    assert quick_server.voice.opened[-1].options.live


async def test_a_long_answer_at_once_waits_on_disk(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speeches_io, "IN_MEMORY_BYTES", 1000)
    for form in FORMATS:
        fields = {"input": WORDS, "response_format": form, "stream": False}
        async with quick_server.client.post(PATH, json=fields) as response:
            heard, rate = decoded(await response.read(), form)
        assert len(heard) / rate == pytest.approx(20 * WORD_S, abs=0.1)


async def test_it_is_encoded_while_more_is_made(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine speaks most words while the encoder is at work on those before."""
    voice, push, meanwhile = quick_server.voice, StreamEncoder.push, []

    def slow_push(encoder: StreamEncoder, pcm: Pcm) -> bytes:
        before = voice.opened[0].said
        time.sleep(0.03)
        meanwhile.append(voice.opened[0].said - before)
        return push(encoder, pcm)

    monkeypatch.setattr(StreamEncoder, "push", slow_push)
    voice.slow_s = 0.02
    async with quick_server.client.post(PATH, json={"input": WORDS}) as response:
        await response.read()
    assert sum(meanwhile) > 4  # 0 if the encoder held the engine up


async def test_a_long_text_is_written_as_it_is_spoken(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saying_io, "AHEAD_CHARS", 60)
    monkeypatch.setattr(saying_io, "WRITE_CHARS", 25)
    text = "word " * 100
    most = 0

    class Watching(conftest.ScriptedSpeaking):
        def write(self, text: str) -> None:
            nonlocal most
            super().write(text)
            most = max(most, len(self._text))

    monkeypatch.setattr(conftest, "ScriptedSpeaking", Watching)
    async with quick_server.client.post(f"{PATH}/pcm", json={"input": text}) as response:
        assert len(await response.read()) == 100 * 2 * WORD_S * RATE_OUT
    assert 60 < most <= 90


async def test_a_client_that_takes_nothing_holds_the_engine_and_is_left(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saying_io, "AHEAD_S", 10)
    monkeypatch.setattr(speeches_io, "UNREAD_S", 0.5)
    body = json.dumps({"input": "word " * 10_000}).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        host, port = quick_server.url.removeprefix("http://").split(":")
        await loop.sock_connect(client, (host, int(port)))
        head = f"POST {PATH}/pcm HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        await loop.sock_sendall(client, head.encode() + body)
        await until(lambda: quick_server.voice.opened)
        speaking = quick_server.voice.opened[0]
        await until(lambda: speaking.over)
    assert speaking.was_cancelled
    assert speaking.said < 5000


# --- what goes wrong ---


async def test_an_engine_that_fails_before_the_first_sound_is_an_error(
    quick_server: Quick,
) -> None:
    quick_server.voice.fails_after = 0
    for fields in ({}, {"stream": False}, {"stream_format": "sse"}):
        async with quick_server.client.post(PATH, json={"input": "hello", **fields}) as response:
            assert response.status == 503
            error = (await response.json())["error"]
        assert error["message"].startswith("the speech engine failed")
        assert error["code"] == "engine_error"
        assert error["type"] == "server_error"
    assert quick_server.voice.open_streams == 0


async def test_an_engine_that_fails_later_leaves_no_whole_answer(quick_server: Quick) -> None:
    quick_server.voice.fails_after = 3
    async with quick_server.client.post(PATH, json={"input": WORDS}) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    fields = {"input": WORDS, "stream_format": "sse"}
    async with quick_server.client.post(PATH, json=fields) as response:
        *_, last = (await response.read()).rstrip().split(b"\n\n")
    name, data = last.split(b"\n")
    assert name == b"event: error"
    event = json.loads(data.removeprefix(b"data: "))
    assert (event["type"], event["error"]["code"]) == ("error", "engine_error")


async def test_what_the_engine_cannot_do_is_said(quick_server: Quick) -> None:
    fields = {"input": "hallo", "language": "de"}
    async with quick_server.client.post(PATH, json=fields) as response:
        assert response.status == 400
        assert "this voice speaks en" in (await response.json())["error"]["message"]
    fields = {"input": "x", "instructions": "x" * (MAX_INSTRUCTIONS_CHARS + 1)}
    async with quick_server.client.post(PATH, json=fields) as response:
        assert (await response.json())["error"]["param"] == "instructions"


async def test_bodies_that_are_none_are_refused(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = quick_server.client.post
    async with post(PATH, data={"input": "as curl -d sends it"}) as response:
        assert response.status == 415
        assert "send JSON" in (await response.json())["error"]["message"]
    json_type = {"Content-Type": "application/json; charset=utf-8"}
    async with post(PATH, data=b"x" * 2_000_000, headers=json_type) as response:
        assert response.status == 413
    async with post(PATH, data=b'{"input"', headers=json_type) as response:
        assert response.status == 400
    async with post(PATH, data=b'{"input": "hello"}', headers=json_type) as response:
        assert response.status == 200
    monkeypatch.setattr(speeches_io, "BODY_S", 0.1)

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"input": '
        await asyncio.sleep(5)

    async with post(PATH, data=slowly(), headers=json_type) as response:
        assert response.status == 408


@pytest.mark.parametrize("fields", [{}, {"stream": False}, {"stream_format": "sse"}])
async def test_a_client_that_leaves_frees_the_engine(
    quick_server: Quick, fields: dict[str, Any]
) -> None:
    voice = quick_server.voice
    voice.slow_s = 0.05
    response = asyncio.create_task(quick_server.client.post(PATH, json={"input": WORDS, **fields}))
    await until(lambda: voice.opened and voice.opened[0].said > 2)
    if response.done():
        (await response).close()
    response.cancel()
    await until(lambda: voice.opened[0].over)
    assert voice.opened[0].was_cancelled


# --- the sound itself ---


def levels(pcm: Pcm) -> np.ndarray[Any, np.dtype[np.float64]]:
    """dBFS of frames of 10 ms."""
    frames = pcm[: len(pcm) // 240 * 240].reshape(-1, 240).astype(float)
    levels = 20 * np.log10(np.sqrt((frames**2).mean(1)) / 32768 + 1e-9)
    return np.asarray(levels)


def pitch_hz(pcm: Pcm) -> float:
    """Of the voice, in the middle of how high it goes: by autocorrelation of 50 ms."""
    found = []
    for at in range(0, len(pcm) - 1200, 240):
        piece = pcm[at : at + 1200].astype(float)
        if np.sqrt((piece**2).mean()) < 1500:
            continue
        likeness = np.correlate(piece, piece, "full")[1199:]
        lag = RATE_OUT // 400 + int(np.argmax(likeness[RATE_OUT // 400 : RATE_OUT // 70]))
        if likeness[lag] > 0.6 * likeness[0]:
            found.append(RATE_OUT / lag)
    return float(np.median(found))


@asynccontextmanager
async def embedded(voice: Synthesizer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Quick]:
    await voice.start()
    monkeypatch.setattr(conftest, "ScriptedSynthesizer", lambda: voice)
    async with quickly_served() as quick:
        yield quick
    await voice.close()


async def pcm_of(quick: Quick, **fields: Any) -> Pcm:
    async with quick.client.post(f"{PATH}/pcm", json=fields) as response:
        return np.frombuffer(await response.read(), "<i2").astype(np.int16)


@pytest.mark.parametrize("usual", [True, False])
async def test_a_reply_begins_and_ends_without_silence_and_keeps_its_pitch(
    monkeypatch: pytest.MonkeyPatch, usual: bool
) -> None:
    voice = open_synthesizer("embedded") if usual else EspeakSynthesizer()
    async with embedded(voice, monkeypatch) as quick:
        for text in ("Yes.", "Your call is important to us.", "Thank you. Goodbye!"):
            loud = levels(pcm := await pcm_of(quick, input=text))
            # The small voice's breath differs from process to process, so by its own loudest part.
            heard = np.flatnonzero(loud > loud.max() - 34)
            assert heard[0] <= 6, text
            assert len(pcm) // 240 - heard[-1] <= 6, text
        usual_pcm = await pcm_of(quick, input=TEXT)
        for speed in (0.25, 0.6, 1.8, 4.0):
            pcm = await pcm_of(quick, input=TEXT, speed=speed)
            assert len(pcm) * speed == pytest.approx(len(usual_pcm), rel=0.25)
            assert pitch_hz(pcm) == pytest.approx(pitch_hz(usual_pcm), rel=0.35), speed
