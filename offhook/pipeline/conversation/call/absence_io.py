"""A caller who is away: on hold, or being transferred."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from loguru import logger

from offhook.media.leg import Leg, LegError
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.events import (
    AgentLeft,
    AgentReturned,
    CallHeld,
    CallResumed,
    Event,
    TransferFailed,
)

HOLD_S = 120
"""Maximum seconds an agent can keep a caller on hold before the call is resumed."""
TRANSFER_ENDS_S = 1
"""Seconds to wait, after the line closes, for the transfer that may have closed it to report so."""

Connect = Callable[[], Awaitable[None]]
"""Connects the caller with somebody. Raises LegError."""
Reason = Literal["held", "on hold", "being transferred", "taken over"]
"""Why the caller is away: on hold by the far end, on hold by the agent, being transferred, or with
people who have taken the call over."""


class HandedOver(LegError):
    """The caller is not transferred: `hand_over` has another agent of the call take it over, and
    returns once that one is in place. Raises LegError."""

    def __init__(self, words: str, hand_over: Connect) -> None:
        super().__init__(words)
        self.hand_over = hand_over


class Absence:
    """Whether and why one call's caller is away."""

    def __init__(
        self,
        leg: Leg,
        tasks: TaskSet,
        emit: Callable[[Event], None],
        on_change: Callable[[bool], None],
    ) -> None:
        """`tasks` are those of the call. `emit` receives its events; `on_change` is called with
        whether the caller is away."""
        self._leg, self._tasks = leg, tasks
        self._emit, self._on_change = emit, on_change
        self.until_noted: Callable[[], Awaitable[None]] | None = None
        """Waits until what people beside the agent have said last is recognized."""
        self._reasons: set[Reason] = set()
        self._transfer: asyncio.Task[LegError | None] | None = None
        self._hold_limit: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._reasons)

    @property
    def on_hold(self) -> bool:
        """Whether the agent has put the caller on hold."""
        return "on hold" in self._reasons

    def set_held(self, held: bool) -> None:
        """The far end has put the call on hold, or resumed it."""
        if held:
            self._leave("held")
            self._emit(CallHeld(self._leg.heard_ms, "caller"))
        else:
            self._return("held")
            self._emit(CallResumed(self._leg.heard_ms, "caller"))

    async def hold(self) -> None:
        """Put the caller on hold for at most HOLD_S. Raises LegError."""
        if self.on_hold:
            raise LegError("the caller is on hold already")
        await self._leg.hold()
        self._leave("on hold")
        self._emit(CallHeld(self._leg.heard_ms, "agent"))
        self._hold_limit = self._tasks.spawn(self._end_hold(), f"hold {self._leg.call_id}")

    async def _end_hold(self) -> None:
        await asyncio.sleep(HOLD_S)
        logger.warning("{}: on hold for {} s: taken back", self._leg.call_id, HOLD_S)
        self._hold_limit = None
        try:
            await self.resume()
        except LegError as error:
            logger.error("{}: the caller stays on hold: {}", self._leg.call_id, error)

    async def resume(self) -> None:
        """Resume a caller on hold. Raises LegError."""
        if not self.on_hold:
            raise LegError("the caller is not on hold")
        await self._leg.resume()
        if self._hold_limit is not None:
            self._hold_limit.cancel()
            self._hold_limit = None
        self._return("on hold")
        self._emit(CallResumed(self._leg.heard_ms, "agent"))

    @property
    def aside(self) -> bool:
        """Whether people have taken the call over."""
        return "taken over" in self._reasons

    def stand_aside(self) -> None:
        """People go on without the agent, until `come_back`."""
        if not self.aside:
            self._leave("taken over")
            self._emit(AgentLeft(self._leg.heard_ms))

    def come_back(self) -> None:
        """The agent goes on with the caller, if people had taken the call over."""
        if self.aside:
            self._return("taken over")
            self._emit(AgentReturned(self._leg.heard_ms))

    async def transfer(
        self,
        target: str,
        on_accepted: Callable[[], None],
        on_transferred: Callable[[str], None],
        by: Connect | None = None,
    ) -> None:
        """Transfer the caller to `target`, with `by` or else as the line can. `on_accepted` is
        called before the caller is back on the line, `on_transferred` once that is a bridge to the
        target. Raises LegError if the transfer fails."""
        if self._transfer is not None and not self._transfer.done():
            raise LegError("a transfer is under way")
        # A task of the call: cancelling whatever awaits it must not cancel the transfer.
        self._transfer = self._tasks.spawn(
            self._hand_over(target, on_accepted, on_transferred, by),
            f"transfer {self._leg.call_id}",
        )
        refused = await asyncio.shield(self._transfer)
        if refused is not None:
            raise refused

    async def _hand_over(
        self,
        target: str,
        on_accepted: Callable[[], None],
        on_transferred: Callable[[str], None],
        by: Connect | None,
    ) -> LegError | None:
        by = by or self._leg.destinations.get(target)
        self._leave("being transferred")
        try:
            await (self._leg.transfer(target) if by is None else by())
        except LegError as error:
            self._emit(TransferFailed(self._leg.heard_ms, target, str(error)))
            return await self._handed_over(error) if isinstance(error, HandedOver) else error
        else:
            on_accepted()
        finally:
            self._return("being transferred")
        on_transferred(target)
        return None

    async def _handed_over(self, error: HandedOver) -> LegError:
        self._return("being transferred")
        try:
            await error.hand_over()
        except LegError as refused:
            return refused
        return error

    async def settle(self) -> None:
        """Wait for the transfer that may have closed the line, and for the words of people."""
        if self._transfer is not None:
            await asyncio.wait((self._transfer,), timeout=TRANSFER_ENDS_S)
        if self.until_noted is not None:
            await self.until_noted()

    def _leave(self, why: Reason) -> None:
        self._reasons.add(why)
        self._on_change(True)

    def _return(self, why: Reason) -> None:
        self._reasons.discard(why)
        self._on_change(bool(self._reasons))
