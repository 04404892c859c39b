"""Word marks: what a caller has heard of a reply, by its sound."""

import asyncio
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.calls.marks import (
    PIECE,
    REPLIES,
    Reply,
    embedded_replies,
    human_replies,
    judge,
    letter_marks,
    marks,
)
from benchmarks.speech.recordings import speech_folder
from offhook.media.pcm import RATE_OUT
from offhook.pipeline.engines.embedded.espeak_io import EspeakSynthesizer
from offhook.pipeline.speech.streams.speech_clock import SpeechClock
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.pipeline.speech.text.spoken_text import SpokenWord
from offhook.pipeline.speech.voice.word_marks import Pace, WordMarks, length_ms


@pytest.fixture(scope="module")
def voices() -> dict[str, list[Reply]]:
    return asyncio.run(embedded_replies(texts=REPLIES[:5]))


def speech(text: str) -> np.ndarray:
    async def say() -> np.ndarray:
        synthesizer = EspeakSynthesizer()
        stream = synthesizer.open(VoiceOptions())
        stream.write(text)
        stream.end()
        sound = np.concatenate([piece.pcm async for piece in stream])
        await synthesizer.close()
        return sound

    return asyncio.run(say())


def listener(text: str) -> WordMarks:
    marks = WordMarks()
    for word in text.split():
        marks.write(SpokenWord(word + " ", word))
    return marks


def hear(marks: WordMarks, pcm: np.ndarray, piece: int = PIECE) -> list[str]:
    return [
        text
        for start in range(0, len(pcm), piece)
        for text in marks.feed(pcm[start : start + piece])
    ]


def test_marks_are_about_where_words_end(voices: dict[str, list[Reply]]) -> None:
    for voice, replies in voices.items():
        row = judge(voice, replies, marks)
        assert row.within_one > 0.87, row
        assert abs(row.mean) < 0.5, row
        assert row.within_one > judge(voice, replies, letter_marks).within_one + 0.3


def test_a_voice_heard_before_is_followed_better(voices: dict[str, list[Reply]]) -> None:
    unknown, known = [], []
    for voice, replies in voices.items():
        pace = Pace()
        for reply in replies[:3]:
            marks(reply, pace)
        unknown.append(judge(voice, replies[3:], marks).within_one)
        known.append(judge(voice, replies[3:], partial(marks, pace=pace)).within_one)
    assert np.mean(known) > np.mean(unknown) + 0.01, (unknown, known)
    assert min(known) > 0.9


@pytest.mark.skipif(not speech_folder().exists(), reason="no recordings")
def test_people_are_followed_too() -> None:
    row = judge("people", list(human_replies()), marks)
    assert row.words > 80
    assert row.within_one > 0.8, row


def test_speech_played_faster_is_followed() -> None:
    fast = asyncio.run(embedded_replies([EspeakSynthesizer], 1.6, REPLIES[:5]))["espeak en-us"]
    assert judge("", fast, lambda reply: marks(reply, speed=1.6)).within_one > 0.95


def test_the_last_word_is_over_when_a_pause_says_so() -> None:
    text = "Good morning, this is the front desk."
    sound = speech(text)
    marks = listener(text)
    heard = hear(marks, sound)
    assert 4 <= len(heard) <= 6
    silence = np.zeros(RATE_OUT * 160 // 1000, np.int16)
    assert heard + hear(marks, silence) == [word + " " for word in text.split()]
    assert marks.finish() == []


def test_no_word_is_over_before_anything_is_heard() -> None:
    marks = listener("One two three.")
    noise = np.random.default_rng(1).normal(0, 4, RATE_OUT * 3).astype(np.int16)
    assert hear(marks, noise) == []
    assert marks.finish() == ["One ", "two ", "three. "]


def test_words_written_while_the_voice_speaks() -> None:
    first, second = "We are open from nine in the morning.", "The doctor will see you on Friday."
    marks = listener(first)
    pause = np.zeros(RATE_OUT * 250 // 1000, np.int16)
    heard = hear(marks, np.concatenate([speech(first), pause]))
    assert heard == [word + " " for word in first.split()]
    for word in second.split():
        marks.write(SpokenWord(word + " ", word))
    heard = hear(marks, np.concatenate([speech(second), pause]))
    assert heard == [word + " " for word in second.split()]


def test_what_is_not_said_is_over_with_the_word_before_it() -> None:
    marks = WordMarks()
    for text, spoken in (("Hello ", "Hello"), ("😀 ", ""), ("there ", " there"), ("x ", " now")):
        marks.write(SpokenWord(text, spoken))
    told = []
    for start in range(0, 10 * PIECE, PIECE):
        told.append(marks.feed(speech("Hello there now")[start : start + PIECE]))
    assert ["Hello ", "😀 "] in told


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=30), st.integers(0, 30))
def test_every_word_is_told_once_and_in_order(pieces: list[int], words: int) -> None:
    text = [f"word{number}, " for number in range(words)]
    rng = np.random.default_rng(words)
    marks, told = WordMarks(), []
    for number, samples in enumerate(pieces):
        for word in text[number * 2 : number * 2 + 2]:
            marks.write(SpokenWord(word, word.strip()))
        told += marks.feed(rng.normal(0, rng.choice([1, 3000]), samples).astype(np.int16))
    told += marks.finish()
    assert told == text[: len(pieces) * 2]


def test_the_clock_does_not_depend_on_the_pieces() -> None:
    sound = speech("Turn left at the traffic lights, and go straight on.")
    times = []
    for piece in (480, 1920, 1000, len(sound)):
        clock, ms = SpeechClock(), 0.0
        for start in range(0, len(sound), piece):
            ms += clock.feed(sound[start : start + piece])[0]
        times.append(ms)
    assert np.ptp(times) < 1
    assert 0.7 < times[0] / (len(sound) / RATE_OUT * 1000) < 1.3


@settings(max_examples=20)
@given(st.lists(st.integers(0, 9000), min_size=1, max_size=12), st.sampled_from((240, 1000, 1920)))
def test_parts_of_a_piece_are_as_if_they_came_one_by_one(pieces: list[int], size: int) -> None:
    text = "Turn left at the traffic lights, and go straight on. " * 3
    loud = np.repeat(np.random.default_rng(size).choice([1, 3000], 40), 4000)
    sound, at = np.random.default_rng(0).normal(0, loud).astype(np.int16), 0
    whole, one_by_one = listener(text), listener(text)
    for samples in pieces:
        piece = sound[at : at + samples]
        expected = [one_by_one.feed(piece[i : i + size]) for i in range(0, len(piece), size)]
        assert whole.feed_parts(piece, size) == expected
        at += samples


def test_words_of_any_script_have_a_length() -> None:
    assert 300 < length_ms("hello,") < 400
    assert length_ms("PM") > 400
    assert length_ms("привет") == length_ms("privet")
    assert length_ms("今天") > 400
    assert length_ms("안녕하세요") > 900
    assert length_ms("こんにちは") > 600
    assert length_ms("é") == length_ms("e")
    assert length_ms("—") == 0
