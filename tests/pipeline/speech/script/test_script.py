"""What is heard of a text with a lexicon or SSML, and which written words its sound is."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from loguru import logger

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.engines.embedded.embedded_speech_io import EmbeddedSynthesizer
from offhook.pipeline.engines.embedded.espeak_io import EspeakChild, EspeakSynthesizer
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.speech.script.lexicon import NO_LEXICON, Lexicon
from offhook.pipeline.speech.script.script_io import Speaker, open_speech
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    Speech,
    Synthesizer,
    TextTooLong,
    VoiceOptions,
)
from offhook.pipeline.speech.text.markup import IPA_BEGINS, IPA_ENDS
from tests.pipeline.conversation.speller import LETTER, Speller, SpellerStream

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
    assert written(flite) == written(read)
    assert seconds(flite) == pytest.approx(seconds(read), rel=0.05)  # less alike on a busy machine


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


# --- SSML ---


def silence_ms(pieces: list[Speech]) -> list[int]:
    """The stretches of silence from 400 ms on, in ms."""
    pcm = np.concatenate([piece.pcm for piece in pieces])
    frame = RATE_OUT // 100
    rows = pcm[: len(pcm) // frame * frame].reshape(-1, frame).astype(np.float32)
    runs, run = [], 0
    for loud in [*(np.sqrt((rows**2).mean(axis=1)) > 60), True]:
        if loud and run >= 40:
            runs.append(10 * run)
        run = 0 if loud else run + 1
    return runs


@pytest.mark.parametrize("make", [FliteSynthesizer, EspeakSynthesizer])
@pytest.mark.parametrize(
    ("tag", "ms"),
    [
        *(('<break time="2s"/>', 2000), ("<break time='1500ms' />", 1500), ("<break/>", 750)),
        *(('<break strength="x-strong"/>', 1250), ('<break time="99s"></break>', 10_000)),
        ('<break time="1s"/> <break time="1.5s"/>', 2500),
    ],
)
async def test_a_break_is_silence_of_its_length(
    make: type[EmbeddedSynthesizer], tag: str, ms: int
) -> None:
    text = f"<speak>Good morning {tag} everybody</speak>"
    pieces = await say(make(), *text)
    assert silence_ms(pieces) == [pytest.approx(ms, abs=90)]
    assert "".join(piece.text for piece in pieces) == text


async def test_a_break_may_come_first_and_last() -> None:
    pieces = await say(FliteSynthesizer(), '<break time="1s"/>Hello.<break time="2s"/>')
    assert not np.concatenate([piece.pcm for piece in pieces])[:RATE_OUT].any()
    assert not np.concatenate([piece.pcm for piece in pieces])[-2 * RATE_OUT :].any()
    assert seconds(pieces) == pytest.approx(
        3 + seconds(await say(FliteSynthesizer(), "Hello.")), 0.05
    )


async def test_pauses_together_have_a_limit() -> None:
    pieces = await say(FliteSynthesizer(), 'a <break time="10s"/>' * 80)
    assert seconds(pieces) < 600 + 80


async def test_a_rate_is_heard_and_ends_with_its_element() -> None:
    slow = '<prosody rate="slow">This is a sentence.</prosody>'
    slowly = await say(EspeakSynthesizer(), slow)
    fast = await say(EspeakSynthesizer(), slow.replace("slow", "200%"))
    usual = await say(EspeakSynthesizer(), slow.replace("slow", "+0%"))
    plain = await say(EspeakSynthesizer(), "This is a sentence.")
    assert seconds(usual) == pytest.approx(seconds(plain), rel=0.02)
    assert seconds(slowly) > 1.2 * seconds(plain) > 1.6 * seconds(fast)
    both = await say(EspeakSynthesizer(), f"{slow} This is a sentence.")
    assert seconds(both) == pytest.approx(seconds(slowly) + seconds(plain), rel=0.1)


async def test_a_language_is_that_of_another_voice_if_the_engine_has_one() -> None:
    german = '<lang xml:lang="de-DE">Ich habe 21 Fragen.</lang>'
    pieces = await say(EspeakSynthesizer(), f"He said: {german} Right?")
    spoken = await say(
        EspeakSynthesizer(), "Ich habe einundzwanzig Fragen.", options=VoiceOptions(language="de")
    )
    around = await say(EspeakSynthesizer(), "He said: "), await say(EspeakSynthesizer(), "Right?")
    assert seconds(pieces) == pytest.approx(seconds(spoken) + sum(map(seconds, around)), rel=0.05)
    flite = await say(FliteSynthesizer(), german)
    assert seconds(flite) == pytest.approx(
        seconds(await say(FliteSynthesizer(), "Ich habe 21 Fragen.")), rel=0.05
    )


async def test_a_voice_elsewhere_that_refuses_a_language_speaks_in_its_own() -> None:
    class Late(Speller):
        """Refuses with its first speech."""

        def open(self, options: VoiceOptions = DEFAULT_VOICE) -> SpellerStream:
            stream = super().open(options)
            self.fault = ValueError("no German here") if options.language else None
            return stream

    voice = Late()
    pieces = await say(voice, "one ", '<lang xml:lang="de">', "zwei ", "drei", "</lang> four")
    assert "".join(written(pieces)) == 'one <lang xml:lang="de">zwei drei</lang> four'
    assert seconds(pieces) == len("onezweidreifour") * LETTER / RATE_OUT


@pytest.mark.parametrize("late", [False, True])
async def test_in_a_call_a_voice_that_is_not_there_is_replaced_by_the_engines_own(
    late: bool,
) -> None:
    opened: list[VoiceOptions] = []
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}")

    class Choosy(Speller):
        """Has no voice of any name, and no language that is named."""

        def open(self, options: VoiceOptions = DEFAULT_VOICE) -> SpellerStream:
            opened.append(options)
            fault = ValueError("no such voice") if options.voice or options.language else None
            if fault is not None and not late:
                raise fault
            self.fault = fault
            return super().open(replace(options, voice=""))

    voice = Choosy()
    speaker = Speaker(voice, LEXICON)
    for _ in range(2):
        reply = speaker.open(VoiceOptions(voice="nobody", language="de"))
        for part in ("one ", '<lang xml:lang="fr">', "deux", "</lang> three"):
            reply.write(part)
        reply.end()
        pieces = [piece async for piece in reply]
        assert "".join(written(pieces)) == 'one <lang xml:lang="fr">deux</lang> three'
        assert seconds(pieces) == len("onedeuxthree") * LETTER / RATE_OUT
    logger.remove(sink)
    assert lines == ["no such voice: the engine's own voice speaks instead\n"]
    assert speaker.open(VoiceOptions(voice="nobody", language="de"))
    assert opened[-1] == DEFAULT_VOICE


async def test_a_reply_that_is_cancelled_in_a_pause_says_no_more() -> None:
    synthesizer = FliteSynthesizer()
    await synthesizer.start()
    reply = open_speech(synthesizer)
    reply.write('One. <break time="9s"/> Two.')
    reply.end()
    heard = ""
    async for piece in reply:
        heard += piece.text
        if heard and not piece.pcm.any():
            reply.cancel()
    assert heard == "One. "
    await synthesizer.close()


async def test_text_behind_a_pause_has_a_limit() -> None:
    synthesizer = FliteSynthesizer()
    await synthesizer.start()
    reply = open_speech(synthesizer)
    reply.write("One. <break/>")
    for _ in range(100):
        reply.write("word " * 199)
    with pytest.raises(TextTooLong):
        reply.write("word " * 199)
    reply.cancel()
    await synthesizer.close()
