"""The JSON of a speech request: what is meant is taken, everything else is refused in words."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.speech_request import (
    MAX_BODY_BYTES,
    MAX_INPUT_CHARS,
    OPENAI_VOICES,
    SpeechRequest,
    find_voice,
    parse,
)

Fields = dict[str, Any]


def body(**fields: Any) -> bytes:
    return json.dumps({"input": "Hello.", **fields}).encode()


def refusal(data: bytes, form: Any = None) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(data, form)
    assert caught.value.status == 400
    json.dumps(caught.value.as_dict())  # can be sent
    return caught.value


def test_a_text_alone_is_enough() -> None:
    assert parse(body()) == SpeechRequest("Hello.")


def test_every_field_is_taken() -> None:
    fields: Fields = {
        "model": "tts-1",
        "voice": "slt",
        "instructions": "whispering\nslowly",
        "response_format": "opus",
        "speed": 2,
        "stream_format": "sse",
        "stream": True,
        "language": "en-US",
        "normalise": False,
        "seed": 7,
    }
    taken = parse(body(**fields))
    assert taken == SpeechRequest("Hello.", **{**fields, "language": "en"})
    options = taken.voice_options("rms")
    assert (options.voice, options.language, options.speed) == ("rms", "en", 2)
    assert (options.normalise, options.seed, options.live) == (False, 7, True)
    assert not parse(body(stream=False)).voice_options("").live


@pytest.mark.parametrize(
    ("name", "code"), [("English", "en"), ("chinese", "zh"), ("Auto", ""), ("auto", ""), ("", "")]
)
def test_a_language_may_be_given_by_name(name: str, code: str) -> None:
    assert parse(body(language=name)).language == code


def test_the_voice_knows_the_whole_text_unless_asked_not_to() -> None:
    assert parse(body()).voice_options("").whole_text
    assert not parse(body(non_streaming_mode=False)).voice_options("").whole_text


def test_null_is_as_if_absent() -> None:
    names = ("model", "voice", "instructions", "response_format", "speed", "stream_format")
    more = ("stream", "language", "normalise", "seed")
    assert parse(body(**dict.fromkeys((*names, *more)))) == SpeechRequest("Hello.")


def test_a_voice_may_be_given_as_an_object() -> None:
    assert parse(body(voice={"id": "anna"})).voice == "anna"


@pytest.mark.parametrize(
    ("speed", "of_engine", "faster"),
    [(0.25, 0.5, 0.5), (0.5, 0.5, 1), (1, 1, 1), (1.7, 1.7, 1), (2, 2, 1), (4.0, 2, 2)],
)
def test_speeds_beyond_the_engines_are_made_of_its_sound(
    speed: float, of_engine: float, faster: float
) -> None:
    taken = parse(body(speed=speed))
    assert taken.voice_options("").speed == of_engine
    assert taken.faster == faster


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"input": None}, "input", "missing or empty"),
        ({"input": " \n"}, "input", "missing or empty"),
        ({"input": 5}, "input", "input is 5, not a string"),
        ({"input": "a" * (MAX_INPUT_CHARS + 1)}, "input", "100001 characters, not at most 100000"),
        ({"input": "a\x07b"}, "input", "control character '\\x07' at 1"),
        ({"input": "ab\ud83d"}, "input", "half a surrogate pair at character 2"),
        ({"voice": "a\x00"}, "voice", "control character '\\x00' at 1"),
        ({"voice": 7}, "voice", 'voice is 7, not a name or {"id": a name}'),
        ({"voice": {"id": 7}}, "voice", "voice is an object"),
        ({"voice": {"id": "a", "x": 1}}, "voice", "voice is an object"),
        ({"voice": {}}, "voice", "voice is an object"),
        ({"model": ["tts-1"]}, "model", "model is an array, not a string"),
        ({"instructions": "a" * 2001}, "instructions", "instructions are over 2000"),
        ({"response_format": "ogg"}, "response_format", '"ogg", not mp3 or opus or aac'),
        ({"response_format": {}}, "response_format", "an object, not mp3"),
        ({"speed": 0.2}, "speed", "speed is 0.2, not 0.25..4"),
        ({"speed": 4.1}, "speed", "not 0.25..4"),
        ({"speed": True}, "speed", "speed is true, not a number"),
        ({"speed": "fast"}, "speed", 'speed is "fast", not a number'),
        ({"speed": 10**400}, "speed", "not 0.25..4"),
        ({"stream_format": "base64"}, "stream_format", '"base64", not audio or sse'),
        ({"stream": 1}, "stream", "stream is 1, not true or false"),
        ({"stream": False, "stream_format": "sse"}, "stream", "is a stream"),
        ({"language": "Englisch"}, "language", "\"Englisch\", not a code such as 'en'"),
        ({"language": "ENGLISH"}, "language", "not a code such as 'en'"),
        ({"non_streaming_mode": 0}, "non_streaming_mode", "is 0, not true or false"),
        ({"normalise": "yes"}, "normalise", '"yes", not true or false'),
        ({"seed": -1}, "seed", "seed is -1"),
        ({"seed": 1.0}, "seed", "seed is 1.0, not a whole number"),
        ({"seed": True}, "seed", "seed is true"),
        ({"speeed": 1}, "speeed", "'speeed' (did you mean speed?): the fields are input, model"),
        ({"texture": 1}, "texture", "no field 'texture': the fields are input, model, voice"),
        ({"\ud800": 1}, "\ud800", r"no field '\ud800'"),
    ],
)
def test_a_wrong_field_is_named(fields: Fields, param: str, says: str) -> None:
    error = refusal(body(**fields))
    assert error.param == param
    assert says in str(error)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"hello"', "not a JSON object"),
        (b'{"input": "\xff"}', "not UTF-8: byte 11"),
        (b'{"input": NaN}', "input is NaN"),
        (b'{"speed": NaN, "input": "a"}', "speed is NaN, not 0.25..4"),
        (b'{"speed": 1e999, "input": "a"}', "speed is Infinity"),
        (b'{"input": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", "nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_a_body_that_is_no_request_is_refused(data: bytes, says: str) -> None:
    assert says in str(refusal(data))


def test_the_bare_path_has_one_format() -> None:
    assert parse(body(), "pcm").response_format == "pcm"
    assert parse(body(response_format="pcm"), "pcm").response_format == "pcm"
    assert "not pcm" in str(refusal(body(response_format="wav"), "pcm"))


def test_the_longest_text_fits_into_a_body_however_it_is_written() -> None:
    data = body(input="😀" * MAX_INPUT_CHARS, instructions="😀" * 2000)
    assert len(data) <= MAX_BODY_BYTES
    assert len(parse(data).input) == MAX_INPUT_CHARS


def test_openais_voices_are_the_usual_one_unless_the_engine_has_them() -> None:
    assert {find_voice(name, ["slt", "rms"]) for name in OPENAI_VOICES} == {""}
    assert find_voice("Alloy", ["slt"]) == ""
    assert find_voice("nova", ["slt", "nova"]) == "nova"
    assert find_voice("SLT", ["slt"]) == "slt"
    assert find_voice("", ["slt"]) == ""


def test_an_unknown_voice_is_told_the_others() -> None:
    with pytest.raises(ApiError, match='no voice "bob": the voices here are slt, rms') as caught:
        find_voice("bob", ["slt", "rms"])
    assert (caught.value.param, caught.value.status) == ("voice", 400)
    with pytest.raises(ApiError, match="v49 and 950 more") as many:
        find_voice("x" * 500, [f"v{number}" for number in range(1000)])
    assert len(str(many.value)) < 600


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)
NAMES = st.sampled_from(["input", "voice", "speed", "seed", "stream", "language", "model", "x"])


@given(st.dictionaries(NAMES, JSON) | JSON)
def test_whatever_comes_is_a_request_or_a_refusal(value: Any) -> None:
    try:
        taken = parse(json.dumps(value).encode())
    except ApiError:
        return
    assert taken.input.strip()
    taken.voice_options("")


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_refused_in_words(data: bytes) -> None:
    refusal(data)
