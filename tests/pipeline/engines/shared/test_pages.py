"""Pages: nobody ever holds another's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.engines.shared.pages import OutOfPages, Pages


@given(st.lists(st.integers(-20, 12), max_size=60))
def test_every_page_has_one_owner(steps: list[int]) -> None:
    pages = Pages(count=33)
    held: list[list[int]] = []
    for step in steps:
        if step < 0 and held:
            pages.free(held.pop(step % len(held)))
        elif step >= 0:
            try:
                held.append(pages.allocate(step))
            except OutOfPages:
                assert step > pages.left
        taken = [page for mine in held for page in mine]
        assert len(set(taken)) == len(taken)
        assert all(1 <= page < 33 for page in taken)
        assert pages.left == 32 - len(taken)


def test_out_of_pages_takes_none() -> None:
    pages = Pages(count=4)
    with pytest.raises(OutOfPages, match="4 pages wanted, 3 of 3 left"):
        pages.allocate(4)
    assert sorted(pages.allocate(3)) == [1, 2, 3]


def test_a_page_given_back_twice_is_noticed() -> None:
    pages = Pages(count=4)
    mine = pages.allocate(1)
    pages.free(mine)
    with pytest.raises(AssertionError):
        pages.free(mine)


def test_pages_needed() -> None:
    assert [Pages(9).needed(n) for n in (0, 1, 64, 65)] == [0, 1, 1, 2]
