"""The items of a conversation and their content parts, as received from and sent to clients.

Source: OpenAI's openapi.yaml, RealtimeConversationItem.
"""

import base64
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from offhook.web.realtime.protocol.session_object import JsonObject, Object, Text
from offhook.web.speech_api.validation import expected

MAX_ITEM_ID_CHARS = 32
"""Maximum length of an item's id, as OpenAI's; a longer one is refused as an invalid value."""
MAX_TEXT_CHARS = 1 << 17
"""Maximum length of a text in an item; a longer one is refused as an invalid value."""
MAX_ECHOED_IMAGE_CHARS = 1 << 16
"""Maximum length of an image that is sent back; a longer one is left out, since some clients close
the connection at a frame of 1 MiB."""
MAX_IMAGE_CHARS = 8 << 20
"""Maximum length of an image's URL, a file of 6 MB; a longer one is refused as an invalid value."""
MAX_PARTS = 64
"""Maximum parts of an item's content; an item with more is refused as an invalid value."""
ItemStatus = Literal["in_progress", "completed", "incomplete"]
ItemId = Annotated[Text, Field(min_length=1, max_length=MAX_ITEM_ID_CHARS)]
Reference = Annotated[Text, Field(min_length=1, max_length=512)]
"""An id that names something which exists, or not."""
LongText = Annotated[Text, Field(max_length=MAX_TEXT_CHARS)]
IMAGE_URL = re.compile(r"data:image/(png|jpeg|webp|gif);base64,([A-Za-z0-9+/]+=*)")
SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff", "webp": b"RIFF", "gif": b"GIF8"}
"""How files of each type begin."""


def _is_none(value: object) -> bool:
    return value is None


def _check_image(image_url: str) -> str:
    """An image that the model cannot read would fail every response after it."""
    url = IMAGE_URL.fullmatch(image_url)
    if url is None:
        raise expected("a data: URL of an image: PNG, JPEG, WebP or GIF in base64")
    kind, data = url.groups()
    if not base64.b64decode(data[:16] + "=" * (-len(data[:16]) % 4)).startswith(SIGNATURES[kind]):
        raise expected(f"a {kind} image, as its data: URL says")
    return image_url


ImageUrl = Annotated[Text, Field(max_length=MAX_IMAGE_CHARS), AfterValidator(_check_image)]


def _is_large(image_url: str) -> bool:
    return len(image_url) > MAX_ECHOED_IMAGE_CHARS


class GivenObject(Object):
    """Base class of objects in which null counts as absent."""

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, table: Any) -> Any:
        if isinstance(table, dict):
            return {name: value for name, value in table.items() if value is not None}
        return table


# --- content parts ---


class InputText(GivenObject):
    """Text of the user or the system."""

    type: Literal["input_text"]
    text: LongText


class InputAudio(GivenObject):
    """Speech of the user."""

    type: Literal["input_audio"]
    transcript: LongText | None = None
    """None before it was transcribed, or where the session wants no transcripts."""
    audio: Annotated[Text | None, Field(exclude=True)] = None
    """Base64; only received."""
    heard: Annotated[Text | None, Field(exclude=True)] = None
    """What the agent is given as the user's words, whether or not clients see a transcript."""


class InputImage(GivenObject):
    """An image of the user."""

    type: Literal["input_image"]
    image_url: Annotated[ImageUrl, Field(exclude_if=_is_large)]
    detail: Literal["auto", "low", "high"] = "auto"


class OutputText(GivenObject):
    """Text of the assistant."""

    type: Literal["output_text"]
    text: LongText


class OutputAudio(GivenObject):
    """Speech of the assistant."""

    type: Literal["output_audio"]
    transcript: LongText
    """The words generated, or after a truncation exactly those that were played."""


UserPart = Annotated[InputText | InputAudio | InputImage, Field(discriminator="type")]
Parts = Field(strict=False, min_length=1, max_length=MAX_PARTS)


# --- items ---


