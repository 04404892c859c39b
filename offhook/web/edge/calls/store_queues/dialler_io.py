"""Places the calls of campaigns that are due, as far as lines are free."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from loguru import logger

from offhook.telephony.call_progress_io import DialError
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.web.campaigns.outcomes import Outcome
from offhook.web.campaigns.pacing import Lines, route_of
from offhook.web.edge.calls.store_queues.queue_io import StoreQueues
from offhook.web.edge.carriers.carriers_io import Carriers
from offhook.web.edge.placing.placing_io import Placer, place_call
from offhook.web.edge.placing.requests import CallOptions, DialRequest
from offhook.web.edge.refusals import Busy, NoPhones
from offhook.web.records.campaigns.calling import DueCall
from offhook.web.records.errors import StoreError
from offhook.web.records.store import CallStore, Writer

OPTIONS = frozenset(CallOptions.model_fields)
"""What a campaign says of its calls, as `POST /calls` does."""


class Host(Placer, Protocol):
    """The edge, as far as it has lines."""

    ready: bool
    draining: bool
    sip: SipEndpoint | None
    carriers: Carriers | None

    @property
    def overloaded(self) -> bool: ...

    @property
    def lines(self) -> set[str]: ...

    def new_id(self) -> str: ...


class Dialler:
    """Places the calls of the campaigns of one store. What becomes of them is kept with their
    records: see `records.campaigns.calling`."""

    def __init__(self, store: CallStore, writer: Writer, host: Host) -> None:
        """`writer` is this process in the store."""
        self._calling, self._writer, self._host = store.calling, writer, host
        self._lines = Lines(0)
        self._under_way: dict[str, DueCall] = {}
        """Calls that are claimed and not placed yet, by their ids."""
        self._not_placed: list[tuple[DueCall, Outcome | None, str]] = []
        """Calls that could not be placed, with the outcome, or None if there was no line."""

    def start(self, queues: StoreQueues) -> None:
        queues.serve("calls of campaigns", self.claim, self.handle, self.look)

    async def close(self) -> None:
        """Gives back what is claimed and not placed, once the queues are closed."""
        self._not_placed += [(due, None, "") for due in self._under_way.values()]
        try:
            await asyncio.to_thread(self._settle, time.time())
        except StoreError as error:
            logger.error(
                "{} recipients of campaigns stay unknown: {}", len(self._not_placed), error
            )

    def look(self) -> None:
        """Notes which lines are free."""
        self._lines = free_lines(self._host)

    def claim(self, now: float) -> Sequence[DueCall]:
        """Returns calls that are due; blocks. Raises StoreError."""
        self._settle(now)
        if self._lines.free <= 0:
            return ()
        writer = self._writer
        return self._calling.claim(
            self._lines, writer.server, writer.process, self._host.new_id, now
        )

    def _settle(self, now: float) -> None:
        """Has the store know what was not placed. Raises StoreError."""
        while self._not_placed:
            due, outcome, why = self._not_placed[0]
            if outcome is None:
                self._calling.release([due], now)
            else:
                self._calling.refuse(due, outcome, why, now)
            self._not_placed.pop(0)

    async def handle(self, due: DueCall) -> None:
        """Places a call at its time, if there still is a line for it."""
        self._under_way[due.call] = due
        await asyncio.sleep(due.at - time.time())
        del self._under_way[due.call]  # from here on, something may have been sent
        outcome, why = await self._place(due)
        if why:
            self._not_placed.append((due, outcome, why))

    async def _place(self, due: DueCall) -> tuple[Outcome | None, str]:
        """Returns why nothing was sent, and what that is for the recipient, None if the call is due
        again at once; "" if the call is placed."""
        if not free_lines(self._host).room(due.settings):
            return None, "no line is free"
        options = {name: value for name, value in due.settings.items() if name in OPTIONS}
        try:
            asked = DialRequest(to=due.to, variables=due.variables, **options)
            await place_call(self._host, asked, due.call)
        except Busy as fault:
            return "refused" if fault.reason == "foreign" else None, fault.sentence
        except (DialError, ValueError, NoPhones) as fault:
            why = str(fault) or "this server has no phones"
            logger.bind(a_minute=f"campaign {due.campaign}").warning(
                "campaign {}: a call cannot be placed: {}", due.campaign, why
            )
            # A carrier has refused it, or could not be reached; by SIP, it is the number.
            return "failed" if options.get("carrier") else "refused", why
        return None, ""


def free_lines(host: Host) -> Lines:
    """Returns the lines that a process has for campaigns now."""
    if not host.ready or host.draining or host.overloaded:
        return Lines(0)
    in_use, routes, agents = set(host.lines), dict[str, int](), frozenset(host.config.agents)
    if host.sip is not None:
        in_use |= host.sip.lines
        routes |= _of_trunks(host.sip)
    if host.carriers is not None:
        carried = host.carriers.calls.in_progress()
        in_use |= {call.call_id for call in carried}
        here = Counter(call.carrier for call in carried)
        for name, carrier in host.carriers.by_name.items():
            most = carrier.settings.max_calls or host.config.server.max_calls
            routes[route_of({"carrier": name})] = most - here[name]
    return Lines(host.config.server.max_calls - len(in_use), routes, agents)


def _of_trunks(sip: SipEndpoint) -> dict[str, int]:
    """Returns the free lines of each trunk that can place calls, and is not down."""
    here = Counter(sip.calls[call].info.trunk for call in sip.lines)
    down = {state.trunk for state in sip.trunk_states() if state.state == "down"}
    free, routes = sip.free_lines, dict[str, int]()
    for trunk in sip.stack.settings.trunks:
        if trunk.server:
            most = trunk.max_calls - here[trunk.name] if trunk.max_calls else free
            routes[trunk.name] = 0 if trunk.name in down else min(free, most)
            routes.setdefault("", routes[trunk.name])
    return routes
