"""Calls that continue at another server: saved after each turn, taken over with a token.

caller -- token --> another edge -- key --> Redis: the conversation, the agent, who calls
"""

import asyncio
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Literal

from loguru import logger

from offhook.media.end_reason import End, EndReason
from offhook.media.leg import Leg, ModelTokens
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import (
    AgentChanged,
    AgentTurn,
    CallEnded,
    CallerTurn,
    CallStarted,
    CallTransferred,
    DetailNoted,
    Event,
    NodeEntered,
    TransferProgress,
)
from offhook.web.edge.resume.saved_call import (
    Handoff,
    SavedCall,
    TooLargeError,
    key_of,
    new_token,
    unpack,
)
from offhook.web.edge.resume.store_io import (
    MAX_WORDS_CHARS,
    TTL_S,
    USED,
    CallStore,
    StoreUnavailable,
)
from offhook.web.http.metrics import Metrics

REFRESH_S = TTL_S / 3
"""Interval in s at which calls are saved even if nobody speaks."""
FLUSH_S = 2.0
"""Time limit in s for the last states to be written before calls are moved; if they are not, no
call is moved."""

Outcome = Literal["resumed", "ended", "unknown", "refused", "unavailable"]
"""Of a caller who comes back. ended: the call has, or was resumed before; unknown: the token has
expired or never was; refused: it is of another agent, or what was saved cannot be read;
unavailable: Redis does not answer."""

LEFT = frozenset(
    (
        *(End.CALLER_HUNG_UP, End.CONNECTION_FAILED, End.CONNECTION_LOST, End.NOTHING_HEARD),
        *(End.RECONNECTED, End.STREAM_CLOSED, End.CONTINUED_ELSEWHERE, End.SHUTTING_DOWN),
        *(End.SERVER_STOPS, End.CARRIER_SILENT, End.SOCKET),
    )
)
"""Ends after which a caller may still come back; all others end the call for good. A browser that
has found the server silent looks as if its caller had hung up."""


@dataclass
class _ResumableCall:
    """A call that may continue elsewhere."""

    key: str
    agent: str
    """The one that it began with."""
    returning: str = ""
    """Key of the call that this one may continue."""
    saved: SavedCall | None = None
    """What it continues."""
    leg: Leg | None = None
    call: Call | None = None
    began: float = field(default_factory=monotonic)
    too_large: bool = False
    handoff: Handoff | None = None
    """The last one to another agent."""

    def state(self, turn: str = "") -> SavedCall:
        """Returns the call as it is now; `turn` are words of the caller that the conversation may
        not have yet."""
        assert self.leg is not None
        assert self.call is not None
        messages = self.call.transcript()
        if turn and ("user", turn) not in messages[-2:]:
            messages.append(("user", turn))
        before = self.saved.seconds if self.saved is not None else 0
        seconds = before + int(monotonic() - self.began)
        dialog = self.call.dialog()
        about = self.agent, self.leg.info, seconds, dialog, tuple(messages)
        leg = self.leg
        return SavedCall(*about, self.handoff, dict(leg.collected), leg.tokens, leg.place)


