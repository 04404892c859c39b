"""What a caller meant: the intents, the sentences and key words they are known by.

A small recogniser gets about one word in five wrong, and wrong by its sound ("take a massage", "are
you up and now"). An intent is therefore known in two ways: by its key words anywhere in the
sentence, or by the sound of the whole sentence being near that of a known one, word boundaries
ignored.
"""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from enum import Enum, auto
from functools import lru_cache

from offhook.pipeline.frontdesk_language import DAYS, likeness_bound, same_word, sound_of

SURE = 0.95
"""Score of what could hardly be meant otherwise; 1 is a known sentence word for word."""
NEAR = 0.76
"""How alike two sentences must sound (0 to 1) to be taken for the same."""


class Intent(Enum):
    """What a caller can mean. Of two that score alike the earlier one wins."""

    CANCEL = auto()
    MESSAGE = auto()
    MESSAGE_NAMED = auto()
    """Wants to leave a message and has said a name before."""
    ROBOT = auto()
    DEPARTMENTS = auto()
    TRANSFER = auto()
    TRANSFER_NAMED = auto()
    """Wants to be put through and says to whom."""
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
    REPEAT = auto()
    HELP = auto()
    GOODBYE = auto()
    DONE = auto()
    NO = auto()
    NO_AGAIN = auto()
    """Rejects what was read back a second time."""
    YES = auto()
    HOW_ARE_YOU = auto()
    THANKS = auto()
    GREETING = auto()
    GIVES_NAME = auto()
    GIVES_SPELLING = auto()
    GIVES_NUMBER = auto()
    GIVES_PART = auto()
    """Fewer digits than a telephone number has: more may follow."""
    GIVES_TOO_MANY = auto()
    GIVES_TEXT = auto()
    UNKNOWN = auto()


_WHEN = (*(f"on {day}" for day in DAYS), "today", "tomorrow", "now", "on the weekend")

# fmt: off
SENTENCES: dict[Intent, tuple[str, ...]] = {
    Intent.CANCEL: ("cancel", "can sell", "stop", "stop it", "never mind", "forget it",
                    "start over", "start again", "enough", "that is enough"),
    Intent.MESSAGE: ("take a message", "can you take a message", "i want to leave a message",
                     "i would like to leave a message", "leave a message", "call me back"),
    Intent.ROBOT: ("are you a robot", "are you a machine", "are you human", "are you real",
                   "am i talking to a machine", "is this a recording", "are you a computer"),
    Intent.DEPARTMENTS: ("what departments do you have", "which departments are there",
                         "who can i talk to", "who works there"),
    Intent.TRANSFER: ("can i talk to a person", "i want to speak to a human", "transfer me",
                      "let me talk to somebody", "put me through", "operator", "a person",
                      "give me a real person", "can i speak to the manager"),
    Intent.HOURS: ("what are your opening hours", "what are your hours", "when are you open",
                   "what time do you close", "what time do you open", "how late are you open",
                   "when do you close", "when do you open", "are you still open",
                   "what are your ideas on the weekend",
                   "opening hours", "opening times", "when are you again",
                   *(f"are you open {when}" for when in _WHEN),
                   *(f"when do you open {when}" for when in _WHEN),
                   *(f"when do you close {when}" for when in _WHEN)),
    Intent.ADDRESS: ("where are you", "where are you located", "what is your address",
                     "how do i get there", "how can i find you", "can you give me directions"),
    Intent.SLOWER: ("slower", "more slowly", "could you speak more slowly",
                    "you are too fast", "slow down", "not so fast", "to marseille eight"),
    Intent.SPELL: ("spell my name", "can you spell my name", "how do you spell that"),
    Intent.READ_NUMBER: ("read my number back", "what is my number", "what number did i give you"),
    Intent.COUNT: ("count to ten", "count to twenty", "down to twenty", "down to ten", "count"),
    Intent.ABOUT: ("tell me about yourself", "tell me about the company", "tell me a story",
                   "what does your company do", "tell me about you", "tell me more"),
    Intent.WHO: ("who are you", "here are you", "to argue", "what is your name", "who is this",
                 "who is there", "who am i talking to", "who am i speaking to",
                 "what are you called"),
    Intent.TIME: ("what time is it", "do you know the time", "tell me the time",
                  "how late is it"),
    Intent.DATE: ("what day is it", "what day is it today", "what day is today", "what is the day",
                  "what they said today", "what is the date", "what date is it"),
    Intent.WAIT: ("wait", "wait a moment", "hold on", "hang on", "hold on a second", "one moment",
                  "just a moment", "just a minute", "one second", "just a second", "let me think"),
    Intent.SKIP: ("skip", "skip it", "skip that", "rather not", "i would rather not",
                  "i do not have one", "no number", "i do not want to say", "not necessary"),
    Intent.REPEAT: ("what", "pardon", "pardon me", "sorry", "excuse me", "say that again",
                    "say again", "come again", "again", "repeat", "repeat that", "once more",
                    "one more time", "what did you say", "what was that", "i did not hear you",
                    "i did not understand"),
    Intent.HELP: ("help", "l", "help me", "what can you do", "what can i say", "what can i ask",
                  "what are my options", "what do you do"),
    Intent.GOODBYE: ("goodbye", "good bye", "bye", "bye bye", "hang up", "see you", "good night",
                     "see you later", "i have to go", "i must go now", "good buy", "by by"),
    Intent.DONE: ("that is all", "that is it", "that is everything", "nothing else", "nothing",
                  "no that is all", "that was all", "that was everything", "i am done", "no more"),
    Intent.NO: ("no", "nope", "nah", "no no", "now", "know", "not really", "no thank you",
                "no thanks", "no sam que", "that is wrong", "wrong", "not quite"),
    Intent.YES: ("yes", "yes please", "yeah", "yep", "yup", "sure", "correct", "that is correct",
                 "right", "that is right", "exactly", "okay", "fine", "us", "share go ahead",
                 "of course", "go ahead", "please do", "please", "all right", "you can", "perfect",
                 "i do", "absolutely"),
    Intent.HOW_ARE_YOU: ("how are you", "how are you today", "how are you doing", "keller you",
                         "hello are you", "have you", "how is it going", "how do you do",
                         "what is up"),
    Intent.THANKS: ("thank you", "thanks", "thank you very much", "sam que very much", "sam que",
                    "thanks a lot", "great thanks", "great", "very good", "nice"),
    Intent.GREETING: ("hello", "hi", "hey", "good morning", "good afternoon", "good evening",
                      "good day", "the mining", "hi there", "hello there", "is anybody there"),
}

