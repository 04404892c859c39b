"""Plivo's messages as it documents them, and against Pipecat's reading of the same stream."""

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
from pipecat.serializers.plivo import PlivoFrameSerializer

from offhook.media.codecs.g711 import ULAW_LEVELS
from offhook.media.leg import LegError
from offhook.telephony.carriers.plivo.stream import MAX_MESSAGE_BYTES, PlivoStream
from offhook.telephony.carriers.streams.stream import (
    CarrierError,
    Cleared,
    DtmfReceived,
    Format,
    Played,
    Sound,
    Started,
    Stopped,
)

STREAM_ID = "87654321-4321-4321-4321-cba987654321"
CALL_ID = "12345678-1234-1234-1234-123456789abc"
PCMU = Format("pcmu", 8000)
PLAYED = {"event": "playedStream", "sequenceNumber": 7, "streamId": STREAM_ID, "name": "0.800"}
CLEARED = {"event": "clearedAudio", "sequenceNumber": 8, "streamId": STREAM_ID}
STOP = {"event": "stop", "sequenceNumber": 9, "streamId": STREAM_ID, "reason": "hangup"}


def start(encoding="audio/x-mulaw", rate=8000, headers="userId=12345;sessionId=abc-xyz"):
    return {
        "event": "start",
        "sequenceNumber": 1,
        "start": {
            "callId": CALL_ID,
            "streamId": STREAM_ID,
            "accountId": "MA0123",
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": encoding, "sampleRate": rate},
        },
        "extra_headers": headers,
    }


def media(payload, chunk=41, track="inbound"):
    return {
        "event": "media",
        "sequenceNumber": 42,
        "streamId": STREAM_ID,
        "media": {
            "track": track,
            "timestamp": "1705312200000",
            "chunk": chunk,
            "payload": b64encode(payload).decode(),
        },
        "extra_headers": "userId=12345;sessionId=abc-xyz",
    }


def dtmf(digit):
    return {
        "event": "dtmf",
        "sequenceNumber": 5,
        "streamId": STREAM_ID,
        "dtmf": {"track": "inbound", "digit": digit, "timestamp": "1705312201000"},
    }


def started(**told):
    stream = PlivoStream()
    stream.receive(json.dumps(start(**told)))
    return stream


async def pipecat_bot():
    parameters = PlivoFrameSerializer.InputParams(auto_hang_up=False)
    bot = PlivoFrameSerializer(STREAM_ID, params=parameters)
    await bot.setup(SimpleNamespace(audio_in_sample_rate=8000))
    return bot


def test_a_call_from_the_first_message_to_the_last():
    stream = PlivoStream()
    sound = bytes(range(160))
    call = [start(), media(sound, 1), media(sound, "2"), dtmf("#"), PLAYED, CLEARED, STOP]
    heard = [event for message in call for event in stream.receive(json.dumps(message))]
    assert heard == [
        Started(
            STREAM_ID,
            CALL_ID,
            PCMU,
            PCMU,
            parameters={"userId": "12345", "sessionId": "abc-xyz"},
        ),
        Sound(sound, 1),
        Sound(sound, 2),
        DtmfReceived("#"),
        Played("0.800"),
        Cleared(),
        Stopped("Plivo ended the stream"),
    ]
    assert stream.malformed == 0
    assert stream.receive(json.dumps(media(sound))) == []


@pytest.mark.parametrize(
    ("encoding", "rate", "spoken"),
    [
        ("audio/x-mulaw", 8000, PCMU),
        ("audio/x-l16", "8000", Format("l16", 8000)),
        ("audio/x-l16", 16000, Format("l16", 16000)),
        ("audio/x-l16;rate=16000", 16000, Format("l16", 16000)),
    ],
)
def test_sound_is_coded_both_ways_as_the_start_says(encoding, rate, spoken):
    stream = PlivoStream()
    [event] = stream.receive(json.dumps(start(encoding, rate)))
    assert (event.format_in, event.format_out) == (spoken, spoken)
    [said] = stream.sound(b"\x00\x01\x02\x03")
    assert json.loads(said)["media"] == {
        "contentType": encoding.partition(";")[0],
        "sampleRate": spoken.rate,
        "payload": "AAECAw==",
    }


@pytest.mark.parametrize(
    ("told", "parameters"),
    [
        ("test1=12,test2=1=3", {"test1": "12", "test2": "1=3"}),
        ("{X-PH-test1=12;X-PH-test2=123}", {"X-PH-test1": "12", "X-PH-test2": "123"}),
        ('{"test1": "12", "n": 3}', {"test1": "12", "n": "3"}),
        ({"test1": "12"}, {"test1": "12"}),
        ("{}", {}),
        ("", {}),
        (None, {}),
        (["a"], {}),
    ],
)
def test_extra_headers_are_the_parameters_however_they_are_written(told, parameters):
    [event] = PlivoStream().receive(json.dumps(start(headers=told)))
    assert event.parameters == parameters


def test_what_we_say_has_the_documented_fields():
    stream = started()
    address = {"streamId": STREAM_ID}
    assert [json.loads(m) for m in stream.mark("3.400")] == [
        {"event": "checkpoint", **address, "name": "3.400"}
    ]
    assert [json.loads(m) for m in stream.clear()] == [{"event": "clearAudio", **address}]
    assert [json.loads(m) for m in stream.press("#")] == [{"event": "sendDTMF", "dtmf": "#"}]
    with pytest.raises(LegError, match="not a DTMF digit"):
        stream.press("12")
    assert stream.opening() == stream.hang_up("done") == []


