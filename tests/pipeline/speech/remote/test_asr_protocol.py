"""The messages of streaming recognition: what is written is read, and nothing else is."""

import json
import math
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions, Word
from offhook.pipeline.speech.remote.asr_protocol import (
    RATES,
    Command,
    Ready,
    RecognitionResult,
    Request,
    ServerMessage,
    TurnAnswer,
    TurnQuestion,
    command_text,
    parse_command,
    parse_server,
    server_text,
)
from offhook.pipeline.speech.remote.worker_protocol import (
    Draining,
    Error,
    ErrorCode,
    ProtocolError,
    bytes_of,
    samples_of,
)
from offhook.pipeline.speech.timing import Stages

COUNTS = st.integers(0, 2**40)
WORDS = st.lists(st.builds(Word, st.text(), COUNTS, COUNTS), max_size=4).map(tuple)
OPTIONS = st.builds(
    StreamOptions,
    st.integers(80, 400),
    st.text(max_size=100),
    st.one_of(st.none(), st.from_regex("[a-z]{2,3}(-[A-Z][a-z]{3})?(-[A-Z]{2})?", fullmatch=True)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@st.composite
def partials(draw: st.DrawFn) -> Partial:
    text = draw(st.text())
    return Partial(text, draw(st.integers(0, len(text))), draw(COUNTS))


FINALS = st.builds(Final, st.text(), COUNTS, WORDS, st.text(), st.booleans())
TIMES = st.floats(0, 1e8)
STAGES = st.one_of(st.none(), st.builds(Stages, TIMES, TIMES, TIMES, TIMES, TIMES))
SERVER_MESSAGES = st.one_of(
    st.builds(
        *(Ready, st.text(), st.text(), st.sampled_from(RATES)),
        id=st.text(),
        version=st.text(),
        free=st.floats(0, 1),
        turns=st.booleans(),
    ),
    st.builds(TurnAnswer, COUNTS, st.none() | st.floats(0, 1)),
    st.builds(Draining, st.floats(0, 1)),
    st.builds(RecognitionResult, COUNTS, partials(), STAGES),
    st.builds(RecognitionResult, COUNTS, FINALS, STAGES),
    st.builds(Error, st.sampled_from(ErrorCode), st.text()),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = (
    *("type", "utterance", "text", "stable_chars", "audio_ms", "words", "code", "message"),
    "timing",
)


@given(SERVER_MESSAGES)
def test_what_a_server_says_is_read_as_it_was_meant(message: ServerMessage) -> None:
    assert parse_server(server_text(message)) == message


@pytest.mark.parametrize("command", [*Command, TurnQuestion(3, 2500)])
def test_what_a_client_says_is_read_as_it_was_meant(command: Command | TurnQuestion) -> None:
    assert parse_command(command_text(command)) == command


@given(st.sampled_from(RATES), OPTIONS)
def test_a_query_asks_for_what_was_meant(rate: int, options: StreamOptions) -> None:
    assert Request.parse(Request(rate, options).query()) == Request(rate, options)


@given(st.lists(st.integers(-32768, 32767)))
def test_sound_is_int16_little_endian(samples: list[int]) -> None:
    pcm = np.array(samples, np.int16)
    data = bytes_of(pcm)
    assert data == b"".join(s.to_bytes(2, "little", signed=True) for s in samples)
    assert np.array_equal(samples_of(data), pcm)


def test_an_empty_query_is_16_khz_with_the_defaults() -> None:
    assert Request.parse({}) == Request(16_000, StreamOptions())
    assert Request.parse({"language": ""}).options.language is None


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"rate": "44100"}, "rate is 44100, not one of 8000, 16000, 24000, 48000 Hz"),
        ({"rate": "fast"}, "rate is 'fast', not a number"),
        ({"rate": "²"}, "not a number"),
        ({"update_ms": "20"}, "update_ms is 20, not 80..1120"),
        ({"words": "yes"}, "words is 'yes', not true or false"),
        ({"language": "English"}, "not a code such as 'en'"),
        ({"context": "x" * 4001}, "context is over 4000 characters"),
        ({"sample_rate": "16000"}, "unknown parameter 'sample_rate'"),
    ],
)
def test_a_query_that_cannot_be_served_says_why(query: dict[str, str], says: str) -> None:
    with pytest.raises(ProtocolError, match=says.replace(".", r"\.")):
        Request.parse(query)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("flush", "not JSON"),
        ("[]", "is not an object"),
        ('{"type": "finish"}', "type is 'finish', not one of flush, cancel, close, turn"),
        ('{"type": "turn", "question": 0, "at_ms": -1}', "at_ms is not greater than or equal to 0"),
        ('{"type": ["flush"]}', "not one of"),
        ('{"type": "flush", "now": 1}', "has no field 'now'"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_command_that_is_none_says_why(text: str, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        parse_command(text)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"text": None}, "text is not a valid string"),
        ({"audio_ms": -1}, "audio_ms is not greater than or equal to 0"),
        ({"audio_ms": True}, "audio_ms is not a valid integer"),
        ({"audio_ms": 1.5}, "audio_ms is not a valid integer"),
        ({"utterance": "0"}, "utterance is not a valid integer"),
        ({"words": [1]}, "words.0 is not an object"),
        ({"words": [{"text": "a"}]}, "words.0.start_ms: Field required"),
        ({"type": "finale"}, "not one of ready, partial, final, turn, draining, error"),
        ({"type": "partial", "stable_chars": 3}, "stable_chars is not within the text"),
        ({"type": "error", "code": "bad"}, "code is not 'bad_request', 'too_long'"),
        ({"timing": 5}, "timing is not an object"),
        ({"timing": {}}, "buffering_ms: Field required"),
        ({"timing": {"buffering_ms": -1}}, "buffering_ms is not greater"),
        ({"timing": {"buffering_ms": 1, "queued_ms": math.nan}}, "queued_ms is not less"),
        ({"timing": {"buffering_ms": math.inf}}, "buffering_ms is not less"),
        ({"timing": {"buffering_ms": True}}, "buffering_ms is not a valid number"),
    ],
)
def test_a_server_that_speaks_otherwise_is_told_why(changes: dict[str, object], says: str) -> None:
    good = {"type": "final", "utterance": 0, "text": "go", "audio_ms": 10, "words": []}
    assert parse_server(json.dumps(good)) == RecognitionResult(0, Final("go", 10))
    with pytest.raises(ProtocolError, match=says):
        parse_server(json.dumps({**good, **changes}))


