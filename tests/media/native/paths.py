"""Makes the same thing twice: in Python, and on the compiled path."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from offhook.media import native

T = TypeVar("T")

needs_compiled = pytest.mark.skipif(
    not native.BUILT, reason="the compiled path was not built: no C compiler when installing"
)


def both(make: Callable[[], T]) -> tuple[T, T]:
    """What `make` makes in Python, and compiled."""
    before = native.used
    try:
        native.used = False
        in_python = make()
        native.used = True
        return in_python, make()
    finally:
        native.used = before
