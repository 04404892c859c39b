"""The session object of a conversation, `type: realtime`.

A `session.update` holds part of it: `updated` merges that into the whole, or raises and changes
nothing. Source: OpenAI's openapi.yaml, RealtimeSessionCreateRequestGA.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from offhook.media.pcm import RATE_OUT
from offhook.web.realtime.protocol.session_object import (
    G711_RATE,
    MAX_IDLE_MS,
    MAX_PADDING_MS,
    MAX_SILENCE_MS,
    MIN_IDLE_MS,
    AudioFormat,
    Delay,
    EventError,
    JsonObject,
    Language,
    Object,
    Strings,
    Text,
)
from offhook.web.realtime.protocol.tools import Tool, ToolChoice, Tools
from offhook.web.realtime.protocol.validation_errors import event_error
from offhook.web.speech_api.validation import expected

MAX_INSTRUCTIONS_CHARS = 1 << 17
"""Maximum length of instructions; longer ones are refused as an invalid value."""
MAX_VOICE_CHARS = 256
"""Maximum length of a voice's name; a longer one is refused as an invalid value."""
MAX_OUTPUT_TOKENS = 4096
"""Maximum of `max_output_tokens`, as OpenAI's; more is refused as an invalid value."""
MERGED = {
    *("audio", "input", "output", "format", "turn_detection", "transcription"),
    *("noise_reduction", "reasoning"),
}
"""Fields with object values of which an update changes the given part; all others are replaced."""
NULL_IS_A_VALUE = {
    *("turn_detection", "noise_reduction", "transcription", "tracing", "prompt", "include"),
    *("reasoning", "parallel_tool_calls", "idle_timeout_ms", "language", "model", "delay"),
}
"""Fields that null turns off; any other null field counts as absent."""
ECHOED = {"id", "object", "expires_at"}
"""Fields that a session object sent to a client has besides: ignored when they are sent back."""
BETA_FIELDS = {
    *("modalities", "voice", "input_audio_format", "output_audio_format", "speed", "temperature"),
    *("input_audio_transcription", "input_audio_noise_reduction", "turn_detection"),
    *("max_response_output_tokens", "instructions", "tools", "tool_choice"),
}
"""Fields at the top level of a session before general availability; some are there still."""
Modalities = Annotated[tuple[Literal["text", "audio"]], Field(strict=False)]
"""One of the two: audio comes with a transcript."""
MaxTokens = Annotated[int, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | Literal["inf"]


def _voice_name(value: Any) -> Any:
    return value["id"] if isinstance(value, dict) and value.keys() == {"id"} else value


Voice = Annotated[
    Text, Field(min_length=1, max_length=MAX_VOICE_CHARS), BeforeValidator(_voice_name)
]


def _is_none(value: object) -> bool:
    return value is None


class ConversationFormat(AudioFormat):
    """Encoding of audio in a conversation: PCM at 24 kHz, or G.711 at 8 kHz."""

    @field_validator("rate")
    @classmethod
    def _check_conversation_rate(cls, rate: int) -> int:
        if rate not in (RATE_OUT, G711_RATE):
            raise expected(f"{RATE_OUT} Hz")
        return rate


class NoiseReduction(Object):
    """Accepted and echoed: noise is reduced by no setting."""

    type: Literal["near_field", "far_field"]
    strength: Annotated[float | None, Field(ge=0, le=1, exclude_if=_is_none)] = None


class ConversationTranscription(Object):
    """Transcripts of what the user says are sent if this is set."""

    model: Annotated[Text | None, Field(exclude_if=_is_none)] = None
    language: Language = None
    prompt: Annotated[Text | None, Field(max_length=MAX_INSTRUCTIONS_CHARS)] = None
    delay: Annotated[Delay | None, Field(exclude_if=_is_none)] = None
    keywords: Annotated[Strings | None, Field(exclude_if=_is_none)] = None
    languages: Annotated[Strings | None, Field(exclude_if=_is_none)] = None


class ConversationVad(Object):
    """Turns end after a silence."""

    type: Literal["server_vad"]
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=MAX_PADDING_MS)] = 300
    silence_duration_ms: Annotated[int, Field(ge=0, le=MAX_SILENCE_MS)] = 500
    idle_timeout_ms: Annotated[int, Field(ge=MIN_IDLE_MS, le=MAX_IDLE_MS)] | None = None
    create_response: bool = True
    interrupt_response: bool = True


class ConversationSemanticVad(Object):
    """Turns end where the words and the voice say so."""

    type: Literal["semantic_vad"]
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = ConversationVad | ConversationSemanticVad


class ConversationInput(Object):
    """Settings of the user's audio."""

    format: ConversationFormat = ConversationFormat()
    noise_reduction: NoiseReduction | None = None
    transcription: ConversationTranscription | None = None
    turn_detection: Annotated[TurnDetection, Field(discriminator="type")] | None = ConversationVad(
        type="server_vad"
    )
    """None: the client commits each turn."""


