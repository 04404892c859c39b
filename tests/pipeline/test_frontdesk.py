"""The front desk: whole conversations, callers as the recogniser hears them, any text at all."""

import shutil
import subprocess
import tomllib
import wave
from collections.abc import Mapping
from datetime import date, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from offhook.pipeline import frontdesk_language as language
from offhook.pipeline.frontdesk import (
    STEPS,
    TABLE,
    FrontDesk,
    Hangup,
    Reply,
    Step,
    TakeMessage,
    Transfer,
)
from offhook.pipeline.frontdesk_business import Business
from offhook.pipeline.frontdesk_intents import SENTENCES, Intent, recognise

DEMO_FILE = resources.files("offhook.pipeline") / "frontdesk.toml"
MONDAY = datetime(2026, 11, 23, 10, 5)
SATURDAY_NIGHT = datetime(2026, 11, 28, 21, 0)


def demo_with(change: Mapping[str, object]) -> Business:
    """The business to be tried, with some settings changed."""
    return Business.model_validate({**tomllib.loads(DEMO_FILE.read_text())["frontdesk"], **change})


def talk(*turns: str, desk: FrontDesk | None = None, now: datetime = MONDAY) -> list[Reply]:
    desk = desk or FrontDesk()
    return [desk.greeting(now), *(desk.reply(turn, now) for turn in turns)]


def talk_on(desk: FrontDesk, *turns: str) -> list[Reply]:
    return [desk.reply(turn, MONDAY) for turn in turns]


# Whole conversations -----------------------------------------------------------------------------


def test_takes_a_message_through_recognition_errors_and_corrections() -> None:
    replies = talk(
        "hello", "take a massage", "my name is peter millar", "no m i l l e r", "yes",
        "five five five", "one two three four", "now the last digit is five", "yes",
        "please call me back tomorrow about the invoice", "yes", "no thank you",
    )  # fmt: skip
    assert "P, E, T, E, R, then M, I, L, L, A, R" in replies[3].text
    assert "M, I, L, L, E, R" in replies[4].text
    assert "five five five, one two three four" in replies[7].text
    assert "five five five, one two three five" in replies[8].text
    text = "please call me back tomorrow about the invoice"
    assert text in replies[10].text
    assert replies[11].action == TakeMessage("Peter Miller", "5551235", text)
    assert replies[12].action == Hangup()


def test_offers_to_call_back_on_the_number_of_the_call() -> None:
    desk = FrontDesk(caller="+49 (30) 555-1234")
    replies = talk("take a message", "my name is peter miller", "yes", desk=desk)
    assert "plus four nine" in replies[-1].text
    assert (desk.step, desk.checking) == (Step.NUMBER, True)
    replies = talk_on(desk, "yes", "call me please about the invoice", "yes")
    assert replies[-1].action == TakeMessage(
        "Peter Miller", "+49305551234", "call me please about the invoice"
    )


def test_a_caller_may_want_to_be_called_on_another_number() -> None:
    desk = FrontDesk(caller="0305551234")
    talk("take a message", "my name is peter miller", "yes", "no", desk=desk)
    assert (desk.step, desk.checking) == (Step.NUMBER, False)
    desk = FrontDesk(caller="0305551234")
    talk("take a message", "my name is peter miller", "yes", "no five five five six six", desk=desk)
    assert (desk.step, desk.checking) == (Step.NUMBER, True)
    (_, _, reply) = talk_on(desk, "yes", "call me back", "yes")
    assert isinstance(reply.action, TakeMessage)
    assert reply.action.number == "55566"


@pytest.mark.parametrize(
    "caller", ["", "anonymous", "sip:bob@example.com", "12", "1" * 20, "٣٤٥٦٧"]
)
def test_a_call_without_a_number_is_asked_for_one(caller: str) -> None:
    desk = FrontDesk(caller=caller)
    talk("take a message", "my name is peter miller", "yes", desk=desk)
    assert (desk.step, desk.checking) == (Step.NUMBER, False)


