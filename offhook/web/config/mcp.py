"""MCP servers whose tools agents have, as the configuration describes them."""

import re
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from offhook.web.config.section import Section, headers_besides
from offhook.web.config.tools import ToolOptions

MAX_NAME_CHARS = 64
"""Maximum length of a function's name, as OpenAI's. Realtime clients get an error for a longer one;
that of an MCP server's tool is cut off."""
OWN_HEADERS = frozenset(
    (
        *("accept-encoding", "connection", "content-length", "host", "te", "trailer"),
        *("transfer-encoding", "upgrade"),
    )
)
"""Headers of requests to MCP servers that nobody can set: they choose what is reached at a server's
address, or how."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def function_name(name: str) -> str:
    """Returns the name of an MCP server's tool as chat models take it."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_NAME_CHARS] or "tool"


class McpServer(Section):
    """A server of tools by the Model Context Protocol: at an address, or a program that this server
    starts."""

    url: str = Field("", examples=["https://mcp.shop.example/mcp"])
    """Address of a server that speaks streamable HTTP; one that ends in `/sse` the older
    transport."""
    headers: Annotated[dict[str, str], headers_besides(OWN_HEADERS)] = Field(
        {}, repr=False, max_length=32
    )
    """Headers of requests to it, such as Authorization; never logged."""
    command: tuple[str, ...] = Field((), max_length=100, examples=[["python", "server.py"]])
    """Program, with its arguments, that is started and spoken to by its standard input and output;
    `python` is the one that runs this server."""
    env: dict[str, str] = Field({}, repr=False, max_length=100)
    """Variables of the program's environment, such as its keys; never logged. Of this server's own
    environment it gets the search path, its home, language, time zone and folder for temporary
    files."""
    seconds: float = Field(10, gt=0, le=60)
    """Time limit of a call of its tools in s; then the model is told that nothing came."""

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment):
            raise ValueError(f"{url!r} is no URL; one begins with http:// or https://")
        if parts.username is not None:
            raise ValueError("a password stands in headers, as Authorization")
        return url

    @field_validator("command")
    @classmethod
    def _can_be_started(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if command and not command[0]:
            raise ValueError("the program has no name")
        if any("\0" in part for part in command):
            raise ValueError("has a null character")
        return command

    @field_validator("env")
    @classmethod
    def _are_variables(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a variable")
            if "\0" in value:
                raise ValueError(f"the value of {name} has a null character")
        return env

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if bool(self.url) == bool(self.command):
            raise ValueError('needs url = "…" or command = ["…"], one of both')
        if self.url and self.env:
            raise ValueError("env is for a program, which command names")
        if self.command and self.headers:
            raise ValueError("headers are for a server at a url")
        return self


class McpTools(ToolOptions):
    """The tools of an MCP server that a language model may call."""

    mcp: str = Field(examples=["shop"])
    """Name of the server's table in [mcp]."""
    names: tuple[str, ...] = Field((), max_length=128)
    """Its tools that the model may call; empty: all."""

    @property
    def function_names(self) -> tuple[str, ...]:
        """Returns `names` as chat models take them."""
        return tuple(map(function_name, self.names))