class ConversationOutput(Object):
    """Settings of the assistant's audio."""

    format: ConversationFormat = ConversationFormat()
    voice: Voice = "marin"
    """Also accepted as `{"id": …}`; sent back as a string."""
    speed: Annotated[float, Field(ge=0.25, le=1.5)] = 1.0


class ConversationAudio(Object):
    """Audio settings by direction."""

    input: ConversationInput = ConversationInput()
    output: ConversationOutput = ConversationOutput()


class Reasoning(Object):
    """Accepted and echoed."""

    effort: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None


class Prompt(Object):
    """Accepted and echoed: this server stores no prompts."""

    id: Text
    version: Text | None = None
    variables: JsonObject | None = None


class TracingSettings(Object):
    """Accepted and echoed."""

    workflow_name: Text | None = None
    group_id: Text | None = None
    metadata: JsonObject | None = None


class TokenLimits(Object):
    post_instructions: Annotated[int, Field(ge=0)] | None = None


class RetentionRatio(Object):
    type: Literal["retention_ratio"]
    retention_ratio: Annotated[float, Field(ge=0, le=1)]
    token_limits: TokenLimits | None = None


class ConversationSession(Object):
    """Settings of a conversation, with their defaults."""

    type: Literal["realtime"] = "realtime"
    model: Text = ""
    instructions: Annotated[Text, Field(max_length=MAX_INSTRUCTIONS_CHARS)] = ""
    output_modalities: Modalities = ("audio",)
    audio: ConversationAudio = ConversationAudio()
    include: (
        Annotated[
            tuple[Literal["item.input_audio_transcription.logprobs"], ...], Field(strict=False)
        ]
        | None
    ) = None
    max_output_tokens: MaxTokens = "inf"
    tools: Tools = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    prompt: Prompt | None = None
    tracing: Literal["auto"] | TracingSettings | None = None
    truncation: Literal["auto", "disabled"] | RetentionRatio = "auto"

    @property
    def turn_detection(self) -> TurnDetection | None:
        """The turn detection in effect; None where the client commits each turn."""
        return self.audio.input.turn_detection

    def as_dict(self) -> dict[str, Any]:
        """Return the object as sent to clients, without the secrets of its tools."""
        table = self.model_dump(mode="json")
        table["tools"] = [tool_as_dict(tool) for tool in self.tools]
        if isinstance(self.tool_choice, Object):
            table["tool_choice"] = self.tool_choice.model_dump(exclude_none=True)
        return table


def tool_as_dict(tool: Tool) -> dict[str, Any]:
    """Return a tool as sent to clients, without its secrets."""
    return tool.model_dump(mode="json", exclude_none=True, exclude={"authorization", "headers"})


def full_session(table: dict[str, Any]) -> ConversationSession:
    """Return the session of a whole object, such as client_secrets and accept have. Raises
    EventError with a param that begins with `session`."""
    return updated(ConversationSession(), {"type": "realtime", **table})


def updated(old: ConversationSession, changes: dict[str, Any]) -> ConversationSession:
    """Return the session with the `session` of a `session.update`. Raises EventError, also for the
    beta's shape."""
    if "type" not in changes:
        if changes.keys() & (BETA_FIELDS - ConversationSession.model_fields.keys()):
            words = (
                "this is the beta's session: send type, output_modalities and audio "
                "as the general availability does"
            )
            raise EventError(words, "beta_api_shape_disabled", "session")
        raise EventError(
            "session.type is missing: realtime", "missing_required_parameter", "session.type"
        )
    if changes["type"] != "realtime":
        words = "session.type cannot change: this session is a conversation, of type realtime"
        raise EventError(words, "invalid_parameter", "session.type")
    given = {name: value for name, value in changes.items() if name not in ECHOED}
    table = _merged(old.model_dump(exclude_unset=False), given)
    try:
        new = ConversationSession.model_validate(table)
    except ValidationError as error:
        raise event_error(error, table, "session", _FIELDS) from error
    if old.tracing is not None and new.tracing != old.tracing:
        words = "session.tracing cannot change once it is on"
        raise EventError(words, "invalid_value", "session.tracing")
    return new


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for name, value in new.items():
        before: Any = old.get(name)
        if value is None and name not in NULL_IS_A_VALUE:
            continue
        if name in MERGED and isinstance(value, dict):
            same = isinstance(before, dict) and value.get("type") in (None, before.get("type"))
            value = _merged(before if same else {}, value)
        merged[name] = value
    return merged


_FIELDS = {
    name
    for model in (
        *(ConversationSession, ConversationInput, ConversationOutput, ConversationVad),
        *(ConversationTranscription, ConversationAudio),
    )
    for name in model.model_fields
}
