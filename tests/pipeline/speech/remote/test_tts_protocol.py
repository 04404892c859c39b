"""The messages of streaming synthesis: what is written is read, and nothing else is."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.speech.remote.tts_protocol import (
    Cancel,
    Close,
    Command,
    Done,
    End,
    Mark,
    Ready,
    Reason,
    ServerMessage,
    Text,
    command_text,
    parse_command,
    parse_query,
    parse_server,
    query,
    server_text,
)
from offhook.pipeline.speech.remote.worker_protocol import (
    Draining,
    Error,
    ErrorCode,
    ProtocolError,
)
from offhook.pipeline.speech.synthesizer import MAX_SEED, VoiceOptions

COUNTS = st.integers(0, 2**40)
PLAIN = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
OPTIONS = st.builds(
    VoiceOptions,
    PLAIN,
    st.one_of(st.just(""), st.from_regex("[a-z]{2,3}", fullmatch=True)),
    PLAIN,
    st.floats(0.5, 2),
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, MAX_SEED)),
    st.booleans(),
    st.booleans(),
)
COMMANDS = st.one_of(st.builds(Text, PLAIN), st.sampled_from([End(), Cancel(), Close()]))
SERVER_MESSAGES = st.one_of(
    st.builds(
        *(Ready, PLAIN, PLAIN, st.lists(PLAIN, max_size=3).map(tuple)),
        id=PLAIN,
        version=PLAIN,
        free=st.floats(0, 1),
    ),
    st.builds(Draining, st.floats(0, 1)),
    st.builds(Mark, COUNTS, PLAIN, COUNTS),
    st.builds(Done, COUNTS, COUNTS, st.sampled_from(Reason)),
    st.builds(Error, st.sampled_from(ErrorCode), PLAIN),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = ("type", "reply", "text", "samples", "reason", "voices", "engine", "model", "rate", "code")


@given(SERVER_MESSAGES)
def test_what_a_server_says_is_read_as_it_was_meant(message: ServerMessage) -> None:
    assert parse_server(server_text(message)) == message


@given(COMMANDS)
def test_what_a_client_says_is_read_as_it_was_meant(command: Command) -> None:
    assert parse_command(command_text(command)) == command


@given(OPTIONS)
def test_a_query_asks_for_what_was_meant(options: VoiceOptions) -> None:
    assert parse_query(query(options)) == options


def test_what_is_left_empty_is_as_usual() -> None:
    empty = dict.fromkeys(("voice", "language", "instructions", "speed", "seed"), "")
    assert parse_query(empty) == parse_query({}) == VoiceOptions()
    assert query(VoiceOptions()) == {}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"speed": "fast"}, "speed is 'fast', not a number"),
        ({"speed": "nan"}, "not a number"),
        ({"speed": "1e0"}, "not a number"),
        ({"speed": "3"}, "speed is 3.0, not 0.5..2.0"),
        ({"seed": "-1"}, "seed is '-1', not a number"),
        ({"seed": "9" * 19}, "seed is 9+, not 0.."),
        ({"seed": "9" * 20}, "not a number"),
        ({"live": "yes"}, "live is 'yes', not true or false"),
        ({"language": "English"}, "not a code such as 'en'"),
        ({"voice": "x" * 201}, "voice is over 200 characters"),
        ({"instructions": "x" * 2001}, "instructions are over 2000 characters"),
        ({"model": "large"}, "unknown parameter 'model'"),
    ],
)
def test_a_query_that_cannot_be_served_says_why(asked: dict[str, str], says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        parse_query(asked)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("end", "not JSON"),
        ('["my card number"]', "^the message is not an object$"),
        ('{"type": "flush"}', "type is 'flush', not one of text, end, cancel, close"),
        ('{"type": ["end"]}', "not one of"),
        ('{"type": "end", "now": 1}', "end has no field 'now'"),
        ('{"type": "text"}', "^text.text: Field required$"),
        ('{"type": "text", "text": ["my card number"]}', "^text.text is not a valid string$"),
        ('{"type": "text", "text": "a", "voice": "b"}', "text has no field 'voice'"),
        ('{"type": "text", "text": "\\ud800"}', "not JSON: "),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_command_that_is_none_says_why_and_not_what_was_to_be_spoken(
    text: str, says: str
) -> None:
    with pytest.raises(ProtocolError, match=says):
        parse_command(text)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"text": None}, "text is not a valid string"),
        ({"samples": -1}, "samples is not greater than or equal to 0"),
        ({"samples": True}, "samples is not a valid integer"),
        ({"reply": "0"}, "reply is not a valid integer"),
        ({"type": "marks"}, "not one of ready, mark, done, draining, error"),
        ({"type": "done", "reason": "tired"}, "reason is not 'end' or 'cancel'"),
        ({"type": "done", "reason": ["end"]}, "reason is not"),
        ({"type": "error", "code": "bad"}, "code is not 'bad_request', 'too_long'"),
        ({"type": "ready", "engine": "a", "model": "b", "voices": [1]}, "voices.0 is not a valid"),
        ({"type": "ready"}, "ready.engine: Field required"),
    ],
)
def test_a_server_that_speaks_otherwise_is_told_why(changes: dict[str, object], says: str) -> None:
    good = {"type": "mark", "reply": 0, "text": "go ", "samples": 10}
    assert parse_server(json.dumps(good)) == Mark(0, "go ", 10)
    with pytest.raises(ProtocolError, match=says):
        parse_server(json.dumps({**good, **changes}))


def test_a_newer_server_is_understood() -> None:
    text = '{"type":"done","reply":1,"samples":0,"reason":"end","mood":"gay"}'
    assert parse_server(text) == Done(1, 0, Reason.END)


@given(st.one_of(st.text(), JSON.map(json.dumps)))
def test_any_text_is_a_message_or_an_error(text: str) -> None:
    for parse in (parse_command, parse_server):
        with suppress(ProtocolError):
            assert parse(text) is not None


@given(
    st.dictionaries(st.sampled_from(FIELDS), JSON),
    st.sampled_from(["ready", "mark", "done", "error", "text"]),
)
def test_any_fields_are_a_message_or_an_error(table: dict[str, object], kind: str) -> None:
    text = json.dumps({**table, "type": kind})
    with suppress(ProtocolError):
        assert isinstance(parse_server(text), Ready | Mark | Done | Draining | Error)
    with suppress(ProtocolError):
        assert isinstance(parse_command(text), Text)


@given(
    st.dictionaries(
        st.sampled_from(["voice", "language", "speed", "seed", "live", "normalise", "x"]), st.text()
    )
)
def test_any_query_is_a_request_or_an_error(asked: dict[str, str]) -> None:
    with suppress(ProtocolError):
        assert 0.5 <= parse_query(asked).speed <= 2
