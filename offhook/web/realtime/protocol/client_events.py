"""The client events of WS /v1/realtime, a transcription API with two dialects.

    vLLM's                                      OpenAI's transcription sessions
    ------                                      -------------------------------
                          > session.created                              > session.created
    < session.update {model}                    < session.update {session} > session.updated
    < input_audio_buffer.commit                 < input_audio_buffer.append  (24 kHz)
    < input_audio_buffer.append (16 kHz)        > conversation.item.input_audio_transcription.delta
                          > transcription.delta < input_audio_buffer.commit
    < input_audio_buffer.commit {final: true}   > input_audio_buffer.committed
                          > transcription.done  > conversation.item.added, conversation.item.done
                                                > conversation.item.input_audio_transcription
                                                  .completed

The address decides: ``?intent=transcription`` is OpenAI's, and without it a first `session.update`
with a `session` in it. An event that is wrong is answered by an `error`, and the session goes on.

Sources: vLLM's documents (serving/openai_compatible_server, realtime), OpenAI's openapi.yaml.
"""

from contextlib import suppress
from enum import Enum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from offhook.pipeline.speech.remote.worker_protocol import ProtocolError, table_of
from offhook.web.http.json_size import check_values
from offhook.web.realtime.protocol.session_object import (
    OBJECTS,
    AudioInput,
    EventError,
    Language,
    Object,
    ServerVad,
    Session,
    Text,
    Transcription,
)
from offhook.web.speech_api.errors import did_you_mean
from offhook.web.speech_api.validation import describe, shown

MAX_EVENT_CHARS = 15 << 20
"""Maximum length of an event of a Realtime session, as OpenAI's: four minutes of 16-bit audio at
24 kHz. A longer one gets the error `message_too_long`."""
MAX_ID_CHARS = 512
"""Maximum length of `event_id`; an event with a longer one is invalid."""


class Dialect(Enum):
    """The protocol that the client uses."""

    VLLM = "vllm"
    OPENAI = "openai"


class Event(Object):
    """Base class of all client events."""

    event_id: Annotated[str | None, Field(max_length=MAX_ID_CHARS)] = None
    """Id chosen by the client, returned with an error."""


class SessionUpdate(Event):
    """Changes the given fields of the session: OpenAI's clients send `session`, vLLM's `model`.
    Language and prompt beside the model are an extension."""

    type: Literal["session.update"]
    session: Session | None = None
    model: Text | None = None
    language: Language = None
    prompt: Text = ""

    @model_validator(mode="after")
    def _check_dialect(self) -> Self:
        if (self.session is None) == (self.model is None):
            raise ValueError("names a model, or a session")
        return self


class Append(Event):
    """Appends audio to the input buffer."""

    type: Literal["input_audio_buffer.append"]
    audio: Any = None
    """Base64 of audio in the session's format: see `AudioFormat.decode`."""


class Commit(Event):
    """Ends the utterance appended so far. `final` is vLLM's field."""

    type: Literal["input_audio_buffer.commit"]
    final: bool = False


class Clear(Event):
    """Discards the audio that was not committed."""

    type: Literal["input_audio_buffer.clear"]


ClientEvent = SessionUpdate | Append | Commit | Clear
_EVENT: TypeAdapter[ClientEvent] = TypeAdapter(Annotated[ClientEvent, Field(discriminator="type")])
_FIELDS = {
    *(SessionUpdate.model_fields | Commit.model_fields | Session.model_fields),
    *(AudioInput.model_fields | Transcription.model_fields | ServerVad.model_fields),
}


def check_size(text: str, most_chars: int) -> None:
    """Raises EventError for an event that is too long, or takes too long to parse."""
    if len(text) > most_chars:
        words = f"an event of {len(text)} characters, not at most {most_chars}"
        raise EventError(words, "message_too_long")
    try:
        check_values(text)
    except ValueError as error:
        raise EventError(f"an event of {error}", "message_too_long") from error


def parse(text: str, *, lenient: bool = False) -> ClientEvent:
    """Parse the event of a text message; with `lenient` unknown fields are ignored. Raises
    EventError."""
    check_size(text, MAX_EVENT_CHARS)
    with suppress(ValidationError):
        return _EVENT.validate_json(text)
    try:
        event = _without_null(table_of(text))
        return _EVENT.validate_python(event, extra="ignore" if lenient else None)
    except ProtocolError as error:
        raise EventError(str(error), "invalid_json") from error
    except ValidationError as error:
        raise _event_error(error, event) from error


def _without_null(table: dict[str, Any]) -> dict[str, Any]:
    """Remove null fields, which count as absent except for those of OBJECTS."""
    return {
        name: _without_null(value) if isinstance(value, dict) else value
        for name, value in table.items()
        if value is not None or name in OBJECTS
    }


def _event_error(error: ValidationError, event: dict[str, Any]) -> EventError:
    first = error.errors(include_url=False)[0]
    kind, code = first["type"], "invalid_value"
    path, inner = list[str](), event
    for part in first["loc"]:  # includes the tags of unions
        if isinstance(inner, dict) and part in inner:
            path.append(str(part))
            inner = inner[part]
    if kind == "extra_forbidden":
        like = did_you_mean(path[-1], _FIELDS)
        path[-1] = path[-1][:100]
        words, code = f"{'.'.join(path)} is not known here{like}", "unknown_parameter"
    elif kind.startswith("union_tag"):
        what = "server_vad, semantic_vad, or null for turns you commit"
        if not path:
            known = "session.update, input_audio_buffer.append, .commit and .clear"
            what, code = f"known here: this server transcribes, and knows {known}", "unknown_event"
        path.append("type")
        words = f"{'.'.join(path)} is {shown(inner.get('type'))}, not {what}"
    else:
        if kind == "missing":
            path.append(str(first["loc"][-1]))
        words, _ = describe(first, ".".join(path) or "session.update")
    event_id = event.get("event_id")
    given = isinstance(event_id, str) and len(event_id) <= MAX_ID_CHARS
    return EventError(words, code, ".".join(path) or None, event_id if given else None)