def test_our_own_voice_is_not_heard():
    stream = started()
    assert stream.receive(json.dumps(media(b"\x01", track="outbound"))) == []
    assert stream.malformed == 0


@pytest.mark.parametrize(
    "message",
    [
        media(b"\x01") | {"media": {"payload": "AAEC*"}},
        media(b"\x01") | {"media": {"payload": 5}},
        media(b"\x01") | {"media": []},
        dtmf("E"),
        dtmf("12"),
        PLAYED | {"name": ["a"]},
        {"nothing": "said"},
        [start()],
    ],
)
def test_one_message_of_garbage_is_counted_and_the_call_goes_on(message):
    stream = started()
    assert stream.receive(json.dumps(message)) == []
    assert stream.malformed == 1
    assert stream.receive(json.dumps(media(b"\x01", 3))) == [Sound(b"\x01", 3)]


def test_empty_sound_and_unknown_events_are_passed_over():
    stream = started()
    assert stream.receive(json.dumps(media(b""))) == []
    assert stream.receive(json.dumps({"event": "weather", "sun": True})) == []
    assert stream.malformed == 0


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([media(b"\x01")], "sent media before start"),
        ([PLAYED], "sent playedStream before start"),
        ([dtmf("1")], "sent dtmf before start"),
        ([start(), start() | {"start": {"streamId": "another"}}], "second stream"),
        ([{"event": "start"}], "does not describe"),
        ([start() | {"start": {"callId": CALL_ID}}], "not supported"),
        ([start() | {"start": {"streamId": STREAM_ID}}], "no callId"),
        ([start("audio/opus", 48000)], "audio/opus at 48000 Hz"),
        ([start("audio/x-mulaw", 16000)], "audio/x-mulaw at 16000 Hz"),
        ([{"event": "a" * MAX_MESSAGE_BYTES}], "exceeds|too long"),
    ],
)
def test_what_breaks_the_protocol_ends_the_stream_by_its_name(messages, text):
    stream = PlivoStream()
    *before, last = messages
    for message in before:
        stream.receive(json.dumps(message))
    with pytest.raises(CarrierError, match=text):
        stream.receive(json.dumps(last))


def test_the_same_start_again_changes_nothing():
    stream = started()
    assert stream.receive(json.dumps(start("audio/x-l16", 16000))) == []
    assert json.loads(stream.sound(b"\x01")[0])["media"]["contentType"] == "audio/x-mulaw"


VALID = [start(), media(b"\x01\x02"), dtmf("1"), PLAYED, CLEARED, STOP, {"event": "weather"}]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
KNOWN = st.sampled_from(sorted({m["event"] for m in VALID}))
MANGLED = st.builds(
    lambda message, key, value: message | {key: value},
    st.sampled_from(VALID) | st.builds(lambda event: {"event": event}, KNOWN),
    st.sampled_from(["event", "start", "media", "dtmf", "name", "streamId", "extra_headers"]),
    JSON,
)
MESSAGES = st.one_of(
    st.sampled_from(VALID).map(json.dumps),
    MANGLED.map(json.dumps),
    JSON.map(json.dumps),
    st.text(),
    st.binary(),
)


@given(st.lists(MESSAGES, max_size=12))
def test_whatever_comes_the_stream_starts_once_and_before_any_sound(messages):
    stream, events = PlivoStream(), []
    for message in messages:
        try:
            events += stream.receive(message)
        except CarrierError:
            break
    starts = [at for at, event in enumerate(events) if isinstance(event, Started)]
    others = [
        at for at, event in enumerate(events) if isinstance(event, Sound | Played | DtmfReceived)
    ]
    assert len(starts) <= 1
    assert not others or starts[0] < others[0]
    assert all(event.payload for event in events if isinstance(event, Sound))
    stops = [at for at, event in enumerate(events) if isinstance(event, Stopped)]
    assert stops in ([], [len(events) - 1])


def test_pipecat_takes_the_same_start_for_plivos():
    assert _detect_transport_type_from_message(start()) == "plivo"


@settings(max_examples=50)
@given(sound=st.binary(min_size=1, max_size=400))
async def test_pipecat_hears_the_same_sound(sound):
    text = json.dumps(media(sound))
    frame = await (await pipecat_bot()).deserialize(text)
    assert isinstance(frame, InputAudioRawFrame)
    [event] = started().receive(text)
    decoded = ULAW_LEVELS[np.frombuffer(event.payload, np.uint8)]
    np.testing.assert_array_equal(np.frombuffer(frame.audio, np.int16), decoded)


@pytest.mark.parametrize("digit", list("0123456789*#"))
async def test_pipecat_hears_the_same_keys(digit):
    text = json.dumps(dtmf(digit))
    frame = await (await pipecat_bot()).deserialize(text)
    assert isinstance(frame, InputDTMFFrame)
    assert started().receive(text) == [DtmfReceived(frame.button.value)]


async def test_pipecat_says_the_same_and_interrupts_the_same():
    bot, stream = await pipecat_bot(), started()
    tone = (8000 * np.sin(np.arange(160) * 0.3)).astype(np.int16)
    theirs = json.loads(await bot.serialize(OutputAudioRawFrame(tone.tobytes(), 8000, 1)))
    # Their encoder rounds otherwise here and there; the message around the codes is compared.
    [ours] = stream.sound(b64decode(theirs["media"]["payload"]))
    assert json.loads(ours) == theirs
    [cut] = stream.clear()
    assert json.loads(cut) == json.loads(await bot.serialize(InterruptionFrame()))
