"""What is heard of a text with a lexicon, and which written words its sound is told to be."""

import ctypes

import pytest

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.engines.embedded.embedded_speech_io import EmbeddedSynthesizer
from offhook.pipeline.engines.embedded.espeak_io import EspeakChild, EspeakSynthesizer
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.speech.script.lexicon import NO_LEXICON, Lexicon
from offhook.pipeline.speech.script.script_io import open_speech
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Speech, Synthesizer, VoiceOptions
from offhook.pipeline.speech.text.markup import IPA_BEGINS, IPA_ENDS

try:
    ctypes.CDLL("libflite.so.1")
except OSError:
    pytest.skip("libflite1 is not installed", allow_module_level=True)

LEXICON = Lexicon.of_table({"Kia": "the number 7", "Qatar": {"ipa": "ˈkʌtə"}, "NY": "New York"})


async def say(
    synthesizer: Synthesizer,
    *parts: str,
    lexicon: Lexicon = NO_LEXICON,
    options: VoiceOptions = DEFAULT_VOICE,
) -> list[Speech]:
    await synthesizer.start()
    reply = open_speech(synthesizer, options, lexicon)
    for part in parts:
        reply.write(part)
    reply.end()
    pieces = [piece async for piece in reply]
    await synthesizer.close()
    return pieces


def seconds(pieces: list[Speech]) -> float:
    return sum(len(piece.pcm) for piece in pieces) / RATE_OUT


def written(pieces: list[Speech]) -> list[str]:
    return [piece.text for piece in pieces if piece.text]


@pytest.mark.parametrize("make", [FliteSynthesizer, EspeakSynthesizer])
async def test_a_word_is_said_as_the_lexicon_has_it_and_told_as_written(
    make: type[EmbeddedSynthesizer],
) -> None:
    text = "My Kia is in NY, near Kiama."
    pieces = await say(make(), *text, lexicon=LEXICON)
    spoken = await say(make(), "My the number 7 is in New York, near Kiama.")
    assert seconds(pieces) == pytest.approx(seconds(spoken), rel=0.02)
    assert written(pieces) == ["My ", "Kia ", "is ", "in ", "NY, ", "near ", "Kiama."]


async def test_phonemes_are_spoken_by_a_voice_that_takes_them_alone() -> None:
    text = "Fly to Qatar now."
    pieces = await say(EspeakSynthesizer(), text, lexicon=LEXICON)
    assert written(pieces) == ["Fly ", "to ", "Qatar ", "now."]
    read = await say(EspeakSynthesizer(), text)
    assert seconds(pieces) != pytest.approx(seconds(read), rel=0.02)
    cutter = await say(EspeakSynthesizer(), "Fly to Cutta now.")
    assert seconds(pieces) == pytest.approx(seconds(cutter), rel=0.02)
    flite = await say(FliteSynthesizer(), text, lexicon=LEXICON)
    read = await say(FliteSynthesizer(), text)
    assert seconds(flite) == pytest.approx(seconds(read), rel=0.02)


@pytest.mark.parametrize(
    ("word", "ipa"),
    [
        *(("jump", "dʒˈʌmp"), ("thing", "θˈɪŋ"), ("night", "nˈaɪt"), ("go", "ɡˈoʊ")),
        *(("her", "hˈɜː"), ("shoe", "ʃˈuː"), ("chin", "tʃˈɪn"), ("hat", "hˈæt")),
    ],
)
def test_espeak_says_the_phonemes_that_it_is_given(word: str, ipa: str) -> None:
    child = EspeakChild()
    said = child.say([f"{IPA_BEGINS}{ipa}{IPA_ENDS}"], "en-us", 1.0)
    read = child.say([word], "en-us", 1.0)
    child.end()
    assert len(said.pcm) == pytest.approx(len(read.pcm), rel=0.02)


async def test_brackets_of_a_text_are_no_phonemes() -> None:
    pieces = await say(EspeakSynthesizer(), "Say [[h]] now.")
    read = await say(EspeakSynthesizer(), "Say h now.")
    assert seconds(pieces) == pytest.approx(seconds(read), rel=0.02)


async def test_an_interrupted_reply_tells_the_words_heard() -> None:
    synthesizer = FliteSynthesizer()
    await synthesizer.start()
    reply = open_speech(synthesizer, lexicon=LEXICON)
    reply.write("My Kia is old. It is in NY for good. " * 3)
    heard, samples = "", 0
    async for piece in reply:
        heard += piece.text
        samples += len(piece.pcm)
        if samples > RATE_OUT:
            reply.cancel()
            break
    await synthesizer.close()
    assert heard
    assert "My Kia is old. It is in NY for good. ".startswith(heard[:37])
