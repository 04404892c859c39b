"""Makes the same thing twice, in Python and on the compiled path, and does the same with both."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import pytest

from offhook.media import native
from offhook.media.codecs.g722 import G722Encoder
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT

T = TypeVar("T")
R = TypeVar("R")

needs_compiled = pytest.mark.skipif(
    not native.BUILT, reason="the compiled path was not built: no C compiler when installing"
)


@contextmanager
def path(compiled: bool) -> Iterator[None]:
    """What is made within takes this path."""
    before, native.used = native.used, compiled
    try:
        yield
    finally:
        native.used = before


def both(make: Callable[[], T]) -> tuple[T, T]:
    """What `make` makes in Python, and compiled."""
    with path(False):
        in_python = make()
    with path(True):
        return in_python, make()


def exact_resampling(encoder: G722Encoder) -> None:
    """Has the Python encoder hear the same as the compiled one: what is resampled may differ by one
    (`test_codecs`), and an adaptive encoder does not forget it."""
    if encoder.compiled is None:
        with path(True):
            encoder._resampler = Resampler(RATE_OUT, RATE_IN)


class Twins(Generic[T]):
    """The two, of which the Python one is right."""

    def __init__(self, make: Callable[[], T]) -> None:
        self.python, self.compiled = both(make)

    def do(self, what: Callable[[T], R]) -> tuple[R, R]:
        """Does the same with both; returns what comes of it."""
        with path(False):
            right = what(self.python)
        with path(True):
            return right, what(self.compiled)
