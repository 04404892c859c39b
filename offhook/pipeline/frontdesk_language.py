"""What a caller meant: intents, numbers, letters, names and days, out of badly recognised words.

Everything here is a pure function of text as a small recogniser writes it: lower case, no
punctuation, about one word in five wrong, and wrong by its sound ("take a massage", "are you up
and now"). An intent is therefore known in two ways: by its key words anywhere in the sentence, or
by the sound of the whole sentence being near that of a known one, word boundaries ignored.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from enum import Enum, auto
from functools import lru_cache

MAX_HEARD_CHARS = 1000
"""More of one turn than this is not looked at."""
MAX_NUMBER_DIGITS = 15
"""The longest telephone number (ITU-T E.164)."""
MIN_NUMBER_DIGITS = 5
MAX_NAME_WORDS = 4
MAX_NAME_CHARS = 40
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


DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
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
_CONTRACTIONS = (
    ("can't", "can not"),
    ("won't", "will not"),
    ("n't", " not"),
    ("'s", " is"),
    ("'m", " am"),
    ("'re", " are"),
    ("'d", " would"),
    ("'ll", " will"),
    ("'ve", " have"),
)  # fmt: skip


def words_of(text: str) -> list[str]:
    """Lower-case words without punctuation, contractions spelled out, each digit on its own."""
    text = text[:MAX_HEARD_CHARS].lower().replace("’", "'")
    for short, full in _CONTRACTIONS:
        text = re.sub(re.escape(short) + r"\b", full, text)
    return re.findall(r"[^\W\d_]+|\d|\+", text)


_SOUNDS = tuple(
    (re.compile(pattern), sound)
    for pattern, sound in (
        (r"tion", "shn"), (r"ght", "t"), (r"ph", "f"), (r"wh", "w"), (r"\bkn", "n"),
        (r"\bwr", "r"), (r"qu", "kw"), (r"x", "ks"), (r"[sc]h", "j"), (r"ge\b|dge?", "j"),
        (r"c(?=[eiy])|z", "s"), (r"[cgq]", "k"), (r"th|d", "t"), (r"b", "p"), (r"v", "f"),
        (r"h", ""), (r"\s+", ""), (r"[eiy][aeiouy]*", "e"), (r"[ou][aeiouy]*", "o"),
        (r"a[aeiouy]*", "a"), (r"(.)\1+", r"\1"),
    )
)  # fmt: skip


@lru_cache(maxsize=4096)
def sound_of(text: str) -> str:
    """A rough phonetic spelling: voiced and voiceless alike, three vowels, no spaces."""
    for pattern, sound in _SOUNDS:
        text = pattern.sub(sound, text)
    return text


def alike(a: str, b: str) -> float:
    """How much alike two texts sound, `NEAR` to 1; 0 when less. Short ones must sound the same."""
    a, b = sound_of(a), sound_of(b)
    if a == b:
        return 1.0
    if len(b) < 6 or min(len(a), len(b)) < NEAR / (2 - NEAR) * max(len(a), len(b)):
        return 0.0
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    ratio = matcher.ratio() if matcher.quick_ratio() >= NEAR else 0.0
    return ratio if ratio >= NEAR else 0.0


@lru_cache(maxsize=16384)
def same_word(heard: str, meant: str) -> bool:
    """Whether a recogniser may have written `heard` for `meant`; short words must be equal."""
    if heard == meant:
        return True
    if min(len(heard), len(meant)) < 4 or heard[0] != meant[0]:
        return False
    sound = sound_of(heard)
    if len(sound) >= 4 and sound == sound_of(meant):
        return True
    return len(meant) >= 5 and SequenceMatcher(None, heard, meant).ratio() >= 0.84


_FILLERS = frozenset(("please", "um", "uh", "well", "so", "oh", "hello", "hi", "hey"))
_RULES = {
    intent: tuple(tuple(group.split("|") for group in row.split()) for row in rows)
    for intent, rows in KEY_WORDS.items()
}


def score(intent: Intent, words: Sequence[str]) -> float:
    """How surely these words have this intent, 0 to 1."""
    sentence = " ".join([word for word in words if word not in _FILLERS] or words)
    best = 0.0
    for row in _RULES.get(intent, ()):
        if all(any(same_word(word, key) for word in words for key in keys) for keys in row):
            best = max(best, min(0.6 + 0.1 * len(row), 0.9))
    for known in SENTENCES.get(intent, ()):
        if known in (sentence, " ".join(words)):
            return 1.0
        if (near := alike(sentence, known)) > 0:
            # From 0.6, less than any key word, to what a key sentence is worth.
            best = max(best, SURE - (SURE - 0.6) * (1 - near) / (1 - NEAR))
    return best


def recognise(words: Sequence[str], among: Iterable[Intent]) -> tuple[Intent, float]:
    """The likeliest of these intents and its score; (UNKNOWN, 0) when none fits."""
    best, best_score = Intent.UNKNOWN, 0.0
    for intent in sorted(among, key=lambda intent: intent.value):
        if (found := score(intent, words)) > best_score:
            best, best_score = intent, found
    return best, best_score


# Days ------------------------------------------------------------------------------------------


def day_in(words: Sequence[str]) -> str | None:
    """The day spoken of: a name of `DAYS`, "now", "today", "tomorrow" or "weekend"."""
    for word in words:
        if word in ("now", "today", "tomorrow", "weekend", "weekends", "currently", "still"):
            return {"weekends": "weekend", "currently": "now", "still": "now"}.get(word, word)
        if word in ("tonight", "late"):
            return "today"
        for day in DAYS:
            if same_word(word, day) or same_word(word, day + "s"):
                return day
    return None


# Numbers ---------------------------------------------------------------------------------------

_UNITS = {"zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5",
          "six": "6", "seven": "7", "eight": "8", "nine": "9", "oh": "0", "nil": "0",
          "nought": "0", "niner": "9", "fife": "5"}  # fmt: skip
_TEENS = {"ten": "10", "eleven": "11", "twelve": "12", "thirteen": "13", "fourteen": "14",
          "fifteen": "15", "sixteen": "16", "seventeen": "17", "eighteen": "18",
          "nineteen": "19"}  # fmt: skip
_TENS = {"twenty": "2", "thirty": "3", "forty": "4", "fifty": "5", "sixty": "6",
         "seventy": "7", "eighty": "8", "ninety": "9"}  # fmt: skip
_MAYBE = {"o": "0", "or": "0", "owe": "0", "won": "1", "to": "2", "too": "2", "tree": "3",
          "for": "4", "fore": "4", "sex": "6", "sicks": "6", "ate": "8", "hate": "8",
          "nein": "9", "mine": "9"}  # fmt: skip
"""Words a digit is mistaken for; they count only next to a digit."""
_TIMES = {"double": 2, "triple": 3, "treble": 3}


def digits_in(words: Sequence[str]) -> str:
    """All digits in spoken order ("double five oh twenty three" is "55023"); "+" may lead."""
    out: list[str] = []
    for i, word in enumerate(words):
        before = words[i - 1] if i else ""
        if before in _TENS and word in _UNITS and _UNITS[word] != "0":
            out[-1] = _TENS[before] + _UNITS[word]
        elif digit := _digit(words, i):
            out.append(digit * _TIMES.get(before, 1))
        elif word == "hundred" and out:
            out.append("00")
        elif word == "thousand" and out:
            out.append("000")
        elif word in ("+", "plus") and not out:
            out.append("+")
    digits = "".join(out)
    return "" if digits == "+" else digits


def _digit(words: Sequence[str], i: int) -> str:
    word = words[i]
    if word.isdecimal():
        return str(int(word))
    if word in _TENS:
        return _TENS[word] + "0"
    if word in _MAYBE:
        near = [*words[max(0, i - 1) : i], *words[i + 1 : i + 2]]
        return _MAYBE[word] if any(_is_number(other) for other in near) else ""
    return _UNITS.get(word) or _TEENS.get(word, "")


def _is_number(word: str) -> bool:
    return word in _UNITS or word in _TEENS or word in _TENS or word in _TIMES or word.isdecimal()


def is_mostly_number(words: Sequence[str]) -> bool:
    """Whether the sentence gives a number, not merely uses one ("just one moment")."""
    known = sum(_is_number(word) or word in _MAYBE for word in words)
    return len(digits_in(words)) >= 3 or (known > 0 and known * 2 >= len(words))


_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth",
             "ninth", "tenth", "eleventh", "twelfth")  # fmt: skip


def correct_number(number: str, words: Sequence[str]) -> str | None:
    """The number as corrected by "the last digit is five", "it ends in four two", "six, not
    nine" or a whole new number; None when these words correct nothing."""
    said = digits_in(words)
    if not said:
        return None
    sentence = " ".join(words)
    if " not " in f" {sentence} " or "instead of" in sentence:
        if (swapped := _swap(number, sentence)) is not None:
            return swapped
    elif (place := _place(number, words, len(said))) is not None:
        return number[:place] + said + number[place + len(said) :]
    return said if MIN_NUMBER_DIGITS <= len(said) <= MAX_NUMBER_DIGITS else None