def test_a_number_may_be_keyed_in_and_keys_mean_nothing_elsewhere() -> None:
    desk = FrontDesk()
    talk("take a message", "[pressed 12#]", desk=desk)
    assert (desk.step, desk.checking) == (Step.NAME, False)
    talk_on(desk, "my name is peter miller", "yes", "[pressed 5551234#]")
    assert (desk.step, desk.checking) == (Step.NUMBER, True)
    replies = talk_on(desk, "yes", "call [pressed 1] me back", "yes")
    assert replies[-1].action == TakeMessage("Peter Miller", "5551234", "call me back")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("486 Busy Here", "is busy"),
        ("no answer after 60 s", "does not answer"),
        ("403 Forbidden", "cannot be reached"),
    ],
)
def test_a_transfer_that_fails_is_told_in_words_and_the_talk_goes_on(
    reason: str, words: str
) -> None:
    desk = FrontDesk()
    replies = talk("can i talk to sales", "yes", desk=desk)
    assert isinstance(replies[-1].action, Transfer)
    reply = desk.not_transferred(reason, MONDAY)
    assert words in reply.text
    assert reply.action is None
    assert (desk.step, desk.checking) == (Step.OFFER, False)
    talk_on(desk, "yes")
    assert (desk.step, desk.checking) == (Step.NAME, False)


def test_a_question_in_between_is_answered_and_the_open_one_asked_again() -> None:
    desk = FrontDesk()
    *_, reply = talk("leave a message", "what are your opening hours", desk=desk)
    assert "nine to six" in reply.text
    assert "name?" in reply.text
    assert (desk.step, desk.checking) == (Step.NAME, False)


def test_a_message_may_contain_what_is_elsewhere_a_question() -> None:
    replies = talk("take a message", "skip", "skip", "ask if you are open on sunday", "yes")
    assert replies[-1].action == TakeMessage("", "", "ask if you are open on sunday")


def test_refused_name_is_spelled_and_then_let_be() -> None:
    desk = FrontDesk()
    replies = talk("take a message", "mary", "no", "jay oh h n", "no", desk=desk)
    assert "spell" in replies[3].text
    assert "J, O, H, N" in replies[4].text
    assert (desk.step, desk.checking) == (Step.NUMBER, False)


def test_refused_number_is_asked_from_the_start() -> None:
    replies = talk(
        "take a message", "mary", "yes", "five five five one two", "no", "six six six one two"
    )
    assert "six six, six one two" in replies[-1].text
    assert "five" not in replies[-1].text


def test_transfers_after_confirmation_only() -> None:
    replies = talk("can i talk to a person", "the workshop", "yes")
    assert [reply.action for reply in replies[:-1]] == [None] * 3
    assert replies[-1].action == Transfer("+12025550111")


def test_transfer_out_of_hours_says_so() -> None:
    assert "closed now" in talk("sales please", now=SATURDAY_NIGHT)[-1].text


def test_without_departments_nobody_is_promised() -> None:
    desk = FrontDesk(Business(name="Solo", address="one Main Street"))
    reply = talk("can i talk to a person", desk=desk)[-1]
    assert "take a message" in reply.text
    assert reply.action is None


def test_misunderstanding_escalates_to_an_offer_and_ends_politely() -> None:
    desk = FrontDesk()
    replies = talk(*["flower garden"] * 6, desk=desk)
    assert "leave a message" in replies[2].text or "take a message" in replies[2].text
    assert "message?" in replies[3].text
    assert replies[6].action == Hangup()
    assert len({reply.text for reply in replies}) == len(replies)


def test_one_understood_turn_forgives_earlier_misses() -> None:
    desk = FrontDesk()
    talk("flower garden", "flower garden", "what time is it", "flower garden", desk=desk)
    assert (desk.step, desk.checking) == (Step.OPEN, False)


def test_silence_prompts_then_helps_then_hangs_up() -> None:
    desk = FrontDesk()
    desk.greeting(MONDAY)
    replies = [desk.silence(MONDAY) for _ in range(4)]
    assert replies[0] is not None
    assert "I can" in replies[1].text or "You can" in replies[1].text  # type: ignore[union-attr]
    assert replies[2].action == Hangup()  # type: ignore[union-attr]
    assert replies[3] is None


def test_who_asks_to_wait_is_given_time() -> None:
    desk = FrontDesk()
    talk("take a message", "hold on", desk=desk)
    assert desk.silence(MONDAY) is None
    assert desk.silence(MONDAY) is None
    assert "name?" in desk.silence(MONDAY).text  # type: ignore[union-attr]


def test_repeats_once_and_again_and_slowly() -> None:
    replies = talk("what is your address", "pardon", "say that again", "slower please")
    for reply in replies[2:4]:
        assert replies[1].text in reply.text
    assert replies[2].text != replies[3].text
    assert replies[4].text.count(",") > replies[1].text.count(",")
    assert replies[1].text.replace(",", "") in replies[4].text.replace(",", "")


