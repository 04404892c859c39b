"""A client without a socket, which checks every event that it is sent."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from agents.realtime.openai_realtime import get_server_event_type_adapter
from openai.types.realtime import RealtimeServerEvent
from pipecat.services.openai.realtime.events import parse_server_event
from pydantic import BaseModel, TypeAdapter

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.web.realtime.conversation.actions import Action, Generate, Send
from offhook.web.realtime.conversation.conversation import RealtimeConversation
from offhook.web.realtime.conversation.scope import Transport
from offhook.web.realtime.protocol.conversation_session import ConversationSession, full_session
from offhook.web.realtime.protocol.items import Item
from offhook.web.realtime.protocol.response_object import Usage

Event = dict[str, Any]
MAX_FRAME_BYTES = 200 << 10
OPENAI: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
UNKNOWN_TO_OPENAI = {"error", "expires_at", "id", "object", "strict"}
"""Fields of sessions, MCP items and tools that OpenAI's server sends and its Python package does
not name."""
OWNER = 1
USAGE = Usage(input_text_tokens=7, output_text_tokens=2, output_audio_tokens=3)


def speech(ms: int) -> Pcm:
    return np.full(ms * RATE_OUT // 1000, 1000, np.int16)


def _unknown(model: Any) -> Iterator[str]:
    if isinstance(model, BaseModel):
        yield from model.model_extra or ()
        for name in type(model).model_fields:
            yield from _unknown(getattr(model, name))
    elif isinstance(model, list):
        for each in model:
            yield from _unknown(each)


def checked(text: str) -> Event:
    """The event, which openai-python, openai-agents and Pipecat can parse in full."""
    event: Event = json.loads(text)
    retrieved = event["type"] == "conversation.item.retrieved"
    assert retrieved or len(text) <= MAX_FRAME_BYTES
    parsed = OPENAI.validate_json(text, strict=True)
    assert parsed.type == event["type"]
    assert set(_unknown(parsed)) <= UNKNOWN_TO_OPENAI, text
    get_server_event_type_adapter().validate_python(event)
    if '"mcp' not in text and '"tool_choice": {' not in text:  # Pipecat knows neither
        parse_server_event(text)
    return event


class Client:
    """The owner of a session. Calls are those of the conversation; what is sent is in `events`."""

    def __init__(
        self,
        transport: Transport = Transport.WEBSOCKET,
        session: Event | None = None,
        **kwargs: Any,
    ) -> None:
        settings = full_session(session) if session else ConversationSession()
        self.core = RealtimeConversation(settings, transport, **kwargs)
        self.events: list[Event] = []
        self.actions: list[Action] = []
        """Of the last call, but for events."""
        self.items: list[str] = []
        """The ids of the conversation as its events report them."""
        self.open_items: set[str] = set()
        self.responses: Counter[str] = Counter()
        """1: created, 0: done."""
        self.generated: list[Generate] = []
        checked(self.core.created())

    def __call__(self, *events: Event) -> list[Event]:
        """Send events; returns those that answer them."""
        return [told for event in events for told in self.send(json.dumps(event))]

    def send(self, text: str) -> list[Event]:
        return self.take(self.core.receive(OWNER, text))

    def report(self, name: str, *args: Any, **kwargs: Any) -> list[Event]:
        """Make a report of the call; returns the events that it leads to."""
        return self.take(getattr(self.core, name)(*args, **kwargs))

    def take(self, actions: list[Action]) -> list[Event]:
        events = [checked(action.event) for action in actions if isinstance(action, Send)]
        self.actions = [action for action in actions if not isinstance(action, Send)]
        self.generated += [action for action in actions if isinstance(action, Generate)]
        for event in events:
            self._follow(event)
        self.events += events
        return events

    def _follow(self, event: Event) -> None:
        match event:
            case {"type": "conversation.item.added", "item": item, "previous_item_id": previous}:
                at = self.items.index(previous) + 1 if previous else 0
                self.items.insert(at, item["id"])
                self.open_items.add(item["id"])
            case {"type": "conversation.item.done", "item": item, "previous_item_id": previous}:
                at = self.items.index(item["id"])
                assert previous == (self.items[at - 1] if at else None)
                self.open_items.remove(item["id"])
                assert item.get("status") != "in_progress"
            case {"type": "conversation.item.deleted", "item_id": item_id}:
                self.items.remove(item_id)
                self.open_items.discard(item_id)
            case {"type": "response.created", "response": response}:
                assert response["id"] not in self.responses
                assert (response["status"], response["output"]) == ("in_progress", [])
                self.responses[response["id"]] = 1
            case {"type": "response.done", "response": response}:
                assert self.responses[response["id"]] == 1
                assert response["status"] != "in_progress"
                assert response["usage"]["total_tokens"] >= 0
                self.responses[response["id"]] = 0
            case {"type": str(kind), "response_id": response_id} if kind.startswith("response."):
                assert self.responses[response_id] == 1, kind

    @property
    def response_id(self) -> str:
        """Of the response that was generated last."""
        return self.generated[-1].response_id

    @property
    def context(self) -> tuple[Item, ...]:
        """Of the response that was generated last."""
        return self.generated[-1].items

    def turn(self, text: str = "Hello there.") -> list[Event]:
        """The user says something, and a response begins."""
        events = self.report("speech_started", 1_300) + self.report("speech_stopped", 2_000)
        return events + self.report("user_turn", text, 0.7)

    def speak(self, text: str, ms_per_word: int = 500) -> list[Event]:
        """The response says something, with the times of its words."""
        events = self.report("response_text", self.response_id, text)
        begin_ms = 0
        for word in text.split():
            events += self.report("response_audio", self.response_id, speech(ms_per_word))
            begin_ms += ms_per_word
            events += self.report("response_word", self.response_id, word, begin_ms)
        return events

    def done(self, **kwargs: Any) -> list[Event]:
        """The response is complete."""
        return self.report("response_done", self.response_id, USAGE, **kwargs)

    def retrieved(self, item_id: str) -> Event:
        """An item as the server has it."""
        [event] = self({"type": "conversation.item.retrieve", "item_id": item_id})
        item: Event = event["item"]
        return item


def kinds(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


def one(events: list[Event], kind: str) -> Event:
    [event] = [event for event in events if event["type"] == kind]
    return event


def update(**session: Any) -> Event:
    return {"type": "session.update", "session": {"type": "realtime", **session}}


def message(text: str, role: str = "user", **item: Any) -> Event:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return created({"type": "message", "role": role, "content": content, **item})


def created(item: Event, **fields: Any) -> Event:
    return {"type": "conversation.item.create", "item": item, **fields}


def respond(**response: Any) -> Event:
    return {"type": "response.create", "response": response}


def truncate(item_id: str, audio_end_ms: int) -> Event:
    kind = "conversation.item.truncate"
    return {"type": kind, "item_id": item_id, "content_index": 0, "audio_end_ms": audio_end_ms}


TRANSCRIBED = {"audio": {"input": {"transcription": {"model": "whisper-1"}}}}
COMMIT = {"type": "input_audio_buffer.commit"}
CLEAR = {"type": "input_audio_buffer.clear"}
CLEAR_OUTPUT = {"type": "output_audio_buffer.clear"}
CANCEL = {"type": "response.cancel"}
