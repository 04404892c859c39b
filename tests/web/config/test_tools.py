"""What a tool may be, and the address of its request."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from yarl import URL

from offhook.web.config.agents import Agent, AgentTool
from offhook.web.config.tools import HttpTool
from offhook.web.tools.http_tool_io import _address
from offhook.web.tools.tool_result import ToolFailed

TOOL = {"name": "t", "description": "d", "url": "http://a.example/{n}?{{caller}}"}


@given(st.text(min_size=1))
def test_no_argument_makes_another_address(text: str) -> None:
    tool = HttpTool.model_validate({**TOOL, "parameters": {"n": "x"}})
    if text in (".", ".."):
        with pytest.raises(ToolFailed, match="cannot be"):
            _address(tool, {"n": text}, lambda name: "1")
        return
    url, rest = _address(tool, {"n": text}, lambda name: text)
    assert (url.host, url.path_safe.count("/"), rest) == ("a.example", 1, {})
    assert URL(str(url), encoded=True).path == f"/{text}"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"name": "end_call"}, "end_call is a tool that agents have anyway"),
        ({"name": "has space"}, "name"),
        ({"url": "ftp://a.example/"}, "not one that begins with http"),
        ({"url": "http://{n}.example/"}, "its host cannot depend on the call"),
        ({"url": "http://a.example/{m}"}, "url has {m}, which is not in parameters"),
        ({"url": "http://a.example/?q={n}"}, "arguments stand in the path"),
        ({"parameters": {"n": 7}}, "n is no description and has no type of string"),
        ({"parameters": {"n": {"type": "int"}}}, "n is no description and has no type of string"),
        (
            {"parameters": {"type": "object", "properties": {"n": {"type": "int"}}}},
            "parameters.properties.n.type: 'int' is none of string",
        ),
        (
            {"parameters": {"n": {"type": "array", "items": {"type": ["string", 7]}}}},
            "parameters.n.items.type: 7 is none of string",
        ),
        (
            {"parameters": {"type": "object", "properties": {"n": "which"}}},
            "parameters.properties.n: is no table, as a JSON Schema is",
        ),
        (
            {"parameters": {"type": "object", "properties": {"n": {}}, "required": ["m"]}},
            "parameters.required: 'm' is none of its properties",
        ),
        ({"parameters": {"n": {"type": "string", "enum": "a"}}}, "parameters.n.enum: is no list"),
        ({"parameters": {"n": {"type": "string", "optional": True}}}, "n stands in the path"),
        ({"headers": {"Host": "a"}}, "'Host' is no header that can be set"),
        ({"headers": {"A": "{{caller}}"}}, "the value of A cannot depend on the call"),
        ({"headers": {"A b": "x"}}, "'A b' is no header"),
        ({"headers": {"A": "x\r\nB: y"}}, "the value of A"),
        ({"secret": "short"}, "too short"),
        ({"method": "TRACE"}, "method"),
        ({"url": ""}, "not one that begins with http"),
        ({"function": "a:b"}, "url and function exclude each other"),
        ({"description": ""}, "description says to the model"),
    ],
)
def test_a_tool_that_cannot_be_run_is_a_fault_at_the_start(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        TypeAdapter(AgentTool).validate_python({**TOOL, "parameters": {"n": "x"}, **more})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"kind": "frontdesk"}, 'tools: only for kind = "openai" or "realtime"'),
        ({"tools": [TOOL | {"url": "http://a.example/"}] * 2}, "two are called t"),
        (
            {"tools": [TOOL | {"url": "http://a/?x={{nobody}}"}]},
            "tools.0.url has {{nobody}}",
        ),
        (
            {"tools": [TOOL | {"url": "http://a/", "on_failure": "{{nobody}}"}]},
            "tools.0.on_failure has {{nobody}}",
        ),
    ],
)
def test_tools_that_an_agent_cannot_have_are_a_fault(more: dict[str, Any], says: str) -> None:
    tools = [TOOL | {"url": "http://a.example/"}]
    with pytest.raises(ValidationError, match=says):
        Agent.model_validate({"kind": "openai", "model": "m", "tools": tools, **more})


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        ("string", ["", "7"], [7, True, None, []]),
        ("integer", [7, -1], ["7", 7.5, True]),
        ("number", [7, 7.5], ["7", False]),
        ("boolean", [True, False], [0, "true"]),
        ("array", [[], [1]], [{}, "[]"]),
        ("object", [{}, {"a": 1}], [[], "{}"]),
    ],
)
def test_arguments_have_the_types_that_the_model_was_told(
    kind: str, taken: list[Any], refused: list[Any]
) -> None:
    about = {"parameters": {"n": {"type": kind}}, "url": "http://a.example/"}
    tool = HttpTool.model_validate({**TOOL, **about})
    for value in taken:
        assert _address(tool, {"n": value}, str)[1] == {"n": value}
    for value in refused:
        with pytest.raises(ToolFailed, match=f"arguments: n is no {kind}"):
            _address(tool, {"n": value}, str)