def _swap(number: str, sentence: str) -> str | None:
    if "instead of" in sentence:
        right, _, wrong = sentence.partition("instead of")
    elif match := re.search(r"\bnot\b(.*?)\b(?:but|it is|is)\b(.*)", sentence):
        wrong, right = match.groups()
    else:
        right, _, wrong = sentence.partition(" not ")
    old, new = digits_in(wrong.split()), digits_in(right.split())
    return number.replace(old, new) if old and new and number.count(old) == 1 else None


def _place(number: str, words: Sequence[str], count: int) -> int | None:
    """Where in `number` the `count` corrected digits stand."""
    last = "last" in words or "end" in words or "ends" in words or "ending" in words
    ordinals = [_ORDINALS.index(word) for word in words if word in _ORDINALS]
    if last:
        # "second to last" and "next to last" name the digit before the last one.
        back = 1 if (ordinals == [1] or "next" in words) else 0
        place = len(number) - back - count
    elif ordinals:
        place = ordinals[0]
    elif "starts" in words or "start" in words or "begins" in words:
        place = 0
    else:
        return None
    return place if place >= 0 and place + count <= len(number) else None


def cardinal_in(words: Sequence[str]) -> int | None:
    """The last plain number below a hundred: 20 in "count from one to twenty"."""
    found = None
    for i, word in enumerate(words):
        if i and words[i - 1] in _TENS and word in _UNITS:
            found = int(_TENS[words[i - 1]] + _UNITS[word])
        elif i and words[i - 1].isdecimal() and word.isdecimal():
            found = int(words[i - 1] + word)
        elif digits := (_digit(words, i) if _is_number(word) else ""):
            found = int(digits)
    return found