def test_the_same_question_again_gets_the_same_answer_in_other_words() -> None:
    first, second, third = talk(*["what is your address"] * 3)[1:]
    assert first.text in second.text
    assert first.text != second.text != third.text


def test_honest_about_being_a_machine() -> None:
    assert (
        "machine" in talk("are you a robot")[1].text or "program" in talk("are you a robot")[1].text
    )


def test_long_answers_are_there_to_be_interrupted() -> None:
    _, about, counted = talk("tell me about yourself", "down to twenty")
    assert about.text.count(".") >= 4
    assert counted.text.endswith("eighteen, nineteen, twenty.")


def test_greets_by_the_time_of_day() -> None:
    assert FrontDesk().greeting(MONDAY).text.startswith("Good morning")
    assert FrontDesk().greeting(SATURDAY_NIGHT).text.startswith("Good evening")


# Interruption ------------------------------------------------------------------------------------


def test_words_before_and_after_an_unheard_answer_are_one_turn() -> None:
    desk = FrontDesk()
    talk("take a message", "skip", "skip", "please call me back", desk=desk)
    desk.interrupted("")
    assert "please call me back about the invoice" in desk.reply("about the invoice", MONDAY).text


def test_question_not_heard_is_asked_again_instead_of_taking_any_answer() -> None:
    desk = FrontDesk()
    talk("take a message", "skip", "skip", desk=desk)
    assert (desk.step, desk.checking) == (Step.TEXT, False)
    desk.interrupted("Then without")
    reply = desk.reply("wait what did you just", MONDAY)
    assert (desk.step, desk.checking) == (Step.TEXT, False)
    assert reply.text.endswith("?")


def test_yes_to_a_number_not_read_to_the_end_confirms_nothing() -> None:
    desk = FrontDesk()
    talk("take a message", "mary", "yes", "five five five one two three four", desk=desk)
    desk.interrupted("Your number is five five")
    assert "one two three four" in desk.reply("yes", MONDAY).text
    assert "one two three four" not in desk.reply("yes", MONDAY).text
    assert (desk.step, desk.checking) == (Step.TEXT, False)


@pytest.mark.parametrize("heard", ["", "Thank you for"])
def test_interrupted_goodbye_is_off(heard: str) -> None:
    desk = FrontDesk()
    talk("what time is it", "goodbye", desk=desk)
    desk.interrupted(heard)
    assert (desk.step, desk.checking) == (Step.OPEN, False)


def test_a_message_taken_stays_taken_when_the_thanks_is_cut() -> None:
    desk = FrontDesk()
    replies = talk("take a message", "skip", "skip", "the bike is ready", "yes", desk=desk)
    assert isinstance(replies[-1].action, TakeMessage)
    desk.interrupted("")
    assert (desk.step, desk.checking) == (Step.MORE, False)


# Hours -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "now", "answer"),
    [
        ("are you open now", MONDAY, "Yes, we are open now. We close at six."),
        ("are you open now", SATURDAY_NIGHT,
         "We are closed right now. We open again on Monday at nine."),
        ("are you open today", datetime(2026, 11, 23, 7), "Today we are open from nine to six."),
        ("are you open today", datetime(2026, 11, 29, 9),
         "We are closed today. We open again tomorrow at nine."),
        ("how late are you open", MONDAY, "Yes, we are open now. We close at six."),
        ("are you open on the weekend", MONDAY,
         "We are open on Saturday from ten to two. We are closed on Sunday."),
        ("when do you open tomorrow", MONDAY, "We are open tomorrow from nine to six."),
        ("are you a ban on sunday", MONDAY, "We are closed on Sunday."),
    ],
)  # fmt: skip
def test_hours(asked: str, now: datetime, answer: str) -> None:
    assert talk(asked, now=now)[-1].text == answer


def test_holidays_and_lunch() -> None:
    business = {
        "hours": {"monday": "9:00-12:00, 13:30-24:00", "tuesday": "9:00-17:00"},
        "holidays": [date(2026, 11, 24)],
    }
    desk = FrontDesk(demo_with(business))
    *_, today, tomorrow = talk("are you open now", "and tomorrow are you open", desk=desk,
                               now=datetime(2026, 11, 23, 12, 30))  # fmt: skip
    assert today.text.endswith("We open again today at one thirty.")
    assert tomorrow.text == "We are closed tomorrow."


def test_time_and_date() -> None:
    assert talk("what time is it")[-1].text == "It is ten oh five in the morning."
    assert talk("what is the date")[-1].text == "Today is Monday, the twenty third of November."


