"""The items of a Realtime conversation as messages of a chat model, which is what our agents
answer. Sans-io."""

from collections.abc import Iterator, Sequence
from typing import Any

from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext

from offhook.pipeline.conversation.directed_io import FunctionTool as OwnTool
from offhook.pipeline.conversation.directed_io import function_tool
from offhook.web.config.mcp import function_name
from offhook.web.realtime.conversation.actions import Generate
from offhook.web.realtime.protocol.items import (
    AssistantMessage,
    FunctionCall,
    FunctionCallOutput,
    InputAudio,
    InputImage,
    InputText,
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCallItem,
    McpListedTool,
    OutputAudio,
    OutputText,
    SystemMessage,
    UserMessage,
)
from offhook.web.realtime.protocol.response_object import Usage
from offhook.web.realtime.protocol.tools import ChosenFunction, ChosenMcp, FunctionTool

Part = InputText | InputAudio | InputImage | OutputText | OutputAudio
Message = dict[str, Any]
"""A message of OpenAI's chat completions."""


def chat_messages(items: Sequence[Item]) -> list[Message]:
    """Returns the messages of a conversation. Function calls that follow one another are one
    message, and calls without an output get an empty one, without which chat servers refuse the
    conversation."""
    outputs = {item.call_id for item in items if isinstance(item, FunctionCallOutput)}
    refused = {
        item.approval_request_id: item.reason
        for item in items
        if isinstance(item, McpApprovalResponse) and not item.approve
    }
    messages: list[Message] = []
    for item in items:
        for message in _messages(item, outputs, refused):
            last = messages[-1] if messages else {}
            if "tool_calls" in message and last.get("tool_calls"):
                last["tool_calls"] += message["tool_calls"]
            else:
                messages.append(message)
    return list(_with_outputs_after_calls(messages))


def _messages(item: Item, outputs: set[str], refused: dict[str, str | None]) -> Iterator[Message]:
    match item:
        case SystemMessage() | UserMessage() | AssistantMessage():
            if content := _content(item.content):
                yield {"role": item.role, "content": content}
        case FunctionCall():
            yield _call(item.call_id, item.name, item.arguments)
            if item.call_id not in outputs:
                yield _result(item.call_id, "")
        case FunctionCallOutput():
            yield _result(item.call_id, item.output)
        case McpCallItem():
            yield _call(item.key, function_name(item.name), item.arguments)
            yield _result(item.key, _mcp_result(item))
        case McpApprovalRequest() if item.key in refused:
            yield _call(item.key, function_name(item.name), item.arguments)
            yield _result(item.key, f"The call was not approved. {refused[item.key] or ''}".strip())


def _mcp_result(item: McpCallItem) -> str:
    if item.error is not None:
        return item.error.message
    return "The call is not over yet." if item.output is None else item.output


def _call(call_id: str, name: str, arguments: str) -> Message:
    function = {"name": name, "arguments": arguments or "{}"}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "tool_calls": [call]}


def _result(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Returns the text of a message; a list of parts if there are images."""
    text = " ".join(filter(None, map(_text, parts)))
    images = [
        {"type": "image_url", "image_url": {"url": part.image_url, "detail": part.detail}}
        for part in parts
        if isinstance(part, InputImage)
    ]
    if not images:
        return text
    return [{"type": "text", "text": text}, *images] if text else images


def _text(part: Part) -> str:
    match part:
        case InputText(text=text) | OutputText(text=text):
            return text
        case InputAudio():
            return part.heard or part.transcript or ""
        case OutputAudio():
            return part.transcript
    return ""


def _with_outputs_after_calls(messages: Sequence[Message]) -> Iterator[Message]:
    """Yields the messages with every tool's output right after the message that calls it; an
    output without a call is left out."""
    results = {m["tool_call_id"]: m for m in messages if m["role"] == "tool"}
    for message in messages:
        if message["role"] == "tool":
            continue
        yield message
        for call in message.get("tool_calls", ()):
            yield results[call["id"]]


def usage_of(usage: LLMTokenUsage | None) -> Usage:
    """Returns the tokens that a chat model counted; none for an agent without tokens."""
    if usage is None:
        return Usage()
    return Usage(
        input_text_tokens=usage.prompt_tokens,
        cached_text_tokens=usage.cache_read_input_tokens or 0,
        output_text_tokens=usage.completion_tokens,
    )


def listed(tool: OwnTool) -> McpListedTool:
    """Returns a tool of the agent's own as MCP servers list theirs."""
    schema = tool.to_default_dict()["parameters"]
    return McpListedTool(name=tool.name, description=tool.description, input_schema=schema)


def context_of(action: Generate) -> LLMContext:
    """Returns the request to a chat model."""
    messages: list[Any] = [*chat_messages(action.items)]
    tools: list[Any] = [
        function_tool(tool.name, tool.description or "", tool.parameters or {})
        for tool in action.tools
        if isinstance(tool, FunctionTool)
    ]
    tools += [function_tool(f.name, f.tool.description, f.tool.input_schema) for f in action.mcp]
    if not tools:
        return LLMContext(messages)
    return LLMContext(messages, tools=tools, tool_choice=_tool_choice(action))


def _tool_choice(action: Generate) -> Any:
    match action.tool_choice:
        case ChosenFunction(name=name):
            return {"type": "function", "function": {"name": name}}
        case ChosenMcp(server_label=label, name=name):
            of_server = [f for f in action.mcp if f.server.server_label == label]
            for function in of_server:
                if function.tool.name == name:
                    return {"type": "function", "function": {"name": function.name}}
            return "required" if of_server else "auto"
        case choice:
            return choice
