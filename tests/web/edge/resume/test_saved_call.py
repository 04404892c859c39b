"""What is saved of a call: at most 2 kB, the newest words, and nothing else is ever read as one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.leg import CallInfo, Collected, ModelTokens
from offhook.web.edge.resume.saved_call import (
    MAX_BYTES,
    MAX_COLLECTED_BYTES,
    MAX_READ_BYTES,
    Handoff,
    SavedCall,
    TooLargeError,
    key_of,
    new_token,
    unpack,
)

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=400)
MESSAGES = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), WORDS), max_size=30)
INFO = CallInfo("twilio", "outbound", "+4930", "Ada", "+4931", "us", {"X-A": "b"}, {"order": 4711})


@given(MESSAGES)
def test_a_call_comes_back_with_its_newest_words(messages: list[Any]) -> None:
    saved = SavedCall("desk", INFO, 61, {"step": "name"}, tuple(messages))
    packed = saved.pack()
    assert len(packed) <= MAX_BYTES
    again = unpack(packed)
    assert (again.agent, again.info, again.seconds) == ("desk", INFO, 61)
    assert again.dialog == {"step": "name"}
    kept = again.messages
    assert len(kept) >= min(1, len(messages))
    if len(kept) > 1:
        assert list(kept) == messages[-len(kept) :]
    elif kept:
        role, text = messages[-1]
        assert kept[0][0] == role
        assert text.endswith(kept[0][1])
    total = sum(len(text.encode()) for _, text in messages)
    if total < 500 and len(messages) < 10 and all(text.isalnum() for _, text in messages):
        assert list(kept) == messages


def test_the_agent_that_has_taken_the_call_over_comes_back() -> None:
    words = (("user", "hello"),)
    saved = SavedCall("front", INFO, 3, {}, words, Handoff("billing", "front", "bills " * 400))
    again = unpack(saved.pack())
    assert (again.agent, again.answering, again.messages) == ("front", "billing", words)
    assert again.handoff is not None
    assert again.handoff.before == "front"
    assert saved.handoff is not None
    assert saved.handoff.told.endswith(again.handoff.told)
    assert 0 < len(again.handoff.told) < len(saved.handoff.told)


def test_of_one_very_long_turn_the_end_is_kept() -> None:
    words = "".join(f"{n} " for n in range(5000))
    (kept,) = unpack(SavedCall("", INFO, messages=(("user", words),)).pack()).messages
    assert words.endswith(kept[1])
    assert 1000 < len(kept[1]) < MAX_BYTES


def test_an_agent_state_that_is_too_large_is_left_out() -> None:
    saved = SavedCall("", INFO, 1, {"said": "x" * 1600}, (("user", "hello"),))
    again = unpack(saved.pack())
    assert (again.dialog, again.messages) == ({}, (("user", "hello"),))


@pytest.mark.parametrize("value", ["x" * 1600, "\u00e4" * 900, {"nested": ["y" * 1700]}])
def test_variables_that_leave_no_space_are_refused(value: Any) -> None:
    with pytest.raises(TooLargeError):
        SavedCall("", CallInfo(variables={"v": value})).pack()


def test_what_is_no_json_is_refused() -> None:
    for value in ({1, 2}, float("nan"), "\ud800"):
        with pytest.raises((ValueError, TypeError)):
            SavedCall("", CallInfo(variables={"v": value})).pack()


VALUES = WORDS | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()


@given(st.dictionaries(WORDS.map(lambda text: text[:20]), VALUES, max_size=12), MESSAGES)
def test_noted_details_and_tokens_come_back(collected: Collected, messages: list[Any]) -> None:
    tokens = ModelTokens(900, 100, 40, 0.25, {"m", "n"})
    more = {"collected": collected, "tokens": tokens}
    packed = SavedCall("desk", INFO, 1, {"step": "name"}, tuple(messages), **more).pack()
    assert len(packed) <= MAX_BYTES
    again = unpack(packed)
    assert again.tokens == ModelTokens(900, 100, 40, 0.25, {"m"})
    assert again.tokens.cost is None
    kept = list(again.collected.items())
    assert kept == list(collected.items())[len(collected) - len(kept) :]
    if (
        sum(len(json.dumps({n: v}).encode()) for n, v in collected.items())
        < MAX_COLLECTED_BYTES / 2
    ):
        assert again.collected == collected
    assert again.messages or not messages


def test_servers_of_before_read_calls_without_either() -> None:
    assert {"collected", "tokens"}.isdisjoint(GOOD)


def test_what_was_taken_before_is_counted_once() -> None:
    tokens, saved = ModelTokens(), ModelTokens(900, 100, 40, 0.25)
    tokens.restore(saved)
    tokens.restore(saved)
    assert tokens == saved
    tokens.input += 100
    tokens.restore(saved)
    assert (tokens.input, tokens.cost) == (1000, 0.25)


GOOD = json.loads(SavedCall("", INFO, 3, {}, (("user", "hi"),)).pack())


@pytest.mark.parametrize(
    "change",
    [
        *({"v": 2}, {"v": "1"}, {"v": None}, {"agent": 5}, {"info": {}}, {"seconds": "3"}),
        *({"said": [["u"]]}, {"said": [["x", "hi"]]}, {"said": [["u", 5]]}, {"dialog": []}),
        *({"collected": {"a": []}}, {"collected": 1}, {"tokens": [1]}, {"tokens": "x"}),
        *({"more": 1}, {"info": {**GOOD["info"], "direction": "sideways"}}),
        *({"info": {**GOOD["info"], "headers": {"a": 1}}}, {"info": {**GOOD["info"], "x": 1}}),
    ],
)
def test_another_version_or_shape_is_refused(change: dict[str, Any]) -> None:
    assert unpack(json.dumps(GOOD).encode()).messages == (("user", "hi"),)
    with pytest.raises(ValueError, match="validation error"):
        unpack(json.dumps({**GOOD, **change}).encode())


@given(st.binary(max_size=300) | st.integers(1, 3000).map(lambda n: b"[" * n))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"validation error|nested"):
        unpack(data)


def test_what_is_oversize_is_refused() -> None:
    large = {**GOOD, "said": [["u", "x" * MAX_READ_BYTES]]}
    with pytest.raises(ValueError, match="a saved call of"):
        unpack(json.dumps(large).encode())


def test_tokens_are_unguessable_and_bound_to_their_owner() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) >= 32 and "." not in token for token in tokens)
    token = tokens.pop()
    keys = {key_of(owner, token) for owner in ("webrtc", "twilio\nCA1", "twilio\nCA2")}
    assert len(keys) == 3
    assert not any(token in key for key in keys)