# Configuration -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"name": 7}, "name"),
        ({"name": " "}, "name"),
        ({"address": "x" * 200}, "address"),
        ({"hours": {"mondy": "9:00-17:00"}}, "hours.mondy"),
        ({"hours": {"monday": "9-17"}}, "hours.monday"),
        ({"hours": {"monday": "17:00-9:00"}}, "hours.monday"),
        ({"hours": {"monday": "9:00-25:00"}}, "hours.monday"),
        ({"hours": 5}, "hours"),
        ({"holidays": ["christmas"]}, "holidays"),
        ({"departments": {"sales": {"number": 5}}}, "departments.sales.number"),
        ({"departments": {"sales": "5"}}, "departments.sales"),
        ({"adress": "x"}, "adress"),
    ],
)
def test_wrong_settings_are_named(change: dict[str, object], key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        demo_with(change)
    (fault,) = caught.value.errors()
    assert ".".join(map(str, fault["loc"])).startswith(key)


# Numbers, letters, names -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heard", "digits"),
    [
        ("five five five one two three four", "5551234"),
        ("double five or one two three", "550123"),
        ("twenty three forty five sixty seven", "234567"),
        ("plus four nine triple zero", "+49000"),
        ("my number is for five to one", "4521"),
        ("eight hundred five five five", "800555"),
        ("+1 (202) 555-0110", "+12025550110"),
        ("i want to talk to you for a moment", ""),
    ],
)
def test_digits(heard: str, digits: str) -> None:
    assert language.digits_in(language.words_of(heard)) == digits


@pytest.mark.parametrize(
    ("heard", "number"),
    [
        ("no the last digit is five", "5551235"),
        ("no the last digit his five", "5551235"),
        ("the second digit is eight", "5851234"),
        ("the last two digits are nine nine", "5551299"),
        ("it ends in four two", "5551242"),
        ("it starts with six", "6551234"),
        ("second to last is seven", "5551274"),
        ("seven not four", "5551237"),
        ("it is not two but nine", "5551934"),
        ("no it is six six six one two three", "666123"),
        ("no that is wrong", ""),
    ],
)
def test_corrects_a_number(heard: str, number: str) -> None:
    assert language.correct_number("5551234", language.words_of(heard)) == number


@pytest.mark.parametrize(
    ("heard", "spelled"),
    [
        ("j o h n", "john"),
        ("jay oh h n", "john"),
        ("bravo alpha kilo echo romeo", "baker"),
        ("m as in mike a as in apple r as in robert y as in yellow", "mary"),
        ("m i double l e r", "miller"),
        ("double you h y", "why"),
        ("are you", ""),
        ("see you later", ""),
    ],
)
def test_spelling(heard: str, spelled: str) -> None:
    assert language.spelling_in(language.words_of(heard)) == spelled


@pytest.mark.parametrize(
    ("heard", "name"),
    [
        ("my name is peter millar", "Peter Millar"),
        ("this is john smith speaking", "John Smith"),
        ("mary", "Mary"),
        ("it's mary johnson thank you", "Mary Johnson"),
        ("my name is jon j o h n", "John"),
        ("what do you need my name for", ""),
        ("", ""),
    ],
)
def test_name(heard: str, name: str) -> None:
    assert language.name_in(language.words_of(heard))[0] == name


@given(st.from_regex(r"\A[0-9]{1,15}\Z"))
def test_a_number_read_out_is_understood_again(number: str) -> None:
    assert language.digits_in(language.words_of(language.say_number(number))) == number


# Any text ----------------------------------------------------------------------------------------

PHRASES = sorted({text for texts in SENTENCES.values() for text in texts.split(", ")})
HEARD = st.one_of(
    st.sampled_from(PHRASES),
    st.sampled_from(["peter miller", "j o h n", "five five five one two", "sales", "nine", ""]),
    st.lists(st.sampled_from(" ".join(PHRASES).split()), max_size=12).map(" ".join),
    st.text(max_size=300),
)
STEP = st.one_of(
    HEARD.map(lambda text: ("reply", text)),
    st.just(("silence", "")),
    st.integers(0, 20).map(lambda words: ("interrupted", str(words))),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=25), st.integers(0, 5))
