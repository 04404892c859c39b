"""Telnyx's messages as it documents them, and against Pipecat's reading of the same stream."""

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
from pipecat.serializers.telnyx import TelnyxFrameSerializer

from offhook.media.codecs.g711 import ALAW_LEVELS, ULAW_LEVELS
from offhook.telephony.carriers.streams.stream import (
    CarrierError,
    DtmfReceived,
    Format,
    Played,
    Sound,
    Started,
    Stopped,
)
from offhook.telephony.carriers.telnyx.stream import TelnyxStream

CONNECTED = {"event": "connected", "version": "1.0.0"}
STREAM_ID = "32DE0DEA-53CB-4B21-89A4-9E1819C043BC"
START = {
    "event": "start",
    "sequence_number": "1",
    "start": {
        "user_id": "3e6f995f-85f7-4705-9741-53b116d28237",
        "call_control_id": "v3:MdI91X4lWFEs7IgbBEOT9M4AigoY08M0WWZFISt1Yw2axZ",
        "call_session_id": "ff55a038-6f5d-11ef-9692-02420aeffb1f",
        "client_state": "aGF2ZSBhIG5pY2UgZGF5ID1d",
        "custom_parameters": {"agent": "frontdesk"},
        "from": "+13122010094",
        "to": "+13122123456",
        "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
    },
    "stream_id": STREAM_ID,
}
LEVELS = {"PCMU": ULAW_LEVELS, "PCMA": ALAW_LEVELS}


def media(payload, chunk="2", timestamp="5", track="inbound"):
    return {
        "event": "media",
        "sequence_number": "4",
        "media": {
            "track": track,
            "chunk": chunk,
            "timestamp": timestamp,
            "payload": b64encode(payload).decode(),
        },
        "stream_id": STREAM_ID,
    }


def dtmf(digit):
    return {
        "event": "dtmf",
        "occurred_at": "2022-09-19T09:26:37.000Z",
        "sequence_number": "5",
        "dtmf": {"digit": digit},
        "stream_id": STREAM_ID,
    }


def start_with(**changes):
    start = json.loads(json.dumps(START))
    start["start"] |= changes
    return json.dumps(start)


def coded(encoding, rate=8000, channels=1):
    told = {"encoding": encoding, "sample_rate": rate, "channels": channels}
    return start_with(media_format=told)


def started(format_out=None, encoding="PCMU"):
    stream = TelnyxStream(format_out)
    stream.receive(coded(encoding))
    return stream


async def pipecat_bot(encoding="PCMU"):
    parameters = TelnyxFrameSerializer.InputParams(auto_hang_up=False)
    bot = TelnyxFrameSerializer(STREAM_ID, encoding, encoding, params=parameters)
    await bot.setup(SimpleNamespace(audio_in_sample_rate=8000))
    return bot


def test_a_call_from_the_first_message_to_the_last():
    stream = TelnyxStream()
    sound = bytes(range(160))
    call = [
        CONNECTED,
        START,
        media(sound, "1", "5"),
        media(sound, "3", "45"),
        media(sound, "2", "25"),
        media(sound, "1", "5", track="outbound"),
        dtmf("*"),
        {
            "event": "mark",
            "sequence_number": "6",
            "stream_id": STREAM_ID,
            "mark": {"name": "0.800"},
        },
        {
            "event": "stop",
            "sequence_number": "7",
            "stop": {"user_id": "3e6f", "call_control_id": "v3:MdI9"},
            "stream_id": STREAM_ID,
        },
    ]
    heard = [event for message in call for event in stream.receive(json.dumps(message))]
    pcmu = Format("pcmu", 8000)
    assert heard == [
        Started(
            STREAM_ID,
            "v3:MdI91X4lWFEs7IgbBEOT9M4AigoY08M0WWZFISt1Yw2axZ",
            pcmu,
            pcmu,
            caller="+13122010094",
            called="+13122123456",
            parameters={"agent": "frontdesk", "client_state": "aGF2ZSBhIG5pY2UgZGF5ID1d"},
        ),
        Sound(sound, 1, 5),
        Sound(sound, 3, 45),
        Sound(sound, 2, 25),
        DtmfReceived("*"),
        Played("0.800"),
        Stopped("Telnyx ended the stream"),
    ]
    assert stream.malformed == 0


@pytest.mark.parametrize(
    ("encoding", "rate", "expected"),
    [
        ("PCMU", 8000, Format("pcmu", 8000)),
        ("PCMA", "8000", Format("pcma", 8000)),
        ("L16", 16000, Format("l16", 16000)),
        ("L16", "8000", Format("l16", 8000)),
        ("OPUS", 16000, Format("opus", 48000)),
        ("opus", 48000, Format("opus", 48000)),
    ],
)
def test_sound_comes_as_the_start_message_says(encoding, rate, expected):
    [event] = TelnyxStream().receive(coded(encoding, rate))
    assert event.format_in == event.format_out == expected


