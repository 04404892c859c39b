"""What a caller meant: the intents, and the sentences and key words they are known by.

A small recogniser gets about one word in five wrong, and wrong by its sound ("take a massage", "are
you up and now"). An intent is therefore known in two ways: by its key words, unless too much of
what was said is about something else ("open a bottle of wine"), or by the sound of the whole
sentence being near that of a known one, word boundaries ignored.
"""

from collections.abc import Container, Sequence
from difflib import SequenceMatcher
from enum import Enum, auto

from offhook.pipeline.frontdesk_language import (
    DAYS,
    FILLERS,
    FUNCTION_WORDS,
    same_word,
    sound_of,
)

SURE = 0.95
"""Score of what could hardly be meant otherwise; 1 is a known sentence word for word."""
LIKELY = 0.55
"""The lowest score of key words that counts."""
NEAR = 0.76
"""How alike two sentences must sound (0 to 1) to be taken for the same."""
NEAR_WITH_REST = 1.4
"""The least sum of that and of how alike the rest sounds, without the words that both have."""


class Intent(Enum):
    """What a caller can mean. Of two that score alike the earlier one wins."""

    CANCEL = auto()
    MESSAGE = auto()
    ROBOT = auto()
    DEPARTMENTS = auto()
    TRANSFER = auto()
    HOURS = auto()
    ADDRESS = auto()
    SLOWER = auto()
    SPELL = auto()
    READ_NUMBER = auto()
    COUNT = auto()
    ABOUT = auto()
    WHO = auto()
    TIME = auto()
    DATE = auto()
    WAIT = auto()
    SKIP = auto()
    """Would rather not give what was asked for."""
    HEAR_ME = auto()
    """Asks whether the line works."""
    REPEAT = auto()
    HELP = auto()
    GOODBYE = auto()
    DONE = auto()
    NO = auto()
    YES = auto()
    HOW_ARE_YOU = auto()
    THANKS = auto()
    GREETING = auto()
    GIVES_NAME = auto()
    FACT = auto()
    """Asks for a fact of the business."""
    GIVES = auto()
    """Answers what was asked for."""
    UNKNOWN = auto()


# fmt: off
SENTENCES: dict[Intent, str] = {
    Intent.CANCEL: "cancel, can sell, stop, stop it, never mind, forget it, start over, "
        "start again, enough, that is enough",
    Intent.MESSAGE: "take a message, leave a message, i would like to leave a message, "
        "can you take a message, call me back, can you call me back, can you call meantime",
    Intent.ROBOT: "are you a robot, are you a machine, are you human, are you real, but you robot, "
        "am i talking to a machine, is this a recording, are you a computer",
    Intent.DEPARTMENTS: "what departments do you have, which departments are there, "
        "who can i talk to, who works there",
    Intent.TRANSFER: "can i talk to a person, i want to speak to a human, transfer me, operator, "
        "let me talk to somebody, can i talk to say also, "
        "put me through, a person, can i speak to the manager",
    Intent.HOURS: "what are your opening hours, what are your hours, when are you open, "
        "what time do you close, what time do you open, how late are you open, when do you close, "
        "when do you open, are you still open, what are your ideas on the weekend, opening hours, "
        "opening times, when are you again, are you open on christmas, are you open on holidays, "
        + ", ".join(f"are you open {w}, when do you open {w}, when do you close {w}"
                    for w in (*(f"on {day}" for day in DAYS), "today", "tomorrow", "now",
                              "on the weekend")),
    Intent.ADDRESS: "where are you, where are you located, what is your address, "
        "how do i get there, where is your shop, how can i find you, can you give me directions",
    Intent.SLOWER: "slower, more slowly, could you speak more slowly, you are too fast, slow down, "
        "not so fast, could you speak marseille eight",
    Intent.SPELL: "spell my name, can you spell my name, how do you spell that",
    Intent.READ_NUMBER: "read my number back, what is my number, what number did i give you",
    Intent.COUNT: "count to ten, count to twenty, down to twenty, down to ten, count, "
        "count again, kind to ten",
    Intent.ABOUT: "tell me about yourself, tell me about the company, tell me a story, "
        "what does your company do, tell me about you, tell me more",
    Intent.WHO: "who are you, here are you, to argue, what is your name, who is this, "
        "who is there, who am i talking to, who am i speaking to, what are you called",
    Intent.TIME: "what time is it, do you know the time, tell me the time, how late is it",
    Intent.DATE: "what day is it, what day is it today, what day is today, what is the day, "
        "what they said today, what days and today, what is the date, what date is it",
    Intent.WAIT: "wait, wait a moment, hold on, hang on, hold on a second, one moment, "
        "just a moment, just a minute, one second, just a second, let me think",
    Intent.SKIP: "skip, skip it, skip that, rather not, i would rather not, i do not have one, "
        "no number, i do not want to say, not necessary",
    Intent.HEAR_ME: "can you hear me, do you hear me, are you there, is anybody there, "
        "is this thing on, this is a test, testing, i am just testing, testing one two three",
    Intent.REPEAT: "what, pardon, pardon me, sorry, excuse me, say that again, say again, "
        "come again, again, repeat, repeat that, once more, one more time, what did you say, "
        "what was that, i did not hear you, i did not understand",
    Intent.HELP: "help, l, help me, can you help me, i need help, what can you do, what can i say, "
        "what can i ask, what are my options, what do you do, i have a question, "
        "can i ask you something, can i ask you a question",
    Intent.GOODBYE: "goodbye, good bye, bye, bye bye, hang up, see you, good night, "
        "see you later, i have to go, i must go now, good buy, by by, wrong number",
    Intent.DONE: "that is all, that is it, that is everything, nothing else, nothing, "
        "no that is all, that was all, that was everything, i am done, no more, "
        "that is all thank you, that is all sam que",
    Intent.NO: "no, nope, nah, no no, now, know, not really, no thank you, no thanks, no sam que, "
        "that is wrong, wrong, not quite",
    Intent.YES: "yes, yes please, yeah, yep, yup, sure, correct, that is correct, right, perfect, "
        "that is right, exactly, okay, fine, us, share go ahead, of course, go ahead, please do, "
        "please, all right, you can, i do, absolutely",
    Intent.HOW_ARE_YOU: "how are you, how are you today, how are you doing, keller you, "
        "hello are you, have you, how is it going, how do you do, what is up",
    Intent.THANKS: "thank you, thanks, thank you very much, sam que very much, sam que, "
        "thanks a lot, great thanks, great, very good, nice",
    Intent.GREETING: "hello, hi, hey, good morning, good afternoon, good evening, good day, "
        "the mining, hi there, hello there",
}
"""What is said word for word, or nearly; some of it as a recogniser writes it."""