# Letters and names -----------------------------------------------------------------------------

_LETTERS = {"hey": "a", "be": "b", "bee": "b", "see": "c", "sea": "c", "dee": "d", "he": "e",
            "eff": "f", "gee": "g", "aitch": "h", "eye": "i", "jay": "j", "kay": "k",
            "okay": "ok", "el": "l", "ell": "l", "elle": "l", "em": "m", "him": "m", "en": "n",
            "end": "n", "oh": "o", "owe": "o", "pee": "p", "pea": "p", "peak": "p", "cue": "q",
            "queue": "q", "are": "r", "our": "r", "ass": "s", "yes": "s", "tea": "t",
            "tee": "t", "to": "t", "you": "u", "the": "v", "vee": "v", "we": "v", "ex": "x",
            "why": "y", "said": "z", "zed": "z", "zee": "z"}  # fmt: skip
_NATO = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india",
         "juliet", "kilo", "lima", "mike", "november", "oscar", "papa", "quebec", "romeo",
         "sierra", "tango", "uniform", "victor", "whiskey", "xray", "yankee", "zulu")  # fmt: skip
_NATO_HEARD = {"alfa": "a", "eco": "e", "whisky": "w", "kilos": "k", "leema": "l", "juliette": "j"}
_BETWEEN = {"and", "then", "capital", "letter", "dash", "space", "with", "spelled", "spelt"}


def spelling_in(words: Sequence[str]) -> str:
    """The word spelled out at the end of a sentence, lower case; "" when nothing is spelled.

    Takes letters ("j o h n"), letters written as words ("jay oh"), the NATO alphabet, "b as in
    boy" and "double l". Two letters at least, one of them beyond doubt.
    """
    letters: list[str] = []
    sure = 0
    i = len(words) - 1
    while i >= 0:
        if i >= 3 and words[i - 2 : i] in (["as", "in"], ["like", "in"]):
            # The example word is recognised better than the letter before it.
            letters.append(words[i][0])
            sure, i = sure + 1, i - 4
            continue
        if i >= 1 and words[i - 1] == "double" and words[i] in ("you", "u"):
            letters.append("w")
            sure, i = sure + 1, i - 2
            continue
        letter, is_sure = _letter(words[i])
        if not letter and words[i] not in _BETWEEN:
            break
        if letter and i and words[i - 1] in ("double", "triple"):
            letter, is_sure, i = letter * _TIMES[words[i - 1]], True, i - 1
        letters.append(letter)
        sure, i = sure + is_sure, i - 1
    spelled = "".join(reversed(letters))
    return spelled if sure and sure * 2 >= len(spelled) - 1 and len(spelled) >= 2 else ""


def _letter(word: str) -> tuple[str, bool]:
    """The letter a word stands for and whether that is beyond doubt."""
    if len(word) == 1 and word.isalpha():
        return word, word not in "ai"
    if word in _NATO_HEARD:
        return _NATO_HEARD[word], True
    for nato in _NATO:
        if same_word(word, nato):
            return nato[0], True
    return _LETTERS.get(word, ""), False


_NAME_LEADS = ("my name is", "the name is", "name is", "this is", "i am called", "i am",
               "it is for", "it is", "call me", "you are talking to", "the caller is")  # fmt: skip