def test_what_telnyx_takes_is_what_it_was_asked_to_take():
    wide = Format("l16", 16000)
    [event] = TelnyxStream(wide).receive(coded("PCMA"))
    assert event.format_in == Format("pcma", 8000)
    assert event.format_out == wide


@pytest.mark.parametrize(
    ("encoding", "rate", "channels", "text"),
    [
        ("G722", 8000, 1, "G722 at 8000 Hz.*stream_codec must be PCMU, PCMA, L16 or OPUS"),
        ("AMR-WB", 16000, 1, "AMR-WB at 16000 Hz"),
        ("PCMU", 16000, 1, "PCMU at 16000 Hz"),
        ("L16", 44100, 1, "L16 at 44100 Hz"),
        ("L16", "fast", 1, "L16 at None Hz"),
        ("PCMU", 8000, 2, "several channels"),
    ],
)
def test_a_codec_that_is_not_ours_ends_the_stream_by_its_name(encoding, rate, channels, text):
    with pytest.raises(CarrierError, match=text):
        TelnyxStream().receive(coded(encoding, rate, channels))


def test_custom_parameters_may_be_a_list_as_they_were_given():
    given_so = [{"name": "agent", "value": "frontdesk"}, {"name": "n", "value": 3}, "rubbish"]
    [event] = TelnyxStream().receive(start_with(custom_parameters=given_so, client_state=None))
    assert event.parameters == {"agent": "frontdesk", "n": "3"}


def test_an_error_after_the_start_is_kept_and_the_stream_goes_on():
    stream = started()
    error = {"code": 100004, "title": "invalid_media", "detail": "Media is invalid"}
    text = json.dumps({"event": "error", "stream_id": STREAM_ID, "payload": error})
    assert stream.receive(text) == []
    assert stream.last_error == "100004 invalid_media Media is invalid"
    assert len(stream.receive(json.dumps(media(b"\xff" * 160)))) == 1
    assert stream.receive('{"event":"error"}') == []
    assert stream.last_error == "an unnamed error"


def test_an_error_instead_of_the_start_ends_the_stream():
    error = {"code": 100002, "title": "unknown_error"}
    with pytest.raises(CarrierError, match="Telnyx cannot stream: 100002 unknown_error"):
        TelnyxStream().receive(json.dumps({"event": "error", "payload": error}))


def test_what_we_say_has_the_documented_fields_and_no_others():
    stream = started()
    said = [*stream.sound(b"\x00\x01\x02"), *stream.mark("3.400"), *stream.clear()]
    assert [json.loads(m) for m in said] == [
        {"event": "media", "media": {"payload": "AAEC"}},
        {"event": "mark", "mark": {"name": "3.400"}},
        {"event": "clear"},
    ]


def test_pipecat_takes_the_same_start_for_telnyxs():
    assert _detect_transport_type_from_message(START) == "telnyx"


@settings(max_examples=50)
@given(sound=st.binary(min_size=1, max_size=400), encoding=st.sampled_from(["PCMU", "PCMA"]))
async def test_pipecat_hears_the_same_sound(sound, encoding):
    text = json.dumps(media(sound))
    frame = await (await pipecat_bot(encoding)).deserialize(text)
    assert isinstance(frame, InputAudioRawFrame)
    [event] = started(encoding=encoding).receive(text)
    decoded = LEVELS[encoding][np.frombuffer(event.payload, np.uint8)]
    np.testing.assert_array_equal(np.frombuffer(frame.audio, np.int16), decoded)


@pytest.mark.parametrize("digit", list("0123456789*#"))
async def test_pipecat_hears_the_same_keys(digit):
    text = json.dumps(dtmf(digit))
    frame = await (await pipecat_bot()).deserialize(text)
    assert isinstance(frame, InputDTMFFrame)
    assert started().receive(text) == [DtmfReceived(frame.button.value)]


@pytest.mark.parametrize("encoding", ["PCMU", "PCMA"])
async def test_pipecat_says_the_same_and_interrupts_the_same(encoding):
    bot, stream = await pipecat_bot(encoding), started(encoding=encoding)
    tone = (8000 * np.sin(np.arange(160) * 0.3)).astype(np.int16)
    theirs = json.loads(await bot.serialize(OutputAudioRawFrame(tone.tobytes(), 8000, 1)))
    # Their encoder rounds otherwise here and there; the message around the codes is compared.
    [ours] = stream.sound(b64decode(theirs["media"]["payload"]))
    assert json.loads(ours) == theirs
    [cut] = stream.clear()
    assert json.loads(cut) == json.loads(await bot.serialize(InterruptionFrame()))
