"""What the JSON carriers share: hostile text is bounded, and the stream's order holds."""

import json
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.carriers.exotel.stream import ExotelStream
from offhook.telephony.carriers.streams.json_text import (
    MAX_PARAMETERS,
    decode_base64,
    number,
    read_object,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.streams.stream import CarrierError, Sound, Started, Stopped
from offhook.telephony.carriers.telnyx.stream import TelnyxStream
from offhook.telephony.carriers.twilio.stream import TwilioStream

STARTS = {
    TwilioStream: {
        "event": "start",
        "streamSid": "MZ1",
        "start": {"streamSid": "MZ1", "callSid": "CA1"},
    },
    TelnyxStream: {"event": "start", "stream_id": "t-1", "start": {"call_control_id": "v3:1"}},
    ExotelStream: {"event": "start", "stream_sid": "e-1", "start": {"call_sid": "c-1"}},
}
every_stream = pytest.mark.parametrize("make", STARTS)

media = st.builds(
    lambda payload, chunk: {
        "event": "media",
        "media": {"payload": b64encode(payload).decode(), "chunk": str(chunk)},
    },
    st.binary(max_size=400),
    st.integers(0, 100),
)
small = [
    {"event": "connected", "protocol": "Call", "version": "1.0.0"},
    {"event": "dtmf", "dtmf": {"digit": "5"}},
    {"event": "mark", "mark": {"name": "0.100"}},
    {"event": "stop", "stop": {}},
    {"event": "error", "payload": {"code": 100002}},
]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = ["media", "start", "dtmf", "mark", "stop", "payload", "streamSid", "stream_id"]
noise = st.dictionaries(st.sampled_from(FIELDS), anything, max_size=5)
events = st.sampled_from(
    ["start", "media", "dtmf", "mark", "stop", "error", "no-such", "", None, 7]
)


def hear(stream, messages):
    """All events up to the end of the stream, which an error is too."""
    heard = []
    for message in messages:
        try:
            heard += stream.receive(message)
        except CarrierError:
            return heard
    return heard


def assert_in_order(heard):
    """Started once and first; Stopped once and last; no sound without bytes."""
    kinds = [type(event) for event in heard]
    assert kinds.count(Started) <= 1
    assert kinds.count(Stopped) <= 1
    if kinds:
        assert kinds[0] in (Started, Stopped)
    if Stopped in kinds:
        assert kinds[-1] is Stopped
    assert all(event.payload for event in heard if isinstance(event, Sound))


@every_stream
@given(data=st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_or_bytes_raise_nothing_but_carrier_errors(make, data):
    stream = make()
    hear(stream, [data])
    hear(stream, [json.dumps(STARTS[make]), data])


@every_stream
@given(bodies=st.lists(st.tuples(events, noise), max_size=8), started=st.booleans())
def test_any_json_raises_nothing_but_carrier_errors(make, bodies, started):
    first = [json.dumps(STARTS[make])] if started else []
    stream = make()
    heard = hear(stream, first + [json.dumps({**body, "event": name}) for name, body in bodies])
    assert_in_order(heard)


@every_stream
@given(data=st.data())
def test_valid_messages_in_any_order_start_once_and_before_any_sound(make, data):
    valid = media | st.sampled_from([*small, STARTS[make]])
    broken = st.text(max_size=30) | valid.map(lambda m: json.dumps(m)[:-1])
    one = valid.map(json.dumps) | broken
    assert_in_order(hear(make(), data.draw(st.lists(one, max_size=12))))


@every_stream
def test_a_million_bytes_are_refused_unread(make):
    stream = make()
    with pytest.raises(CarrierError, match="exceeds"):
        stream.receive("[" * 1_000_000)
    with pytest.raises(CarrierError, match="exceeds"):
        stream.receive(b"\xff" * 1_000_000)


@every_stream
def test_nesting_without_end_is_only_malformed(make):
    stream = make()
    assert stream.receive("[" * 60_000) == []
    assert stream.receive('{"event":' * 7_000) == []
    assert stream.malformed == 2


@every_stream
def test_what_is_no_object_with_an_event_is_counted(make):
    stream = make()
    for text in ("", "null", "[]", "7", '"media"', "{}", '{"event":null}', '{"event":["media"]}'):
        assert stream.receive(text) == []
    assert stream.malformed == 8


@every_stream
def test_events_that_are_not_known_are_passed_over_in_silence(make):
    stream = make()
    assert stream.receive('{"event":"connected"}') == []
    assert stream.receive('{"event":"invented-later","media":{}}') == []
    stream.receive(json.dumps(STARTS[make]))
    assert stream.receive('{"event":"connected"}') == []
    assert stream.receive('{"event":"invented-later"}') == []
    assert stream.malformed == 0


@every_stream
@pytest.mark.parametrize("event", ["media", "dtmf", "mark"])
def test_nothing_may_come_before_the_start(make, event):
    with pytest.raises(CarrierError, match=f"sent {event} before start"):
        make().receive(json.dumps({"event": event, event: {"payload": "AAAA"}}))


@every_stream
def test_the_same_start_twice_is_once_and_another_is_an_error(make):
    stream = make()
    start = STARTS[make]
    assert len(stream.receive(json.dumps(start))) == 1
    assert stream.receive(json.dumps(start)) == []
    other = json.dumps(start).replace(stream._stream_id, "another")
    with pytest.raises(CarrierError, match="second stream"):
        stream.receive(other)


@every_stream
def test_a_start_without_ids_is_an_error(make):
    start = STARTS[make]
    for lacking in (
        {"event": "start"},
        {"event": "start", "start": []},
        {**start, "start": {}},
        {"event": "start", "start": {"callSid": "x", "call_sid": "x", "call_control_id": "x"}},
        json.loads(json.dumps(start).replace("1", "1" * 300)),
    ):
        with pytest.raises(CarrierError, match="start message"):
            make().receive(json.dumps(lacking))


@every_stream
def test_after_the_stop_nothing_counts_any_more(make):
    stream = make()
    stream.receive(json.dumps(STARTS[make]))
    [stopped] = stream.receive('{"event":"stop","stop":{"reason":"callended"}}')
    assert isinstance(stopped, Stopped)
    assert stopped.reason.endswith("ended the stream: callended")
    for late in (json.dumps(STARTS[make]), '{"event":"stop"}', "rubbish", "x" * 1_000_000):
        assert stream.receive(late) == []
    assert stream.malformed == 0


@every_stream
def test_sound_that_is_no_base64_is_dropped_and_the_stream_goes_on(make):
    stream = make()
    stream.receive(json.dumps(STARTS[make]))
    for payload in ("!!!!", "AAA", "AA==AAAA", "ÄÖÜß", "AAAA\n", 7, None, {}, ["AAAA"]):
        assert stream.receive(json.dumps({"event": "media", "media": {"payload": payload}})) == []
    assert stream.receive('{"event":"media"}') == []
    assert stream.receive('{"event":"media","media":"AAAA"}') == []
    assert stream.malformed == 11
    assert stream.receive('{"event":"media","media":{"payload":""}}') == []
    assert stream.malformed == 11
    good = '{"event":"media","media":{"payload":"AAAA"}}'
    assert stream.receive(good) == [Sound(bytes(3))]


@every_stream
def test_what_we_say_ourselves_is_not_heard(make):
    stream = make()
    stream.receive(json.dumps(STARTS[make]))
    for track in ("outbound", "outbound_track"):
        said = {"event": "media", "media": {"track": track, "payload": "AAAA"}}
        assert stream.receive(json.dumps(said)) == []


@every_stream
def test_keys_that_no_telephone_has_are_counted(make):
    stream = make()
    stream.receive(json.dumps(STARTS[make]))
    for digit in ("E", "12", "", None, {}, -1, 1.5):
        assert stream.receive(json.dumps({"event": "dtmf", "dtmf": {"digit": digit}})) == []
    for mark in ({}, {"name": ""}, {"name": ["a"]}, {"name": "n" * 300}, "0.100"):
        assert stream.receive(json.dumps({"event": "mark", "mark": mark})) == []
    assert stream.malformed == 12


def test_numbers_are_read_from_text_or_number_and_from_nothing_else():
    assert [number(v) for v in ("0", "17", 17, "007")] == [0, 17, 17, 7]
    for other in ("", "-1", -1, "1.5", 1.5, True, None, [], "9" * 19, 10**18, "٣", "1e3", " 1"):
        assert number(other) is None


def test_text_is_bounded_and_stands_on_one_line():
    assert text_of("CA1", 3) == "CA1"
    assert text_of("CA12", 3) == ""
    assert text_of(42, 3) == "42"
    assert text_of("a\nb\ud800c\x7f", 10) == "a b c "
    for other in (None, True, 1.5, [], {}):
        assert text_of(other, 10) == ""


def test_parameters_are_bounded_texts():
    told = {"name": "Ann", "n": 7, "flag": True, "deep": {}, "": "x", "long": "x" * 5000}
    assert texts_of(told) == {"name": "Ann", "n": "7", "long": ""}
    assert len(texts_of({str(n): "x" for n in range(1000)})) == MAX_PARAMETERS
    assert texts_of("") == texts_of(None) == texts_of([["a", "b"]]) == {}


def test_an_object_is_read_from_text_and_from_bytes():
    assert read_object('{"a":1}', 7) == {"a": 1}
    assert read_object(b'{"a":1}', 7) == {"a": 1}
    assert read_object(b"\xff\xfe", 7) is None
    with pytest.raises(CarrierError, match="8 bytes exceeds 7"):
        read_object('{"a":12}', 7)


@given(st.binary(max_size=300))
def test_sound_comes_back_out_of_base64(payload):
    assert decode_base64(b64encode(payload).decode()) == payload
