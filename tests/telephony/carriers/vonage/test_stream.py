"""Vonage's messages as it documents them, and against Pipecat's reading of the same stream."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipecat.frames.frames import (
    InputAudioRawFrame,
    InputDTMFFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
)
from pipecat.serializers.vonage import VonageFrameSerializer

from offhook.media.leg import LegError
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
from offhook.telephony.carriers.vonage.stream import MAX_MESSAGE_BYTES, VonageStream

CONNECTED = {
    "event": "websocket:connected",
    "content-type": "audio/l16;rate=16000",
    "uuid": "aaaaaaaa-bbbb-cccc-dddd-0123456789ab",
    "from": "447700900000",
    "to": "447700900001",
    "agent": "frontdesk",
}
DTMF = {"event": "websocket:dtmf", "digit": "5", "duration": 260}
CLEARED = {"event": "websocket:cleared"}
NOTIFY = {"event": "websocket:notify", "payload": {"name": "0.800"}}
SOUND = bytes(range(256)) * 2 + bytes(128)


def started(rate=16000):
    stream = VonageStream()
    told = CONNECTED | {"content-type": f"audio/l16;rate={rate}"}
    stream.receive(json.dumps(told))
    return stream


async def pipecat_bot(rate=16000):
    bot = VonageFrameSerializer(VonageFrameSerializer.InputParams(vonage_sample_rate=rate))
    await bot.setup(SimpleNamespace(audio_in_sample_rate=rate))
    return bot


def test_a_call_from_the_first_message_to_the_last():
    stream = VonageStream()
    gone = {"event": "websocket:disconnected", "method": "delete"}
    call = [CONNECTED, SOUND, DTMF, NOTIFY, CLEARED, gone, SOUND]
    heard = [
        event
        for message in call
        for event in stream.receive(message if isinstance(message, bytes) else json.dumps(message))
    ]
    l16 = Format("l16", 16000)
    headers = {k: v for k, v in CONNECTED.items() if k not in ("event", "content-type")}
    assert heard == [
        Started(
            CONNECTED["uuid"],
            CONNECTED["uuid"],
            l16,
            l16,
            caller="447700900000",
            called="447700900001",
            parameters=headers,
        ),
        Sound(SOUND),
        DtmfReceived("5"),
        Played("0.800"),
        Cleared(),
        Stopped("Vonage ended the stream"),
    ]
    assert stream.malformed == 0


@pytest.mark.parametrize(("rate", "size"), [(8000, 320), (16000, 640), (24000, 960)])
def test_sound_goes_out_in_messages_of_20_ms_the_last_filled_with_silence(rate, size):
    stream = started(rate)
    sound = b"\x01\x02" * (size + 5)
    assert stream.sound(sound) == [
        b"\x01\x02" * (size // 2),
        b"\x01\x02" * (size // 2),
        b"\x01\x02" * 5 + bytes(size - 10),
    ]
    assert stream.sound(b"") == []


def test_a_stream_without_headers_of_ours_is_taken():
    [event] = VonageStream().receive(
        json.dumps({"event": "websocket:connected", "content-type": "audio/l16;rate=8000"})
    )
    assert event == Started("", "", Format("l16", 8000), Format("l16", 8000))


def test_what_we_say_has_the_documented_fields():
    stream = started()
    assert [json.loads(m) for m in stream.mark("3.400")] == [
        {"action": "notify", "payload": {"name": "3.400"}}
    ]
    assert [json.loads(m) for m in stream.clear()] == [{"action": "clear"}]
    assert stream.opening() == stream.hang_up("done") == []
    with pytest.raises(LegError):
        stream.press("1")


def test_a_mark_comes_back_as_it_was_sent():
    stream = started()
    [asked] = stream.mark("3.400")
    payload = json.loads(asked)["payload"]
    back = json.dumps({"event": "websocket:notify", "payload": payload})
    assert stream.receive(back) == [Played("3.400")]


@pytest.mark.parametrize(
    "message",
    [
        DTMF | {"digit": "E"},
        DTMF | {"digit": None},
        NOTIFY | {"payload": "done"},
        NOTIFY | {"payload": {"reply_id": "1"}},
        {"digit": "5"},
        "hello",
    ],
)
def test_one_message_of_garbage_is_counted_and_the_call_goes_on(message):
    stream = started()
    assert stream.receive(json.dumps(message)) == []
    assert stream.malformed == 1
    assert stream.receive(SOUND) == [Sound(SOUND)]


def test_empty_sound_and_unknown_events_are_passed_over():
    stream = started()
    assert stream.receive(b"") == []
    assert stream.receive(json.dumps({"event": "websocket:media:update", "active": True})) == []
    assert stream.malformed == 0


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([SOUND], "sound before websocket:connected"),
        ([json.dumps(DTMF)], "sent websocket:dtmf before websocket:connected"),
        ([json.dumps(CONNECTED), json.dumps(CONNECTED)], "second stream"),
        ([json.dumps(CONNECTED), bytes(MAX_MESSAGE_BYTES + 2)], "exceeds|too long"),
        ([json.dumps(CONNECTED), "5" * (MAX_MESSAGE_BYTES + 1)], "exceeds|too long"),
        ([json.dumps({"event": "websocket:connected"})], "unnamed type"),
        ([json.dumps(CONNECTED | {"content-type": "audio/l16;rate=44100"})], "rate=44100"),
        ([json.dumps(CONNECTED | {"content-type": "audio/opus"})], "audio/opus"),
    ],
)
def test_what_breaks_the_protocol_ends_the_stream_by_its_name(messages, text):
    stream = VonageStream()
    *before, last = messages
    for message in before:
        stream.receive(message)
    with pytest.raises(CarrierError, match=text):
        stream.receive(last)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
VALID = [CONNECTED, DTMF, NOTIFY, CLEARED, {"event": "websocket:disconnected"}]
MANGLED = st.builds(
    lambda message, key, value: message | {key: value},
    st.sampled_from(VALID),
    st.sampled_from(["event", "content-type", "digit", "payload", "uuid", "from"]),
    JSON,
)
MESSAGES = st.one_of(
    st.just(json.dumps(CONNECTED)),
    st.sampled_from(VALID).map(json.dumps),
    MANGLED.map(json.dumps),
    JSON.map(json.dumps),
    st.text(),
    st.binary(),
)


@given(st.lists(MESSAGES, max_size=12))
def test_whatever_comes_the_stream_starts_once_and_before_any_sound(messages):
    stream, events = VonageStream(), []
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


@settings(max_examples=50)
@given(sound=st.binary(min_size=2, max_size=640).filter(lambda sound: len(sound) % 2 == 0))
async def test_pipecat_hears_the_same_sound(sound):
    frame = await (await pipecat_bot()).deserialize(sound)
    assert isinstance(frame, InputAudioRawFrame)
    assert started().receive(sound) == [Sound(frame.audio)]


@pytest.mark.parametrize("digit", list("0123456789*#"))
async def test_pipecat_hears_the_same_keys(digit):
    text = json.dumps(DTMF | {"digit": digit})
    frame = await (await pipecat_bot()).deserialize(text)
    assert isinstance(frame, InputDTMFFrame)
    assert started().receive(text) == [DtmfReceived(frame.button.value)]


@pytest.mark.parametrize("rate", [8000, 16000, 24000])
async def test_pipecat_says_the_same_and_interrupts_the_same(rate):
    bot, stream = await pipecat_bot(rate), started(rate)
    packet = bytes(i % 251 for i in range(rate // 50 * 2))
    assert stream.sound(packet) == [await bot.serialize(OutputAudioRawFrame(packet, rate, 1))]
    [cut] = stream.clear()
    assert json.loads(cut) == json.loads(await bot.serialize(InterruptionFrame()))
