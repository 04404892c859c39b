"""The client events of a conversation. Source: OpenAI's openapi.yaml, RealtimeClientEvent."""

from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from offhook.pipeline.speech.remote.worker_protocol import ProtocolError, table_of
from offhook.web.realtime.protocol import items, tools
from offhook.web.realtime.protocol.client_events import MAX_EVENT_CHARS, MAX_ID_CHARS, check_size
from offhook.web.realtime.protocol.items import CreatedItem, Reference
from offhook.web.realtime.protocol.response_object import ResponseParams
from offhook.web.realtime.protocol.session_object import EventError, Object, is_unicode
from offhook.web.realtime.protocol.validation_errors import event_error
from offhook.web.speech_api.errors import did_you_mean
from offhook.web.speech_api.validation import shown


class ConversationEvent(Object):
    """Base class of the client events of a conversation."""

    event_id: Annotated[str | None, Field(max_length=MAX_ID_CHARS)] = None
    """Id chosen by the client, returned with an error."""


class UpdateSession(ConversationEvent):
    type: Literal["session.update"]
    session: dict[str, Any]
    """Part of a session object: see `conversation_session.updated`."""


class AppendInput(ConversationEvent):
    type: Literal["input_audio_buffer.append"]
    audio: Any = None
    """Base64 of audio in the session's format: see `AudioFormat.decode`."""


class CommitInput(ConversationEvent):
    type: Literal["input_audio_buffer.commit"]


class ClearInput(ConversationEvent):
    type: Literal["input_audio_buffer.clear"]


class ClearOutputBuffer(ConversationEvent):
    type: Literal["output_audio_buffer.clear"]


class CreateItem(ConversationEvent):
    type: Literal["conversation.item.create"]
    item: CreatedItem
    previous_item_id: Reference | None = None
    """None: at the end; root: at the front."""


class RetrieveItem(ConversationEvent):
    type: Literal["conversation.item.retrieve"]
    item_id: Reference


class TruncateItem(ConversationEvent):
    type: Literal["conversation.item.truncate"]
    item_id: Reference
    content_index: Annotated[int, Field(ge=0)] = 0
    audio_end_ms: Annotated[int, Field(ge=0)]


class DeleteItem(ConversationEvent):
    type: Literal["conversation.item.delete"]
    item_id: Reference


class CreateResponse(ConversationEvent):
    type: Literal["response.create"]
    response: ResponseParams | None = None


class CancelActiveResponse(ConversationEvent):
    type: Literal["response.cancel"]
    response_id: Reference | None = None
    """None: that of the conversation."""


ConversationClientEvent = (
    UpdateSession
    | AppendInput
    | CommitInput
    | ClearInput
    | ClearOutputBuffer
    | CreateItem
    | RetrieveItem
    | TruncateItem
    | DeleteItem
    | CreateResponse
    | CancelActiveResponse
)
_EVENT: TypeAdapter[ConversationClientEvent] = TypeAdapter(
    Annotated[ConversationClientEvent, Field(discriminator="type")]
)
_TYPES = [
    model.model_fields["type"].annotation.__args__[0] for model in ConversationClientEvent.__args__
]
_FIELDS = {
    *(name for model in ConversationClientEvent.__args__ for name in model.model_fields),
    *(*items.FIELDS, *ResponseParams.model_fields, *tools.FunctionTool.model_fields),
}


def parse_event(text: str) -> ConversationClientEvent:
    """Parse the event of a text message. Raises EventError."""
    check_size(text, MAX_EVENT_CHARS)
    with suppress(ValidationError):
        return _EVENT.validate_json(text)
    try:
        event = table_of(text)
    except ProtocolError as error:
        raise EventError(str(error), "invalid_json") from error
    try:
        return _EVENT.validate_python(event)
    except ValidationError as error:
        raise _error(error, event) from error


def _error(error: ValidationError, event: dict[str, Any]) -> EventError:
    kind = event.get("type")
    if kind is None:
        found = EventError("type is missing", "missing_required_parameter", "type")
    elif kind not in _TYPES:
        like = did_you_mean(str(kind), _TYPES)
        words = f"there is no client event of type {shown(kind)} here{like}"
        found = EventError(words, "invalid_value", "type")
    else:
        found = event_error(error, event, "", _FIELDS)
    event_id = event.get("event_id")
    if isinstance(event_id, str) and len(event_id) <= MAX_ID_CHARS and is_unicode(event_id):
        found.event_id = event_id
    return found
