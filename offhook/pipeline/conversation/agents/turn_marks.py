"""Marks with which a language model begins its answers, and says whether the caller has finished.
They are Pipecat's (`user_turn_completion_mixin.py`): each is a single token."""

from enum import Enum


class TurnMark(Enum):
    COMPLETE = "●"
    CUT_OFF = "◐"
    """The caller stopped in the middle of a sentence, and will go on soon."""
    NEEDS_TIME = "○"
    """The caller thinks or looks something up."""


WAITS_S = {TurnMark.CUT_OFF: 2.5, TurnMark.NEEDS_TIME: 6.0}
"""Time in s to wait in silence for a caller who has not finished. After the second, nearly as long
as anybody takes silence for a lost line, the model is asked again."""
INSTRUCTIONS = """\
Begin each answer with one of three marks, which nobody hears.
● The caller has said enough for you to answer: write ● and the answer.
◐ The caller stopped in the middle of a sentence, a number, a name or an address: write ◐ alone.
○ The caller asks for time, or thinks aloud ("let me see", "hold on"): write ○ alone.
Many sentences come without punctuation. If in doubt, write ● and the answer.
After the note "(the caller is silent)" the caller has waited for you: write ● and the answer, or a
short question."""
SILENT = "(the caller is silent)"
"""What the model is told when a caller who had not finished says no more."""

_MARKS = {mark.value: mark for mark in TurnMark}


def read_mark(text: str) -> tuple[TurnMark | None, str]:
    """Returns the mark with which a text begins, if any, and what is behind it."""
    begun = text.lstrip()
    mark = _MARKS.get(begun[:1])
    return (mark, begun[1:]) if mark is not None else (None, text)