KEY_WORDS: dict[Intent, str] = {
    # A row is met when each of its groups has a word in the sentence. A row that ends in a number
    # counts as that many words, for what leaves little doubt.
    Intent.CANCEL: "cancel, never mind 2, forget it|about|that 2, start over 2",
    Intent.MESSAGE: "message|massage|messages 3, leave|take|pass message|massage|note 6, "
        "call|ring|rang|bring|phone me back 4, ask|tell call|ring|phone me back|again 4",
    Intent.ROBOT: "robot|robots|recording|bot 2, are|am|is machine|computer|automatic, "
        "are you real|human|person, am|my talking|speaking person|human|machine 2",
    Intent.DEPARTMENTS: "departments 2, which|what departments|department 3, "
        "who|whom can connect|transfer|reach|talk you|i 2",
    Intent.TRANSFER: "transfer|operator|receptionist 3, put|get|me through 3, connect|put me 2, "
        "talk|speak|speaking|get|give|need|want person|human|somebody|someone|anybody|anyone|"
        "agent|manager|boss|colleague|employee 4, real|live person|human 3, "
        "can|want|like|let|would i|me talk|speak to|with 2",
    Intent.HOURS: "hours 2, ours, you open|opening|close|closed 2, "
        "open|opening|opened|close|closes|closing|closed|shut, "
        "what|when|until|how|are|is|do open|opening|close|closes|closing|closed 2, "
        "time|times|hours monday|tuesday|wednesday|thursday|friday|saturday|sunday 2",
    Intent.ADDRESS: "address, located|location|directions|direction|street 2, get there 2, "
        "where|wear shop|office|store, where are|is you|it, how can|do|could i get|find|reach 2",
    Intent.SLOWER: "slower|slowly 2, slow down 2, too|so fast|quick|quickly 2, speak|talk slow 2",
    Intent.SPELL: "spell|spelling|spelled 3",
    Intent.READ_NUMBER: "read|repeat|say|tell my number, read number back 3",
    Intent.COUNT: "count|counting 2, come|kind|down|from to ten|twenty|thirty",
    Intent.ABOUT: "tell me about, about yourself|company|shop|business|firm 2, "
        "what company|business|shop do",
    Intent.WHO: "who am talking|speaking 2, may|can ask who, what your name 2, "
        "am|my talking|speaking to 2",
    Intent.TIME: "what time, the time, know|tell time",
    Intent.DATE: "what|the date, what|which day",
    Intent.WAIT: "wait|moment 2, just|one|wait|hold|a moment|minute|second 2, hold|hang on",
    Intent.SKIP: "skip, rather not 2, not want|have|know|like number|say|one|give 2",
    Intent.HEAR_ME: "can|do|could|you hear|here me 3, testing 2",
    Intent.REPEAT: "repeat|pardon 2, say|tell again 2, say|tell that|it again|slowly 2, "
        "one|once more 2, not|could|can understand|hear|catch, what did say, not what you said",
    Intent.HELP: "help|options, what can you|i do|help|say|ask 2, have|ask question 2",
    Intent.GOODBYE: "goodbye|bye 3, hang up 2, see you later 2, have|need|must go, wrong number 2",
    Intent.DONE: "that all|everything 2, nothing else|more 2, not need anything 2",
    Intent.NO: "no|nope 2, wrong|incorrect, not right|correct|true|it, is not",
    Intent.YES: "yes|yeah|yep|sure|correct|exactly|okay|right 2",
    Intent.THANKS: "thanks 2, thank you 2, sam q|que 2",
    Intent.GREETING: "hello|hi|hey, good morning|afternoon|evening 2",
}