def test_any_call_gets_short_new_answers(steps: list[tuple[str, str]], seed: int) -> None:
    desk = FrontDesk(seed=seed)
    last: str = desk.greeting(MONDAY).text
    for kind, text in steps:
        if kind == "interrupted":
            desk.interrupted(" ".join(last.split()[: int(text)]))
            last = "" if text == "0" else last
            continue
        reply = desk.reply(text, MONDAY) if kind == "reply" else desk.silence(MONDAY)
        if reply is None:
            assert kind == "silence"
            continue
        assert reply.text.strip()
        assert reply.text != last
        assert not any(char.isdecimal() or char in "*_#<>" for char in reply.text)
        assert len(reply.text) <= 400 or "bicycle shop by" in reply.text.replace(",", "")
        last = reply.text


def test_every_step_has_its_question_and_its_way_out() -> None:
    assert set(TABLE) == set(STEPS) == set(Step)
    for step, rows in TABLE.items():
        assert {Intent.GOODBYE, Intent.REPEAT, Intent.WAIT} <= set(rows), step


@pytest.mark.parametrize("intent", SENTENCES)
def test_known_sentences_mean_what_they_are_listed_under(intent: Intent) -> None:
    for sentence in SENTENCES[intent].split(", "):
        found, sure = recognise(sentence.split(), SENTENCES)
        assert (found, sure) == (intent, 1.0), sentence


@pytest.mark.parametrize(
    "heard", ["flower garden", "mary johnson", "the quick brown fox", "go forward ten meters",
              "it was a bright cold day in april", "blue cheese with potatoes"]
)  # fmt: skip
def test_other_talk_is_not_understood(heard: str) -> None:
    assert FrontDesk().understand(heard)[0] is Intent.UNKNOWN


# First sentences ---------------------------------------------------------------------------------

NOT_KNOWN = "I do not know about that"
FIRST_SENTENCES = {
    "closed on Sunday": "are you open on sunday",
    "opening hours are": "what are your opening hours; when are you open; what time do you close",
    "open now": "are you open today; are you open now",
    "open tomorrow": "when do you open tomorrow",
    "hours on holidays": "are you open on christmas day",
    "Harbour Street": "where are you; where is your shop; how do i get there",
    "small bicycle shop": "tell me about yourself; tell me about the company",
    "hear you": "hello can you hear me; can you hear me; is anybody there; hello are you there; "
    "this is a test; i am just testing",
    "Hello": "hello; hi there; good morning",
    "well, thank": "how are you",
    "front desk of Lighthouse": "who am i speaking to; what is your name; who are you",
    "machine, with": "are you a robot; am i talking to a machine",
    "take a message, or": "what can you do; i have a question; can you help me; "
    "good afternoon i have a question; can i ask you something",
    "city bikes": "do you sell electric bikes; do you have electric bikes; do you sell bicycles",
    "not rent out": "do you rent bikes; can i rent a bike for the weekend",
    "know our prices": "how much is a repair; what does a bike cost; how much are your bikes; "
    "how much does a new tyre cost",
    "workshop repairs": "my bike is broken; i have a flat tyre; can you fix my bike; "
    "do you do repairs; my brakes do not work",
    "no appointment": "can i make an appointment; i would like to book an appointment",
    "cannot see orders": "is my bike ready; where is my order; i want to cancel my order; "
    "i have a problem with my invoice; i want to complain",
    "free class": "when is the free class",
    "English only": "do you speak german",
    "your name?": "i would like to leave a message; can you call me back",
    "sales, the workshop or billing?": "i want to speak to a manager; can i talk to a person",
    "to sales": "can i talk to somebody in sales",
    "the workshop?": "put me through to the workshop",
    "name shall I spell": "can you spell my name; spell my name back",
    "ten oh five": "what time is it",
    "twenty third of November": "what day is it today",
    "Goodbye": "goodbye; sorry wrong number",
    NOT_KNOWN: "what is the weather; what's the weather like tomorrow; will it rain today; "
    "what time is the next train; tell me a joke; sing me a song; what is two plus two; "
    "who is the president; what is the meaning of life; when is easter; are you hiring; "
    "do you have a table for two; can i park there; is there parking; how old are you; "
    "do you take credit cards; how do i open a bottle of wine; open the door; do you love me; "
    "set an alarm for seven; what is the news; play some music; i lost my key",
}
"""What callers may say first, divided by semicolons, under a piece of the answer."""


@pytest.mark.parametrize(
    ("said", "answer"),
    [(s, answer) for answer, said in FIRST_SENTENCES.items() for s in said.split("; ")],
)
def test_a_first_sentence_gets_a_sensible_answer(said: str, answer: str) -> None:
    text = talk(said, desk=FrontDesk(seed=1))[-1].text
    assert answer in text
    assert (NOT_KNOWN in text) == (answer == NOT_KNOWN)


