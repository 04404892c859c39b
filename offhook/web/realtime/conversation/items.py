"""The items of a conversation in their order, within bounds, and the events that report them."""

from typing import Any

from offhook.web.realtime.conversation.audio import AudioStore
from offhook.web.realtime.conversation.outbox import Outbox
from offhook.web.realtime.conversation.truncation import SpokenText
from offhook.web.realtime.protocol.items import (
    AssistantMessage,
    CreatedItem,
    FunctionCall,
    FunctionCallOutput,
    InputAudio,
    InputImage,
    Item,
    ItemReference,
    McpApprovalRequest,
    McpApprovalResponse,
    OutputAudio,
    UserMessage,
)
from offhook.web.realtime.protocol.server_events import new_id
from offhook.web.realtime.protocol.session_object import EventError

MAX_ITEMS = 1_000
"""Maximum items of a conversation; beyond it the oldest ones are deleted."""
MAX_CHARS = 32 << 20
"""Maximum characters of all items of a conversation; beyond it the oldest ones are deleted."""
ROOT = "root"
"""The `previous_item_id` of the first item."""


class ConversationItems:
    """The default conversation."""

    def __init__(self, outbox: Outbox, audio: AudioStore) -> None:
        self._out = outbox
        self._audio = audio
        self.images = False
        """Whether the agent understands images."""
        self._items: dict[str, Item] = {}
        self._order: list[str] = []
        self._chars: dict[str, int] = {}
        self.spoken: dict[str, SpokenText] = {}
        """Of the assistant's audio items, by id."""

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    def __len__(self) -> int:
        return len(self._order)

    @property
    def last_id(self) -> str | None:
        """The id of the last item."""
        return self._order[-1] if self._order else None

    def get(self, item_id: str) -> Item | None:
        """Return an item as it is now."""
        return self._items.get(item_id)

    def context(self) -> tuple[Item, ...]:
        """Return all items in order, for a response."""
        return tuple(self._items[item_id] for item_id in self._order)

    # --- changes, each with its events ---

    def add(self, item: Item, previous_id: str | None = None, *, done: bool = True) -> None:
        """Insert an item behind another (ROOT: at the front; None or gone: at the end). `done`:
        it is complete."""
        if previous_id == ROOT:
            at = 0
        elif previous_id in self._items:
            at = self._order.index(previous_id) + 1
        else:
            at = len(self._order)
        self._order.insert(at, item.key)
        self._items[item.key] = item
        self._chars[item.key] = item.size
        self._report("added", item)
        if done:
            self._report("done", item)
        self._keep_bounds(item.key)

    def replace(self, item: Item, *, done: bool = False) -> None:
        """Change an item, if it was not deleted. `done`: it is complete now."""
        if item.key in self._items:
            self._items[item.key] = item
            self._chars[item.key] = item.size
            if done:
                self._report("done", item)
                self._keep_bounds(item.key)

    def delete(self, item_id: str) -> None:
        """Remove an item."""
        self._order.remove(item_id)
        del self._items[item_id], self._chars[item_id]
        self.spoken.pop(item_id, None)
        self._audio.drop(item_id)
        self._out.send("conversation.item.deleted", item_id=item_id)

    def truncate(self, item_id: str, at_ms: int) -> None:
        """Keep an item's audio up to `at_ms` and the words played until then."""
        spoken = self.spoken[item_id]
        if at_ms < spoken.duration_ms or self._is_open(item_id):
            spoken.truncate(at_ms)
        self._audio.truncate(item_id, at_ms * spoken.bytes_per_ms)
        item = self._items[item_id]
        if isinstance(item, AssistantMessage) and item.content:
            part = OutputAudio(type="output_audio", transcript=spoken.remaining)
            self.replace(item.model_copy(update={"content": (part,)}))
        self._out.send(
            "conversation.item.truncated", item_id=item_id, content_index=0, audio_end_ms=at_ms
        )

    def _report(self, what: str, item: Item) -> None:
        at = self._order.index(item.key)
        previous = self._order[at - 1] if at else None
        kind = f"conversation.item.{what}"
        self._out.send(kind, previous_item_id=previous, item=item.as_dict())

    def _keep_bounds(self, added: str) -> None:
        while len(self._order) > MAX_ITEMS or sum(self._chars.values()) > MAX_CHARS:
            oldest = next((i for i in self._order if i != added and not self._is_open(i)), None)
            if oldest is None:
                return
            self.delete(oldest)

    def _is_open(self, item_id: str) -> bool:
        return getattr(self._items[item_id], "status", None) == "in_progress"

    # --- items of clients ---

    def admit(self, item: CreatedItem, param: str) -> Item:
        """Return an item of a client as it is kept. Raises EventError."""
        if item.id is not None and item.id in self._items:
            words = f"there is an item with the id {item.id}"
            raise EventError(words, "item_create_duplicate_item_id", f"{param}.id")
        changes: dict[str, Any] = {"id": item.id or new_id("item")}
        match item:
            case UserMessage(content=parts):
                changes["content"] = tuple(
                    self._admit_part(part, f"{param}.content.{i}") for i, part in enumerate(parts)
                )
            case AssistantMessage(content=parts):
                if any(isinstance(part, OutputAudio) for part in parts):
                    words = "audio of the assistant cannot be put in: use output_text"
                    raise EventError(words, "invalid_value", f"{param}.content")
        if not isinstance(item, McpApprovalResponse):
            changes["status"] = "completed"
        return item.model_copy(update=changes)

    def check_references(self, item: Item) -> None:
        """Raise EventError if an item answers a call or a request that does not exist."""
        others = self._items.values()
        match item:
            case FunctionCallOutput(call_id=call_id):
                if not any(isinstance(i, FunctionCall) and i.call_id == call_id for i in others):
                    words = f"there is no function call with the call_id {call_id}"
                    raise EventError(words, "invalid_value", "item.call_id")
            case McpApprovalResponse(approval_request_id=request_id):
                param = "item.approval_request_id"
                if not isinstance(self._items.get(request_id), McpApprovalRequest):
                    words = f"there is no mcp_approval_request with the id {request_id}"
                    raise EventError(words, "invalid_value", param)
                if any(
                    isinstance(i, McpApprovalResponse) and i.approval_request_id == request_id
                    for i in others
                ):
                    raise EventError(f"{request_id} has its response", "invalid_value", param)

    def resolve(self, given: tuple[CreatedItem | ItemReference, ...]) -> tuple[Item, ...]:
        """Return the `input` of a response as items. Raises EventError."""
        found = list[Item]()
        for i, each in enumerate(given):
            param = f"response.input.{i}"
            if not isinstance(each, ItemReference):
                found.append(self.admit(each.model_copy(update={"id": None}), param))
                continue
            item = self._items.get(each.id)
            if item is None:
                words = f"there is no item with the id {each.id}"
                raise EventError(words, "invalid_value", f"{param}.id")
            found.append(item)
        return tuple(found)

    def _admit_part(self, part: Any, param: str) -> Any:
        match part:
            case InputImage() if not self.images:
                words = "the agent of this conversation does not take images"
                raise EventError(words, "invalid_value", param)
            case InputAudio(transcript=None):
                words = "input_audio needs its transcript here: audio is heard in the input buffer"
                raise EventError(words, "missing_required_parameter", f"{param}.transcript")
            case InputAudio(transcript=transcript):
                return part.model_copy(update={"audio": None, "heard": transcript})
        return part
