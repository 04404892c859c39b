"""What a caller's words say about the end of the turn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.conversation.turns.end_of_turn import (
    EndSettings,
    answer_silence,
    end_silence,
)
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.patience import Doubt, digits_at_end, doubt, words_of
from offhook.pipeline.conversation.turns.unfinished_words import LANGUAGES

OVER = (Doubt.COMPLETE, Doubt.WHOLE, Doubt.ANSWER, Doubt.OPEN)
NUMBER, PHONE = "What is your ticket number?", "What is your phone number?"
MAIL, NAME = "And your e-mail address?", "Could you spell your name?"
STREET, HELP = "What is your address, please?", "How may I help?"


@pytest.mark.parametrize(
    ("asked", "text", "about"),
    [
        (HELP, "I would like to", Doubt.BREAKS_OFF),
        (HELP, "is it open on", Doubt.BREAKS_OFF),
        (HELP, "my number is", Doubt.BREAKS_OFF),
        (HELP, "could you", Doubt.BREAKS_OFF),
        (HELP, "I'm calling because the", Doubt.BREAKS_OFF),
        (HELP, "do you know whether", Doubt.BREAKS_OFF),
        (HELP, "somewhere between two", Doubt.BREAKS_OFF),
        ("Which day?", "on Sunday, sorry", Doubt.BREAKS_OFF),
        (HELP, "if you would", Doubt.BREAKS_OFF),
        (HELP, "they told me that", Doubt.BREAKS_OFF),
        (HELP, "my daughter is called", Doubt.BREAKS_OFF),
        (HELP, "I'm from", Doubt.BREAKS_OFF),
        (HELP, "I think it could be", Doubt.BREAKS_OFF),
        (HELP, "and, um", Doubt.SEARCHING),
        (NUMBER, "Let me see.", Doubt.SEARCHING),
        (NUMBER, "yes, hold on", Doubt.SEARCHING),
        (NUMBER, "seven seven", Doubt.DICTATING),
        (NUMBER, "it's 77", Doubt.DICTATING),
        (NUMBER, "B", Doubt.DICTATING),
        (PHONE, "five five five oh one", Doubt.DICTATING),
        (PHONE, "415-555", Doubt.DICTATING),
        (HELP, "my phone number is four one five", Doubt.DICTATING),
        ("The last four digits, please?", "nine nine one", Doubt.DICTATING),
        (NAME, "P A", Doubt.DICTATING),
        (NAME, "P as in papa", Doubt.DICTATING),
        (MAIL, "it's lee at", Doubt.BREAKS_OFF),
        (MAIL, "lee at example", Doubt.DICTATING),
        (STREET, "nine Elm Road", Doubt.DICTATING),
        ("Tell me your address. I am listening.", "nine Elm Road", Doubt.DICTATING),
        ("Which extras would you like?", "a hammer", Doubt.LISTING),
        ("When is it?", "it's on the second", Doubt.LISTING),
        ("When were you born?", "the second of May", Doubt.LISTING),
        (PHONE, "sure", Doubt.DICTATING),
        (HELP, "if you have a minute for me", Doubt.BREAKS_OFF),
        (HELP, "yes, when I try to log in", Doubt.BREAKS_OFF),
        (HELP, "I was in the shop and then", Doubt.BREAKS_OFF),
        (HELP, "could you call at half past", Doubt.BREAKS_OFF),
        ("How many?", "six, wait, no", Doubt.BREAKS_OFF),
        (NUMBER, "hang on, let me pull up the message", Doubt.SEARCHING),
        (NUMBER, "let me scroll down. okay", Doubt.SEARCHING),
        (NUMBER, "give me one sec", Doubt.SEARCHING),
        (NUMBER, "let me see, it's five two", Doubt.DICTATING),
        ("Who is it?", "let me find it. it looks like a", Doubt.BREAKS_OFF),
        (NUMBER, "papa lima", Doubt.DICTATING),
        (NUMBER, "sixty-four", Doubt.DICTATING),
        ("Do you have your order number?", "it's the one one", Doubt.DICTATING),
        ("I'll need your account number.", "five two", Doubt.DICTATING),
        ("What's the six-digit code?", "five two one", Doubt.DICTATING),
        ("And your surname?", "that's P as in papa", Doubt.DICTATING),
        ("When were you born?", "June", Doubt.LISTING),
        ("When were you born?", "on June second", Doubt.LISTING),
    ],
)
def test_a_turn_that_goes_on(asked: str, text: str, about: Doubt) -> None:
    assert doubt(text, asked) is about


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("The last four digits, please?", "nine nine one two"),
        ("What is your zip code?", "nine four one oh three"),
        (PHONE, "five five five oh one two three four five six"),
        (MAIL, "lee at example dot com"),
        (MAIL, "it's lee@example.com"),
        (PHONE, "(415) 555-0172"),
        (PHONE, "+1 415-555-0172"),
        (HELP, "my number is five five five oh one two three four five six"),
        ("What's the six-digit code?", "five two one oh oh four"),
        ("Is there another number?", "sure, five five five oh one two three four five six"),
    ],
)
def test_a_number_or_an_address_that_is_complete(asked: str, text: str) -> None:
    assert doubt(text, asked) is Doubt.COMPLETE


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("When?", "on Sunday"),
        ("When can you come?", "I could come on Sunday"),
        ("What do you need?", "two boxes"),
        ("What do you need?", "a hammer"),
        (HELP, "well, I lost my card"),
        (HELP, "I, um, lost my card"),
        ("How much was it?", "I think it was two hundred"),
        ("Anything else?", "yes, one more thing"),
    ],
)
def test_a_turn_of_which_more_is_likely(asked: str, text: str) -> None:
    assert doubt(text, asked) is Doubt.HESITANT


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (HELP, "what are your opening hours"),
        (HELP, "hello, do you sell stamps?"),
        (HELP, "and can I pay by card"),
        (HELP, "stamps?"),
        (HELP, "when is the last bus to the harbour"),
        (HELP, "thank you"),
        ("Anything else?", "I think that was all"),
        ("Have you been there?", "I have"),
        ("Is it working?", "it is"),
        ("When?", "Sunday"),
        ("Sure?", "no"),
        ("How many guests?", "seven"),
        ("I know our hours and our address.", "what time is it"),
        ("Your e-mail address?", "no, thanks"),
        (HELP, "sorry?"),
        (HELP, "where are you from"),
        (HELP, "can you give me your phone number"),
        (HELP, "what is it called"),
        (HELP, "so who am I speaking to"),
        (HELP, "do you know where it is"),
        ("Is your number still the same?", "yes"),
        (HELP, "one more thing?"),
    ],
)
def test_a_turn_that_is_over(asked: str, text: str) -> None:
    assert doubt(text, asked) is Doubt.WHOLE


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (HELP, "I want to cancel my order"),
        (HELP, "my heating does not work"),
        ("Why?", "I don't know why"),
        ("Is he in?", "I think so"),
        ("Is the address correct?", "the name is wrong"),
        ("We deliver to your address. Anything else?", "the door bell is broken"),
        ("Which extras would you like?", "a hammer and nails"),
        (HELP, "I was born in 1986"),
        (HELP, "it was 1,200 dollars, or 1200"),
        (HELP, "tell me what you can do"),
        (HELP, "I'll take that"),
        (HELP, "I'll come when you are"),
        (HELP, "turn it on"),
        ("Shall I?", "yes, if that's all right"),
        ("When is it?", "on the second of May"),
        ("When were you born?", "on June second, nineteen eighty one"),
        ("When were you born?", "oh six, oh two, eighty one"),
        (HELP, "I'm looking for a plumber"),
        (HELP, "yes, speaking, what is it about"),
    ],
)
def test_a_turn_that_may_be_over(asked: str, text: str) -> None:
    assert doubt(text, asked) is Doubt.OPEN


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("Can you come?", "yes, I can"),
        ("Is he in?", "no, he isn't"),
        ("Are you the owner?", "yes, I am"),
        ("And your surname?", "Okafor"),
    ],
)
def test_an_answer_after_which_more_is_often_said(asked: str, text: str) -> None:
    about = doubt(text, asked)
    assert about is Doubt.ANSWER
    said = Facts(text=text, final=True, asked=asked)
    assert end_silence(EndSettings(), said) == EndSettings.end_silence
    assert answer_silence(EndSettings(), said) == EndSettings.answer_open


@pytest.mark.parametrize(
    ("language", "asked", "goes_on", "over"),
    [
        ("de", "Worum geht es?", "ich möchte gern einen", "ich möchte einen Termin"),
        ("de", "Was möchten Sie wissen?", "sagen Sie mir ob", "wissen Sie ob das fertig ist"),
        (
            "de",
            "Wie ist Ihre Telefonnummer?",
            "null eins sieben",
            "die habe ich nicht dabei, leider",
        ),
        ("de", "Wann?", "zwischen zwei", "zwischen zwei und drei"),
        ("de", "Wann war das?", "das war am zweiten", "das war am zweiten Mai"),
        ("es", "¿Cuándo fue?", "fue el dos", "fue el dos de mayo"),
        ("fr", "C'était quand ?", "c'était le deux", "c'était le deux mai"),
        ("es", "¿Su teléfono?", "seis uno dos", "seis uno dos tres cuatro cinco seis siete ocho"),
        ("de", "Worum geht es?", "wenn ich das Programm starte", "das Programm startet nicht"),
        ("es", "¿De qué se trata?", "es sobre la", "es sobre mi factura"),
        ("es", "¿Cuál es su correo?", "ana arroba correo", "ana arroba correo punto es"),
        ("fr", "De quoi s'agit-il ?", "je voudrais", "je voudrais un rendez-vous"),
        ("fr", "Votre téléphone ?", "zéro six douze", "je n'ai pas de téléphone"),
        ("fr", "Votre numéro ?", "zéro six quarante-deux", "ma radio ne marche plus"),
        ("de", "Ihre Kartennummer?", "zweiundvierzig", "die habe ich leider nicht"),
        ("de", "Haben Sie die Nummer?", "Sekunde, ich muss kurz aufstehen und sie holen", "ja"),
        ("es", "¿Su número?", "un segundito, que lo busco", "no lo tengo"),
        ("es", "¿Cuándo nació?", "el dos de mayo", "el dos de mayo de mil novecientos ochenta"),
        ("fr", "Votre date de naissance ?", "le deux mai", "le deux mai quatre-vingt-deux"),
        ("de", "Wann sind Sie geboren?", "am zweiten Mai", "am zweiten fünften achtundachtzig"),
    ],
)
def test_in_other_languages(language: str, asked: str, goes_on: str, over: str) -> None:
    assert doubt(goes_on, asked, language) not in OVER
    for tag in (language, f"{language}-XX"):
        assert doubt(over, asked, tag) in OVER


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("it is four one", 2),
        ("twenty one", 2),
        ("4 15", 3),
        ("A 4 B", 1),
        ("two dash two", 2),
        ("seven o'clock", 0),
        ("", 0),
        ("forty two seven", 3),
    ],
)
def test_digits_at_the_end_are_counted(text: str, digits: int) -> None:
    assert digits_at_end(words_of(text)) == digits


def test_a_language_without_lists_is_left_to_the_model() -> None:
    for text in ("vorrei parlare con il", "ik weet niet wat het is", "um"):
        assert doubt(text, "", "it") is Doubt.NONE
    assert doubt("um", "", "und") is Doubt.SEARCHING


def test_all_words_are_as_they_are_compared() -> None:
    for words in LANGUAGES.values():
        sets = (words.dangling, words.auxiliary, words.fillers, words.digits)
        for word in (word for listed in sets for word in listed):
            assert words_of(word) == [word]
        for phrase in (*words.announcing, *words.correcting, *words.opening, *words.complete):
            assert words_of(phrase) == phrase.split()


@pytest.mark.parametrize(
    ("language", "text", "about"),
    [
        ("de", "haben Sie morgen geöffnet", Doubt.WHOLE),
        ("de", "bis wann kann ich kommen", Doubt.WHOLE),
        ("de", "ich habe morgen frei", Doubt.OPEN),
        ("es", "hola a qué hora abren", Doubt.WHOLE),
        ("es", "es sobre mi pedido", Doubt.OPEN),
        ("fr", "avez-vous des timbres", Doubt.WHOLE),
        ("fr", "est-ce que vous êtes ouverts", Doubt.WHOLE),
        ("fr", "mon colis est arrivé", Doubt.OPEN),
    ],
)
def test_a_question_is_whole_and_a_statement_may_go_on(
    language: str, text: str, about: Doubt
) -> None:
    assert doubt(text, "", language) is about


@given(st.text(max_size=80), st.text(max_size=80), st.sampled_from([*LANGUAGES, "ja", "", "und"]))
def test_any_text_is_judged(text: str, asked: str, language: str) -> None:
    assert doubt(text, asked, language) in Doubt
    assert doubt(f"{text} um", asked, "en") is Doubt.SEARCHING
