"""AudioHook's messages as Genesys documents them, and against Pipecat's side of a session."""

import json
from itertools import count
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
from pipecat.serializers.genesys import GenesysAudioHookSerializer

from offhook.media.codecs.g711 import ULAW_LEVELS
from offhook.media.leg import LegError
from offhook.telephony.carriers.genesys.stream import (
    MAX_MEDIA,
    MAX_MESSAGE_BYTES,
    PROBE,
    GenesysStream,
)
from offhook.telephony.carriers.streams.stream import (
    Answer,
    CarrierError,
    Cleared,
    DtmfReceived,
    Format,
    Held,
    Sound,
    Started,
    Stopped,
)

SESSION = "e160e428-53e2-487c-977d-96989bf5c99d"
CONVERSATION = "090eaa2f-72fa-480a-83e0-8667ff89c0ec"
ORGANIZATION = "d7934305-0972-4844-938e-9060eef73d05"
PCMU = Format("pcmu", 8000)


def medium(*channels, encoding="PCMU", rate=8000):
    return {"type": "audio", "format": encoding, "channels": list(channels), "rate": rate}


ALONE, BOTH = medium("external"), medium("external", "internal")
SWAPPED = medium("internal", "external")
OPEN = {
    "organizationId": ORGANIZATION,
    "conversationId": CONVERSATION,
    "participant": {
        "id": "883efee8-3d6c-4537-b500-6d7ca4b92fa0",
        "ani": "+1-555-555-1234",
        "aniName": "John Doe",
        "dnis": "+1-800-555-6789",
    },
    "media": [BOTH, ALONE],
    "language": "en-US",
    "inputVariables": {"agent": "frontdesk", "tier": "gold"},
}


class Client:
    """Genesys Cloud's side: numbers what it sends, and says what it has seen."""

    def __init__(self, session=SESSION):
        self.session, self.seq, self.serverseq = session, count(1), 0

    def __call__(self, kind, position="PT0S", **parameters):
        return json.dumps(
            {
                "version": "2",
                "id": self.session,
                "type": kind,
                "seq": next(self.seq),
                "serverseq": self.serverseq,
                "position": position,
                "parameters": parameters,
            }
        )


def opened(**changed):
    client, stream = Client(), GenesysStream()
    stream.receive(client("open", **(OPEN | changed)))
    return client, stream


def answer(events):
    [event] = [event for event in events if isinstance(event, Answer)]
    return json.loads(event.message)


async def pipecat_bot():
    bot = GenesysAudioHookSerializer()
    await bot.setup(SimpleNamespace(audio_in_sample_rate=8000))
    return bot


def without(message, *names):
    return {name: value for name, value in message.items() if name not in names}


def test_a_session_from_open_to_closed():
    client, stream = Client(), GenesysStream()
    sound = bytes(range(200))
    session = [
        client("open", **OPEN),
        client("ping", rtt="PT0.05S"),
        sound,
        client("playback_started"),
        sound,
        client("dtmf", digit="#"),
        client("update", language="es-ES"),
        client("playback_completed"),
        client("paused"),
        client("resumed", start="PT0.05S", discarded="PT1.5S"),
        sound,
        client("close", reason="end"),
        client("ping"),
        sound,
    ]
    heard = [event for message in session for event in stream.receive(message)]
    common = {"version": "2", "id": SESSION}
    started = Started(
        SESSION,
        CONVERSATION,
        PCMU,
        PCMU,
        caller="+1-555-555-1234",
        called="+1-800-555-6789",
        parameters={"agent": "frontdesk", "tier": "gold"},
    )
    told = [json.loads(event.message) if isinstance(event, Answer) else event for event in heard]
    assert told == [
        common
        | {"type": "opened", "seq": 1, "clientseq": 1}
        | {"parameters": {"startPaused": False, "media": [ALONE]}},
        started,
        common | {"type": "pong", "seq": 2, "clientseq": 2, "parameters": {}},
        Sound(sound, timestamp_ms=0),
        Sound(sound, timestamp_ms=25),
        DtmfReceived("#"),
        Cleared(),
        Held(True),
        Held(False),
        Sound(sound, timestamp_ms=1550),
        common | {"type": "closed", "seq": 3, "clientseq": 9, "parameters": {}},
        Stopped("Genesys closed the session: end"),
    ]
    assert stream.malformed == 0


