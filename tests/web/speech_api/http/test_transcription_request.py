"""The form of a transcription: what OpenAI's clients send is understood, the rest is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.transcription_request import language_tag, parse

KNOWN = ["model", "language", "prompt", "response_format", "temperature", "stream", "include[]"]


def test_what_openais_clients_send_is_understood() -> None:
    request = parse(
        [
            ("model", "whisper-1"),
            ("language", "en"),
            ("prompt", "Offhook, SIP"),
            ("response_format", "verbose_json"),
            ("temperature", "0.2"),
            ("timestamp_granularities[]", "word"),
            ("timestamp_granularities[]", "segment"),
            ("include[]", "logprobs"),
            ("chunking_strategy[type]", "server_vad"),
            ("chunking_strategy[threshold]", "0.5"),
            ("keywords[]", "Twilio"),
            ("keywords[]", "Plivo"),
            ("stream", "false"),
        ]
    )
    assert request.model == "whisper-1"
    assert request.options.language == "en"
    assert request.options.context == "Offhook, SIP\nTwilio, Plivo"
    assert request.options.words
    assert not request.options.live
    assert request.granularities == {"word", "segment"}
    assert (request.format, request.stream) == ("verbose_json", False)


def test_nothing_but_a_file_is_enough() -> None:
    request = parse([])
    assert (request.model, request.format, request.stream) == ("", "json", False)
    assert request.options.language is None


@pytest.mark.parametrize(
    ("given", "tag"),
    [
        ("en", "en"),
        ("EN", "en"),
        ("en-us", "en-US"),
        ("en_GB", "en-GB"),
        ("english", "en"),
        ("German", "de"),
        ("yue", "yue"),
        ("", None),
        ("auto", None),
    ],
)
def test_a_language_is_a_tag_or_a_name(given: str, tag: str | None) -> None:
    assert language_tag(given) == tag


def test_of_several_languages_the_engine_finds_the_one() -> None:
    assert parse([("languages[]", "de")]).options.language == "de"
    assert parse([("languages[]", "de"), ("languages[]", "en")]).options.language is None


@pytest.mark.parametrize("format", ["json", "text", "srt", "vtt"])
def test_granularities_do_nothing_to_a_format_without_times(format: str) -> None:
    request = parse([("response_format", format), ("timestamp_granularities[]", "word")])
    assert request.granularities == frozenset()
    assert not request.options.words


@pytest.mark.parametrize(
    "fields",
    [
        [("timestamp_granularities[]", "word"), ("timestamp_granularities[]", "segment")],
        [("timestamp_granularities", "word,segment")],
        [("timestamp_granularities[]", "word, segment")],
        [("timestamp_granularities", '["word", "segment"]')],
    ],
)
def test_a_list_may_be_one_field(fields: list[tuple[str, str]]) -> None:
    request = parse([("response_format", "verbose_json"), *fields])
    assert request.granularities == {"word", "segment"}
    assert request.options.words


@pytest.mark.parametrize("value", ["", "null", "undefined"])
def test_a_field_without_a_value_is_absent(value: str) -> None:
    names = ("model", "language", "languages[]", "prompt", "response_format", "temperature")
    more = ("stream", "timestamp_granularities[]", "include[]", "chunking_strategy")
    assert parse([(name, value) for name in names + more]) == parse([])


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ([("language", "klingon")], "language", "'klingon'"),
        ([("language", "e")], "language", "'e'"),
        ([("language", "日本")], "language", "not a code"),
        ([("response_format", "xml")], "response_format", '"xml", not json or text or srt'),
        ([("response_format", "diarized_json")], "response_format", "diarization"),
        ([("temperature", "hot")], "temperature", '"hot"'),
        ([("temperature", "nan")], "temperature", '"nan"'),
        ([("temperature", "2")], "temperature", "0..1"),
        ([("stream", "perhaps")], "stream", '"perhaps"'),
        ([("stream", "true"), ("response_format", "srt")], "response_format", "/stream"),
        (
            [("response_format", "verbose_json"), ("timestamp_granularities[]", "phoneme")],
            "timestamp_granularities[]",
            '"phoneme"',
        ),
        ([("include[]", "speakers")], "include[]", '"speakers"'),
        ([("chunking_strategy", "random")], "chunking_strategy", '"random"'),
        ([("known_speaker_names[]", "Ann")], "known_speaker_names", "diarization"),
        ([("prompt", "x" * 5000)], "prompt", "4000 characters"),
        ([("model", "a"), ("model", "b")], "model", "given twice"),
        ([("best_of", "5")], "best_of", "'best_of'"),
        ([("langauge", "en")], "langauge", "did you mean language"),
        ([("timestamp_granularity[]", "word")], "timestamp_granularity[]", "timestamp_gran.*ies"),
    ],
)
def test_what_is_wrong_is_named(fields: list[tuple[str, str]], param: str, says: str) -> None:
    with pytest.raises(ApiError, match=says) as refused:
        parse(fields)
    assert (refused.value.status, refused.value.param) == (400, param)


@given(st.lists(st.tuples(st.sampled_from(KNOWN) | st.text(max_size=20), st.text(max_size=100))))
def test_any_form_is_understood_or_refused_in_words(fields: list[tuple[str, str]]) -> None:
    refused = None
    try:
        parse(fields)
    except ApiError as error:
        refused = error
    assert refused is None or (refused.status == 400 and len(str(refused)) < 400)
