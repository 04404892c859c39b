"""What the parts of a conversation share."""

from dataclasses import dataclass, field
from enum import Enum, auto

from offhook.web.realtime.conversation.audio import AudioStore
from offhook.web.realtime.conversation.items import ConversationItems
from offhook.web.realtime.conversation.outbox import Outbox
from offhook.web.realtime.protocol.conversation_session import ConversationSession
from offhook.web.realtime.protocol.server_events import new_id


class Transport(Enum):
    """How audio travels."""

    WEBSOCKET = auto()
    """In events; the client plays it, and alone knows what was heard."""
    RTP = auto()
    """By WebRTC, SIP or a carrier's stream; the server plays it. Clients get no audio deltas."""


@dataclass
class ConversationScope:
    """The session's settings and items, and where actions are collected."""

    session: ConversationSession
    transport: Transport
    out: Outbox
    audio: AudioStore
    items: ConversationItems
    id: str = field(default_factory=lambda: new_id("conv"))
    """The conversation's id."""
