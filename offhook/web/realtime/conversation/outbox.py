"""Collects the actions that one event or report leads to."""

import json
from typing import Any

from offhook.web.realtime.conversation.actions import Action, Send
from offhook.web.realtime.protocol import server_events


class Outbox:
    """Actions in the order in which they are to be carried out."""

    def __init__(self) -> None:
        self._actions: list[Action] = []

    def add(self, action: Action) -> None:
        """Append an action."""
        self._actions.append(action)

    def send(self, kind: str, **fields: Any) -> None:
        """Append a server event for all clients."""
        self._actions.append(Send(server_events.event(kind, **fields)))

    def send_to(self, connection: int, kind: str, **fields: Any) -> None:
        """Append a server event for one client."""
        self._actions.append(Send(server_events.event(kind, **fields), connection))

    def send_audio(self, **fields: Any) -> None:
        """Append an audio delta, for the owner."""
        event = server_events.event("response.output_audio.delta", **fields)
        self._actions.append(Send(event, audio=True))

    def dtmf(self, digit: str, received_at: int) -> None:
        """Append the event of a pressed key, the only one without an id."""
        kind = "input_audio_buffer.dtmf_event_received"
        self._actions.append(
            Send(json.dumps({"type": kind, "event": digit, "received_at": received_at}))
        )

    def drain(self) -> list[Action]:
        """Return all actions and forget them."""
        actions, self._actions = self._actions, []
        return actions
