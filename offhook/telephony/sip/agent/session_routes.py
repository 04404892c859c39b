"""All sessions of a user agent with their routes: which one a message belongs to, and when each is
to be woken."""

import heapq
import itertools
from collections.abc import Iterator

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_route import SessionRoute
from offhook.telephony.sip.transactions.matching import server_key
from offhook.telephony.sip.transactions.transaction import Key

STALE_ALARMS = 64
"""Stale entries left in the heap before it is cleaned up."""


class SessionRoutes:
    """The sessions that are not over."""

    def __init__(self) -> None:
        self._by_dialog: dict[tuple[str, str], SessionRoute] = {}
        """By Call-ID and our tag."""
        self._ringing: dict[Key, SessionRoute] = {}
        """By the transaction of an inbound INVITE, which a CANCEL refers to."""
        self._wake_ups: list[tuple[float, int, SessionRoute]] = []
        """A heap of wake-up times, including some since postponed."""
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._by_dialog)

    def __iter__(self) -> Iterator[SessionRoute]:
        return iter(self._by_dialog.values())

    @property
    def alarms(self) -> int:
        """Number of entries in the heap of timers."""
        return len(self._wake_ups)

    def of(self, call_id: str, tag: str) -> SessionRoute | None:
        """Return the route of a session by its Call-ID and our tag."""
        return self._by_dialog.get((call_id, tag))

    def of_request(self, request: Request) -> SessionRoute | None:
        """Return the route of the call that a request belongs to, whoever sent it; a CANCEL belongs
        to an INVITE."""
        if request.method == "CANCEL":
            route = self._ringing.get((*server_key(request)[:-1], "INVITE"))
            if route is not None:
                return route
        return self._by_dialog.get((request.call_id, request.to.tag))

    def of_invite(self, key: Key) -> SessionRoute | None:
        """Return the route of the call whose inbound INVITE has this transaction."""
        return self._ringing.get(key)

    def over(self, flow: Flow) -> list[SessionRoute]:
        """Return the routes of the calls over this flow."""
        return [route for route in self if route.flow == flow]

    def behind_nat(self) -> set[Flow]:
        """Return the flows of the calls with phones behind a NAT."""
        return {route.flow for route in self if route.behind_nat}

    def add(self, route: SessionRoute, session: Session, invite: Key | None = None) -> None:
        """Add a session; `invite` is the transaction of an inbound one's INVITE."""
        route.session = session
        self._by_dialog[session.call_id, session.local_tag] = route
        if invite is not None:
            route.invite = invite
            self._ringing[invite] = route

    def update(self, route: SessionRoute) -> None:
        """Schedule a session after any activity, or forget it if it is over."""
        session = route.of
        if session.over:
            route.end()
            self._by_dialog.pop((session.call_id, session.local_tag), None)
            if route.invite is not None:
                self._ringing.pop(route.invite, None)
            return
        timer = session.get_timer()
        if timer is not None and (route.wake_at is None or timer < route.wake_at):
            route.wake_at = timer
            heapq.heappush(self._wake_ups, (timer, next(self._order), route))
            if len(self._wake_ups) > 2 * len(self) + STALE_ALARMS:
                self._wake_ups = [alarm for alarm in self._wake_ups if alarm[0] == alarm[2].wake_at]
                heapq.heapify(self._wake_ups)

    def get_timer(self) -> float | None:
        while self._wake_ups and self._wake_ups[0][0] != self._wake_ups[0][2].wake_at:
            heapq.heappop(self._wake_ups)
        return self._wake_ups[0][0] if self._wake_ups else None

    def due(self, now: float) -> Iterator[SessionRoute]:
        """Yield the routes whose time has come; `update` must follow for each."""
        while self._wake_ups and self._wake_ups[0][0] <= now:
            at, _, route = heapq.heappop(self._wake_ups)
            if at == route.wake_at:  # not postponed, nor ended
                route.wake_at = None
                yield route
