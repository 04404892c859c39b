"""WS /v1/audio/speech/ws by the protocol nari.speech.v1: a reply whose text is still written."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.speech.remote.worker_protocol import ProtocolError
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.web.config.programs import Speech as Settings
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.speech_request import parse
from offhook.web.speech_api.sockets.live_speech import PROTOCOL, LiveSpeech, Start
from offhook.web.speech_api.sockets.speech_socket import PATH, known_voice
from tests.support.waiting import HANGS_S, until
from tests.web.speech_api.conftest import WORD_S, Quick, quickly_served

AUDIO = {"encoding": "pcm_s16le", "sample_rate": 24000, "channels": 1}
START = {"type": "request.start", "voice": "LOW", "language": "English", "response_format": "pcm"}
TONE_BYTES = 2 * round(WORD_S * RATE_OUT)


def append(sequence: int, text: str) -> dict[str, Any]:
    return {"type": "input_text.append", "sequence": sequence, "text": text}


def end(sequence: int) -> dict[str, Any]:
    return {"type": "input_text.end", "sequence": sequence}


CANCEL = {"type": "response.cancel"}


def protocol() -> LiveSpeech:
    return LiveSpeech(lambda body: parse(body, "pcm"), lambda name: known_voice(name, ["low"]))


# --- what is meant ---


def test_a_start_has_the_options_of_a_request() -> None:
    meant = protocol().parse(json.dumps({**START, "seed": 7}))
    assert meant == Start(VoiceOptions("low", "en", seed=7))


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (["{"], "not JSON"),
        ([append(0, "Hi")], "input_text.append before request.start"),
        ([end(0)], "input_text.end before request.start"),
        ([START, START], "one request a connection"),
        ([{**START, "input": "Hi"}], "has no input"),
        ([{**START, "texture": 1}], "there is no field"),
        ([{**START, "response_format": "mp3"}], "response_format is"),
        ([{**START, "speed": 3}], "speed is 0.5..2"),
        ([START, append(1, "Hi")], "sequence is 1, not 0"),
        ([START, append(0, "Hi"), end(0)], "sequence is 0, not 1"),
        ([START, end(0), append(1, "Hi")], "input_text.append after input_text.end"),
        ([START, {"type": "input_text.flush"}], "type is 'input_text.flush'"),
        ([START, {**append(0, "Hi"), "speed": 2}], "has no field 'speed'"),
    ],
)
def test_what_is_out_of_order_is_refused(messages: list[Any], says: str) -> None:
    socket = protocol()
    *before, last = [each if isinstance(each, str) else json.dumps(each) for each in messages]
    for message in before:
        socket.parse(message)
    with pytest.raises((ProtocolError, ApiError), match=says):
        socket.parse(last)


# --- on a server ---


@asynccontextmanager
async def connected(quick: Quick, **query: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    opening = quick.client.ws_connect(PATH, protocols=(PROTOCOL,), params=query, compress=0)
    async with opening as socket, asyncio.timeout(HANGS_S):
        assert socket.protocol == PROTOCOL
        yield socket


async def rest(socket: aiohttp.ClientWebSocketResponse) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Sound and messages until the server closes."""
    sound, messages = [], []
    async for frame in socket:
        if frame.type is aiohttp.WSMsgType.BINARY:
            sound.append(frame.data)
        else:
            messages.append(frame.json())
    return sound, messages


async def configure(socket: aiohttp.ClientWebSocketResponse) -> None:
    assert await socket.receive_json() == {
        "type": "session.created",
        "protocol": "nari.speech.v1",
        "audio": AUDIO,
    }
    await socket.send_json(START)
    assert await socket.receive_json() == {"type": "request.configured"}


def ack(event: str, sequence: int) -> dict[str, Any]:
    return {"type": "input_text.ack", "event": event, "sequence": sequence}


async def test_text_is_spoken_while_it_is_written(quick_server: Quick) -> None:
    async with connected(quick_server) as socket:
        await configure(socket)
        await socket.send_json(append(0, "one "))
        first = [await socket.receive() for _ in range(3)]
        binary = aiohttp.WSMsgType.BINARY
        assert [json.loads(m.data)["type"] for m in first if m.type is not binary] == [
            "input_text.ack",
            "response.started",
        ]
        assert sum(len(m.data) for m in first if m.type is binary) == TONE_BYTES
        await socket.send_json(append(1, "two"))
        assert await socket.receive_json() == ack("input_text.append", 1)
        await socket.send_json(end(2))
        assert await socket.receive_json() == ack("input_text.end", 2)
        sound, [done] = await rest(socket)
        started = json.loads(first[1].data)
        assert started["audio"] == AUDIO
        assert started["request_id"]
        assert done == {
            "type": "response.done",
            "request_id": started["request_id"],
            "stop_reason": "stop",
            "audio_chunks": 1 + len(sound),
        }
        assert sum(map(len, sound)) == TONE_BYTES
        assert socket.close_code == aiohttp.WSCloseCode.OK
    assert quick_server.voice.opened[-1].options.voice == "low"
    await until(lambda: not quick_server.server.admission.lanes["speech"].streams)


async def test_a_cancel_ends_the_reply_and_frees_the_voice(quick_server: Quick) -> None:
    quick_server.voice.slow_s = 0.02
    async with connected(quick_server) as socket:
        await configure(socket)
        await socket.send_json(append(0, "word " * 200))
        while (await socket.receive()).type is not aiohttp.WSMsgType.BINARY:
            pass
        await socket.send_json(CANCEL)
        sound, messages = await rest(socket)
    assert messages[-1]["stop_reason"] == "cancelled"
    assert messages[-1]["audio_chunks"] == 1 + len(sound) < 100
    await until(lambda: quick_server.voice.open_streams == 0)


@pytest.mark.parametrize(
    ("messages", "says", "code"),
    [
        ([append(0, "Hi")], "before request.start", 1008),
        ([{**START, "voice": "nobody"}, append(0, "Hi ")], "no voice is called", 1008),
        ([START, end(0)], "nothing to say", 1008),
        ([START, b"sound"], "not text", 1008),
    ],
)
async def test_an_error_is_the_last_message(
    quick_server: Quick, messages: list[Any], says: str, code: int
) -> None:
    async with connected(quick_server) as socket:
        for message in messages:
            if isinstance(message, bytes):
                await socket.send_bytes(message)
            else:
                await socket.send_json(message)
        sound, told = await rest(socket)
        assert not sound
        assert told[-1]["type"] == "error"
        assert told[-1]["error"]["code"] == "bad_request"
        assert says in told[-1]["error"]["message"]
        assert socket.close_code == code


async def test_options_in_the_address_are_refused_and_so_is_one_too_many() -> None:
    async with quickly_served(Settings(streams=1)) as quick:
        with pytest.raises(aiohttp.WSServerHandshakeError) as raised:
            async with connected(quick, voice="low"):
                pass
        assert raised.value.status == 400
        async with connected(quick) as socket:
            await configure(socket)
            with pytest.raises(aiohttp.WSServerHandshakeError) as raised:
                async with connected(quick):
                    pass
            assert raised.value.status in (429, 503)
