"""Keys become entries, row by row and in any order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.telephone_tones.dtmf import DIGITS as KEYS
from offhook.pipeline.conversation.digits import (
    INTER_KEY_ASKED_MS,
    INTER_KEY_MS,
    MAX_KEYS,
    TABLE,
    Digits,
    DigitState,
    Event,
    GatherOptions,
    as_text,
    pressed_in,
)

ASKED = INTER_KEY_ASKED_MS


def entries_of(digits: Digits) -> list[str]:
    return list(iter(digits.next_entry, None))


def pressed(
    keys: str, terms: GatherOptions | None = None, every_ms: int = 300
) -> tuple[Digits, list[str]]:
    digits = Digits()
    if terms is not None:
        digits.expect(terms)
    for i, key in enumerate(keys):
        digits.handle_timer(i * every_ms)
        digits.press(key, i * every_ms)
    return digits, entries_of(digits)


@pytest.mark.parametrize(
    ("keys", "terms", "entries", "open_"),
    [
        ("1234#", None, ["1234#"], False),
        ("1234", None, [], True),
        ("*1*#", None, ["*1*#"], False),
        ("#", None, ["#"], False),
        ("12#34#", None, ["12#", "34#"], False),
        ("1234", GatherOptions(4), ["1234"], False),
        ("1234#", GatherOptions(4), ["1234"], False),
        ("1234##", GatherOptions(4), ["1234", "#"], False),
        ("12345#", GatherOptions(4), ["1234", "5#"], False),
        ("12#", GatherOptions(4), ["12#"], False),
        ("1", GatherOptions(1), ["1"], False),
        ("12", GatherOptions(1), ["1"], True),
        ("1#2*", GatherOptions(0, "*"), ["1#2*"], False),
        ("1#2*", GatherOptions(0, ""), [], True),
        ("1#2*", GatherOptions(4, ""), ["1#2*"], False),
        ("1" * (MAX_KEYS + 2), None, ["1" * MAX_KEYS], True),
    ],
)
def test_an_entry_ends_by_its_key_its_count_or_its_bound(
    keys: str, terms: GatherOptions | None, entries: list[str], open_: bool
) -> None:
    digits, ended = pressed(keys, terms)
    assert ended == entries
    assert digits.collecting is open_


def test_an_entry_ends_when_no_key_follows() -> None:
    digits, _ = pressed("12", every_ms=INTER_KEY_MS - 1)
    due = digits.get_timer()
    assert due == 2 * INTER_KEY_MS - 1
    digits.handle_timer(due - 1)
    assert digits.collecting
    digits.handle_timer(due)
    assert entries_of(digits) == ["12"]
    assert digits.get_timer() is None


def test_who_was_asked_has_more_time_and_only_for_that_entry() -> None:
    digits, ended = pressed("12", GatherOptions(4, inter_key_ms=ASKED), every_ms=INTER_KEY_MS + 1)
    assert ended == []
    digits.handle_timer(INTER_KEY_MS + 1 + ASKED)
    assert entries_of(digits) == ["12"]
    digits.press("3", 100_000)
    assert digits.get_timer() == 100_000 + INTER_KEY_MS


def test_a_finish_key_out_of_habit_means_nothing_but_later_it_does() -> None:
    digits, ended = pressed("1234", GatherOptions(4))
    assert ended == ["1234"]
    assert digits.press("#", 1000) is False
    assert digits.press("#", 1300) is True
    digits, _ = pressed("1234", GatherOptions(4))
    digits.handle_timer(900 + INTER_KEY_MS)
    assert digits.press("#", 900 + INTER_KEY_MS) is True


def test_terms_may_come_after_the_first_keys() -> None:
    digits, _ = pressed("12")
    digits.expect(GatherOptions(4))
    digits.press("3", 900)
    digits.press("4", 1000)
    assert entries_of(digits) == ["1234"]
    digits, _ = pressed("1234")
    digits.expect(GatherOptions(3))
    assert entries_of(digits) == ["1234"]


@pytest.mark.parametrize("terms", [(-1, "#"), (MAX_KEYS + 1, "#"), (1, "##"), (1, "x"), (1, "a")])
def test_terms_that_no_entry_can_meet_are_refused(terms: tuple[int, str]) -> None:
    with pytest.raises(ValueError, match="is not"):
        GatherOptions(*terms)


def test_the_table_knows_every_event_of_every_state() -> None:
    """But that nothing is awaited when nothing was pressed."""
    assert {(s, e) for s in DigitState for e in Event} - set(TABLE) == {
        (DigitState.EMPTY, Event.TIMEOUT)
    }


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 6000))),
    st.integers(0, MAX_KEYS),
    st.sampled_from(["", *KEYS]),
)
def test_no_key_is_lost_said_twice_or_kept_for_ever(
    presses: list[tuple[str, int]], count: int, finish_key: str
) -> None:
    digits, now, meant = Digits(), 0, ""
    digits.expect(GatherOptions(count, finish_key))
    for key, after in presses:
        now += after
        digits.handle_timer(now)
        meant += key if digits.press(key, now) else ""
    digits.handle_timer(now + INTER_KEY_ASKED_MS)
    assert not digits.collecting
    entries = entries_of(digits)
    assert "".join(entries) == meant
    assert all(0 < len(entry) <= MAX_KEYS for entry in entries)


@given(st.lists(st.text(KEYS, min_size=1), max_size=4))
def test_what_was_pressed_is_read_back_out_of_a_turn(entries: list[str]) -> None:
    words = "well it is " + " ".join(map(as_text, entries)) + " yes"
    assert pressed_in(words) == "".join(entries)
    assert pressed_in("she pressed 1 2 3") == ""
