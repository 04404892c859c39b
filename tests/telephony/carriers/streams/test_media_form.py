"""A message read by its stream's form says what its JSON says, whatever is done to it."""

import json
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.carriers.exotel.stream import ExotelStream
from offhook.telephony.carriers.plivo.stream import PlivoStream
from offhook.telephony.carriers.streams.json_text import MAX_FORMS
from offhook.telephony.carriers.streams.media_form import (
    MAX_FIELDS,
    MAX_LEARNED_CHARS,
    Field,
    Media,
    MediaForm,
    learn,
)
from offhook.telephony.carriers.streams.stream import CarrierError, Sound, Stopped
from offhook.telephony.carriers.telnyx.stream import TelnyxStream
from offhook.telephony.carriers.twilio.stream import TwilioStream

SOUND = bytes(range(160))
STARTS = {
    TwilioStream: {"start": {"streamSid": "MZ1", "callSid": "CA1"}},
    TelnyxStream: {"stream_id": "t-1", "start": {"call_control_id": "v3:1"}},
    ExotelStream: {"stream_sid": "e-1", "start": {"call_sid": "c-1"}},
    PlivoStream: {
        "start": {
            "streamId": "b77e037d-4119-44b5",
            "callId": "p",
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000},
        }
    },
}
every_stream = pytest.mark.parametrize("make", STARTS)


def media(make, payload=SOUND, chunk=7, timestamp=140, track="inbound"):
    """A media message as the carrier's documentation has it, without spaces."""
    text = b64encode(payload).decode()
    numbers = {"chunk": str(chunk), "timestamp": str(timestamp)}
    message = {
        TwilioStream: {
            "event": "media",
            "sequenceNumber": "3",
            "media": {"track": track, **numbers, "payload": text},
            "streamSid": "MZ1",
        },
        TelnyxStream: {
            "event": "media",
            "sequence_number": "3",
            "media": {"track": track, **numbers, "payload": text},
            "stream_id": "t-1",
        },
        ExotelStream: {
            "event": "media",
            "sequence_number": 3,
            "stream_sid": "e-1",
            "media": {"chunk": chunk, "timestamp": str(timestamp), "payload": text},
        },
        PlivoStream: {
            "sequenceNumber": 3,
            "streamId": "b77e037d-4119-44b5",
            "event": "media",
            "media": {"track": track, "timestamp": str(timestamp), "chunk": chunk, "payload": text},
            "extra_headers": "{}",
        },
    }[make]
    return json.dumps(message, separators=(",", ":"))


def started(make, learned=True):
    stream = make()
    stream.receive(json.dumps({"event": "start", **STARTS[make]}))
    if learned:
        assert stream.receive(media(make))
        assert stream.form is not None
    return stream


def outcome(receive, text):
    try:
        return receive(text)
    except CarrierError as error:
        return str(error)


@every_stream
def test_a_form_is_learned_from_the_first_message_and_read_without_json(make, monkeypatch):
    stream = started(make)
    monkeypatch.setattr(stream, "_parse", None)
    timestamp = None if make is PlivoStream else 160
    assert stream.receive(media(make, b"other", 8, 160)) == [Sound(b"other", 8, timestamp)]


EDITS = st.tuples(
    st.integers(0, 450),
    st.integers(0, 3),
    st.sampled_from(('"', "\\", "}", "=", "A", "é", " ", "0", "-", ".5", "1e2", ",", ":1")),
)
NUMBERS = st.integers(-1, 10**19) | st.sampled_from(("", "٣", "1.0", "007", "-0"))


@every_stream
@given(
    payload=st.binary(max_size=200),
    chunk=NUMBERS,
    timestamp=NUMBERS,
    track=st.sampled_from(("inbound", "outbound")),
    edits=st.lists(EDITS, max_size=3),
)
def test_a_changed_message_is_read_as_its_json_says(make, payload, chunk, timestamp, track, edits):
    text = media(make, payload, chunk, timestamp, track)
    for at, dropped, put in edits:
        text = text[:at] + put + text[at + dropped :]
    quick, slow = started(make), started(make)
    assert outcome(quick.receive, text) == outcome(slow._parse, text)
    assert quick.malformed == slow.malformed
    # Whatever was learned of it, too, holds for others.
    again = media(make, b"more", 9, 180)
    assert outcome(quick.receive, again) == outcome(slow._parse, again)


