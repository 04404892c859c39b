"""What a response is to be (`response.create`), and what it has used.

Source: OpenAI's openapi.yaml, RealtimeResponseCreateParams and RealtimeResponseUsage.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from offhook.web.realtime.protocol.conversation_session import (
    MAX_INSTRUCTIONS_CHARS,
    ConversationFormat,
    ConversationSession,
    MaxTokens,
    Modalities,
    Prompt,
    Reasoning,
    Voice,
)
from offhook.web.realtime.protocol.items import InputItem
from offhook.web.realtime.protocol.session_object import Object, Text
from offhook.web.realtime.protocol.tools import ToolChoice, Tools

MAX_INPUT_ITEMS = 1_000
"""Maximum items of a response's own `input`; more are refused as an invalid value."""
MetadataKey = Annotated[Text, Field(max_length=64)]
MetadataValue = Annotated[Text, Field(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]


class ResponseOutput(Object):
    format: ConversationFormat | None = None
    voice: Voice | None = None


class ResponseAudio(Object):
    output: ResponseOutput | None = None


class ResponseParams(Object):
    """Settings of one response; None: the session's."""

    conversation: Literal["auto", "none"] | None = None
    """none: out of band, beside the conversation."""
    input: (
        Annotated[tuple[InputItem, ...], Field(strict=False, max_length=MAX_INPUT_ITEMS)] | None
    ) = None
    """The context instead of the conversation's items; empty for none."""
    instructions: Annotated[Text, Field(max_length=MAX_INSTRUCTIONS_CHARS)] | None = None
    output_modalities: Modalities | None = None
    audio: ResponseAudio | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: MaxTokens | None = None
    metadata: Metadata | None = None
    prompt: Prompt | None = None
    reasoning: Reasoning | None = None

    def applied_to(self, session: ConversationSession) -> ConversationSession:
        """Return the session with what is set here, as it is in effect for this response."""
        given = {name: value for name, value in self if name in ConversationSession.model_fields}
        if output := self.audio and self.audio.output:
            changed = session.audio.output.model_copy(update=_present(dict(output)))
            given["audio"] = session.audio.model_copy(update={"output": changed})
        else:
            del given["audio"]
        return session.model_copy(update=_present(given))


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Usage:
    """Tokens of a response; those of cached input are also counted as input."""

    input_text_tokens: int = 0
    input_audio_tokens: int = 0
    input_image_tokens: int = 0
    cached_text_tokens: int = 0
    output_text_tokens: int = 0
    output_audio_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the usage as sent to clients: integers throughout."""
        taken = self.input_text_tokens + self.input_audio_tokens + self.input_image_tokens
        made = self.output_text_tokens + self.output_audio_tokens
        cached = self.cached_text_tokens
        return {
            "total_tokens": taken + made,
            "input_tokens": taken,
            "output_tokens": made,
            "input_token_details": {
                "text_tokens": self.input_text_tokens,
                "audio_tokens": self.input_audio_tokens,
                "image_tokens": self.input_image_tokens,
                "cached_tokens": cached,
                "cached_tokens_details": {
                    "text_tokens": cached,
                    "audio_tokens": 0,
                    "image_tokens": 0,
                },
            },
            "output_token_details": {
                "text_tokens": self.output_text_tokens,
                "audio_tokens": self.output_audio_tokens,
            },
        }
