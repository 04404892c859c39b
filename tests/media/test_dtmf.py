"""Keys wait their turn, and each takes its time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.telephone_tones.dtmf import DIGIT_TICKS, DIGITS, MAX_QUEUED, DtmfError, DtmfQueue


def ticks(keys):
    out = []
    while keys.busy:
        out.append(keys.tick())
    return out


def test_a_press_is_100_ms_of_tone_and_100_ms_of_pause():
    keys = DtmfQueue()
    keys.press("5#")
    assert ticks(keys) == [(digit, tick) for digit in "5#" for tick in range(DIGIT_TICKS)]
    assert DIGIT_TICKS * 20 == 200


def test_a_comma_waits_for_half_a_second():
    keys = DtmfQueue()
    keys.press("1,2")
    told = ticks(keys)
    assert told[DIGIT_TICKS : DIGIT_TICKS + 25] == [None] * 25
    assert told[DIGIT_TICKS + 25] == ("2", 0)
    assert len(told) == 2 * DIGIT_TICKS + 25


@given(st.lists(st.text(DIGITS + "abcd,", max_size=9), max_size=6))
def test_what_is_pressed_comes_out_in_order_whenever_it_was_asked_for(parts):
    keys = DtmfQueue()
    told = []
    for part in parts:
        keys.press(part)
        told.append(keys.tick())
    told += ticks(keys)
    assert keys.tick() is None
    pressed = [key.digit for key in told if key is not None and key.tick == 0]
    assert "".join(pressed) == "".join(parts).upper().replace(",", "")


@pytest.mark.parametrize("digits", ["12E", "1 2", "é", "1\n", "\u0661"])
def test_what_is_not_a_key_is_refused_whole(digits):
    keys = DtmfQueue()
    with pytest.raises(DtmfError, match="is not a DTMF digit"):
        keys.press(digits)
    assert not keys.busy


def test_too_many_keys_are_refused_and_those_before_stay():
    keys = DtmfQueue()
    keys.press("1" * MAX_QUEUED)
    with pytest.raises(DtmfError, match="256"):
        keys.press("2")
    assert {key.digit for key in ticks(keys)} == {"1"}


def test_a_press_may_be_broken_off():
    keys = DtmfQueue()
    keys.skip()
    keys.press("12")
    keys.skip()  # none has begun
    assert keys.tick() == ("1", 0)
    keys.skip()
    assert keys.tick() == ("2", 0)