# Speech -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heard", "intent"),
    [
        ("the mining", Intent.GREETING),
        ("keller you", Intent.HOW_ARE_YOU),
        ("are you up and now", Intent.HOURS),
        ("are you a ban on sunday", Intent.HOURS),
        ("but you open to date", Intent.HOURS),
        ("what time they are close", Intent.HOURS),
        ("stop whether you're helping hours", Intent.HOURS),
        ("stop when they are yeah reopening hours", Intent.HOURS),
        ("halladay i'd get there", Intent.ADDRESS),
        ("which department store there", Intent.DEPARTMENTS),
        ("can someone bring me back please", Intent.MESSAGE),
        ("can i talk to say also", Intent.TRANSFER),
        ("connect me to bailing", Intent.GIVES),
        ("arguing robot", Intent.ROBOT),
        ("what they said today", Intent.DATE),
        ("sam que very much", Intent.THANKS),
        ("no sam que", Intent.NO),
        ("can sell", Intent.CANCEL),
        ("can you come to ten", Intent.COUNT),
        ("to argue", Intent.WHO),
    ],
)
def test_what_pocketsphinx_wrote_is_understood(heard: str, intent: Intent) -> None:
    assert FrontDesk().understand(heard)[0] is intent


SPOKEN: dict[Intent, str] = {
    Intent.GREETING: "hello; good morning",
    Intent.HOW_ARE_YOU: "how are you",
    Intent.HOURS: "what are your opening hours; when are you open; are you open now; are you open "
    "today; are you open on sunday; how late are you open; what time do you close; when "
    "do you open tomorrow; what are your hours on the weekend",
    Intent.ADDRESS: "where are you located; what is your address; how do i get there; "
    "can you give me "
    "directions",
    Intent.DEPARTMENTS: "what departments do you have; which departments are there",
    Intent.MESSAGE: "i would like to leave a message; can you take a message please; "
    "take a message",
    Intent.TRANSFER: "can i talk to a person; i want to speak to a human",
    Intent.GIVES: "can i talk to sales; please transfer me to support; "
    "connect me to billing",
    Intent.REPEAT: "say that again; can you repeat that please; pardon; what",
    Intent.SLOWER: "could you speak more slowly please",
    Intent.TIME: "what time is it",
    Intent.DATE: "what day is it today; what is the date",
    Intent.THANKS: "thank you very much; thanks",
    Intent.WHO: "who are you; what is your name",
    Intent.ROBOT: "are you a robot; am i talking to a machine",
    Intent.HELP: "what can you do; help",
    Intent.GOODBYE: "goodbye; bye bye; hang up",
    Intent.DONE: "that is all thank you",
    Intent.ABOUT: "tell me about yourself; tell me about the company",
    Intent.COUNT: "count to twenty; can you count to ten",
    Intent.SPELL: "spell your name; can you spell my name",
    Intent.YES: "yes; yes please; that is correct",
    Intent.NO: "no; no thank you; that is wrong",
    Intent.CANCEL: "never mind; start over",
    Intent.WAIT: "wait a moment",
}  # fmt: skip
"""What callers say, phrasings divided by semicolons."""


def spoken_and_heard(text: str, voice: str, folder: Path, decoder: Any) -> str:
    """What PocketSphinx hears of a Flite voice."""
    file = folder / "said.wav"
    subprocess.run(["flite", "-voice", voice, "-t", text, "-o", str(file)], check=True)
    with wave.open(str(file)) as sound:
        assert sound.getframerate() == 16_000
        pcm = sound.readframes(sound.getnframes())
    decoder.start_utt()
    decoder.process_raw(bytes(6400) + pcm + bytes(9600), no_search=False, full_utt=False)
    decoder.end_utt()
    return decoder.hyp().hypstr if decoder.hyp() else ""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("flite") is None, reason="needs the flite command")
def test_nine_in_ten_spoken_phrasings_are_understood(tmp_path: Path) -> None:
    decoder = pytest.importorskip("pocketsphinx").Decoder(samprate=16_000, loglevel="FATAL")
    cases = [(intent, text) for intent, texts in SPOKEN.items() for text in texts.split("; ")]
    wrong = []
    for intent, text in cases:
        heard = spoken_and_heard(text, "slt", tmp_path, decoder)
        found, _ = FrontDesk().understand(heard)
        if found is not intent:
            wrong.append(f"{text!r} heard {heard!r} taken for {found.name}")
    assert len(wrong) <= len(cases) / 10, wrong
