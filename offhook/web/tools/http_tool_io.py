"""Runs a tool that is an HTTP request.

The server that responds is the operator's, but may be slow, down or broken: what it sends is
bounded, and whatever fails is told to the model, which tells the caller.
"""

import asyncio
import json
import uuid
from collections.abc import Mapping
from time import time
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
from yarl import URL

from offhook.media.untrusted_json import read_json
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.call_variables import PLACEHOLDER
from offhook.pipeline.conversation.directed_io import FunctionTool
from offhook.web.config.tools import IN_PATH, HttpTool
from offhook.web.http.webhook_signature import signed_headers
from offhook.web.tools.function_io import Fill, FunctionDefinition, function_of
from offhook.web.tools.tool_result import ToolFailed, shown

MAX_RESPONSE_BYTES = 256 * 1024
"""Maximum size of a response; a longer one is an error."""
ERROR_CHARS = 500
"""Characters of an error's text that the model sees."""
CONNECTIONS = 100
"""Maximum connections of a process to servers of tools; further requests wait within their time."""


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


class HttpTools:
    """Makes the requests of all calls of a process, which share their connections."""

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None
        """Created with the first request."""

    def imports(self, tool: HttpTool, read: object) -> None:
        """Nothing is imported for a request."""

    def functions(
        self, tool: HttpTool, agent: object, call: Call, fill: Fill
    ) -> tuple[FunctionTool, ...]:
        """Returns a tool's function for the model of a call."""

        async def run(arguments: Mapping[str, Any]) -> Any:
            return await self.run(tool, arguments, fill)

        where = f"{tool.name} at {urlsplit(tool.url).netloc}"
        defined = FunctionDefinition(tool.name, tool.description, tool.schema_of_arguments, where)
        return (function_of(defined, tool, call, fill, run),)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def run(self, tool: HttpTool, arguments: Mapping[str, Any], fill: Fill) -> Any:
        """Returns what the model sees of the response. `fill` puts the call's variables into a
        text. Raises ToolFailed."""
        url, rest = _address(tool, arguments, fill)
        try:
            async with asyncio.timeout(tool.seconds):
                return await self._ask(tool, url, rest)
        except TimeoutError as error:
            raise ToolFailed(f"no response within {tool.seconds:g} s") from error
        except (aiohttp.ClientConnectorError, OSError) as error:
            raise ToolFailed("its server cannot be reached") from error
        except aiohttp.ClientError as error:
            raise ToolFailed("its server broke the connection off") from error

    async def _ask(self, tool: HttpTool, url: URL, rest: dict[str, Any]) -> Any:
        """Raises ToolFailed, aiohttp's exceptions, OSError."""
        if self._http is None:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS)
            self._http = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", **tool.headers}
        body = b""
        if tool.method == "GET":
            url = url.update_query({name: _text(value) for name, value in rest.items()})
        else:
            body = json.dumps(rest, ensure_ascii=False).encode()
            headers["Content-Type"] = "application/json"
        if tool.secret:
            signed = signed_headers(f"tool_{uuid.uuid4().hex}", body, [tool.secret], time())
            headers = {**signed, **headers}
        async with self._http.request(
            tool.method, url, data=body or None, headers=headers, allow_redirects=False
        ) as response:
            text = await _text_of(response)
            if not 200 <= response.status < 300:
                raise ToolFailed(f"HTTP {response.status}{_reason(response, text)}")
            return _read(tool, response.content_type, text)


def _address(
    tool: HttpTool, arguments: Mapping[str, Any], fill: Fill
) -> tuple[URL, dict[str, Any]]:
    """Returns the URL with the call's variables and the arguments of its path, and the other
    arguments. Raises ToolFailed for arguments that no URL can be made of."""
    schema = tool.schema_of_arguments
    if missing := [name for name in schema.get("required", ()) if name not in arguments]:
        raise ToolFailed(f"arguments are missing: {', '.join(missing)}")
    for name, value in arguments.items():
        about = schema["properties"].get(name)
        kind = about.get("type") if isinstance(about, dict) else None
        if isinstance(kind, str) and not _is_a(kind, value):
            raise ToolFailed(f"arguments: {name} is no {kind}")
    path, mark, query = tool.url.partition("?")
    in_path = IN_PATH.findall(path)
    made = IN_PATH.sub(lambda found: _part(found[1], _text(arguments.get(found[1], ""))), path)
    made = PLACEHOLDER.sub(lambda found: _part(found[1], fill(found[0])), made)
    made += mark + PLACEHOLDER.sub(lambda found: quote(fill(found[0]), safe=""), query)
    rest = {name: value for name, value in arguments.items() if name not in in_path}
    return URL(made, encoded=True), rest


def _is_a(kind: str, value: object) -> bool:
    """Returns whether a value has a type of JSON Schema."""
    if isinstance(value, bool) or kind not in _TYPES:
        return kind == "boolean" or kind not in _TYPES
    return isinstance(value, _TYPES[kind])


def _part(name: str, text: str) -> str:
    """Returns a text as a part of a path. Raises ToolFailed if it would make another path of it."""
    if text in ("", ".", ".."):
        raise ToolFailed(f"{name} cannot be {text!r}")
    return quote(text, safe="")


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


async def _text_of(response: aiohttp.ClientResponse) -> str:
    """Raises ToolFailed if it is compressed or too long."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ToolFailed("the response is compressed, which was not asked for")
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > MAX_RESPONSE_BYTES:
            raise ToolFailed(f"the response is over {MAX_RESPONSE_BYTES // 1024} kB")
    return data.decode(errors="replace")


def _reason(response: aiohttp.ClientResponse, text: str) -> str:
    """Returns what a response that is an error says about it, if that is for programs."""
    readable = response.content_type in ("text/plain", "application/json")
    return f": {' '.join(text.split())[:ERROR_CHARS]}" if readable and text.strip() else ""


def _read(tool: HttpTool, content_type: str, text: str) -> Any:
    """Returns what the model sees of a response. Raises ToolFailed."""
    if not text.strip():
        return {"status": "done"}
    if content_type == "text/plain":
        return shown({"text": text})
    if content_type == "application/json" or content_type.endswith("+json"):
        try:
            result = read_json(text)
        except ValueError as error:
            raise ToolFailed("the response is no JSON") from error
        return shown(result, tool.fields)
    raise ToolFailed(f"the response is {content_type}, not JSON")
