"""When an agent follows its caller into another language."""

from dataclasses import replace

import pytest

from benchmarks.servers.scripted import ScriptedSynthesizer, ScriptedSynthesizerStream
from offhook.media.pcm import Pcm
from offhook.pipeline.conversation.call.call_language import (
    TABLE,
    CallLanguage,
    Evidence,
    LanguageState,
    detected,
    telling_words,
)
from offhook.pipeline.conversation.call.silences import SilenceStep
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.events import AgentTurn, LanguageChanged
from offhook.pipeline.conversation.sentences import SENTENCES, Occasion
from offhook.pipeline.speech.recognizer import DEFAULT_OPTIONS, Final, StreamOptions
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, VoiceOptions
from tests.pipeline.conversation.phone import Answerer, Words, WordsStream, phone_call

LONG = "ich möchte bitte einen neuen Termin für nächste Woche machen"


def language(*languages: str) -> CallLanguage:
    return CallLanguage(languages or ("en", "de", "fr"), lambda text, languages: "")


@pytest.mark.parametrize(
    ("turns", "now"),
    [
        ([("de", "das verstehe ich nicht")], "en"),
        ([("de", "das verstehe ich nicht"), ("de", "sprechen Sie auch deutsch")], "de"),
        ([("de", "das verstehe ich nicht"), ("de", "ja"), ("de", "sprechen wir deutsch")], "de"),
        (
            [("de", "das verstehe ich nicht"), ("en", "what was that now"), ("de", "wie geht das")],
            "en",
        ),
        ([("de", "das verstehe ich nicht"), ("fr", "je ne comprends pas")], "en"),
        (
            [
                ("de", "das verstehe ich"),
                ("fr", "je ne comprends pas"),
                ("fr", "vous parlez français"),
            ],
            "fr",
        ),
        ([("de", LONG)], "de"),
        ([("de-AT", LONG)], "de"),
        ([("de", LONG), ("en", "sorry can we speak english"), ("en", "if that is fine")], "en"),
        ([("es", "quisiera hablar con alguien por favor ahora mismo señor")], "en"),
        ([("de", "ja")] * 5, "en"),
        ([("de", "Hotel Taxi okay")] * 3, "en"),
        ([("de", "Herr Müller Anna Schmidt Berlin")] * 3, "en"),
        ([("und", LONG)], "en"),
    ],
)
def test_the_language_of_a_call(turns: list[tuple[str, str]], now: str) -> None:
    call = language()
    changes = [call.turn(text, code) for code, text in turns]
    assert call.current == now
    assert call.is_first == (now == "en")
    assert any(changes) == bool(call.instruction)


def test_every_state_has_a_step_for_all_evidence() -> None:
    assert TABLE.keys() == {(state, each) for state in LanguageState for each in Evidence}


def test_the_text_decides_where_the_recognizer_does_not() -> None:
    pytest.importorskip("py3langid")
    for recognized in ("", "und", "ja"):
        call = CallLanguage(("en", "de"), detected)
        assert call.turn(LONG, recognized)
        assert call.instruction == "The caller now speaks German; answer in German."
        assert call.turn("well I would like to go on in English now please", recognized)
        assert call.instruction == "The caller now speaks English; answer in English."


@pytest.mark.parametrize("languages", [(), ("en",)])
def test_an_agent_of_one_language_stays_with_it(languages: tuple[str, ...]) -> None:
    call = CallLanguage(languages, detected)
    assert not call.turn(LONG, "de")
    assert call.is_first
    assert not call.instruction


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ja", 0),
        ("Ich heiße Anna Schmidt.", 2),
        ("Guten Tag. Wie geht es?", 4),
        ("my number is 555 1234", 3),
        ("NO WAY AT ALL", 3),
        ("予約したいのですが", 4),
        ("", 0),
    ],
)
def test_words_that_say_something_of_the_language(text: str, words: int) -> None:
    assert telling_words(text) == words


class Languages(Words):
    """Understands sentences, each in a language."""

    def __init__(self, *sentences: tuple[str, str]) -> None:
        super().__init__(*(text for _, text in sentences))
        self._codes = iter([code for code, _ in sentences])

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> WordsStream:
        codes = self._codes

        class Detected(WordsStream):
            def finish(self) -> None:
                self._events.put_nowait(
                    Final(next(self._sentences), self._ms, language=next(codes))
                )

        return Detected(self._sentences)


class Voices(ScriptedSynthesizer):
    def __init__(self) -> None:
        self.opened: list[VoiceOptions] = []

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> ScriptedSynthesizerStream:
        self.opened.append(options)
        return super().open(options)


async def test_what_is_heard_after_a_caller_has_changed_the_language(voice: Pcm) -> None:
    english, german = VoiceOptions("amy", "en"), VoiceOptions("anna", "de")
    answerer, voices = Answerer("yes", "gern", "noch etwas"), Voices()
    steps = (SilenceStep(0.3, "Our own words?"),)

    def make(call: Call) -> Agent:
        return replace(answerer.agent(), greeting="Hello.", silences=steps)

    async with phone_call(
        make,
        recognizer=Languages(("en", "when do you open today"), ("de", LONG)),
        synthesizer=voices,
        languages={"en": english, "de": german},
        sentences={Occasion.STILL_THERE: "More own words?"},
    ) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        phone.leg.feed(voice)
        await phone.until(lambda: len(answerer.turns) == 1)
        await phone.until(lambda: any(t.text == "Our own words?" for t in phone.of(AgentTurn)))
        phone.leg.feed(voice)
        await phone.until(lambda: len(answerer.turns) == 2)
        still_there = SENTENCES["de"][Occasion.STILL_THERE]
        await phone.until(lambda: any(t.text == still_there for t in phone.of(AgentTurn)))
        change = phone.of(LanguageChanged)
    assert [(each.before, each.language) for each in change] == [("en", "de")]
    assert voices.opened[0] == english
    assert voices.opened[-1] == german
