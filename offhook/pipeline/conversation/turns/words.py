"""Classifies words spoken over the agent: a backchannel, an echo of the agent, or an
interruption."""

import re


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


BACKCHANNELS = _set(
    "uh huh uhhuh aha ah um umm hm hmm mm mmm mhm mmhm mhmm yeah yep yup yes ok okay right sure "
    "oh i see good great nice wow really cool alright all got it"
)
"""Said while listening; none of them interrupts."""

HUMS = _set("uh huh uhhuh ah aha um umm hm hmm mm mmm mhm mmhm mhmm")
"""Those of them that answer a question only."""

WEIGHTLESS = _set("a an the and in it of to is on at he her had his as or but that")
"""What a recognizer makes of a breath, a click or a cough."""

DECISIVE = _set("stop wait no hold hello excuse sorry pardon quiet enough cancel")
"""A single one of these is an interruption."""

ECHO_WINDOW_WORDS = 14
ECHO_WINDOW_ONE_WORD = 3


def words(text: str) -> list[str]:
    return re.findall(r"[\w']+", text.lower().replace("\u2019", "'"))


def weighty_words(text: str) -> list[str]:
    """Returns the words that carry meaning: neither backchannel nor noise."""
    return [w for w in words(text) if w not in BACKCHANNELS and w not in WEIGHTLESS]


def is_backchannel(text: str) -> bool:
    """Returns whether the text is agreement ("uh-huh", "okay") and nothing else of weight; what a
    recognizer makes of a breath is none."""
    return any(word in BACKCHANNELS for word in words(text)) and not weighty_words(text)


def answers(text: str, asked: bool) -> bool:
    """Returns whether a text that was said as the agent ended is an answer: hums are only if it has
    asked something, and what a recognizer makes of a breath is not."""
    said = [word for word in words(text) if word not in WEIGHTLESS]
    return any(asked or word not in HUMS for word in said)


def decisive(text: str) -> bool:
    return any(w in DECISIVE for w in words(text))


def only_echo(text: str, agent_said: str) -> bool:
    """Returns whether all words are among the agent's last ones, i.e. its own voice returned; a
    single word must be among the very last."""
    heard = weighty_words(text)
    window = ECHO_WINDOW_WORDS if len(heard) > 1 else ECHO_WINDOW_ONE_WORD
    recent = set(words(agent_said)[-window:])
    return bool(heard) and all(w in recent for w in heard)