JSON = st.recursive(
    st.integers(-(10**20), 10**20) | st.floats() | st.text("0123456789,:-e", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("09a"), inner, max_size=3),
    max_leaves=6,
)


@given(
    more=st.dictionaries(st.sampled_from(("a", "1", "event", "track", "media")), JSON, max_size=3),
    inside=st.dictionaries(
        st.sampled_from(("chunk", "timestamp", "track", "7", "x")), JSON, max_size=4
    ),
    spaces=st.booleans(),
    numbers=st.lists(st.integers(0, 10**19).map(str), min_size=1, max_size=12),
)
def test_a_form_of_any_message_reads_others_as_their_json_says(more, inside, spaces, numbers):
    body = {**more, "event": "media", "media": {**inside, "payload": "AAECAwQF"}}
    text = json.dumps(body, separators=(", ", ": ") if spaces else (",", ":"))
    quick, slow = started(TwilioStream, learned=False), started(TwilioStream, learned=False)
    quick.receive(text)
    if quick.form is None:
        return
    literals = quick.form.literals
    fields = (numbers * len(literals))[: len(literals) - 1]
    at = quick.form.fields.index(Field.PAYLOAD)
    fields[at] = "BQQDAgEA"
    other = literals[0] + "".join(n + text for n, text in zip(fields, literals[1:], strict=True))
    assert quick.receive(other) == slow._parse(other)
    assert quick.malformed == slow.malformed


@pytest.mark.parametrize(
    "text",
    [
        media(TwilioStream).replace("inbound", "in\\u0062ound"),
        media(TwilioStream).replace("inbound", "inböund"),
        media(TwilioStream, bytes(MAX_LEARNED_CHARS)),
        media(TwilioStream, b"abc").replace("inbound", "YWJj"),
        media(TwilioStream, b"A").replace('QQ=="', 'QR==","x":"QQ=="'),
        media(TwilioStream).replace('"track"', '"a":[0' + ",5" * MAX_FIELDS + '],"track"'),
    ],
)
def test_what_gives_no_certain_form_is_parsed_each_time(text):
    stream = started(TwilioStream, learned=False)
    [sound] = stream.receive(text)
    assert stream.form is None
    assert stream.receive(text) == [sound]


def test_a_stream_that_keeps_changing_its_form_learns_only_some():
    stream = started(TwilioStream)
    for n in range(2 * MAX_FORMS):
        stream.receive(media(TwilioStream).replace("inbound", f"inbound_{'x' * n}"))
    assert stream._forms_learned == MAX_FORMS


def test_a_message_that_is_too_long_is_refused_in_its_form_too():
    with pytest.raises(CarrierError, match="exceeds"):
        started(TwilioStream).receive(media(TwilioStream, bytes(60_000)))


def test_after_the_stop_nothing_is_heard():
    stream = started(TwilioStream)
    [stopped] = stream.receive('{"event":"stop"}')
    assert isinstance(stopped, Stopped)
    assert stream.receive(media(TwilioStream)) == []


def test_a_number_whose_meaning_depends_on_its_value_gives_no_form():
    def parse(text):
        return Media(b"abc", 5 if "5" in text else None, None)

    assert learn('{"a":5,"payload":"YWJj"}', parse) is None


def test_numbers_without_quotes_have_no_leading_zeros():
    form = MediaForm(('{"c":', ',"p":"', '"}'), (Field.CHUNK, Field.PAYLOAD))
    assert form.read('{"c":10,"p":"YWJj"}') == Media(b"abc", 10, None)
    assert form.read('{"c":010,"p":"YWJj"}') is None
    assert form.read('{"c":10,"p":"YWJ"}') is None