class Resumption:
    """The calls of an edge that may continue elsewhere, and those that do so here. Raises
    ConfigError like `CallStore`."""

    def __init__(self, url: str, metrics: Metrics) -> None:
        self._calls: dict[str, _ResumableCall] = {}
        """By call id."""
        self._store = CallStore(url, self._taken)
        self._count = metrics.add_resumption(lambda: self._store.up is True)
        self._refreshing: asyncio.Task[None]

    def start(self) -> None:
        self._store.start()
        self._refreshing = asyncio.create_task(self._refresh(), name="refresh saved calls")

    async def close(self) -> None:
        self._refreshing.cancel()
        await asyncio.gather(self._refreshing, return_exceptions=True)
        await self._store.flush(FLUSH_S if self._store.up else 0)
        await self._store.close()

    # --- a call's life ---

    def expect(self, call_id: str, owner: str, agent: str, returning: str = "") -> str:
        """Returns the token of a call that begins. `returning` is the token of the call that it may
        continue, both bound to `owner`."""
        token = new_token()
        before = key_of(owner, returning) if returning else ""
        for call in self._calls.values():  # one that was tried here and did not come up
            if call.key == before and call.returning and call.saved is None:
                before = call.returning
                break
        self._calls[call_id] = _ResumableCall(key_of(owner, token), agent, before)
        return token

    def admits(self, call_id: str, owner: str, token: str) -> bool:
        """Returns whether the token is that of a call; calls that have none need none."""
        call = self._calls.get(call_id)
        return call is None or call.key == key_of(owner, token)

    async def restore(self, leg: Leg) -> SavedCall | None:
        """Returns the call that a connected leg continues, which it takes over with its caller's
        details; None for a new call."""
        call = self._calls.get(leg.call_id)
        if call is None or not (call.returning or call.saved):
            return None
        if call.saved is None:
            outcome, call.saved = await self.claim(call.returning, call.agent)
            logger.bind(call=leg.call_id, outcome=outcome).info(
                "{}: comes back from another call: {}", leg.call_id, outcome
            )
        if (saved := call.saved) is None:
            return None
        call.agent, call.handoff = saved.agent, saved.handoff
        leg.info = saved.info
        leg.tokens.restore(saved.tokens)
        leg.collected.update(saved.collected)
        leg.place = saved.place
        self._store.put(call.key, saved.pack())  # before its engines are ready
        return saved

    async def claim(self, key: str, agent: str = "") -> tuple[Outcome, SavedCall | None]:
        """Takes a call over, for which `agent` must be its agent unless it is ""."""
        outcome, saved = await self._claim(key, agent)
        self._count(outcome)
        return outcome, saved

    async def _claim(self, key: str, agent: str) -> tuple[Outcome, SavedCall | None]:
        try:
            data = await self._store.claim(key)
        except StoreUnavailable:
            return "unavailable", None
        if data is None:
            return "unknown", None
        if data == USED:
            return "ended", None
        try:
            saved = unpack(data)
        except ValueError as error:
            line = logger.bind(a_minute="a saved call")
            line.warning(
                "a saved call cannot be read: {}", str(error).split("\n")[0][:MAX_WORDS_CHARS]
            )
            return "refused", None
        if agent and saved.agent != agent:
            return "refused", None
        return "resumed", saved

    def continue_with(self, call_id: str, saved: SavedCall) -> None:
        """Has an expected call continue one that was taken over already."""
        if (call := self._calls.get(call_id)) is not None:
            call.saved = saved
            self._store.put(call.key, saved.pack())

    def watch(self, leg: Leg, conversation: Call) -> None:
        """Saves a call after each of its turns, and when a flow leads on."""
        call = self._calls.get(leg.call_id)
        if call is None:
            return
        call.leg, call.call, call.began = leg, conversation, monotonic()

        def save(event: Event) -> None:
            if self._calls.get(leg.call_id) is not call:
                return  # it has ended: a reply that was cut off by that comes later
            match event:
                case CallerTurn(text=text):
                    self._save(call, text)
                case AgentChanged(agent=agent, before=before, text=told):
                    call.handoff = Handoff(agent, before, told)
                    self._save(call)
                case (
                    AgentTurn() | CallStarted() | NodeEntered() | DetailNoted() | TransferProgress()
                ):
                    self._save(call)
                case CallTransferred():
                    self._finish(leg, call, End.TRANSFERRED)
                case CallEnded(reason=reason):
                    self._finish(leg, call, reason)

        conversation.listeners.append(save)

    def forget(self, call_id: str) -> None:
        """Forgets a call of this edge; what is saved of it stays until it expires."""
        self._calls.pop(call_id, None)

    def _save(self, call: _ResumableCall, turn: str = "", *, has_tokens: bool = True) -> None:
        try:
            state = call.state(turn)
            if not has_tokens:
                state = replace(state, tokens=ModelTokens())
            self._store.put(call.key, state.pack())
        except (ValueError, TypeError) as error:
            if not call.too_large:
                assert call.leg is not None
                logger.warning("{}: it is not saved: {}", call.leg.call_id, error)
            call.too_large = True
            if isinstance(error, TooLargeError):
                self._store.end(call.key)

    def _finish(self, leg: Leg, call: _ResumableCall, reason: EndReason) -> None:
        self._calls.pop(leg.call_id, None)
        if reason.end not in LEFT:
            self._store.end(call.key)
        elif reason.end is not End.CONTINUED_ELSEWHERE and not call.too_large:
            # The record of this part has told what it took; that of the next one shall not again.
            self._save(call, has_tokens=False)

    def _taken(self, key: str) -> None:
        for call in self._calls.values():
            if call.key == key and call.leg is not None:
                call.leg.close(End.CONTINUED_ELSEWHERE)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            for call in tuple(self._calls.values()):
                if call.call is not None:
                    self._save(call)

    # --- before the edge ends ---

    async def movable(self) -> list[Leg]:
        """Returns the legs of the calls that can continue elsewhere now, saved as they are."""
        calls = [call for call in self._calls.values() if call.call is not None]
        for call in calls:
            self._save(call)
        if not await self._store.flush(FLUSH_S) or not self._store.up:
            return []
        return [call.leg for call in calls if call.leg is not None and not call.too_large]
