"""The MOS estimate against ITU-T G.107 and against what any listener would say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.rtp.quality import CODECS, R_DEFAULT, delay_impairment, mos

delays = st.floats(0, 5000)
losses = st.floats(0, 1)
codecs = st.sampled_from(sorted(CODECS))


def test_a_perfect_line_reaches_the_ceiling_of_narrowband() -> None:
    # G.107 Annex B: R = 93.2 is MOS 4.41.
    assert mos(0, 0, codec="PCMU") == pytest.approx(4.41, abs=0.005)


@pytest.mark.parametrize(("delay_ms", "rating"), [(100, 93.2), (200, 90.16), (400, 69.13)])
def test_delay_costs_what_g107_says(delay_ms: float, rating: float) -> None:
    """G.107 §7.4 by hand for log2(T / 100 ms) = 0, 1, 2."""
    assert R_DEFAULT - delay_impairment(delay_ms) == pytest.approx(rating, abs=0.01)


def test_loss_costs_what_g107_says() -> None:
    # G.711 with concealment at 2 %: Ie,eff = 95 * 2 / 27.1 = 7.0, so R = 86.2 and MOS 4.24.
    assert mos(0, 0.02, codec="pcmu") == pytest.approx(4.24, abs=0.01)


def test_a_bad_call_is_told_from_a_good_one() -> None:
    good = mos(80, 0.0)
    poor = mos(250, 0.05)
    assert good > 4.3
    assert poor < 3.1
    assert mos(400, 0.3) < 1.7


def test_a_codec_without_planning_values_is_rated_as_g711() -> None:
    assert mos(20, 0.01, codec="L16") == mos(20, 0.01, codec="pcma")


@given(delays, losses, codecs)
def test_on_the_scale(delay_ms: float, loss: float, codec: str) -> None:
    assert 1.0 <= mos(delay_ms, loss, codec) <= 4.5


@given(delays, delays, losses, codecs)
def test_more_delay_is_never_better(a: float, b: float, loss: float, codec: str) -> None:
    assert mos(max(a, b), loss, codec) <= mos(min(a, b), loss, codec) + 1e-9


@given(losses, losses, delays, codecs)
def test_more_loss_is_never_better(a: float, b: float, delay_ms: float, codec: str) -> None:
    assert mos(delay_ms, max(a, b), codec) <= mos(delay_ms, min(a, b), codec) + 1e-9
