"""The Realtime conversations of a process, by their calls."""

from collections.abc import Collection
from time import time

from offhook.web.realtime.call_io import RealtimeCall
from offhook.web.realtime.conversation.conversation import RealtimeConversation
from offhook.web.realtime.conversation.scope import Transport
from offhook.web.realtime.protocol.conversation_session import ConversationSession


class RealtimeCalls:
    """The conversations in progress, each reachable by the public id of its call."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: the maximum length of a call."""
        self._limit_s = limit_s
        self._calls: dict[str, RealtimeCall] = {}

    def open(
        self,
        call_id: str,
        session: ConversationSession,
        transport: Transport = Transport.RTP,
        frozen: Collection[str] = (),
    ) -> RealtimeCall:
        """Opens a conversation for a call that is about to start."""
        expires_at = int(time() + self._limit_s)
        conversation = RealtimeConversation(
            session, transport, frozen=frozenset(frozen), expires_at=expires_at
        )
        call = self._calls[call_id] = RealtimeCall(conversation)
        return call

    def find(self, call_id: str) -> RealtimeCall | None:
        """Returns the conversation of a call; None if it has none or has ended."""
        call = self._calls.get(call_id)
        return call if call is not None and not call.ended.is_set() else None

    def drop(self, call_id: str) -> None:
        """Ends the conversation of a call that is over before it began."""
        call = self._calls.get(call_id)
        if call is not None and not call.has_begun:
            del self._calls[call_id]
            call.end("the caller hung up")

    async def close(self, call_id: str) -> None:
        """Ends the conversation of a call that is over, if it has one."""
        if (call := self._calls.pop(call_id, None)) is not None:
            await call.close()
