"""What answers cost, by `[prices.MODEL]`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.conversation.events import TokensUsed
from offhook.web.config.language_models.prices import Prices

ALL = Prices(input=0.4, output=1.6, cached=0.1, audio_input=10, audio_output=20)


def used(input_tokens: int, cached: int, output: int, *audio: int) -> TokensUsed:
    return TokensUsed(0, "m", input_tokens, cached, output, *audio)


@pytest.mark.parametrize(
    ("prices", "tokens", "cost"),
    [
        (Prices(input=0.4, output=1.6), used(1_000_000, 0, 500_000), 0.4 + 0.8),
        (Prices(input=0.4, output=1.6), used(1_000_000, 900_000, 0), 0.4),
        (ALL, used(1_000_000, 900_000, 0), 0.04 + 0.09),
        # 200 of 300 are audio, 24 of these and 40 of the others were cached
        (ALL, used(300, 64, 120, 200, 24, 100), (60 * 0.4 + 64 * 0.1 + 176 * 10 + 32 + 2000) / 1e6),
        (Prices(input=1, output=2), used(300, 0, 120, 200, 0, 100), (300 + 240) / 1e6),
    ],
)
def test_each_kind_of_token_has_its_price(prices: Prices, tokens: TokensUsed, cost: float) -> None:
    assert prices.cost(tokens) == pytest.approx(cost)


@given(st.lists(st.integers(0, 10**9), min_size=6, max_size=6))
def test_nothing_costs_less_than_nothing(counts: list[int]) -> None:
    whole, cached, audio, cached_audio, output, spoken = counts
    cached, audio = min(cached, whole), min(audio, whole)
    tokens = used(
        whole, cached, output, audio, min(cached_audio, cached, audio), min(spoken, output)
    )
    assert ALL.cost(tokens) >= 0
