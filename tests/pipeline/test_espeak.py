"""eSpeak NG: the voice where there is no Flite keeps the same promises."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.pcm import RATE_OUT, dbfs
from offhook.pipeline.espeak_io import EspeakSynthesizer
from offhook.pipeline.synthesizer import DEFAULT_VOICE, Speech, VoiceOptions

WORDS = ("hello", "Dr.", "$3,000.50", "10:30", "7%", "well-known", "it’s", "—", "😀", "&", "a_b")


async def say(text: str, options: VoiceOptions = DEFAULT_VOICE) -> list[Speech]:
    synthesizer = EspeakSynthesizer()
    await synthesizer.start()
    reply = synthesizer.open(options)
    reply.write(text)
    reply.end()
    pieces = [piece async for piece in reply]
    await synthesizer.close()
    return pieces


async def test_each_word_has_its_own_length_of_sound() -> None:
    pieces = await say("I extraordinarily like a telephone.")
    lengths = {piece.text.strip(" ."): len(piece.pcm) * 1000 // RATE_OUT for piece in pieces}
    assert list(lengths) == ["I", "extraordinarily", "like", "a", "telephone"]
    assert lengths["extraordinarily"] > 3 * lengths["like"] > 0
    assert lengths["telephone"] > 3 * lengths["a"] > 0


async def test_speed_stretches_words_and_pauses() -> None:
    text = "Good morning, this is the front desk."
    usual, fast = await say(text), await say(text, VoiceOptions(speed=2))
    lengths = [sum(len(piece.pcm) for piece in pieces) for pieces in (usual, fast)]
    assert lengths[1] == pytest.approx(lengths[0] / 2, rel=0.1)
    assert [len(piece.pcm) for piece in fast if not piece.text] == [1440]


async def test_a_number_of_many_words_is_one_piece() -> None:
    pieces = await say("It is $3,000.50 now")
    lengths = {piece.text.strip(): len(piece.pcm) for piece in pieces}
    assert lengths["$3,000.50"] > RATE_OUT
    assert lengths["now"] < RATE_OUT


async def test_loud_enough_not_clipped_and_at_once() -> None:
    pieces = await say("Good morning, this is the front desk. How may I help you today?")
    pcm = np.concatenate([piece.pcm for piece in pieces]).astype(int)
    assert abs(dbfs(pcm.astype(np.int16)) + 20) < 2
    assert np.abs(pcm).max() < 31_000
    assert np.flatnonzero(np.abs(pcm) > 300)[0] < RATE_OUT * 20 // 1000
    assert [len(piece.pcm) for piece in pieces if not piece.text] == [2880, 6000]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=12), st.sampled_from(["", ".", ", ", "\n"]))
def test_the_pieces_are_the_text(words: list[str], end: str) -> None:
    text = " ".join(words) + end
    assert "".join(piece.text for piece in asyncio.run(say(text))) == text
