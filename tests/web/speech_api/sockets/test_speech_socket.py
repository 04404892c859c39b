"""WS /v1/audio/speech/ws: two ways to speak to it, and what each is told."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.speech.remote.tts_protocol import (
    Cancel,
    Close,
    Done,
    End,
    Mark,
    Ready,
    Reason,
    Text,
)
from offhook.pipeline.speech.remote.worker_protocol import Error, ErrorCode, ProtocolError
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.web.config.programs import Speech as Settings
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.speech_request import SpeechRequest, parse
from offhook.web.speech_api.sockets import tts_stream_io, worker_stream_io
from offhook.web.speech_api.sockets.speech_socket import PATH, Fault, Say, SpeechSocket
from tests.support.waiting import HANGS_S, until
from tests.web.speech_api.conftest import WORD_S, Quick, Served, quickly_served

TONE = round(WORD_S * RATE_OUT)


def of_some_model_only(body: bytes) -> SpeechRequest:
    request = parse(body, "pcm")
    if request.model not in ("", "tts-1"):
        raise ApiError(404, f"there is no model {request.model!r}", "model")
    return request


def spoken_to(*messages: str) -> tuple[SpeechSocket, Any]:
    """The dialect after these messages, and what the last of them means."""
    socket, meant = SpeechSocket(lambda: ("Tone", "low"), of_some_model_only), None
    for message in messages:
        meant = socket.parse(message)
    return socket, meant


# --- what is meant, and in which words it is answered ---


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        ({"type": "text", "text": "Good mor"}, Text("Good mor")),
        ({"type": "end"}, End()),
        ({"type": "cancel"}, Cancel()),
        ({"type": "close"}, Close()),
        ({"event": "cancel"}, Cancel()),
        ({"event": "close"}, Close()),
        ({"input": "Hello."}, Say("Hello.", VoiceOptions(whole_text=True))),
        (
            {"input": "Hi", "voice": "LOW", "language": "en-US", "speed": 2, "seed": 7},
            Say("Hi", VoiceOptions("low", "en", speed=2.0, seed=7, whole_text=True)),
        ),
        ({"input": "Hi", "voice": {"id": "low"}}, Say("Hi", VoiceOptions("low", whole_text=True))),
        (
            {"input": "Hi", "voice": "alloy", "model": "tts-1"},
            Say("Hi", VoiceOptions(whole_text=True)),
        ),
        ({"input": "Hi", "voice": "newer"}, Say("Hi", VoiceOptions("newer", whole_text=True))),
        ({"input": "Hi", "response_format": "pcm"}, Say("Hi", VoiceOptions(whole_text=True))),
    ],
)
def test_the_first_message_decides_how_a_client_speaks(
    message: dict[str, Any], meant: object
) -> None:
    assert spoken_to(json.dumps(message))[1] == meant


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({}, "input is missing"),
        ({"input": " "}, "input is missing or empty"),
        ({"input": 7}, "input is 7, not a string"),
        ({"text": "Hello"}, "input is missing"),
        ({"input": "Hi", "texture": 1}, "there is no field"),
        ({"input": "Hi", "voice": 3}, "voice is 3"),
        ({"input": "Hi", "language": "englisch"}, "language is"),
        ({"input": "Hi", "speed": 3}, "speed is 0.5..2"),
        ({"input": "Hi", "model": "whisper-1"}, "no model"),
        ({"input": "Hi", "response_format": "mp3"}, "response_format is"),
        ({"input": "Hi", "stream_format": "sse"}, "as binary messages"),
        ({"event": "pause"}, "event is 'pause', not one of cancel, close"),
        ({"event": ["cancel"]}, "event is ['cancel'], not one of"),
        ({"event": "cancel", "reply": 1}, "cancel has no field 'reply'"),
    ],
)
def test_a_request_that_is_wrong_is_answered_and_the_next_is_served(
    message: dict[str, Any], says: str
) -> None:
    socket, meant = spoken_to(json.dumps(message))
    assert isinstance(meant, Fault)
    assert says in meant.words
    answer = json.loads(socket.to_text(meant) or "")
    assert answer == {"event": "error", "detail": meant.words}
    assert socket.parse('{"input": "Hi"}') == Say("Hi", VoiceOptions(whole_text=True))
    assert "not JSON" in str(socket.parse("{"))


@pytest.mark.parametrize("message", ["", "{", "[]", '"text"', "null", "7", "[" * 100_000])
def test_a_first_message_that_is_nothing_is_an_error_in_both_ways(message: str) -> None:
    socket = SpeechSocket(lambda: (), of_some_model_only)
    with pytest.raises(ProtocolError) as raised:
        socket.parse(message)
    error = Error(ErrorCode.BAD_REQUEST, str(raised.value))
    assert json.loads(socket.error_text(error)) == {
        "type": "error",
        "code": "bad_request",
        "message": str(raised.value),
        "event": "error",
        "detail": str(raised.value),
    }


def test_each_way_is_told_in_its_own_words() -> None:
    ready, mark = Ready("flite", "", ("slt",)), Mark(0, "Hello ", 10)
    done, error = Done(1, 240, Reason.CANCEL), Error(ErrorCode.FULL, "all are in use")
    commands, _ = spoken_to('{"type":"end"}')
    told = [json.loads(commands.to_text(m) or "null") for m in (ready, mark, done, error)]
    assert [table["type"] for table in told] == ["ready", "mark", "done", "error"]
    requests, _ = spoken_to('{"input":"x"}')
    told = [json.loads(requests.to_text(m) or "null") for m in (ready, mark, done, error)]
    assert told == [
        None,
        None,
        {"event": "done", "reply": 1, "samples": 240, "reason": "cancel"},
        {"event": "error", "detail": "all are in use"},
    ]


@given(
    st.lists(
        st.one_of(
            st.text(max_size=40),
            st.dictionaries(
                st.sampled_from(["type", "text", "event", "input", "voice", "speed", "seed", "x"]),
                st.one_of(
                    st.none(),
                    st.booleans(),
                    st.integers(),
                    st.floats(),
                    st.text(max_size=8),
                    st.sampled_from(["text", "end", "cancel", "close"]),
                    st.lists(st.integers(), max_size=2),
                ),
                max_size=4,
            ).map(json.dumps),
        ),
        max_size=6,
    )
)
def test_whatever_comes_is_understood_or_refused_in_words(messages: list[str]) -> None:
    socket = SpeechSocket(lambda: ("Tone",), of_some_model_only)
    for message in messages:
        try:
            meant = socket.parse(message)
        except ProtocolError:
            assert not socket.one_by_one
            return
        assert socket.decided
        if isinstance(meant, Fault):
            assert socket.one_by_one
            assert meant.words


# --- on a server ---


@asynccontextmanager
async def connected(quick: Served, **query: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    goodbye = aiohttp.ClientWSTimeout(ws_close=0.5)
    async with quick.client.ws_connect(PATH, params=query, compress=0, timeout=goodbye) as socket:
        yield socket


async def answer(socket: aiohttp.ClientWebSocketResponse) -> tuple[Pcm, list[dict[str, Any]]]:
    """Sound and messages to the next done or error."""
    sound, messages = b"", []
    async with asyncio.timeout(HANGS_S):
        while True:
            frame = await socket.receive()
            if frame.type is aiohttp.WSMsgType.BINARY:
                sound += frame.data
                continue
            assert frame.type is aiohttp.WSMsgType.TEXT, (frame, socket.close_code)
            messages.append(frame.json())
            kind = messages[-1].get("event") or messages[-1]["type"]
            if kind in ("done", "error"):
                return np.frombuffer(sound, "<i2"), messages


def pitch(pcm: Pcm) -> float:
    """Hz of the loudest tone."""
    spectrum = np.abs(np.fft.rfft(pcm))
    return float(np.argmax(spectrum) * RATE_OUT / len(pcm))


async def test_requests_are_answered_by_sound_and_done_in_order(quick_server: Quick) -> None:
    async with connected(quick_server) as socket:
        await socket.send_json({"input": "one two", "voice": "low", "language": "en"})
        await socket.send_json({"input": ""})
        await socket.send_json({"input": "three", "voice": "nobody"})
        await socket.send_json({"input": "four five six", "voice": "nova"})
        sound, messages = await answer(socket)
        assert len(sound) == 2 * TONE
        assert pitch(sound) == pytest.approx(220, abs=5)
        assert messages == [{"event": "done", "reply": 0, "samples": len(sound), "reason": "end"}]
        sound, [error] = await answer(socket)
        assert not len(sound)
        assert error["event"] == "error"
        assert "input is missing" in error["detail"]
        _, [error] = await answer(socket)
        assert "no voice is called 'nobody'" in error["detail"]
        sound, [done] = await answer(socket)
        assert len(sound) == 3 * TONE
        assert done["reply"] == 3
        await socket.send_json({"event": "close"})
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
    await until(lambda: not quick_server.server.admission.lanes["speech"].streams)
    scrape = await (await quick_server.client.get("/metrics")).text()
    seconds = 5 * WORD_S
    assert f'offhook_speech_audio_seconds_total{{kind="speech"}} {seconds}' in scrape


async def test_text_is_spoken_as_it_comes(quick_server: Quick) -> None:
    async with connected(quick_server, voice="low") as socket:
        await socket.send_json({"type": "text", "text": "one t"})
        async with asyncio.timeout(HANGS_S):
            ready = await socket.receive_json()
            first = await socket.receive_bytes()
            mark = await socket.receive_json()
        assert (ready["type"], ready["engine"], ready["voices"]) == (
            *("ready", "scripted"),
            ["tone", "low"],
        )
        assert len(first) == 2 * TONE
        assert (mark["type"], mark["text"], mark["samples"]) == ("mark", "one ", TONE)
        assert quick_server.voice.opened[-1].said == 1
        await socket.send_json({"type": "text", "text": "wo"})
        await socket.send_json({"type": "end"})
        sound, messages = await answer(socket)
        assert len(sound) == TONE
        assert messages[-1] == {"type": "done", "reply": 0, "samples": 2 * TONE, "reason": "end"}


@pytest.mark.parametrize(
    ("begin", "cancel"),
    [
        ([{"input": "one two three four five six"}], {"event": "cancel"}),
        ([{"type": "text", "text": "one two three four "}], {"type": "cancel"}),
    ],
)
async def test_a_cancel_frees_the_voice_at_once(
    quick_server: Quick, begin: list[dict[str, Any]], cancel: dict[str, Any]
) -> None:
    voice = quick_server.voice
    voice.slow_s = 0.1
    async with connected(quick_server) as socket:
        for message in begin:
            await socket.send_json(message)
        await until(lambda: any(stream.said == 2 for stream in voice.opened))
        await socket.send_json(cancel)
        sound, messages = await answer(socket)
        assert messages[-1]["reason"] == "cancel"
        assert len(sound) <= 3 * TONE
        assert voice.open_streams == 0
        kind = next(iter(cancel))
        after = (
            [{"input": "on"}]
            if kind == "event"
            else [
                {"type": "text", "text": "on"},
                {"type": "end"},
            ]
        )
        for message in after:
            await socket.send_json(message)
        sound, messages = await answer(socket)
        assert len(sound) == TONE
        assert messages[-1]["reason"] == "end"


async def test_a_client_that_leaves_frees_the_voice(quick_server: Quick) -> None:
    voice, lane = quick_server.voice, quick_server.server.admission.lanes["speech"]
    voice.slow_s = 0.05
    async with connected(quick_server) as socket:
        await socket.send_json({"input": "word " * 200})
        await until(lambda: voice.opened and voice.opened[0].said)
        assert len(lane.streams) == 1
    await until(lambda: voice.opened[0].was_cancelled and not lane.streams)


async def test_what_the_engine_cannot_is_the_fault_of_one_request(quick_server: Quick) -> None:
    voice = quick_server.voice
    async with connected(quick_server) as socket:
        voice.fails_after = 1
        await socket.send_json({"input": "one two three"})
        sound, [error] = await answer(socket)
        assert len(sound) == TONE
        assert error["event"] == "error"
        assert error["detail"].startswith("the speech engine failed")
        voice.fails_after = None
        await socket.send_json({"input": "one two three"})
        sound, [done] = await answer(socket)
        assert len(sound) == 3 * TONE
        assert done["event"] == "done"


@pytest.mark.parametrize(
    ("send", "code", "closes_with", "says"),
    [
        (["{"], "bad_request", 1008, "not JSON"),
        ([b"\0\0"], "bad_request", 1008, "2 bytes that are not text"),
        (['{"type":"flush"}'], "bad_request", 1008, "type is 'flush'"),
        (['{"input":"' + "x" * 70_000 + '"}'], "too_long", 1009, "a message of 70012 characters"),
        (['{"input":"held"}'] * 18, "behind", 1008, "16 replies wait"),
    ],
)
async def test_what_ends_a_stream_is_said(
    quick_server: Quick, send: list[str | bytes], code: str, closes_with: int, says: str
) -> None:
    quick_server.voice.slow_s = HANGS_S
    async with connected(quick_server) as socket:
        for message in send:
            if isinstance(message, bytes):
                await socket.send_bytes(message)
            else:
                await socket.send_str(message)
        _, messages = await answer(socket)
        error = messages[-1]
        assert says in (error.get("message") or error["detail"])
        assert error.get("code", code) == code
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert socket.close_code == closes_with
    await until(lambda: not quick_server.server.admission.lanes["speech"].streams)
    assert quick_server.voice.open_streams == 0


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ({"model": "whisper-1"}, 404, "no model 'whisper-1'"),
        ({"speed": "9"}, 400, "speed is 9.0"),
        ({"format": "mp3"}, 400, "unknown parameter 'format'"),
    ],
)
async def test_an_address_that_asks_for_what_cannot_be_is_refused_before_the_upgrade(
    quick_server: Quick, query: dict[str, str], status: int, says: str
) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as raised:
        async with connected(quick_server, **query):
            pass
    assert raised.value.status == status
    headers = {"Connection": "upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    headers["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    async with quick_server.client.get(PATH, params=query, headers=headers) as response:
        assert says in (await response.json())["error"]["message"]
    async with quick_server.client.get(PATH) as response:
        assert response.status == 426
        assert "is a WebSocket" in (await response.json())["error"]["message"]


async def test_a_voice_in_the_address_is_not_passed_over(quick_server: Quick) -> None:
    async with connected(quick_server, voice="low") as socket:
        await socket.send_json({"input": "one"})
        _, [error] = await answer(socket)
        assert "give it in each request" in error["detail"]
    async with connected(quick_server, voice="nobody") as socket:
        await socket.send_json({"type": "end"})
        _, [error] = await answer(socket)
        assert (error["code"], "nobody" in error["message"]) == ("bad_request", True)


async def test_one_more_stream_than_there_may_be_is_refused_before_the_upgrade() -> None:
    async with quickly_served(Settings(streams=1)) as quick, connected(quick) as first:
        with pytest.raises(aiohttp.WSServerHandshakeError) as raised:
            async with connected(quick):
                pass
        assert raised.value.status == 503
        assert raised.value.headers is not None
        assert int(raised.value.headers["Retry-After"]) >= 1
        await first.send_json({"input": "one"})
        assert len((await answer(first))[0]) == TONE


async def test_a_browser_that_is_quiet_between_requests_stays(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_stream_io, "IDLE_S", 0.05)
    monkeypatch.setattr(tts_stream_io, "QUIET_S", 10 * tts_stream_io.IDLE_S)
    async with connected(quick_server) as socket:
        await socket.send_json({"input": "one"})
        await answer(socket)
        await asyncio.sleep(0.2)
        await socket.send_json({"input": "two"})
        assert (await answer(socket))[1][0]["event"] == "done"
        _, [error] = await answer(socket)
        assert "nothing came for" in error["detail"]


async def test_a_client_that_takes_nothing_is_left(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_stream_io, "MAX_UNREAD_S", 0.3)
    monkeypatch.setattr(worker_stream_io, "CLOSE_S", 0.3)
    async with connected(quick_server) as socket:
        for _ in range(5):
            await socket.send_json({"input": "word " * 4000})
        connection = socket._conn
        assert connection is not None
        assert connection.transport is not None
        connection.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: quick_server.voice.opened)
        await until(lambda: not quick_server.server.admission.lanes["speech"].streams)
        assert quick_server.voice.open_streams == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_the_small_voices_speak_over_it(speech_server: Served) -> None:
    async with connected(speech_server) as socket:
        await socket.send_json({"input": "Good morning.", "voice": "alloy", "language": "en"})
        sound, [done] = await answer(socket)
        assert 0.5 * RATE_OUT < len(sound) < 3 * RATE_OUT
        assert np.abs(sound).max() > 1000
        assert done["samples"] == len(sound)
