"""Twilio's messages as it documents them, and against Pipecat's reading of the same stream."""

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
from pipecat.serializers.twilio import TwilioFrameSerializer

from offhook.media.codecs.g711 import ULAW_LEVELS
from offhook.media.leg import LegError
from offhook.telephony.carriers.streams.stream import (
    CarrierError,
    DtmfReceived,
    Format,
    Played,
    Sound,
    Started,
    Stopped,
)
from offhook.telephony.carriers.twilio.stream import TwilioStream

CONNECTED = {"event": "connected", "protocol": "Call", "version": "1.0.0"}
START = {
    "event": "start",
    "sequenceNumber": "1",
    "start": {
        "accountSid": "AC0123",
        "streamSid": "MZ0123",
        "callSid": "CA0123",
        "tracks": ["inbound"],
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        "customParameters": {"agent": "frontdesk", "count": "3"},
    },
    "streamSid": "MZ0123",
}
PCMU = Format("pcmu", 8000)


def media(payload, chunk="1", timestamp="5"):
    return {
        "event": "media",
        "sequenceNumber": "3",
        "media": {
            "track": "inbound",
            "chunk": chunk,
            "timestamp": timestamp,
            "payload": b64encode(payload).decode(),
        },
        "streamSid": "MZ0123",
    }


def dtmf(digit):
    return {
        "event": "dtmf",
        "streamSid": "MZ0123",
        "sequenceNumber": "5",
        "dtmf": {"track": "inbound_track", "digit": digit},
    }


def started():
    stream = TwilioStream()
    stream.receive(json.dumps(CONNECTED))
    stream.receive(json.dumps(START))
    return stream


async def pipecat_bot():
    parameters = TwilioFrameSerializer.InputParams(auto_hang_up=False)
    bot = TwilioFrameSerializer("MZ0123", params=parameters)
    await bot.setup(SimpleNamespace(audio_in_sample_rate=8000))
    return bot


def test_a_call_from_the_first_message_to_the_last():
    stream = TwilioStream()
    sound = bytes(range(160))
    call = [
        CONNECTED,
        START,
        media(sound, "1", "5"),
        media(sound, "2", "25"),
        dtmf("#"),
        {"event": "mark", "sequenceNumber": "6", "streamSid": "MZ0123", "mark": {"name": "0.800"}},
        {
            "event": "stop",
            "sequenceNumber": "7",
            "streamSid": "MZ0123",
            "stop": {"accountSid": "AC0123", "callSid": "CA0123"},
        },
    ]
    heard = [event for message in call for event in stream.receive(json.dumps(message))]
    assert heard == [
        Started(
            "MZ0123",
            "CA0123",
            PCMU,
            PCMU,
            parameters={"agent": "frontdesk", "count": "3"},
        ),
        Sound(sound, 1, 5),
        Sound(sound, 2, 25),
        DtmfReceived("#"),
        Played("0.800"),
        Stopped("Twilio ended the stream"),
    ]
    assert stream.malformed == 0


def test_numbers_may_be_numbers():
    stream = started()
    message = media(b"\xff" * 160)
    message["media"] |= {"chunk": 7, "timestamp": 125}
    assert stream.receive(json.dumps(message)) == [Sound(b"\xff" * 160, 7, 125)]
    assert stream.receive(json.dumps(dtmf(5))) == [DtmfReceived("5")]


def test_what_we_say_has_the_documented_fields_and_no_others():
    stream = started()
    address = {"streamSid": "MZ0123"}
    assert [json.loads(m) for m in stream.sound(b"\x00\x01\x02")] == [
        {"event": "media", **address, "media": {"payload": "AAEC"}}
    ]
    assert [json.loads(m) for m in stream.mark("3.400")] == [
        {"event": "mark", **address, "mark": {"name": "3.400"}}
    ]
    assert [json.loads(m) for m in stream.clear()] == [{"event": "clear", **address}]
    assert stream.opening() == stream.hang_up("done") == []
    with pytest.raises(LegError):
        stream.press("1")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"encoding": "audio/x-l16"}, "audio/x-l16 at 8000 Hz"),
        ({"sampleRate": "16000"}, "audio/x-mulaw at 16000 Hz"),
        ({"sampleRate": "fast"}, "at None Hz"),
        ({"channels": 2}, "in 2 channels"),
    ],
)
def test_another_format_ends_the_stream_by_its_name(wrong, text):
    start = json.loads(json.dumps(START))
    start["start"]["mediaFormat"] |= wrong
    with pytest.raises(CarrierError, match=text):
        TwilioStream().receive(json.dumps(start))


def test_pipecat_takes_the_same_start_for_twilios():
    assert _detect_transport_type_from_message(START) == "twilio"


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


def compact(message):
    """As Twilio writes it."""
    return json.dumps(message, separators=(",", ":"))


def test_sound_before_the_start_is_an_error_in_twilio_s_words_too():
    with pytest.raises(CarrierError):
        TwilioStream().receive(compact(media(b"sound")))


def test_after_the_stop_sound_in_twilio_s_words_is_not_heard():
    stream = started()
    assert stream.receive(compact(media(b"sound"))) == [Sound(b"sound", 1, 5)]
    stream.receive(compact({"event": "stop", "streamSid": "MZ0123", "stop": {}}))
    assert stream.receive(compact(media(b"sound"))) == []