class ItemObject(GivenObject):
    """Base class of items."""

    id: ItemId | None = None
    """None only in an event of a client that leaves the choice to the server."""
    object: Literal["realtime.item"] = "realtime.item"

    def as_dict(self) -> dict[str, Any]:
        """Return the item as sent to clients, without audio."""
        return self.model_dump(mode="json")

    @property
    def size(self) -> int:
        """Characters of the item, images included."""
        images = [p.image_url for p in getattr(self, "content", ()) if isinstance(p, InputImage)]
        return len(self.model_dump_json()) + sum(map(len, images))

    @property
    def key(self) -> str:
        """The id of an item that belongs to the conversation."""
        assert self.id is not None
        return self.id


class MessageItem(ItemObject):
    """Base class of messages."""

    type: Literal["message"]
    status: ItemStatus = "completed"


class SystemMessage(MessageItem):
    role: Literal["system"]
    content: Annotated[tuple[InputText, ...], Parts]


class UserMessage(MessageItem):
    role: Literal["user"]
    content: Annotated[tuple[UserPart, ...], Parts]


class AssistantMessage(MessageItem):
    """A message of the assistant; clients may create one of text, never of audio."""

    role: Literal["assistant"]
    content: Annotated[
        tuple[Annotated[OutputText | OutputAudio, Field(discriminator="type")], ...],
        Field(strict=False, max_length=MAX_PARTS),
    ] = ()


class FunctionCall(ItemObject):
    """A call of a function that the client runs."""

    type: Literal["function_call"]
    status: ItemStatus = "completed"
    name: Reference
    call_id: Reference
    arguments: LongText
    """JSON, unless the model made a mistake."""


class FunctionCallOutput(ItemObject):
    type: Literal["function_call_output"]
    status: ItemStatus = "completed"
    call_id: Reference
    output: LongText


class McpListedTool(Object):
    """A tool as its MCP server describes it."""

    name: Text
    input_schema: JsonObject
    description: Text = ""
    annotations: JsonObject | None = None

    @property
    def is_read_only(self) -> bool:
        """Whether its server says that it changes nothing."""
        return (self.annotations or {}).get("readOnlyHint") is True


class McpListTools(ItemObject):
    """The tools of an MCP server."""

    type: Literal["mcp_list_tools"]
    server_label: Text
    tools: Annotated[tuple[McpListedTool, ...], Field(strict=False)] = ()
    error: Annotated[Text | None, Field(exclude_if=_is_none)] = None
    """Why they are not known."""


class McpToolError(Object):
    """Why a call of an MCP tool failed. `code`: of the protocol or of HTTP, else None."""

    type: Literal["protocol_error", "tool_execution_error", "http_error"]
    message: Text
    code: Annotated[int | None, Field(exclude_if=_is_none)] = None


class McpCallItem(ItemObject):
    """A call of an MCP tool, which this server makes."""

    type: Literal["mcp_call"]
    server_label: Text
    name: Text
    arguments: LongText
    approval_request_id: Text | None = None
    output: Text | None = None
    error: McpToolError | None = None


class McpApprovalRequest(ItemObject):
    """Asks the client whether an MCP tool may be called."""

    type: Literal["mcp_approval_request"]
    server_label: Text
    name: Text
    arguments: LongText


class McpApprovalResponse(ItemObject):
    type: Literal["mcp_approval_response"]
    approval_request_id: Reference
    approve: bool
    reason: Text | None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage, Field(discriminator="role")]
Item = (
    SystemMessage
    | UserMessage
    | AssistantMessage
    | FunctionCall
    | FunctionCallOutput
    | McpListTools
    | McpCallItem
    | McpApprovalRequest
    | McpApprovalResponse
)
CreatedItem = Annotated[
    Message | FunctionCall | FunctionCallOutput | McpApprovalResponse, Field(discriminator="type")
]
"""Items that clients may create."""


class ItemReference(Object):
    """An item of the conversation, as input of a response."""

    type: Literal["item_reference"]
    id: Reference


InputItem = Annotated[
    Message | FunctionCall | FunctionCallOutput | ItemReference, Field(discriminator="type")
]
"""Items of `response.create`'s input."""
FIELDS = {
    name
    for model in (
        *(UserMessage, FunctionCall, FunctionCallOutput, McpApprovalResponse),
        *(InputText, InputAudio, InputImage),
    )
    for name in model.model_fields
}
"""Names of all fields, to suggest from."""