@pytest.mark.parametrize(
    ("offer", "taken"),
    [
        ([BOTH, medium("external"), medium("internal")], ALONE),
        ([medium("internal"), BOTH], BOTH),
        ([SWAPPED], SWAPPED),
        ([medium("external", encoding="L16"), ALONE | {"extra": 1}], ALONE),
        ([ALONE | {"rate": "8000"}], ALONE),
    ],
)
def test_the_caller_alone_is_taken_before_the_caller_among_others(offer, taken):
    stream = GenesysStream()
    events = stream.receive(Client()("open", **(OPEN | {"media": offer})))
    assert answer(events)["parameters"]["media"] == [taken]


@pytest.mark.parametrize(
    ("offer", "heard"),
    [
        (BOTH, bytes([1, 2, 3])),
        (SWAPPED, bytes([11, 12, 13])),
        (ALONE, bytes([1, 11, 2, 12, 3, 13, 4])),
    ],
)
def test_only_the_callers_channel_is_heard(offer, heard):
    _, stream = opened(media=[offer])
    assert stream.receive(bytes([1, 11, 2, 12, 3, 13, 4])) == [Sound(heard, timestamp_ms=0)]


@pytest.mark.parametrize(
    "offer",
    [
        [],
        None,
        "PCMU",
        [None, 5, []],
        [medium("internal")],
        [medium("external", encoding="L16")],
        [medium("external", rate=16000)],
        [ALONE | {"type": "video"}],
        [ALONE | {"channels": "external"}],
        [medium("internal")] * MAX_MEDIA + [ALONE],
    ],
)
def test_without_a_medium_of_use_the_client_is_asked_to_leave(offer):
    client, stream = Client(), GenesysStream()
    events = stream.receive(client("open", **(OPEN | {"media": offer})))
    refusal = answer(events)
    assert len(events) == 1
    assert (refusal["type"], refusal["parameters"]["reason"]) == ("disconnect", "error")
    assert stream.receive(bytes(160)) == []
    assert stream.hang_up("no call") == []
    left = stream.receive(client("close", reason="disconnect"))
    assert answer(left)["type"] == "closed"
    assert left[1:] == [
        Stopped(
            "Genesys closed the session: disconnect (it offered no PCMU with the external channel)"
        )
    ]


@pytest.mark.parametrize("media", [[BOTH, ALONE], []])
def test_a_probe_of_the_connection_is_answered_and_is_no_call(media):
    client, stream = Client(), GenesysStream()
    nobody = {"id": PROBE, "ani": "", "aniName": "", "dnis": ""}
    events = stream.receive(
        client("open", **(OPEN | {"conversationId": PROBE, "participant": nobody, "media": media}))
    )
    assert [type(event) for event in events] == [Answer]
    assert answer(events)["type"] == "opened"
    assert answer(events)["parameters"]["media"] == [ALONE] * bool(media)
    assert answer(stream.receive(client("ping")))["type"] == "pong"
    assert stream.receive(bytes(160)) == []
    left = stream.receive(client("close", reason="end"))
    assert answer(left)["type"] == "closed"
    assert left[1:] == [Stopped("Genesys only probed the connection")]


def test_what_we_say_is_numbered_and_names_the_last_message_seen():
    client, stream = opened()
    assert stream.sound(b"\x01\x02") == [b"\x01\x02"]
    stream.receive(client("dtmf", digit="1"))
    [cut] = stream.clear()
    assert json.loads(cut) == {
        "version": "2",
        "type": "event",
        "seq": 2,
        "clientseq": 2,
        "id": SESSION,
        "parameters": {"entities": [{"type": "barge_in", "data": {}}]},
    }
    [bye] = stream.hang_up("the agent said goodbye")
    assert without(json.loads(bye), "version", "id") == {
        "type": "disconnect",
        "seq": 3,
        "clientseq": 2,
        "parameters": {"reason": "completed", "info": "the agent said goodbye"},
    }
    assert stream.hang_up("again") == []
    left = stream.receive(client("close", reason="disconnect"))
    assert answer(left)["seq"] == 4
    assert stream.opening() == stream.mark("0.800") == []
    with pytest.raises(LegError):
        stream.press("1")


