"""The server events of WS /v1/realtime, encoded as text messages, in both dialects."""

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from offhook.pipeline.speech.remote.worker_protocol import ErrorCode
from offhook.web.realtime.protocol.client_events import Dialect
from offhook.web.realtime.protocol.session_object import AudioInput, EventError
from offhook.web.speech_api.http.transcript import joined

SERVER_ERRORS = {code.value for code in (ErrorCode.ENGINE, ErrorCode.FULL, ErrorCode.STOPPING)}


def new_id(kind: str) -> str:
    """Return a new id in OpenAI's style, such as item_0123…."""
    return f"{kind}_{secrets.token_hex(12)}"


def event(kind: str, **fields: Any) -> str:
    """Return an event in OpenAI's format as JSON text."""
    return json.dumps({"type": kind, "event_id": new_id("event"), **fields})


def session(session_id: str, audio_input: AudioInput) -> dict[str, Any]:
    """Return the session object with the settings in effect."""
    return {
        "id": session_id,
        "object": "realtime.transcription_session",
        "type": "transcription",
        "audio": {"input": audio_input.model_dump()},
        "include": None,
    }


def user_message(item_id: str) -> dict[str, Any]:
    """Return the conversation item of a committed utterance, without its transcript."""
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_audio", "transcript": None}],
    }


def transcription(dialect: Dialect, item_id: str, *, delta: str) -> str:
    """Return the event with the next part of an item's transcript."""
    if dialect is Dialect.VLLM:
        return json.dumps({"type": "transcription.delta", "delta": delta})
    kind = "conversation.item.input_audio_transcription.delta"
    return event(kind, item_id=item_id, content_index=0, delta=delta)


def transcription_completed(dialect: Dialect, item_id: str, transcript: str, audio_s: float) -> str:
    """Return the event with an item's complete transcript; usage is counted in seconds of audio."""
    usage = {"type": "duration", "seconds": round(audio_s, 3)}
    if dialect is Dialect.VLLM:
        return json.dumps({"type": "transcription.done", "text": transcript, "usage": usage})
    kind = "conversation.item.input_audio_transcription.completed"
    return event(kind, item_id=item_id, content_index=0, transcript=transcript, usage=usage)


def error(dialect: Dialect, error: EventError) -> str:
    """Return the event that answers an invalid client event or gives the reason for closing."""
    if dialect is Dialect.VLLM:
        return json.dumps({"type": "error", "error": str(error), "code": error.code})
    kind = "server_error" if error.code in SERVER_ERRORS else "invalid_request_error"
    table = {"type": kind, "code": error.code, "message": str(error), "param": error.param}
    return event("error", error={**table, "event_id": error.event_id})


@dataclass
class TranscriptDeltas:
    """Turns partial and final transcripts of one item into deltas, which are never retracted.

    Where the final text differs from the stable partials, the sent text stays and the rest is
    appended; the completed transcript is the engine's.
    """

    sent: str = ""
    finals: list[str] = field(default_factory=list)
    """Final texts of the parts of an utterance that exceeds the engine's maximum length."""

    def partial(self, stable: str) -> str:
        """Return the delta for a stable partial transcript; may be empty."""
        return self._delta(joined((*self.finals, stable)))

    def final(self, text: str) -> str:
        """Return the delta for the final text of a part; may be empty."""
        if text:
            self.finals.append(text)
        whole = self.text
        if not whole.startswith(self.sent):
            whole = self.sent + _rest(self.sent, whole)
        return self._delta(whole)

    @property
    def text(self) -> str:
        """The final transcript so far."""
        return joined(self.finals)

    def _delta(self, text: str) -> str:
        if not text.startswith(self.sent):
            return ""
        delta = text[len(self.sent) :]
        self.sent = text
        return delta


def _rest(sent: str, whole: str) -> str:
    """Return the part of `whole` after `sent`, compared by words, or by characters in text without
    spaces (Chinese, Japanese, Thai)."""
    if " " not in sent + whole:
        return whole[len(sent) :]
    rest = " ".join(whole.split()[len(sent.split()) :])
    return f" {rest}" if rest and not sent.endswith(" ") else rest
