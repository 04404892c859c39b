"""What is said on WS /v1/realtime, which transcribes: JSON events to values and back. Two dialects.

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

import json
from dataclasses import dataclass, field

from offhook.pipeline.speech.remote.worker_protocol import ProtocolError, shown, table_of
from offhook.web.speech_api.http.transcript import joined
from offhook.web.speech_api.realtime.settings import EventError, Fields, Table

MAX_EVENT_CHARS = 1 << 21
"""Of one event: 49 s of 16-bit sound at 16 kHz. OpenAI takes 15 MiB; more is never needed live."""
MAX_ID_CHARS = 512


# --- what a client says ---


@dataclass(frozen=True)
class Update:
    """Set the session, OpenAI's way."""

    session: object


@dataclass(frozen=True)
class Name:
    """Set the session, vLLM's way: name the model. Language and prompt are ours."""

    model: str
    language: str | None
    prompt: str


@dataclass(frozen=True)
class Append:
    audio: object
    """To be decoded by the session's format."""


@dataclass(frozen=True)
class Commit:
    final: bool = False
    """Only vLLM's clients say this."""


@dataclass(frozen=True)
class Clear:
    """Forget the sound that was not committed."""


ClientEvent = Update | Name | Append | Commit | Clear


@dataclass(frozen=True)
class ClientMessage:
    """A client's event, or what is wrong with it."""

    event: ClientEvent | EventError
    id: str | None = None
    """The client's name for it."""


def parse(text: str, *, lenient: bool = False) -> ClientMessage:
    """`lenient`: fields that are not known are passed over. Never raises."""
    event_id = None
    try:
        if len(text) > MAX_EVENT_CHARS:
            words = f"an event of {len(text)} characters, not at most {MAX_EVENT_CHARS}"
            raise EventError(words, "message_too_long")
        try:
            fields = Fields(table_of(text), "", lenient=lenient)
        except ProtocolError as error:
            raise EventError(str(error), "invalid_json") from error
        event_id = fields.take("event_id")
        if not isinstance(event_id, str | None) or len(event_id or "") > MAX_ID_CHARS:
            wrong, event_id = event_id, None
            raise fields.wrong("event_id", wrong, f"a text of at most {MAX_ID_CHARS} characters")
        return ClientMessage(_event(fields), event_id)
    except EventError as error:
        return ClientMessage(error, event_id)


def _event(fields: Fields) -> ClientEvent:
    match kind := fields.take("type"):
        case "session.update":
            event: ClientEvent = _update(fields)
        case "input_audio_buffer.append":
            event = Append(fields.take("audio"))
        case "input_audio_buffer.commit":
            final = fields.take("final")
            if final is not None and not isinstance(final, bool):
                raise fields.wrong("final", final, "true or false")
            event = Commit(bool(final))
        case "input_audio_buffer.clear":
            event = Clear()
        case _:
            known = "session.update, input_audio_buffer.append, .commit and .clear"
            words = f"type is {shown(kind)}: this server transcribes, and knows {known}"
            raise EventError(words, "unknown_event", "type")
    fields.end()
    return event


def _update(fields: Fields) -> Update | Name:
    if fields.has("session"):
        return Update(fields.take("session"))
    if not fields.has("model"):
        raise EventError("session.update names a model, or a session", param="model")
    language, prompt = fields.text("language", ""), fields.text("prompt", "")
    return Name(fields.text("model", ""), language or None, prompt)


# --- what a client is told ---


@dataclass(frozen=True)
class Usage:
    """There are no tokens here to count, but there is sound."""

    seconds: float

    def as_dict(self) -> Table:
        return {"type": "duration", "seconds": round(self.seconds, 3)}


def to_text(event: Table) -> str:
    return json.dumps(event)


@dataclass
class Words:
    """The text of one utterance as its deltas tell it, which take nothing back.

    Where an engine's final words are others than those it called stable, those told stay and the
    rest follows; the text that ends the utterance has the engine's.
    """

    told: str = ""
    finals: list[str] = field(default_factory=list)
    """Of the parts of an utterance longer than the engine bears."""

    def stable(self, text: str) -> str:
        """The delta when the engine takes no more of this text back."""
        return self._tell(joined((*self.finals, text)))

    def final(self, text: str) -> str:
        """The delta when a part is complete."""
        if text:
            self.finals.append(text)
        whole = self.text
        if not whole.startswith(self.told):
            whole = self.told + _rest(self.told, whole)
        return self._tell(whole)

    @property
    def text(self) -> str:
        return joined(self.finals)

    def _tell(self, text: str) -> str:
        if not text.startswith(self.told):
            return ""
        delta = text[len(self.told) :]
        self.told = text
        return delta


def _rest(told: str, whole: str) -> str:
    """What `whole` has beyond `told`: by words where there are any, else (Chinese, Japanese, Thai)
    by characters."""
    if " " not in told + whole:
        return whole[len(told) :]
    rest = " ".join(whole.split()[len(told.split()) :])
    return f" {rest}" if rest and not told.endswith(" ") else rest
