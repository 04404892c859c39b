"""The event loop is not stopped for what is loaded once and stays."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from offhook.web.loop_io import spare_what_is_loaded


@pytest.fixture(autouse=True)
def usual_collections() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


class Ended:
    """A call that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_collections_leave_out_what_is_loaded_and_find_what_ends_later() -> None:
    loaded = Ended()
    spare_what_is_loaded()
    looked_through = gc.get_objects()
    assert all(thing is not loaded for thing in looked_through)
    assert len(looked_through) < gc.get_freeze_count() / 10
    later = weakref.ref(Ended())
    gc.collect()
    assert later() is None


def test_what_ended_while_loading_is_not_kept() -> None:
    before = weakref.ref(Ended())
    spare_what_is_loaded()
    assert before() is None