def test_our_messages_stay_below_the_rate_that_genesys_takes():
    """Five binary messages a second in the long run."""
    assert 1000 / GenesysStream.packet_ms <= 5
    assert GenesysStream.lead_ms >= 2 * GenesysStream.packet_ms


def test_a_pause_is_told_once_and_a_position_never_goes_back():
    client, stream = opened()
    assert stream.receive(client("resumed", start="PT0S", discarded="PT0S")) == []
    assert stream.receive(client("paused")) == [Held(True)]
    assert stream.receive(client("paused")) == []
    assert stream.receive(bytes(80)) == [Sound(bytes(80), timestamp_ms=0)]
    assert stream.receive(client("discarded", start="PT0.001S", discarded="PT.002S")) == []
    assert stream.receive(bytes(80)) == [Sound(bytes(80), timestamp_ms=10)]
    assert stream.receive(client("discarded", start="PT2S", discarded="PT0.25S")) == []
    assert stream.receive(bytes(80)) == [Sound(bytes(80), timestamp_ms=2250)]
    assert stream.malformed == 0


def test_an_error_told_by_the_client_is_named_when_it_leaves():
    client, stream = opened()
    told = client("error", code=429, message="Rate limit exceeded", retryAfter="PT3S")
    assert stream.receive(told) == []
    assert stream.receive(bytes(80)) == [Sound(bytes(80), timestamp_ms=0)]
    left = stream.receive(client("close", reason="error"))
    assert left[1:] == [
        Stopped("Genesys closed the session: error (error 429 Rate limit exceeded)")
    ]


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("dtmf", {"digit": "E"}),
        ("dtmf", {}),
        ("discarded", {"start": "1.5", "discarded": "PT1S"}),
        ("discarded", {"start": "PTS", "discarded": "PT1S"}),
        ("discarded", {"start": "PT" + "9" * 10 + "S", "discarded": "PT1S"}),
    ],
)
def test_one_message_of_garbage_is_counted_and_the_call_goes_on(kind, parameters):
    client, stream = opened()
    assert stream.receive(client(kind, **parameters)) == []
    assert stream.malformed == 1
    assert stream.receive(bytes(80)) == [Sound(bytes(80), timestamp_ms=0)]


def test_a_message_without_a_new_number_is_passed_over():
    client, stream = opened()
    pressed = client("dtmf", digit="1")
    assert stream.receive(pressed) == [DtmfReceived("1")]
    assert stream.receive(pressed) == []
    assert stream.receive(json.dumps(without(json.loads(pressed), "seq"))) == []
    assert stream.receive("[]") == stream.receive("{}") == stream.receive("no JSON") == []
    assert stream.malformed == 5


def test_messages_to_come_are_passed_over_and_counted_in():
    client, stream = opened()
    assert stream.receive(client("weather", sun=True)) == []
    assert answer(stream.receive(client("ping")))["clientseq"] == 3
    assert stream.malformed == 0


def test_the_same_open_again_changes_nothing():
    client, stream = opened()
    assert stream.receive(client("open", **OPEN)) == []


OTHER = Client("5f1e3c0a-0000-4000-8000-000000000000")


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([bytes(160)], "sound before open"),
        ([Client()("dtmf", digit="1")], "another message before open"),
        ([Client("")("open", **OPEN)], "open for another session"),
        ([Client()("open", **OPEN), OTHER("open", **OPEN)], "open for another session"),
        ([Client()("open", **OPEN), OTHER("close")], "close for another session"),
        ([Client()("open", **OPEN), bytes(MAX_MESSAGE_BYTES + 1)], "exceeds|too long"),
        (["5" * (MAX_MESSAGE_BYTES + 1)], "exceeds|too long"),
    ],
)
def test_what_breaks_the_protocol_ends_the_stream_by_its_name(messages, text):
    stream = GenesysStream()
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
PARAMETERS = st.one_of(
    st.just(OPEN),
    st.just(OPEN | {"conversationId": PROBE}),
    st.just({"digit": "1", "start": "PT1S", "discarded": "PT2S", "reason": "end"}),
    st.builds(
        lambda key, value: OPEN | {key: value},
        st.sampled_from(["media", "conversationId", "participant", "inputVariables"]),
        JSON,
    ),
    JSON,
)
KINDS = st.sampled_from(sorted(GenesysStream.kinds | {"update", "playback_started"}))
OPENING = st.builds(lambda told: ("open", told), PARAMETERS)
MESSAGES = st.one_of(
    st.tuples(KINDS, PARAMETERS), JSON.map(json.dumps), st.text(), st.binary(max_size=64)
)


