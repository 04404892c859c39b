"""The Realtime conversations of a process, by their calls."""

from collections.abc import Callable, Collection
from time import time
from typing import TYPE_CHECKING

from offhook.web.realtime.call_io import RealtimeCall, RealtimeCallState
from offhook.web.realtime.conversation.conversation import RealtimeConversation
from offhook.web.realtime.conversation.scope import Transport
from offhook.web.realtime.protocol.conversation_session import ConversationSession
from offhook.web.realtime.protocol.frozen import NONE_FROZEN, FrozenFields

if TYPE_CHECKING:  # its package is an extra
    from offhook.web.realtime.mcp_io import McpConnections


class RealtimeCalls:
    """The conversations in progress, each reachable by the public id of its call."""

    def __init__(
        self, limit_s: float, mcp_servers: Callable[[], Collection[str]] = frozenset
    ) -> None:
        """`limit_s`: the maximum length of a call. `mcp_servers` returns the origins that tools
        may be of."""
        self._limit_s = limit_s
        self._mcp_servers = mcp_servers
        self._calls: dict[str, RealtimeCall] = {}

    def open(
        self,
        call_id: str,
        session: ConversationSession,
        transport: Transport = Transport.RTP,
        frozen: FrozenFields = NONE_FROZEN,
        *,
        owned: bool = True,
    ) -> RealtimeCall:
        """Opens a conversation for a call that is about to start. `owned`: a client begins it, as
        opposed to joining it."""
        expires_at = int(time() + self._limit_s)
        conversation = RealtimeConversation(
            session, transport, frozen=frozen, expires_at=expires_at
        )
        mcp = _connections(self._mcp_servers(), call_id)
        call = self._calls[call_id] = RealtimeCall(conversation, mcp, owned=owned)
        return call

    def find(self, call_id: str) -> RealtimeCall | None:
        """Returns the conversation of a call; None if it has none or has ended."""
        call = self._calls.get(call_id)
        return call if call is not None and not call.has_ended else None

    def drop(self, call_id: str) -> None:
        """Ends the conversation of a call that is over before it began."""
        call = self._calls.get(call_id)
        if call is not None and call.state is RealtimeCallState.WAITING:
            del self._calls[call_id]
            call.end("the caller hung up")

    async def close(self, call_id: str) -> None:
        """Ends the conversation of a call that is over, if it has one."""
        if (call := self._calls.pop(call_id, None)) is not None:
            await call.close()


def _connections(mcp_servers: Collection[str], call_id: str) -> "McpConnections | None":
    if not mcp_servers:
        return None
    from offhook.web.realtime.mcp_io import McpConnections

    return McpConnections(mcp_servers, call_id)
