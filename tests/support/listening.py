"""A listener for a line, or for its playout, that is made of functions."""

from collections.abc import Callable

from offhook.media.leg import LegListener
from offhook.media.playout import PlayoutListener


class Listening(LegListener, PlayoutListener):
    """Calls the functions it is given, as on_dtmf=keys.append, and ignores all else."""

    def __init__(self, **functions: Callable[..., object]) -> None:
        vars(self).update(functions)
