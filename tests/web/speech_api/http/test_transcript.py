"""A transcript in every shape: strict SubRip and WebVTT, and JSON that OpenAI's own types take."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types.audio import Transcription, TranscriptionVerbose, TranslationVerbose

from offhook.pipeline.speech.recognizer import Word
from offhook.web.speech_api.http.transcript import (
    LINE_CHARS,
    LINES,
    PHRASE_S,
    Segment,
    Transcript,
    joined,
    phrases_of,
    srt,
    vtt,
)

Cue = tuple[int, int, str]
"""Begin and end in ms, and the text with its lines."""


def parse_srt(text: str) -> list[Cue]:
    """As strictly as SubRip can be read: numbered from 1, times to the ms, a blank line between."""
    cues = []
    blocks = text.removesuffix("\n").split("\n\n") if text else []
    for number, block in enumerate(blocks, 1):
        index, times, *lines = block.removesuffix("\n").split("\n")
        assert index == str(number)
        found = re.fullmatch(
            r"(\d\d):(\d\d):(\d\d),(\d{3}) --> (\d\d):(\d\d):(\d\d),(\d{3})", times
        )
        assert found, times
        assert lines
        assert all(lines)
        assert "-->" not in "\n".join(lines)
        cues.append((*_ms(found), "\n".join(lines)))
    return cues


def parse_vtt(text: str) -> list[Cue]:
    """By the WebVTT syntax: header, blank line, cues whose text has no raw & < or -->."""
    head, *blocks = text.removesuffix("\n").split("\n\n")
    assert head.removesuffix("\n") == "WEBVTT"
    cues = []
    for block in blocks:
        times, *lines = block.removesuffix("\n").split("\n")
        found = re.fullmatch(
            r"(\d{2,}):(\d\d):(\d\d)\.(\d{3}) --> (\d{2,}):(\d\d):(\d\d)\.(\d{3})", times
        )
        assert found, times
        said = "\n".join(lines)
        assert not re.search(r"<|>|&(?!amp;|lt;|gt;)", said)
        plain = said.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        cues.append((*_ms(found), plain))
    return cues


def _ms(found: re.Match[str]) -> tuple[int, int]:
    parts = list(map(int, found.groups()))
    assert all(part < 60 for part in (parts[1], parts[2], parts[5], parts[6]))
    begin, end = (((h * 60 + m) * 60 + s) * 1000 + ms for h, m, s, ms in (parts[:4], parts[4:]))
    assert begin < end
    return begin, end


def timed(text: str, start_ms: int = 0, word_ms: int = 300) -> Segment:
    """Every word as long as the next."""
    words = [
        Word(word.strip(".,!?"), start_ms + n * word_ms, start_ms + (n + 1) * word_ms)
        for n, word in enumerate(text.split())
    ]
    return Segment(start_ms / 1000, words[-1].end_ms / 1000 + 0.5, text, tuple(words), "en")


SAID = timed(
    "Good morning. This is the office, and we are open from nine to five every day but one."
)


def test_captions_are_strict_subrip_and_webvtt() -> None:
    later = Segment(3723.5, 3726.0, "a later <b> & --> end")
    for cues in (parse_srt(srt([SAID, later])), parse_vtt(vtt([SAID, later]))):
        assert cues[0] == (0, 600, "Good morning.")
        assert cues[1][2].replace("\n", " ").startswith("This is the office, and")
        assert cues[-1][:2] == (3723500, 3726000)
    assert parse_vtt(vtt([later]))[0][2] == "a later <b> & --> end"
    assert parse_srt(srt([later]))[0][2] == "a later <b> & -> end"
    assert parse_srt(srt([])) == []
    assert parse_vtt(vtt([])) == []


def test_a_short_caption_stays_while_it_can_be_read() -> None:
    alone, followed = timed("Yes.", 5000), timed("No.", 5400)
    assert parse_srt(srt([alone]))[0][:2] == (5000, 6000)
    assert parse_srt(srt([alone, followed]))[0][:2] == (5000, 5400)


def test_phrases_part_at_sentences_at_pauses_and_at_what_can_be_read() -> None:
    assert [p.text for p in phrases_of(timed("Yes. No. Why?"))] == ["Yes.", "No.", "Why?"]
    pause = Segment(0, 9, "one two", (Word("one", 0, 400), Word("two", 3000, 3400)))
    assert [(p.start, p.end, p.text) for p in phrases_of(pause)] == [
        (0.0, 0.4, "one"),
        (3.0, 3.4, "two"),
    ]
    long = timed("word " * 60)
    assert all(p.end - p.start <= PHRASE_S for p in phrases_of(long))
    slow = timed("so " * 12, word_ms=2000)
    assert all(p.end - p.start <= PHRASE_S for p in phrases_of(slow))


def test_words_that_are_not_those_of_the_text_leave_it_whole() -> None:
    segment = Segment(0, 2, "It is 5 o'clock.", (Word("five", 0, 500), Word("o'clock", 500, 900)))
    assert phrases_of(segment) == [segment]


word = st.text("abcß.,!?-<&>'\"“”…你好", min_size=1, max_size=12)


@given(st.lists(st.lists(word, min_size=1, max_size=40), max_size=4), st.booleans())
@example([["-", "-->"]], False)
@example([["--->"]], True)
def test_captions_say_every_word_once_in_order(pieces: list[list[str]], have_times: bool) -> None:
    segments, at = [], 0
    for piece in pieces:
        text = " ".join(piece)
        words = tuple(
            Word(w, at + n * 250, at + (n + 1) * 250) for n, w in enumerate(piece) if have_times
        )
        segments.append(Segment(at / 1000, at / 1000 + len(piece) / 4, text, words))
        at += len(piece) * 250
    plain = " ".join(segment.text for segment in segments)
    subrip = parse_srt(srt(segments)), re.sub("-+>", "->", plain)
    for cues, wanted in (subrip, (parse_vtt(vtt(segments)), plain)):
        said = " ".join(text for _, _, text in cues)
        assert said.split() == wanted.split()
        assert all(a[1] <= max(b[0], a[0] + 1) for a, b in pairwise(cues))
        assert all(len(line) <= LINE_CHARS for _, _, text in cues for line in text.split("\n"))
        if have_times:
            assert all(text.count("\n") < LINES or " " not in text for _, _, text in cues)


def transcript(*segments: Segment) -> Transcript:
    result = Transcript()
    for segment in segments:
        result.add(segment)
    return result


def test_json_is_what_openais_types_take() -> None:
    heard = transcript(SAID, Segment(6.0, 9.0, ""))
    plain = heard.render("json")
    assert plain == {"text": SAID.text, "usage": {"type": "duration", "seconds": 9}}
    Transcription.model_validate(plain)
    verbose = TranscriptionVerbose.model_validate(heard.render("verbose_json", {"word", "segment"}))
    assert (verbose.language, verbose.duration, verbose.text) == ("english", 9.0, SAID.text)
    assert verbose.segments is not None
    assert [segment.id for segment in verbose.segments] == list(range(len(verbose.segments)))
    assert " ".join(segment.text for segment in verbose.segments) == SAID.text
    assert verbose.words is not None
    assert [w.word for w in verbose.words] == [w.text for w in SAID.words]
    assert verbose.words[2].start == 0.6
    translated = heard.render("verbose_json", task="translate")
    TranslationVerbose.model_validate(translated)
    assert isinstance(translated, dict)
    assert translated["task"] == "translate"


def test_times_are_as_fine_as_they_are_asked_for() -> None:
    heard = transcript(SAID)
    for wanted, there in [
        ((), {"segments"}),
        (("segment",), {"segments"}),
        (("word",), {"words"}),
        (("word", "segment"), {"words", "segments"}),
    ]:
        told = heard.render("verbose_json", wanted)
        assert isinstance(told, dict)
        assert told.keys() & {"segments", "words"} == there


def test_text_ends_with_a_line_end() -> None:
    assert transcript(SAID).render("text") == SAID.text + "\n"


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        (["one", "", "two"], "one two"),
        (["你好。", "世界"], "你好。世界"),
        (["こんにちは", "hello"], "こんにちはhello"),
        (["สวัสดี", "ครับ"], "สวัสดี ครับ"),
        ([], ""),
    ],
)
def test_pieces_join_as_their_script_has_it(texts: list[str], whole: str) -> None:
    assert joined(texts) == whole
    heard = Transcript()
    added = "".join(heard.add(Segment(n, n + 1, text)) for n, text in enumerate(texts))
    assert added == heard.text == whole


def test_the_language_is_the_one_most_was_said_in() -> None:
    german = Segment(0, 1, "Ja", (), "de")
    assert transcript(Segment(0, 5, ""), german, SAID).language == "en"
    assert transcript(Segment(0, 5, "")).language == ""
    assert transcript(Segment(0, 1, "qo", (), "tlh")).render("verbose_json") is not None