_NOT_IN_NAMES = frozenset(
    re.findall(
        r"\w+",
        """what when where who why how which do does did not can could would will should you your my
    me it that this there is are was be the a an to of for from with about want need have has
    like tell give take leave say know think please and or but if then so because on in at up
    hello hi hey yes no yeah okay well um uh sure sorry thanks thank number name message help
    we they he she his her them i open close closed hours speak talk talking today tomorrow""",
    )
)
_NAME_TRIM = frozenset(
    re.findall(
        r"\w+",
        """hello hi hey yes no now yeah okay well um uh sure sorry thanks thank you oh so please
    speaking here and good morning""",
    )
)


def name_in(words: Sequence[str]) -> tuple[str, bool]:
    """A caller's name in title case ("" when there is none) and whether they said it was one."""
    sentence = " ".join(words)
    lead = next((lead for lead in _NAME_LEADS if f" {lead} " in f" {sentence} "), "")
    rest = f" {sentence} ".partition(f" {lead} ")[2].split() if lead else list(words)
    if spelled := spelling_in(rest):
        said, _ = name_in(_without_spelling(rest))
        return respell(said, spelled) if said else spelled.title(), True
    while rest and rest[0] in _NAME_TRIM:
        rest.pop(0)
    while rest and rest[-1] in _NAME_TRIM:
        rest.pop()
    name = " ".join(rest)
    fits = 0 < len(rest) <= MAX_NAME_WORDS and 1 < len(name) <= MAX_NAME_CHARS
    if not fits or any(w in _NOT_IN_NAMES or w in _UNITS or not w.isalpha() for w in rest):
        return "", False
    return name.title(), bool(lead)


def _without_spelling(words: Sequence[str]) -> list[str]:
    kept = list(words)
    while kept and (_letter(kept[-1])[0] or kept[-1] in _BETWEEN or kept[-2:-1] == ["in"]):
        kept.pop()
    return kept


def respell(name: str, spelled: str) -> str:
    """The name with the spelled word put for the word of it that it must correct."""
    parts = name.split()
    if near := get_close_matches(spelled.title(), parts, 1, 0.5):
        parts[parts.index(near[0])] = spelled.title()
        return " ".join(parts)[:MAX_NAME_CHARS]
    return spelled.title()[:MAX_NAME_CHARS]


# Saying ----------------------------------------------------------------------------------------

_SAID_UNITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def say_cardinal(number: int) -> str:
    """0 to 99 in words."""
    if number < 10:
        return _SAID_UNITS[number]
    if number < 20:
        return list(_TEENS)[number - 10]
    tens = list(_TENS)[number // 10 - 2]
    return tens if number % 10 == 0 else f"{tens} {_SAID_UNITS[number % 10]}"


def say_ordinal(number: int) -> str:
    """1 to 31 in words."""
    if number <= 12:
        return _ORDINALS[number - 1]
    if number < 20:
        return say_cardinal(number) + "th"
    if number % 10 == 0:
        return say_cardinal(number)[:-1] + "ieth"
    return f"{say_cardinal(number - number % 10)} {_ORDINALS[number % 10 - 1]}"


def say_number(number: str) -> str:
    """A telephone number digit by digit in groups of at most four, the shorter ones first."""
    digits = number.lstrip("+")
    count = max(1, -(-len(digits) // 4))
    short, longer = divmod(len(digits), count)
    groups, start = [], 0
    for group in range(count):
        end = start + short + (group >= count - longer)
        groups.append(" ".join(_SAID_UNITS[int(digit)] for digit in digits[start:end]))
        start = end
    return ("plus " if number.startswith("+") else "") + ", ".join(groups)


def say_letters(name: str) -> str:
    """A name letter by letter: "J, O, H, N, then S, M, I, T, H"."""
    return ", then ".join(", ".join(part.upper()) for part in name.split())


def say_clock(minutes: int) -> str:
    """A time of day, in minutes since midnight, as people say it: "five thirty", "noon"."""
    if minutes in (0, 24 * 60):
        return "midnight"
    if minutes == 12 * 60:
        return "noon"
    hour, minute = divmod(minutes, 60)
    spoken = say_cardinal((hour - 1) % 12 + 1)
    if minute == 0:
        return spoken
    return f"{spoken} {'oh ' if minute < 10 else ''}{say_cardinal(minute)}"


def say_plainly(text: str) -> str:
    """Text fit to be spoken: numbers in words (to 99, else digit by digit), no markup."""
    text = re.sub(r"[^\w\s.,;:!?'’-]|_", " ", text)
    text = re.sub(r"\b(0*[1-9]|[12]\d|3[01])(?:st|nd|rd|th)\b", _say_ordinal, text)
    return " ".join(re.sub(r"\d+", _say_digits, text).split())


def _say_ordinal(match: re.Match[str]) -> str:
    return say_ordinal(int(match[1]))


def _say_digits(match: re.Match[str]) -> str:
    if len(match[0]) <= 2 and not match[0].startswith("0"):
        return f" {say_cardinal(int(match[0]))} "
    return " " + " ".join(_SAID_UNITS[int(digit)] for digit in match[0]) + " "
