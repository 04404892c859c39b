"""Exotel's messages as it documents them, and against Pipecat's reading of the same stream."""

import json
from base64 import b64decode, b64encode
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipecat.frames.frames import (
    InputAudioRawFrame,
    InputDTMFFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
)
from pipecat.runner.utils import _detect_transport_type_from_message
from pipecat.serializers.exotel import ExotelFrameSerializer

from offhook.telephony.carriers.exotel.stream import ExotelStream
from offhook.telephony.carriers.streams.stream import (
    CarrierError,
    DtmfReceived,
    Format,
    Played,
    Sound,
    Started,
    Stopped,
)

START = {
    "event": "start",
    "sequence_number": "1",
    "stream_sid": "MZ0456",
    "start": {
        "stream_sid": "MZ0456",
        "call_sid": "CA0456",
        "account_sid": "AC0456",
        "from": "+919876543210",
        "to": "+918047491899",
        "custom_parameters": {"agent": "frontdesk"},
        "media_format": {"encoding": "audio/x-raw", "sample_rate": "8000", "bit_rate": "16"},
    },
}
L16 = Format("l16", 8000)


def media(payload, chunk="2", timestamp="200"):
    return {
        "event": "media",
        "sequence_number": "3",
        "stream_sid": "MZ0456",
        "media": {
            "chunk": chunk,
            "timestamp": timestamp,
            "payload": b64encode(payload).decode(),
        },
    }


def dtmf(digit):
    return {
        "event": "dtmf",
        "sequence_number": "7",
        "stream_sid": "MZ0456",
        "dtmf": {"digit": digit, "duration": "100"},
    }


def start_as(media_format):
    return json.dumps({**START, "start": {**START["start"], "media_format": media_format}})


def started(media_format=None):
    stream = ExotelStream()
    stream.receive('{"event":"connected"}')
    stream.receive(start_as(media_format) if media_format else json.dumps(START))
    return stream


def payloads(messages):
    return [b64decode(json.loads(m)["media"]["payload"]) for m in messages]


async def pipecat_bot():
    bot = ExotelFrameSerializer("MZ0456")
    await bot.setup(SimpleNamespace(audio_in_sample_rate=8000))
    return bot


def test_a_call_from_the_first_message_to_the_last():
    stream = ExotelStream()
    sound = bytes(1600)
    call = [
        {"event": "connected"},
        START,
        media(sound, "1", "100"),
        media(sound, "2", "200"),
        dtmf("5"),
        {"event": "mark", "sequence_number": "15", "stream_sid": "MZ0456", "mark": {"name": "a"}},
        {
            "event": "stop",
            "sequence_number": "20",
            "stream_sid": "MZ0456",
            "stop": {"call_sid": "CA0456", "account_sid": "AC0456", "reason": "callended"},
        },
    ]
    heard = [event for message in call for event in stream.receive(json.dumps(message))]
    assert heard == [
        Started(
            "MZ0456",
            "CA0456",
            L16,
            L16,
            caller="+919876543210",
            called="+918047491899",
            parameters={"agent": "frontdesk"},
        ),
        Sound(sound, 1, 100),
        Sound(sound, 2, 200),
        DtmfReceived("5"),
        Played("a"),
        Stopped("Exotel ended the stream: callended"),
    ]
    assert stream.malformed == 0


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, L16),
        ({"encoding": "base64", "sample_rate": "8000", "bit_rate": "128kbps"}, L16),
        ({"encoding": "raw/slin", "sample_rate": 16000}, Format("l16", 16000)),
        ({"encoding": "audio/x-raw", "sample_rate": "24000"}, Format("l16", 24000)),
        ({"encoding": "audio/L16;rate=16000"}, Format("l16", 16000)),
        ({"encoding": "audio/x-mulaw;rate=8000"}, Format("pcmu", 8000)),
        ({"encoding": "mulaw", "sample_rate": "8000"}, Format("pcmu", 8000)),
    ],
)
def test_sound_comes_as_the_start_message_says(told, expected):
    [event] = ExotelStream().receive(start_as(told))
    assert event.format_in == event.format_out == expected


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"encoding": "audio/x-raw", "sample_rate": "44100"}, "audio/x-raw at 44100 Hz"),
        ({"encoding": "audio/x-raw", "sample_rate": "fast"}, "at None Hz"),
        ({"encoding": "opus", "sample_rate": "8000"}, "opus at 8000 Hz"),
        ({"encoding": "mulaw", "sample_rate": "16000"}, "mulaw at 16000 Hz"),
    ],
)
def test_another_format_ends_the_stream_by_its_name(told, text):
    with pytest.raises(CarrierError, match=text):
        ExotelStream().receive(start_as(told))


def test_parameters_that_are_not_there_are_an_empty_text():
    start = json.loads(json.dumps(START))
    start["start"]["custom_parameters"] = ""
    [event] = ExotelStream().receive(json.dumps(start))
    assert event.parameters == {}


def test_a_packet_of_ours_is_one_message_as_it_is():
    stream = started()
    packet = bytes(range(200)) * (stream.packet_ms * 8 * 2 // 200)
    assert payloads(stream.sound(packet)) == [packet]


@given(size=st.integers(1, 250_000))
def test_pieces_are_multiples_of_320_bytes_up_to_100_kb_and_nothing_is_lost(size):
    said = bytes([1]) * size
    pieces = payloads(started().sound(said))
    assert all(len(piece) % 320 == 0 and 0 < len(piece) <= 100_000 for piece in pieces)
    sent = b"".join(pieces)
    assert sent[:size] == said
    assert sent[size:] == bytes(len(sent) - size)
    assert len(sent) - size < 320


def test_mu_law_is_filled_up_with_its_own_silence():
    stream = started({"encoding": "mulaw", "sample_rate": "8000"})
    assert payloads(stream.sound(b"\x01" * 319)) == [b"\x01" * 319 + b"\xff"]


def test_marks_and_clear_name_the_stream():
    stream = started()
    assert [json.loads(m) for m in [*stream.mark("3.400"), *stream.clear()]] == [
        {"event": "mark", "stream_sid": "MZ0456", "mark": {"name": "3.400"}},
        {"event": "clear", "stream_sid": "MZ0456"},
    ]


def test_pipecat_takes_the_same_start_for_exotels():
    assert _detect_transport_type_from_message(START) == "exotel"


@settings(max_examples=50)
@given(sound=st.binary(min_size=2, max_size=400).filter(lambda b: len(b) % 2 == 0))
async def test_pipecat_hears_the_same_sound(sound):
    text = json.dumps(media(sound))
    frame = await (await pipecat_bot()).deserialize(text)
    assert isinstance(frame, InputAudioRawFrame)
    [event] = started().receive(text)
    assert event.payload == frame.audio


@pytest.mark.parametrize("digit", list("0123456789*#"))
async def test_pipecat_hears_the_same_keys(digit):
    text = json.dumps(dtmf(digit))
    frame = await (await pipecat_bot()).deserialize(text)
    assert isinstance(frame, InputDTMFFrame)
    assert started().receive(text) == [DtmfReceived(frame.button.value)]


async def test_pipecat_says_the_same_and_interrupts_the_same():
    bot, stream = await pipecat_bot(), started()
    tone = (8000 * np.sin(np.arange(800) * 0.3)).astype("<i2").tobytes()
    theirs = json.loads(await bot.serialize(OutputAudioRawFrame(tone, 8000, 1)))
    [ours] = stream.sound(tone)
    assert json.loads(ours) == theirs
    [cut] = stream.clear()
    assert json.loads(cut) == json.loads(await bot.serialize(InterruptionFrame()))
