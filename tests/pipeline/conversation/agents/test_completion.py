"""One answer of a model while it comes in, without a server."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offhook.pipeline.conversation.agents.agent_faults import AgentFailure, Fault
from offhook.pipeline.conversation.agents.completion import MAX_CONTENT_CHARACTERS, Completion
from offhook.pipeline.conversation.agents.completion_events import (
    MAX_EVENT_BYTES,
    CompletionEvents,
)
from offhook.pipeline.conversation.agents.tool_calls import MAX_TOOL_CALLS, ToolCalls


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


def decoded(*pieces: bytes) -> list[Any]:
    events = CompletionEvents()
    return [event for piece in pieces for event in events.feed(piece)] + events.end()


BODIES = {
    "LF": (b'data: {"a": 1}\n\ndata:{"b": "\xc3\xa4"}\n\ndata: [DONE]\n\n', 2),
    "CRLF": (b'data: {"a": 1}\r\n\r\ndata: {"b":\r\ndata: 2}\r\n\r\n', 2),
    "CR": (b'data: {"a": 1}\r\rdata: {"b": 2}\r\r', 2),
    "a byte order mark": (b'\xef\xbb\xbfdata: {"a": 1}\n\n', 1),
    "comments": (b': hello\n\nevent: x\nid: 1\ndata: {"a": 1}\n\nretry: 5\n\n', 1),
    "after its end": (b'data: [DONE]\n\ndata: {"a": 1}\n\n', 0),
    "no blank line": (b'data: {"a": 1}\n\ndata: {"b": 2}', 2),
    "no stream": (b'\xef\xbb\xbf\n{"a":\r\n {"b": 1}}\n', 1),
    "nothing": (b"", 0),
}


@given(st.sampled_from(sorted(BODIES)), st.data())
def test_a_body_is_decoded_the_same_however_it_is_cut(name: str, data: st.DataObject) -> None:
    body, count = BODIES[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert decoded(*pieces) == decoded(body)
    assert len(decoded(body)) == count


@pytest.mark.parametrize("beginning", [b"data: ", b"{"])
def test_an_event_without_end_is_refused(beginning: bytes) -> None:
    events = CompletionEvents()
    events.feed(beginning)
    with pytest.raises(ValueError, match="bytes"):
        events.feed(b"x" * MAX_EVENT_BYTES)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8)), max_size=20), st.booleans())
@example([], True)
def test_the_arguments_of_calls_may_come_in_any_pieces(
    pieces: list[tuple[bool, int]], repeats: bool
) -> None:
    """`pieces`: which of two calls, and how many characters; `repeats`: the name with each."""
    left = {False: '{"digits": "12"}', True: '{"digits": "34", "what": {}}'}
    whole, calls = dict(left), ToolCalls(("send",))
    for index in (False, True):
        calls.add({"index": int(index), "function": {"name": "send"}})
    for which, size in [*pieces, (False, 99), (True, 99)]:
        piece, left[which] = left[which][:size], left[which][size:]
        function = {"arguments": piece} | ({"name": "send"} if repeats else {})
        calls.add({"index": int(which), "function": function})
    made = calls.finished()
    assert [(call.name, call.arguments) for call in made] == [
        ("send", whole[False]),
        ("send", whole[True]),
    ]
    assert len({call.id for call in made}) == 2


@pytest.mark.parametrize(
    "bad",
    [
        "x",
        {"function": "send"},
        {"function": {"name": 1}},
        {"id": 1},
        {"function": {"name": "send", "arguments": [1]}},
    ],
)
def test_a_tool_call_of_another_shape_is_a_fault(bad: Any) -> None:
    with pytest.raises(AgentFailure) as failed:
        Completion(100).add(delta(tool_calls=[bad]))
    assert failed.value.fault is Fault.BAD_TOOL_CALL


def test_the_number_of_calls_is_limited() -> None:
    calls = ToolCalls(())
    for index in range(MAX_TOOL_CALLS):
        calls.add({"index": index, "function": {"name": "send"}})
    with pytest.raises(AgentFailure) as failed:
        calls.add({"index": MAX_TOOL_CALLS, "function": {"name": "send"}})
    assert failed.value.fault is Fault.TOO_LONG


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_of_its_own_field_is_thinking_and_limited(field: str) -> None:
    answer = Completion(100)
    assert answer.add(delta(**{field: "Hm."})).text == ""
    assert answer.is_thinking
    assert answer.add(delta(content="At nine.")).text == "At nine."
    assert not answer.is_thinking
    with pytest.raises(AgentFailure) as failed:
        answer.add(delta(**{field: "x" * MAX_CONTENT_CHARACTERS}))
    assert failed.value.fault is Fault.TOO_LONG


@pytest.mark.parametrize(
    ("pieces", "spoken"),
    [
        (("🙂", " ", "Hi", " 🙂"), ["", "", "🙂 Hi", " 🙂"]),
        (("— ", "..."), ["", ""]),
        (("🙂 5",), ["🙂 5"]),
        (("🙂",) * 30 + ("a",), [""] * 30 + ["🙂" * 30 + "a"]),
    ],
)
def test_an_answer_begins_with_what_can_be_heard(
    pieces: tuple[str, ...], spoken: list[str]
) -> None:
    answer = Completion(100)
    got = [answer.add(delta(content=piece)).text for piece in pieces]
    assert "".join(got) + answer.end().text == "".join(spoken) == answer.text
    assert answer.has_begun == bool(answer.text)
    written = Completion(100, aloud=False)
    assert "".join([written.add(delta(content=p)).text for p in pieces]) == "".join(pieces)


def test_a_role_alone_is_no_thinking() -> None:
    answer = Completion(100)
    answer.add(delta(role="assistant", content=""))
    answer.add(delta(role="assistant", content=None, tool_calls=None, refusal=None))
    assert not answer.is_thinking
    assert not answer.has_begun


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "choices",
                        "delta",
                        "message",
                        "content",
                        "tool_calls",
                        "function",
                        "index",
                        "text",
                        "arguments",
                        "usage",
                        "error",
                        "finish_reason",
                    ]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=12,
    )
)
def test_whatever_a_server_sends_is_an_answer_or_a_fault(event: Any) -> None:
    answer = Completion(100)
    with suppress(AgentFailure):
        answer.add(json.loads(json.dumps(event)))
        answer.end()
        answer.calls()
