"""Items of a conversation as messages of a chat model."""

from typing import Any

from pydantic import TypeAdapter

from offhook.web.realtime.chat import chat_messages
from offhook.web.realtime.protocol.items import FunctionCall, FunctionCallOutput, Item, Message

MESSAGE: TypeAdapter[Message] = TypeAdapter(Message)


def said(role: str, *more: dict[str, Any], **part: Any) -> Item:
    return MESSAGE.validate_python({"type": "message", "role": role, "content": [part, *more]})


def call(call_id: str) -> Item:
    return FunctionCall(type="function_call", call_id=call_id, name="look", arguments="{}")


def output(call_id: str, text: str) -> Item:
    return FunctionCallOutput(type="function_call_output", call_id=call_id, output=text)


def test_what_was_said_is_told_whatever_form_it_had() -> None:
    items = [
        said("system", type="input_text", text="Be brief."),
        said("user", type="input_audio", transcript="hello"),
        said("assistant", type="output_audio", transcript="good morning"),
        said("user", type="input_text", text="bye"),
        said("user", type="input_audio", transcript=None),
    ]
    assert [(m["role"], m["content"]) for m in chat_messages(items)] == [
        ("system", "Be brief."),
        ("user", "hello"),
        ("assistant", "good morning"),
        ("user", "bye"),
    ]


def test_calls_are_followed_by_their_outputs() -> None:
    items = [call("a"), call("b"), said("user", type="input_text", text="hm"), output("a", "1")]
    first, one, two, user = chat_messages(items)
    assert [made["id"] for made in first["tool_calls"]] == ["a", "b"]
    assert (one["tool_call_id"], one["content"]) == ("a", "1")
    assert (two["tool_call_id"], two["content"]) == ("b", "")
    assert user["content"] == "hm"


def test_an_output_without_its_call_is_left_out() -> None:
    assert chat_messages([output("gone", "1")]) == []


def test_an_image_is_a_part() -> None:
    url = "data:image/png;base64,iVBORw0KGgo="
    asked = {"type": "input_text", "text": "what is it"}
    (message,) = chat_messages([said("user", asked, type="input_image", image_url=url)])
    assert message["content"] == [
        {"type": "text", "text": "what is it"},
        {"type": "image_url", "image_url": {"url": url, "detail": "auto"}},
    ]
