"""What a conversation asks of the call and the sockets."""

from dataclasses import dataclass, field
from typing import Literal

from offhook.media.pcm import Pcm
from offhook.web.realtime.protocol.conversation_session import ConversationSession, MaxTokens
from offhook.web.realtime.protocol.items import Item, McpListedTool
from offhook.web.realtime.protocol.tools import McpTool, Tool, ToolChoice


@dataclass(frozen=True)
class Send:
    """Send clients an event."""

    event: str
    """JSON."""
    to: int | None = None
    """One connection; None: all."""
    audio: bool = False
    """An audio delta, only for the owner of the session."""


@dataclass(frozen=True)
class McpFunction:
    """A tool of an MCP server as the model is offered it."""

    name: str
    """Unique among the functions of a response."""
    server: McpTool
    tool: McpListedTool


@dataclass(frozen=True)
class Generate:
    """Start a response, and report it under its id."""

    response_id: str
    items: tuple[Item, ...]
    """The context. The words of the user's audio are in `InputAudio.heard`."""
    instructions: str
    tools: tuple[Tool, ...]
    tool_choice: ToolChoice
    modalities: tuple[Literal["text", "audio"]]
    voice: str
    max_output_tokens: MaxTokens
    conversation: Literal["auto", "none"]
    """none: beside the conversation; nothing of it is played."""
    metadata: dict[str, str] = field(default_factory=dict)
    mcp: tuple[McpFunction, ...] = ()
    """The tools of the MCP servers among `tools`, which are called like functions."""


@dataclass(frozen=True)
class CancelResponse:
    """Stop generating and synthesizing a response; what it still reports is ignored."""

    response_id: str


@dataclass(frozen=True)
class ClearOutput:
    """Drop the audio that waits to be played, then report `output_cleared`. RTP only."""


@dataclass(frozen=True, eq=False)
class AppendAudio:
    """Take audio of the user. WebSocket only."""

    pcm: Pcm
    rate: int
    """Hz."""


@dataclass(frozen=True)
class CommitAudio:
    """End the user's utterance now, then report `user_turn` (empty, if nothing was recognized) or
    `transcription_failed`."""


@dataclass(frozen=True)
class ClearAudio:
    """Discard what the user said since the last turn."""


@dataclass(frozen=True)
class Configure:
    """The session has changed."""

    old: ConversationSession
    new: ConversationSession


@dataclass(frozen=True)
class ListMcpTools:
    """List the tools of an MCP server, then report `mcp_tools` or `mcp_tools_failed`."""

    item_id: str
    tool: McpTool


@dataclass(frozen=True)
class McpCall:
    """Call a tool of an MCP server, then report `mcp_called`."""

    item_id: str
    tool: McpTool
    name: str
    arguments: str
    response_id: str = ""
    """The response that calls it; "" for a call that the client has approved."""


@dataclass(frozen=True)
class Close:
    """Close a connection, or all."""

    code: int
    reason: str
    to: int | None = None


Action = (
    Send
    | Generate
    | CancelResponse
    | ClearOutput
    | AppendAudio
    | CommitAudio
    | ClearAudio
    | Configure
    | ListMcpTools
    | McpCall
    | Close
)
