"""What servers report of their tokens, in whatever shape."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.conversation.agents.completion import MAX_TOKENS, reported

CHAT = {
    "prompt_tokens": 1200,
    "completion_tokens": 40,
    "total_tokens": 1240,
    "prompt_tokens_details": {"cached_tokens": 1024},
    "completion_tokens_details": {"reasoning_tokens": 8},
}
REALTIME = {
    "input_tokens": 300,
    "output_tokens": 120,
    "input_token_details": {
        "cached_tokens": 64,
        "text_tokens": 100,
        "audio_tokens": 200,
        "cached_tokens_details": {"text_tokens": 40, "audio_tokens": 24},
    },
    "output_token_details": {"text_tokens": 20, "audio_tokens": 100},
}


def test_a_chat_completion_and_a_response_of_the_realtime_api_are_read() -> None:
    chat, realtime = reported(CHAT), reported(REALTIME)
    assert chat is not None
    assert realtime is not None
    assert (chat.prompt_tokens, chat.cache_read_input_tokens) == (1200, 1024)
    assert (chat.completion_tokens, chat.reasoning_tokens) == (40, 8)
    assert (realtime.prompt_tokens, realtime.input_audio_tokens) == (300, 200)
    assert (realtime.cache_read_input_tokens, realtime.cache_read_input_audio_tokens) == (64, 24)
    assert (realtime.completion_tokens, realtime.output_audio_tokens) == (120, 100)


@pytest.mark.parametrize(
    "usage",
    [
        *(None, "12", [], {}, {"prompt_tokens": -1}, {"prompt_tokens": "9"}),
        {"prompt_tokens": None, "completion_tokens": MAX_TOKENS + 1},
        {"prompt_tokens": float("nan")},
    ],
)
def test_what_counts_nothing_is_no_report(usage: Any) -> None:
    assert reported(usage) is None


def test_a_count_of_another_shape_is_none_and_the_others_stay() -> None:
    usage = reported({"prompt_tokens": 9, "completion_tokens": "3", "prompt_tokens_details": 5})
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (9, 0)


NAMES = st.sampled_from([*CHAT, *REALTIME, "cached_tokens", "audio_tokens"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANYTHING = st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=6))


@given(ANYTHING)
def test_whatever_a_server_reports_no_part_is_larger_than_the_whole(usage: Any) -> None:
    if (found := reported(usage)) is None:
        return
    cached, audio = found.cache_read_input_tokens or 0, found.input_audio_tokens or 0
    assert 0 <= found.prompt_tokens <= MAX_TOKENS
    assert max(cached, audio) <= found.prompt_tokens
    assert (found.cache_read_input_audio_tokens or 0) <= min(cached, audio)
    assert (found.output_audio_tokens or 0) <= found.completion_tokens
