"""eSpeak NG: the voice where there is no Flite keeps the same promises."""

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.pcm import RATE_OUT, dbfs
from offhook.pipeline.speech.embedded import espeak_io
from offhook.pipeline.speech.embedded.espeak_io import EspeakSynthesizer
from offhook.pipeline.speech.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.speech.recognizer import EngineError
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Speech, VoiceOptions
from offhook.web.engines import engines_io

WORDS = ("hello", "Dr.", "$3,000.50", "10:30", "7%", "well-known", "it’s", "—", "😀", "&", "a_b")


def children() -> set[int]:
    """The processes in which eSpeak speaks for us, for other tests too."""
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        for pid in (thread / "children").read_text().split():
            if b"espeak_worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(int(pid))
    return found


async def say(text: str, options: VoiceOptions = DEFAULT_VOICE) -> list[Speech]:
    synthesizer = EspeakSynthesizer()
    await synthesizer.start()
    reply = synthesizer.open(options)
    reply.write(text)
    reply.end()
    pieces = [piece async for piece in reply]
    await synthesizer.close()
    return pieces


def test_the_library_is_in_a_process_of_its_own_which_is_started_again() -> None:
    """It is under the GPL, and no part of the server."""
    others = children()
    synthesizer = EspeakSynthesizer()
    words = ["good", "morning"]
    said = synthesizer.sound(words, "en-us").pcm
    assert "libespeak-ng" not in Path("/proc/self/maps").read_text()
    [child] = children() - others
    assert "libespeak-ng" in Path(f"/proc/{child}/maps").read_text()
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert len(synthesizer.sound(words, "en-us").pcm) == pytest.approx(len(said), rel=0.02)
    with pytest.raises(EngineError, match="no voice 'nobody'"):
        synthesizer.sound(words, "nobody")
    assert len(synthesizer.sound(words, "en-us").pcm) == pytest.approx(len(said), rel=0.02)
    asyncio.run(synthesizer.close())
    assert children() <= others


def test_a_process_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(espeak_io, "ANSWER_S", 5)
    others = children()
    synthesizer = EspeakSynthesizer()
    synthesizer.load()
    [child] = children() - others
    monkeypatch.setattr(espeak_io, "ANSWER_S", 0.2)
    os.kill(child, signal.SIGSTOP)
    with pytest.raises(EngineError, match="says nothing"):
        synthesizer.sound(["hello"], "en-us")
    monkeypatch.setattr(espeak_io, "ANSWER_S", 20)
    assert len(synthesizer.sound(["hello"], "en-us").pcm)
    asyncio.run(synthesizer.close())


def test_without_flite_and_without_it_there_is_a_word_about_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(voice: FliteSynthesizer) -> None:
        raise EngineError("no libflite1 here")

    monkeypatch.setattr(FliteSynthesizer, "load", missing)
    assert engines_io.at_hand("embedded") == "espeak"
    monkeypatch.setattr(espeak_io, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"libflite1.*espeakng-loader"):
        engines_io.at_hand("embedded")
    with pytest.raises(EngineError, match=r"libflite1.*espeakng-loader"):
        EspeakSynthesizer().load()


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


@settings(max_examples=settings.default.max_examples // 6)
@given(st.lists(st.sampled_from(WORDS), max_size=12), st.sampled_from(["", ".", ", ", "\n"]))
def test_the_pieces_are_the_text(words: list[str], end: str) -> None:
    text = " ".join(words) + end
    assert "".join(piece.text for piece in asyncio.run(say(text))) == text