@given(st.lists(OPENING, max_size=1), st.lists(MESSAGES, max_size=12))
def test_whatever_comes_the_stream_starts_once_and_before_any_sound(opening, messages):
    stream, events, seq = GenesysStream(), [], count(1)
    for message in opening + messages:
        if isinstance(message, tuple):
            kind, told = message
            message = json.dumps(
                {"id": SESSION, "type": kind, "seq": next(seq), "parameters": told}
            )
        try:
            events += stream.receive(message)
        except CarrierError:
            break
    starts = [at for at, event in enumerate(events) if isinstance(event, Started)]
    others = [
        at
        for at, event in enumerate(events)
        if isinstance(event, Sound | DtmfReceived | Held | Cleared)
    ]
    assert len(starts) <= 1
    assert not others or starts[0] < others[0]
    assert all(event.payload for event in events if isinstance(event, Sound))
    answers = [json.loads(event.message) for event in events if isinstance(event, Answer)]
    assert [message["seq"] for message in answers] == list(range(1, len(answers) + 1))
    stops = [at for at, event in enumerate(events) if isinstance(event, Stopped)]
    assert stops in ([], [len(events) - 1])


@pytest.mark.parametrize("media", [[ALONE], [BOTH]])
async def test_pipecat_answers_the_same(media):
    """Its answers carry a position besides, which the protocol gives to the client's only."""
    bot, stream, client = await pipecat_bot(), GenesysStream(), Client()
    messages = [client("open", **(OPEN | {"media": media})), client("ping"), client("close")]
    for message in messages:
        theirs = (await bot.deserialize(message)).message
        ours = answer(stream.receive(message))
        assert ours == without(theirs, "position")


@settings(max_examples=50)
@given(st.sampled_from([[ALONE], [BOTH]]), st.binary(min_size=2, max_size=400))
async def test_pipecat_hears_the_same_sound(media, sound):
    sound = sound[: len(sound) // 2 * 2]
    bot, stream, opening = (
        await pipecat_bot(),
        GenesysStream(),
        Client()("open", **OPEN | {"media": media}),
    )
    await bot.deserialize(opening)
    stream.receive(opening)
    frame = await bot.deserialize(sound)
    assert isinstance(frame, InputAudioRawFrame)
    [event] = stream.receive(sound)
    decoded = ULAW_LEVELS[np.frombuffer(event.payload, np.uint8)]
    np.testing.assert_array_equal(np.frombuffer(frame.audio, np.int16), decoded)


@pytest.mark.parametrize("digit", list("0123456789*#"))
async def test_pipecat_hears_the_same_keys(digit):
    client, stream = opened()
    text = client("dtmf", digit=digit)
    frame = await (await pipecat_bot()).deserialize(text)
    assert isinstance(frame, InputDTMFFrame)
    assert stream.receive(text) == [DtmfReceived(frame.button.value)]


async def test_pipecat_says_the_same_and_interrupts_the_same():
    bot, stream, opening = await pipecat_bot(), GenesysStream(), Client()("open", **OPEN)
    await bot.deserialize(opening)
    stream.receive(opening)
    tone = (8000 * np.sin(np.arange(160) * 0.3)).astype(np.int16)
    theirs = await bot.serialize(OutputAudioRawFrame(tone.tobytes(), 8000, 1))
    assert stream.sound(theirs) == [theirs]
    [cut] = stream.clear()
    interruption = json.loads(await bot.serialize(InterruptionFrame()))
    assert json.loads(cut) == without(interruption, "position")