def test_a_newer_server_is_understood() -> None:
    text = '{"type":"partial","utterance":1,"text":"a","stable_chars":0,"audio_ms":9,"mood":"gay"}'
    assert parse_server(text) == RecognitionResult(1, Partial("a", 0, 9))


@given(st.one_of(st.text(), JSON.map(json.dumps)))
def test_any_text_is_a_message_or_an_error(text: str) -> None:
    for parse in (parse_command, parse_server):
        with suppress(ProtocolError):
            assert parse(text) is not None


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.sampled_from(["partial", "final"]))
def test_any_fields_are_a_message_or_an_error(table: dict[str, object], kind: str) -> None:
    try:
        message = parse_server(json.dumps({**table, "type": kind}))
    except ProtocolError:
        return
    assert isinstance(message, RecognitionResult)


@given(st.binary())
def test_any_bytes_are_samples_or_an_error(data: bytes) -> None:
    if len(data) % 2:
        with pytest.raises(ProtocolError, match="a sample has two"):
            samples_of(data)
    else:
        assert len(samples_of(data)) * 2 == len(data)


@given(st.dictionaries(st.sampled_from(["rate", "language", "context", "words", "x"]), st.text()))
def test_any_query_is_a_request_or_an_error(query: dict[str, str]) -> None:
    with suppress(ProtocolError):
        assert Request.parse(query).rate in RATES
