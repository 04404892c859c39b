"""Answers of servers of OpenAI's audio API, and text put together from them: any bytes may come."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.openai import answers
from offhook.pipeline.speech.openai.answers import HeaderFilter
from offhook.pipeline.speech.openai.synthesizer_io import RawSound
from offhook.pipeline.speech.recognizer import Word
from offhook.pipeline.speech.streams.partials import with_stable_prefix
from offhook.pipeline.speech.streams.retry import AttemptFailed
from offhook.pipeline.speech.streams.rolling_text import (
    OVERLAP_MS,
    WINDOW_S,
    RollingText,
    agreement,
    joined,
)

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
HEADER = "language English<asr_text>"
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "no such voice", "code": "x"}}', "no such voice"),
        (b'{"error": "Model not validated.", "code": "model_not_validated"}', "Model not valid"),
        (b'{"object": "error", "message": "too long", "code": 400}', "too long"),
        (b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', "field required"),
        (b"<html>", "400"),
        (b"", "400"),
        (b"[" * 5000, "400"),
    ],
)
def test_the_words_of_an_error_are_found_whoever_wrote_it(body: bytes, words: str) -> None:
    failed = answers.failure(400, {}, body, NOW)
    assert words in str(failed)
    assert failed.hopeless


@pytest.mark.parametrize(
    ("code", "hopeless"),
    [(400, True), (401, True), (404, True), (408, False), (413, True), (429, False), (500, False)],
)
def test_what_may_be_tried_again(code: int, hopeless: bool) -> None:
    assert answers.failure(code, {}, b"", NOW).hopeless is hopeless


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": format_datetime(NOW + timedelta(seconds=30), usegmt=True)}, 30),
        ({"Retry-After": format_datetime(NOW - timedelta(seconds=30), usegmt=True)}, 0),
        ({"Retry-After": "7", "retry-after-ms": "250"}, 0.25),
        ({"Retry-After": "-1"}, 0),
        ({"Retry-After": "nan"}, 0),
        ({"Retry-After": "soon"}, 0),
        ({}, 0),
    ],
)
def test_when_a_server_wants_to_be_asked_again(headers: dict[str, str], seconds: float) -> None:
    assert answers.retry_after_s(headers, NOW) == seconds


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_an_answer_or_a_failure(data: bytes) -> None:
    for read in (
        lambda: answers.transcript(data, 1000),
        lambda: answers.message(data.decode(errors="replace")),
        lambda: answers.voice_names(data),
        lambda: answers.model_ids(data),
    ):
        with suppress(AttemptFailed):
            read()
    assert str(answers.failure(500, {"Retry-After": data.decode("latin-1")}, data, NOW))


NUMBER = st.floats() | st.integers() | st.booleans() | st.text(max_size=3) | st.none()


@given(
    st.lists(st.fixed_dictionaries({"word": st.text(max_size=4), "start": NUMBER, "end": NUMBER}))
)
def test_words_are_in_order_and_inside_the_sound(words: list[dict[str, object]]) -> None:
    heard = answers.transcript(json.dumps({"text": "", "words": words}).encode(), 1000).words
    times = [time for word in heard for time in (word.start_ms, word.end_ms)]
    assert times == sorted(times)
    assert all(0 <= time <= 1000 for time in times)


def test_words_and_language_of_openai() -> None:
    body = {
        "task": "transcribe",
        "language": "german",
        "duration": 1.5,
        "text": " Guten Tag. ",
        "words": [{"word": " Guten", "start": 0.1, "end": 0.5}, {"word": "Tag", "start": 0.5}],
    }
    heard = answers.transcript(json.dumps(body).encode(), 1500)
    assert heard == answers.Transcript("Guten Tag.", (Word("Guten", 100, 500),), "de")


def test_openais_own_realtime_is_not_taken_for_vllms() -> None:
    ours = '{"type": "session.created", "id": "sess-1", "created": 5}'
    both = '{"type": "session.created", "id": "sess-1", "created": 5, "session": {"id": "sess-1"}}'
    theirs = '{"type": "session.created", "event_id": "e", "session": {"type": "realtime"}}'
    assert answers.message(ours) == answers.Created()
    assert answers.message(both) == answers.Created()
    assert answers.message(theirs) == answers.Other()


@given(st.data())
def test_headers_are_taken_out_wherever_the_pieces_end(data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.sampled_from(["all", "a language lesson", "l", "你好", "<b>"])))
    begins = [data.draw(st.sampled_from([HEADER, "<non_speech>", "<|im_end|>"])) for _ in texts]
    whole = "".join(begin + text for begin, text in zip(begins, texts, strict=True))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=9)))
    clean = HeaderFilter()
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    shown = [clean.write(piece) for piece in pieces]
    assert "".join(shown) + clean.end() == "".join(texts)


@given(st.lists(st.binary(max_size=50), max_size=20), st.sampled_from([8000, 16000, 24000, 44100]))
def test_sound_is_the_same_however_its_bytes_come(pieces: list[bytes], rate: int) -> None:
    def pcm(parts: list[bytes]) -> list[int]:
        sound = RawSound(rate)
        return [int(sample) for part in parts for sample in sound.pcm(part)]

    assert np.abs(np.array(pcm(pieces)) - np.array(pcm([b"".join(pieces)]))).max(initial=0) <= 1


# --- rolling text ---


@pytest.mark.parametrize(
    ("before", "text", "whole"),
    [
        ("", "Hello there.", "Hello there."),
        ("Hello there", "", "Hello there"),
        ("I would like", "like to book", "I would like to book"),
        ("I would like.", "Would like to book", "I would like. to book"),
        ("one two", "three four", "one two three four"),
        ("今天天气", "天气很好", "今天天气很好"),
    ],
)
def test_what_is_said_on_both_sides_of_a_cut_is_there_once(
    before: str, text: str, whole: str
) -> None:
    assert joined(before, text) == whole


WORDS = st.lists(st.sampled_from(["a", "b", "ab", "你好", ""]), max_size=5).map(" ".join)


@given(WORDS, WORDS)
def test_stable_text_is_kept_and_agreed_text_ends_with_a_word(one: str, other: str) -> None:
    assert with_stable_prefix(one, other).startswith(one)
    same = agreement(one, other)
    assert one[:same] == other[:same]
    if " " in one + other and same:
        assert all(len(text) == same or text[same].isspace() for text in (one, other))


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c"]), max_size=6).map(" ".join), max_size=8))
def test_stable_text_is_never_taken_back(texts: list[str]) -> None:
    rolling = RollingText()
    stable = ""
    for number, text in enumerate(texts, 1):
        window = rolling.window(np.zeros(number * RATE_IN, np.int16))
        partial = rolling.update(window, text)
        assert partial.text.startswith(stable)
        assert partial.stable_chars >= len(stable)
        stable = partial.text[: partial.stable_chars]


def test_a_window_is_bounded_and_closes_where_it_is_quiet() -> None:
    rolling = RollingText()
    loud = np.full(14 * RATE_IN, 5000, np.int16)
    loud[10 * RATE_IN : 10 * RATE_IN + RATE_IN // 5] = 0
    assert not rolling.window(loud[: 5 * RATE_IN]).closes
    window = rolling.window(loud)
    assert window.closes
    assert 10 * RATE_IN <= window.stop <= 10.2 * RATE_IN
    assert rolling.update(window, "so far").text == "so far"
    assert rolling.window(loud).start == window.stop - OVERLAP_MS * RATE_IN // 1000
    very_long = np.full(90 * RATE_IN, 5000, np.int16)
    window = RollingText().window(very_long)
    assert window.stop - window.start <= 2 * WINDOW_S * RATE_IN


def test_text_is_stable_once_two_windows_say_it() -> None:
    rolling = RollingText()
    sound = np.ones(9 * RATE_IN, np.int16)
    told = [
        rolling.update(rolling.window(sound[: seconds * RATE_IN]), text)
        for seconds, text in ((1, "I want"), (2, "I want to buy"), (3, "I want to fly"))
    ]
    assert [partial.text[: partial.stable_chars] for partial in told] == ["", "I want", "I want to"]


@pytest.mark.parametrize(
    "words",
    [
        "Incorrect API key provided: sk-proj-0123456789abcdef.",
        "Authorization: Bearer 0123456789abcdef",
        'x {"api_key": "0123456789abcdef"}',
        "cannot reach https://user:0123456789abcdef@host/v1",
    ],
)
def test_keys_that_a_server_repeats_are_not_passed_on(words: str) -> None:
    assert "0123456789abcdef" not in answers.plain(words)
    assert answers.plain(words)[:5] == words[:5]
