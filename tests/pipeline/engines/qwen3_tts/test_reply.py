"""A reply between its text and its sound."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.engines.qwen3_tts.reply import FILE_TOKENS, Reply, WordTokens
from offhook.pipeline.engines.shared.synthesis.messages import Break, Ended, Reason, Spoken, Starved
from offhook.pipeline.engines.shared.synthesis.replies_io import EngineSpeech, EngineSynthesizer
from offhook.pipeline.engines.shared.synthesis.reply import FILE_S, MAX_WAITING_CHARS, VoiceProfile
from offhook.pipeline.engines.shared.tts_models import NO_CACHE, TtsModels
from offhook.pipeline.speech.synthesizer import Speech, TextTooLong, VoiceOptions
from offhook.pipeline.speech.text.spoken_text import TextReader
from tests.pipeline.engines.shared.qwen3.test_token_stream import VOCABULARIES
from tests.support.waiting import HANGS_S

VOCABULARY = VOCABULARIES[-1]
TEXTS = (
    "The cat sat, on the mat. It cost $5.50 on May 3rd!\n\n- a point\n- another  one\nDone: yes ",
    "# Heading \nIsn't it -- well — **bold** (or not)? \"He said 'no'.\" 😀 a/b 1,000 km",
    "你好，世界！今天天气很好，我们去散步吧。好不好？2024年 hello 世界",
    "你好世界你好吗世界很大。今日も東京は良い天気。今日は良い天気です。",
    "今日は良い天気です。東京へ行きましょう！ 안녕하세요, 세계. 123",
)
letters = st.sampled_from("ab c.,!?\n-—*#5$%é你好。，世界's\t\"()")
texts = st.sampled_from(TEXTS) | st.text(letters, max_size=60)
languages = st.sampled_from(["", "en", "de", "zh", "ja"])


def reply(language: str = "en", **options: object) -> Reply:
    return Reply(VOCABULARY, language, VoiceOptions(**options), VoiceProfile())  # type: ignore[arg-type]


def written(made: Reply, text: str, places: list[int]) -> list[WordTokens]:
    given: list[WordTokens] = []
    cuts = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    for a, b in pairwise(cuts):
        made.write(text[a:b])
        given += made.parts()
    made.end()
    return given + made.parts()


def tokens(given: list[WordTokens]) -> list[int]:
    return [token for one in given for token in one.tokens]


@given(texts, st.lists(st.integers(0, 100), max_size=20), languages, st.booleans())
def test_the_engine_gets_the_tokens_of_the_whole_text(
    text: str, places: list[int], language: str, normalise: bool
) -> None:
    given = written(reply(language or "en", normalise=normalise), text, places)
    reader = TextReader(language or "en", normalise)
    said = "".join(word.spoken for word in [*reader.feed(text), *reader.finish()])
    assert tokens(given) == VOCABULARY.bpe.encode(said).ids


def test_words_are_given_at_once() -> None:
    made = reply()
    made.write("the cat")
    assert made.parts() == [WordTokens(VOCABULARY.bpe.encode("the").ids, Break.WORD)]
    made.write(", ")
    (clause,) = made.parts()
    assert clause == WordTokens(VOCABULARY.bpe.encode(" cat,").ids, Break.CLAUSE)
    made.write("sat. ")
    assert [one.ends for one in made.parts()] == [Break.SENTENCE]
    assert not made.end_of_text
    made.end()
    assert made.parts() == []
    assert made.end_of_text


def test_where_no_spaces_are_written_sentences_end_too() -> None:
    given = written(reply("zh"), "你好，世界。很好！", [])
    ends = [one.ends for one in given]
    assert ends.count(Break.CLAUSE) == 1
    assert ends.count(Break.SENTENCE) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [("Das kostet heute genau 5 Euro ", "fünf"), ("It costs exactly 5 dollars ", "five")],
)
def test_the_language_is_that_of_the_text(text: str, said: str) -> None:
    made = reply("")
    for letter in text:
        made.write(letter)
    made.end()
    ids = tokens(made.parts())
    assert f" {said}" in VOCABULARY.bpe.decode(ids)


# --- sound ---


def speech(seconds: float, seed: int = 0) -> Pcm:
    """Syllables and gaps."""
    t = np.arange(int(RATE_OUT * seconds)) / RATE_OUT
    loud = np.clip(np.sin(2 * np.pi * 3 * t), 0, 1) ** 0.5
    pcm: Pcm = (8000 * loud * np.sin(2 * np.pi * 400 * t + seed)).astype(np.int16)
    return pcm


def taken(made: Reply) -> list[Speech]:
    pieces = []
    while (piece := made.speech()) is not None:
        pieces.append(piece)
    return pieces


@settings(max_examples=25)
@given(st.sampled_from(TEXTS), st.floats(0.1, 6.0), st.integers(1, 8), st.sampled_from([1.0, 1.5]))
def test_the_pieces_join_to_what_was_written(
    text: str, seconds: float, frames: int, speed: float
) -> None:
    made = reply(speed=speed)
    count = len(tokens(written(made, text, [])))
    pcm = speech(seconds)
    for at in range(0, len(pcm), frames * 1920):
        made.receive(Spoken(1, pcm[at : at + frames * 1920], at // 1920, count))
    made.receive(Ended(1, Reason.SPOKEN))
    pieces = taken(made)
    assert made.over
    assert "".join(piece.text for piece in pieces) == text
    samples = sum(len(piece.pcm) for piece in pieces)
    assert abs(samples - len(pcm) / speed) < 0.5 * RATE_OUT
    assert made.short_speech == pieces


def test_a_word_is_marked_where_it_ends_and_not_with_its_piece() -> None:
    made = reply()
    written(made, "one two three four five six seven eight nine ten ", [])
    made.receive(Spoken(1, speech(4.0), 0, 10))
    made.receive(Ended(1, Reason.SPOKEN))
    marked = [piece for piece in taken(made) if piece.text]
    assert len(marked) > 5


def test_half_a_word_waits_while_there_is_no_text() -> None:
    made = reply()
    tone: Pcm = (8000 * np.sin(np.arange(36000) * 0.1)).astype(np.int16)
    made.write("one two ")
    made.parts()
    made.receive(Starved(1))
    made.receive(Spoken(1, tone[:12000], 0, 2))  # but the first sound does not
    assert sum(len(piece.pcm) for piece in taken(made)) > 11000
    made.receive(Spoken(1, tone[12000:24000], 6, 2))
    assert sum(len(piece.pcm) for piece in taken(made)) == 0
    made.write("three ")
    assert made.parts()
    assert sum(len(piece.pcm) for piece in taken(made)) > 11000
    made.receive(Spoken(1, tone[24000:], 12, 3))
    assert sum(len(piece.pcm) for piece in taken(made)) > 11000


async def test_sound_that_waited_for_text_is_delivered_with_the_text() -> None:
    """The engine believes that it was played, so the next piece may be a while."""
    given: list[WordTokens] = []
    streams: Any = SimpleNamespace(write=lambda stream, parts, last: given.extend(parts))
    voice: EngineSynthesizer[Any, Any] = EngineSynthesizer(
        "a voice", TtsModels("", audio_cache=NO_CACHE), streams
    )
    said: EngineSpeech[Any, Any] = EngineSpeech(voice, reply(), None)
    noise = np.random.default_rng(0).normal(0, 3000, 12 * 1920).astype(np.int16)
    said.write("one two ")
    said.receive(Starved(1))
    said.receive(Spoken(1, noise[: 4 * 1920], 4, 2))
    said.receive(Spoken(1, noise[4 * 1920 :], 12, 2))
    pieces, heard = aiter(said), 0
    while heard < 4 * 1920:
        heard += len((await anext(pieces)).pcm)
    more = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    assert not more.done()
    said.write("three ")
    heard += len((await asyncio.wait_for(more, HANGS_S)).pcm)
    while heard < len(noise):
        heard += len((await anext(pieces)).pcm)
    assert len(given) == 3


def test_the_engine_waits_for_whoever_takes_the_sound() -> None:
    made = reply(live=False)
    made.write("the cat sat on the mat " * 200)
    made.end()
    given = len(tokens(made.parts()))
    assert FILE_TOKENS <= given < FILE_TOKENS + 10
    for second in range(FILE_S + 3):
        made.receive(Spoken(1, speech(1.0), 0, given))
        more = made.parts()
        given += len(tokens(more))
        assert bool(more) == (second < FILE_S)
    assert not made.end_of_text
    for _ in range(40):
        made.speech()
    assert made.parts()


def test_too_much_text_is_refused() -> None:
    made = reply(live=False)
    made.write("cat " * (MAX_WAITING_CHARS // 4))
    with pytest.raises(TextTooLong):
        made.write("c")
    made.parts()
    made.receive(Spoken(1, speech(3.0), 0, 100))
    while (piece := made.speech()) and not piece.text:
        pass
    made.write("c")
