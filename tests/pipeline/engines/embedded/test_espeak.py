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
from offhook.pipeline.engines.embedded import espeak_io
from offhook.pipeline.engines.embedded.espeak_io import EspeakSynthesizer
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Speech, VoiceOptions
from offhook.web.workers.engines import engines_io

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
        engines_io.at_hand("embedded", "de")
    with pytest.raises(EngineError, match=r"libflite1.*espeakng-loader"):
        EspeakSynthesizer().load()


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("de", "Guten Tag, Herr Müller. Das kostet 12,50 €.", {"Guten", "Müller.", "12,50 €."}),
        ("fr", "Où êtes-vous à 18h30, s'il vous plaît", {"êtes-vous", "plaît"}),
        ("ru", "Добрый день, это стоит 25 рублей", {"Добрый", "25", "рублей"}),
        ("el", "Καλημέρα σας", {"Καλημέρα", "σας"}),
        ("hi", "नमस्ते, आप कैसे हैं", {"नमस्ते,", "कैसे"}),
        ("ar", "مرحبا بكم", {"مرحبا", "بكم"}),
        ("zh", "你好，现在是下午三点。", {"现在", "三点。"}),
    ],
)
async def test_each_language_is_spoken_as_it_is_written(
    language: str, text: str, words: set[str]
) -> None:
    pieces = await say(text, VoiceOptions(language=language))
    assert "".join(piece.text for piece in pieces) == text
    sounds = {piece.text.strip(): len(piece.pcm) for piece in pieces}
    assert {word for word in words if sounds[word] > RATE_OUT // 20} == words


async def test_numbers_and_signs_are_read_in_the_language_not_in_english() -> None:
    """The reader's rules, before eSpeak: each is spoken as its words are."""
    for language, written, spoken in (
        ("de", "12,50 €", "zwölf Euro fünfzig"),
        ("de", "9:30 Uhr", "neun Uhr dreißig"),
        ("es", "25 kg", "veinticinco kilogramos"),
        ("fr", "80 %", "quatre-vingts pour cent"),
    ):
        sounds = [
            sum(len(piece.pcm) for piece in await say(text, VoiceOptions(language=language)))
            for text in (written, spoken)
        ]
        assert sounds[0] == sounds[1], (written, spoken)


async def test_every_voice_speaks_and_only_its_languages() -> None:
    synthesizer = EspeakSynthesizer()
    await synthesizer.start()
    known = {voice.name: voice.languages for voice in await synthesizer.known_voices()}
    assert list(known) == synthesizer.voices()
    assert len(known) > 100
    assert known["de"] == ("de",)
    assert next(iter(known)) == "en-us"
    for name in known:
        reply = synthesizer.open(VoiceOptions(name))
        reply.write("12, a")
        reply.end()
        assert sum([len(piece.pcm) async for piece in reply]) > RATE_OUT // 10, name
    for language in synthesizer.languages:
        assert language in known[synthesizer.voice_of(language)]
    for options, fault in (
        (VoiceOptions("de", "fr"), "the voice de speaks de, not 'fr'"),
        (VoiceOptions(language="qqq"), "espeak speaks en, .* and .* more, not 'qqq'"),
    ):
        with pytest.raises(ValueError, match=fault):
            synthesizer.open(options)
    await synthesizer.close()


async def test_without_the_packages_of_our_rules_its_own_read_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = espeak_io.find_spec
    monkeypatch.setattr(
        espeak_io, "find_spec", lambda name: None if name == "num2words" else found(name)
    )
    text = "Das sind **25** Euro."
    pieces = await say(text, VoiceOptions(language="de"))
    assert "".join(piece.text for piece in pieces) == text
    assert sum(len(piece.pcm) for piece in pieces) > RATE_OUT // 2


def test_embedded_is_flite_in_english_and_espeak_in_other_languages() -> None:
    assert engines_io.at_hand("embedded", "de") == "espeak"
    assert engines_io.at_hand("embedded", "en") == engines_io.at_hand("embedded")
    assert isinstance(engines_io.open_synthesizer(language="de"), EspeakSynthesizer)


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
