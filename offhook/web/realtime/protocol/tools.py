"""Tools of a conversation session: functions of the client and tools of MCP servers.

Source: OpenAI's openapi.yaml, RealtimeFunctionTool, MCPTool, ToolChoiceParam.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from offhook.web.config.mcp import MAX_NAME_CHARS
from offhook.web.realtime.protocol.session_object import JsonObject, Object, Text

MAX_TOOLS = 128
"""Maximum tools of a session or response; more are refused as an invalid value."""
MAX_DESCRIPTION_CHARS = 1 << 14
"""Maximum length of a tool's description; a longer one is refused as an invalid value."""
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]+")


def _function_name(name: str) -> str:
    if not _FUNCTION_NAME.fullmatch(name):
        raise ValueError("has characters other than letters, digits, _ and -, as in get_weather")
    return name


Name = Annotated[Text, Field(min_length=1, max_length=MAX_NAME_CHARS)]
FunctionName = Annotated[Name, AfterValidator(_function_name)]
"""Chat models refuse other names of functions."""
Names = Annotated[tuple[Name, ...], Field(strict=False, max_length=MAX_TOOLS)]


class FunctionTool(Object):
    """A function that the client runs."""

    type: Literal["function"]
    name: FunctionName
    description: Annotated[Text, Field(max_length=MAX_DESCRIPTION_CHARS)] | None = None
    parameters: JsonObject | None = None
    """JSON Schema of the arguments."""
    strict: bool | None = None


class McpToolFilter(Object):
    """Selects tools of an MCP server."""

    tool_names: Names | None = None
    read_only: bool | None = None

    def selects(self, name: str, read_only: bool) -> bool:
        """Whether a tool meets all that is set."""
        named = self.tool_names is None or name in self.tool_names
        return named and self.read_only in (None, read_only)


class McpApprovalFilter(Object):
    """Which tools of an MCP server need the client's approval."""

    always: McpToolFilter | None = None
    never: McpToolFilter | None = None


class McpTool(Object):
    """All tools of one MCP server, which this server calls."""

    type: Literal["mcp"]
    server_label: Name
    server_url: Text | None = None
    connector_id: Text | None = None
    tunnel_id: Text | None = None
    authorization: Text | None = None
    """An access token: never sent back."""
    headers: dict[Text, Text] | None = None
    """Headers of requests to the server: never sent back."""
    allowed_tools: Names | McpToolFilter | None = None
    require_approval: Literal["always", "never"] | McpApprovalFilter | None = None
    server_description: Text | None = None
    defer_loading: bool | None = None
    allowed_callers: Annotated[
        tuple[Literal["direct", "programmatic"], ...] | None, Field(strict=False)
    ] = None

    @model_validator(mode="after")
    def _check_address(self) -> Self:
        if (self.server_url is None) + (self.connector_id is None) + (self.tunnel_id is None) != 2:
            raise ValueError("names one of server_url, connector_id and tunnel_id")
        return self

    def allows(self, name: str, *, read_only: bool) -> bool:
        """Whether the model may call the tool."""
        match self.allowed_tools:
            case None:
                return True
            case McpToolFilter() as chosen:
                return chosen.selects(name, read_only)
            case names:
                return name in names

    def needs_approval(self, name: str, *, read_only: bool) -> bool:
        """Whether the client must approve a call of the tool; by default it must."""
        match self.require_approval:
            case "never":
                return False
            case McpApprovalFilter(never=McpToolFilter() as chosen):
                return not chosen.selects(name, read_only)
            case McpApprovalFilter(always=McpToolFilter() as chosen):
                return chosen.selects(name, read_only)
        return True


Tool = Annotated[FunctionTool | McpTool, Field(discriminator="type")]


class ChosenFunction(Object):
    """The model must call this function."""

    type: Literal["function"]
    name: Name


class ChosenMcp(Object):
    """The model must call a tool of this MCP server."""

    type: Literal["mcp"]
    server_label: Name
    name: Name | None = None


ToolChoice = (
    Literal["auto", "none", "required"]
    | Annotated[ChosenFunction | ChosenMcp, Field(discriminator="type")]
)
Tools = Annotated[tuple[Tool, ...], Field(strict=False, max_length=MAX_TOOLS)]
