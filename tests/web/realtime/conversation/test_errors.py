"""Wrong events: what is answered, and that nothing changes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.realtime.conversation.actions import Close, Generate
from offhook.web.realtime.conversation.conversation import MAX_ERRORS
from offhook.web.realtime.conversation.scope import Transport
from tests.web.realtime.conversation.client import (
    CANCEL,
    CLEAR_OUTPUT,
    COMMIT,
    Client,
    Event,
    created,
    kinds,
    message,
    respond,
    speech,
    truncate,
    update,
)

PNG = "data:image/png;base64,iVBORw0KGgo"
IMAGE = {"type": "input_image", "image_url": PNG + "AAAA"}


def item(**fields: Any) -> Event:
    return created({"type": "message", "role": "user", **fields})


def of(kind: str, item_id: str) -> Event:
    return {"type": f"conversation.item.{kind}", "item_id": item_id}


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ({"type": "response.creat"}, "invalid_value", "type"),
        ({}, "missing_required_parameter", "type"),
        ({"type": ["x"]}, "invalid_value", "type"),
        ({"type": "session.update"}, "missing_required_parameter", "session"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "invalid_audio", "audio"),
        ({"type": "input_audio_buffer.append"}, "invalid_audio", "audio"),
        (COMMIT, "input_audio_buffer_commit_empty", None),
        (CLEAR_OUTPUT, "invalid_event_for_transport", "type"),
        (CANCEL, "response_cancel_not_active", None),
        ({**CANCEL, "response_id": "resp_x"}, "response_cancel_not_active", "response_id"),
        (of("retrieve", "no"), "item_retrieve_invalid_item_id", "item_id"),
        (of("delete", "no"), "item_delete_invalid_item_id", "item_id"),
        (truncate("no", 0), "item_truncate_invalid_item_id", "item_id"),
        (truncate("u", 0), "invalid_value", "item_id"),
        ({**truncate("u", 0), "audio_end_ms": -1}, "invalid_value", "audio_end_ms"),
        (message("x", id="u"), "item_create_duplicate_item_id", "item.id"),
        (message("x", id="i" * 33), "string_above_max_length", "item.id"),
        ({**message("x"), "previous_item_id": "no"}, "invalid_value", "previous_item_id"),
        (item(content=[]), "invalid_value", "item.content"),
        (item(content=[{"type": "text", "text": "x"}]), "invalid_value", "item.content.0.type"),
        (item(content=[IMAGE]), "invalid_value", "item.content.0"),
        (
            item(content=[{"type": "input_audio", "audio": "AAAA"}]),
            "missing_required_parameter",
            "item.content.0.transcript",
        ),
        (
            item(role="assistant", content=[{"type": "output_audio", "transcript": "x"}]),
            "invalid_value",
            "item.content",
        ),
        (item(role="bot", content=[]), "invalid_value", "item.role"),
        (
            item(content=[{"type": "input_text"}]),
            "missing_required_parameter",
            "item.content.0.text",
        ),
        (created({"type": "mcp_call"}), "invalid_value", "item.type"),
        (
            created({"type": "function_call_output", "call_id": "no", "output": "x"}),
            "invalid_value",
            "item.call_id",
        ),
        (
            created({"type": "mcp_approval_response", "approval_request_id": "u", "approve": True}),
            "invalid_value",
            "item.approval_request_id",
        ),
        (
            respond(input=[{"type": "item_reference", "id": "no"}]),
            "invalid_value",
            "response.input.0.id",
        ),
        (respond(metadata={"a": 1}), "invalid_value", "response.metadata.a"),
        (respond(conversation="x"), "invalid_value", "response.conversation"),
        (respond(voice="x"), "unknown_parameter", "response.voice"),
    ],
)
def test_each_fault_has_its_code_and_its_field(event: Event, code: str, param: str | None) -> None:
    client = Client()
    client(message("hello", id="u"))
    before = list(client.items), client.retrieved("u"), client.core.session
    [answer] = client({**event, "event_id": "e1"})
    error = answer["error"]
    assert (error["code"], error["param"]) == (code, param), error["message"]
    assert (error["type"], error["event_id"]) == ("invalid_request_error", "e1")
    assert client.actions == []
    assert before == (client.items, client.retrieved("u"), client.core.session)


def test_an_error_goes_to_the_connection_that_was_wrong() -> None:
    client = Client()
    [wrong] = client.core.receive(7, "{}")
    [fine, *_] = client.core.receive(7, json.dumps(message("x")))
    assert (wrong.to, fine.to) == (7, None)  # type: ignore[union-attr]


def test_what_is_not_json_is_answered() -> None:
    client = Client()
    for text in ("", "[]", "{", "[" * 100_000, '{"type": "\\ud800"}', "x" * (16 << 20)):
        [event] = client.send(text)
        assert event["type"] == "error"
        assert event["error"]["event_id"] is None


def with_parameters(parameters: str) -> str:
    tools = '[{"type":"function","name":"f","parameters":%s}]' % parameters  # noqa: UP031
    return '{"type":"session.update","session":{"type":"realtime","tools":%s}}' % tools  # noqa: UP031


@pytest.mark.parametrize(
    "text",
    [
        with_parameters('{"a":"\\ud800"}'),
        with_parameters('{"\\ud800":1}'),
        with_parameters('{"a":' * 100 + "1" + "}" * 100),
        with_parameters('{"a":' * 900 + "1" + "}" * 900),
        '{"type":"response.cancel","event_id":"\\ud800"}',
        '{"type":"session.update","session":{"type":"realtime","\\ud800":3}}',
        '{"type":"session.update","session":{"type":{}}}',
        '{"type":"conversation.item.create","item":{"type":"message","role":{}}}',
    ],
)
def test_what_could_not_be_sent_back_is_refused(text: str) -> None:
    client = Client()
    before = client.core.session
    [event] = client.send(text)
    assert event["type"] == "error"
    assert client.core.session is before


SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
GOOD = [
    respond(input=[{"type": "item_reference", "id": "u"}], metadata={"a": "b"}, tools=[]),
    update(
        tools=[{"type": "function", "name": "f", "parameters": {"a": None}}],
        audio={"input": {"turn_detection": {"type": "semantic_vad"}}, "output": {"voice": "x"}},
        tracing={"metadata": {"a": 1}},
    ),
    message("hi", id="m"),
    truncate("u", 10),
    item(content=[IMAGE]),
]


@st.composite
def faulty(draw: st.DrawFn) -> Event:
    """A good event in which one value is another."""
    event: Event = json.loads(json.dumps(draw(st.sampled_from(GOOD))))
    inner: Any = event
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = draw(st.sampled_from(keys))
        deeper = isinstance(inner[key], dict | list) and inner[key]
        if not deeper or draw(st.booleans()):
            inner[key] = draw(JSON)
            return event
        inner = inner[key]


@given(faulty())
def test_whatever_comes_is_answered_in_full_or_refused(event: Event) -> None:
    client = Client()
    client(message("hello", id="u"))
    before = client.core.session, list(client.items)
    events = client(event)
    if events and events[0]["type"] == "error":
        assert len(events) == 1
        assert before == (client.core.session, client.items)


@given(st.text() | JSON.map(json.dumps))
def test_any_text_is_answered(text: str) -> None:
    assert kinds(Client().send(text)) == ["error"]


def test_the_message_of_an_empty_commit_names_the_audio() -> None:
    client = Client()
    [event] = client(COMMIT)
    assert "100 ms" in event["error"]["message"]
    assert "0.00 ms" in event["error"]["message"]


def test_a_cancellation_that_fails_is_said_in_these_words() -> None:
    [event] = Client()(CANCEL)
    assert event["error"]["message"].startswith("Cancellation failed")


def test_a_second_response_is_refused_and_the_first_goes_on() -> None:
    client = Client()
    client.turn()
    [event] = client({**respond(), "event_id": "second"})
    assert event["error"]["code"] == "conversation_already_has_active_response"
    assert event["error"]["event_id"] == "second"
    assert kinds(client.done()) == ["response.done", "rate_limits.updated"]


def test_responses_beside_the_conversation_are_bounded() -> None:
    client = Client()
    for _ in range(8):
        client(respond(conversation="none"))
    [event] = client(respond(conversation="none"))
    assert event["error"]["code"] == "rate_limit_exceeded"
    assert kinds(client(respond())) == ["response.created"]


def test_audio_in_events_is_refused_where_it_comes_by_rtp() -> None:
    client = Client(Transport.RTP)
    [event] = client({"type": "input_audio_buffer.append", "audio": "AAAA"})
    assert event["error"]["code"] == "invalid_event_for_transport"
    assert kinds(client(COMMIT))[0] == "input_audio_buffer.committed"
    for _ in range(40):
        events = client(COMMIT)
    assert events[0]["error"]["code"] == "rate_limit_exceeded"


def seeing() -> Client:
    client = Client()
    client.core.accept_images(True)
    return client


def test_images_reach_an_agent_that_takes_them() -> None:
    client = seeing()
    assert kinds(client(item(content=[IMAGE])))[0] == "conversation.item.added"
    client(respond())
    [generate] = client.actions
    assert isinstance(generate, Generate)
    assert generate.items[0].content[0].image_url == IMAGE["image_url"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "https://example.com/cat.png",  # who fetches it may be led anywhere
        "data:image/svg+xml;base64,PHN2Zz4=",
        "data:image/png;base64,/9j/4AAQ",
        "data:image/png,hello",
        PNG + "A" * (8 << 20),
    ],
)
def test_an_image_that_a_model_could_not_read_is_refused(url: str) -> None:
    client = seeing()
    [event] = client(item(content=[{"type": "input_image", "image_url": url}]))
    assert event["error"]["param"] == "item.content.0.image_url"
    assert len(event["error"]["message"]) < 500


def test_a_large_image_is_not_sent_back() -> None:
    client = seeing()
    large = {**IMAGE, "image_url": PNG + "A" * 2_000_000}
    events = client(item(content=[large], id="i"))
    assert events[0]["item"]["content"] == [{"type": "input_image", "detail": "auto"}]
    client(respond())
    assert client.context[0].content[0].image_url == large["image_url"]  # type: ignore[union-attr]


def test_who_is_always_wrong_is_disconnected() -> None:
    client = Client()
    for _ in range(MAX_ERRORS - 1):
        client({})
    client(message("right"))
    for _ in range(MAX_ERRORS - 1):
        client({})
        assert client.actions == []
    client.core.receive(2, "{}")
    client({})
    assert client.actions == [Close(1008, f"{MAX_ERRORS} events were wrong", 1)]
    client.core.disconnected(1)
    client({})
    assert client.actions == []


def test_reports_of_an_unknown_response_are_ignored() -> None:
    client = Client()
    for name, args in {
        "response_text": ["x"],
        "response_audio": [speech(20)],
        "response_word": ["x", 1],
        "response_function_call": ["c", "f", "{}"],
        "response_failed": ["c", "m"],
        "playout_started": [],
        "playout_stopped": [],
    }.items():
        assert client.report(name, "resp_none", *args) == []