KEY_WORDS: dict[Intent, tuple[str, ...]] = {
    # A row is met when each of its groups has a word in the sentence; more groups score higher.
    Intent.CANCEL: ("cancel", "never mind", "forget it|about|that", "start over"),
    Intent.MESSAGE: ("message|massage|messages", "leave|take|pass message|massage|note",
                     "call|ring|rang|bring|phone me back",
                     "ask|tell call|ring|phone me back|again"),
    Intent.ROBOT: ("robot|robots|recording|bot", "are|am|is machine|computer|automatic|robot",
                   "are you real|human|person|robot", "am talking|speaking person|human|machine"),
    Intent.DEPARTMENTS: ("departments", "which|what departments",
                         "which|what departments can|do|are i|you|there talk|have|there",
                         "who|whom can connect|transfer|reach|talk you|i"),
    Intent.TRANSFER: ("transfer|operator|receptionist", "put|get through", "me through",
                      "connect|put me",
                      "talk|speak|speaking|get|give|need|want person|human|somebody|someone|"
                      "anybody|anyone|agent|manager|boss|colleague|employee",
                      "real|live person|human", "can|want|like|let i|me talk|speak to|with"),
    Intent.HOURS: ("hours|ours", "open|opening|opened|close|closes|closing|closed|shut",
                   "what|when|until|how|are|is|do open|opening|close|closes|closing|closed",
                   "business|office|opening hours|ours|times|time",
                   "time|hours|business monday|tuesday|wednesday|thursday|friday|saturday|sunday"),
    Intent.ADDRESS: ("address|located|location|directions|direction|street", "get there",
                     "where|wear are|is|can|do you|it|i|shop|office",
                     "how can|do|could i get|find|reach", "what street"),
    Intent.SLOWER: ("slower|slowly", "slow down", "too|to|so fast|quick|quickly",
                    "speak|talk slow|slower|slowly"),
    Intent.SPELL: ("spell|spelling|spelled",),
    Intent.READ_NUMBER: ("read|repeat|say|tell my number", "read number back"),
    Intent.COUNT: ("count|counting", "can|come|kind|down|count|from to ten|twenty|thirty",
                   "kind of thirty|twenty"),
    Intent.ABOUT: ("tell about", "about yourself|company|shop|business|firm",
                   "what company|business|shop do"),
    Intent.WHO: ("who am talking|speaking", "may|can ask who", "what your name", "who are you"),
    Intent.TIME: ("what time", "the time", "know|tell time"),
    Intent.DATE: ("date", "what|which day", "which|what|day week"),
    Intent.WAIT: ("wait|moment", "just|one|wait|hold|a moment|minute|second", "hold|hang on"),
    Intent.SKIP: ("skip", "rather not", "not want|have|know|like number|say|one|give"),
    Intent.REPEAT: ("repeat|pardon", "say|tell again", "say|tell that|it again|slowly",
                    "one|once more",
                    "not|could|can understand|hear|catch", "say again|once that|more",
                    "what did say", "not what you said"),
    Intent.HELP: ("help|options", "what can you|i do|help|say|ask"),
    Intent.GOODBYE: ("goodbye|bye", "hang up", "see you", "have|need|must go"),
    Intent.DONE: ("that all|everything", "nothing else|more", "not need anything"),
    Intent.NO: ("no|nope|wrong|incorrect", "not right|correct|true|it", "is not"),
    Intent.YES: ("yes|yeah|yep|sure|correct|exactly|okay|right",),
    Intent.THANKS: ("thanks", "thank you", "sam q|que"),
    Intent.GREETING: ("hello|hi|hey", "good morning|afternoon|evening"),
}