# fmt: on


class _Meaning:
    """What one intent is known by, taken apart."""

    def __init__(self, intent: Intent) -> None:
        self.sentences = {text.strip() for text in SENTENCES[intent].split(",")}
        self.sounds = [(text.split(), sound_of(text)) for text in self.sentences]
        rows = [row.split() for row in KEY_WORDS.get(intent, "").split(",")]
        self.rows: list[tuple[list[frozenset[str]], float]] = []
        for row in filter(None, rows):
            weight = float(row.pop()) if row[-1].isdecimal() else 1.0
            self.rows.append(([frozenset(group.split("|")) for group in row], weight))
        said = {word for words, _ in self.sounds for word in words}
        self.words = said.union(*(group for groups, _ in self.rows for group in groups))


_MEANINGS = {intent: _Meaning(intent) for intent in SENTENCES}


def recognise(words: Sequence[str], among: Container[Intent]) -> tuple[Intent, float]:
    """The likeliest of these intents and its score, 0 to 1; (UNKNOWN, 0) when none fits."""
    said = [word for word in words if word not in FILLERS] or list(words)
    best, score = Intent.UNKNOWN, 0.0
    for intent, meaning in _MEANINGS.items():
        if intent in among:
            known = " ".join(said) in meaning.sentences or " ".join(words) in meaning.sentences
            likely = 1.0 if known else max(_by_key_words(words, meaning), _by_sound(said, meaning))
            if likely > score:
                best, score = intent, likely
    return best, score


def _by_key_words(words: Sequence[str], meaning: _Meaning) -> float:
    """What the best row explains of the sentence, as a share of what the sentence is about."""
    known = {key for word in words for key in meaning.words if same_word(word, key)}
    weights = [weight for row, weight in meaning.rows if not any(map(known.isdisjoint, row))]
    if not weights:
        return 0.0
    strange = sum(
        word not in FUNCTION_WORDS and not any(same_word(word, key) for key in known)
        for word in words
    )
    score = 0.9 * max(weights) / (max(weights) + strange)
    return score if score >= LIKELY else 0.0


def _by_sound(words: Sequence[str], meaning: _Meaning) -> float:
    """How much the sentence sounds like one that is known, from LIKELY to SURE; 0 for too little.
    Two that have most words in common may still ask for different things."""
    sound, matcher = sound_of(" ".join(words)), SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(sound)
    best = 0.0
    for meant, meant_sound in meaning.sounds:
        matcher.set_seq1(meant_sound)
        if min(matcher.real_quick_ratio(), matcher.quick_ratio()) < max(NEAR, best):
            continue
        rest = " ".join(word for word in words if word not in meant)
        other = " ".join(word for word in meant if word not in words)
        alike = SequenceMatcher(None, sound_of(rest), sound_of(other), False).ratio()
        if matcher.ratio() + alike >= NEAR_WITH_REST and len(meant_sound) >= 6:
            best = max(best, matcher.ratio())
    return LIKELY + (SURE - LIKELY) * (best - NEAR) / (1 - NEAR) if best >= NEAR else 0.0