# fmt: on

_FILLERS = frozenset(("please", "um", "uh", "well", "so", "oh", "hello", "hi", "hey"))
MIN_SOUND = 6
"""Sounds shorter than this must be the same: nothing of them is left to be alike."""

_SOUNDS = [(intent, sound_of(text)) for intent, texts in SENTENCES.items() for text in texts]
_RULES = {
    intent: [[frozenset(group.split("|")) for group in row.split()] for row in rows]
    for intent, rows in KEY_WORDS.items()
}
_KEYS = frozenset(key for rows in _RULES.values() for row in rows for keys in row for key in keys)


@lru_cache(maxsize=4096)
def _keys_in(word: str) -> frozenset[str]:
    """The key words that a recogniser may have written this for."""
    return frozenset(key for key in _KEYS if key[0] == word[0] and same_word(word, key))


def recognise(words: Sequence[str], among: Iterable[Intent]) -> tuple[Intent, float]:
    """The likeliest of these intents and its score, 0 to 1; (UNKNOWN, 0) when none fits."""
    intents = sorted(among, key=lambda intent: intent.value)
    plain = " ".join(words)
    sentence = " ".join([word for word in words if word not in _FILLERS]) or plain
    for intent in intents:
        if sentence in SENTENCES.get(intent, ()) or plain in SENTENCES.get(intent, ()):
            return intent, 1.0
    return _by_sound(sound_of(sentence), intents, *_by_key_words(words, intents))


def _by_key_words(words: Sequence[str], intents: Iterable[Intent]) -> tuple[Intent, float]:
    heard = frozenset[str]().union(*map(_keys_in, words))
    best, best_score = Intent.UNKNOWN, 0.0
    for intent in intents:
        for row in _RULES.get(intent, ()):
            worth = min(0.6 + 0.1 * len(row), 0.9)
            if worth > best_score and not any(map(heard.isdisjoint, row)):
                best, best_score = intent, worth
    return best, best_score


def _by_sound(
    sound: str, intents: Iterable[Intent], best: Intent, best_score: float
) -> tuple[Intent, float]:
    """The same, or the intent of a sentence that sounds more alike.

    Only a sentence whose letters, in whatever order, could be alike enough is compared: the
    likeliest first, for few of the others could then be better.
    """
    near = []
    for intent, meant in _SOUNDS:
        bound = likeness_bound(sound, meant)
        if bound >= NEAR and (len(meant) >= MIN_SOUND or sound == meant):
            near.append((bound, intent, meant))
    near.sort(key=lambda found: found[0], reverse=True)
    for bound, intent, meant in near:
        if intent in intents and _better(intent, _worth(bound), best, best_score):
            ratio = SequenceMatcher(None, sound, meant, autojunk=False).ratio()
            if ratio >= NEAR and _better(intent, _worth(ratio), best, best_score):
                best, best_score = intent, _worth(ratio)
    return best, best_score


def _better(intent: Intent, worth: float, best: Intent, best_score: float) -> bool:
    return worth > best_score or (worth == best_score and intent.value < best.value)


def _worth(near: float) -> float:
    """From 0.6, less than any key word, to what a key sentence is worth."""
    return SURE - (SURE - 0.6) * (1 - near) / (1 - NEAR)
