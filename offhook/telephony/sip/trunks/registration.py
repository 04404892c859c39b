"""One trunk's registration: keeps a binding of our contact alive (RFC 3261 §10.2).

Sans-io. The owner calls `start`, then after every call sends `request_to_send`, passes the result
to `receive` or `failed`, and calls `handle_timer` by `get_timer`. One REGISTER is pending at a
time. The trunk's servers (RFC 3263) are numbered from 0; the owner knows their addresses.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

from offhook.telephony.sip.messages.grammar import SipError, parse_port
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.trunks.register_requests import Denied, RegisterRequests, number
from offhook.telephony.sip.trunks.registration_table import (
    TRANSITIONS,
    Action,
    Event,
    RegistrationState,
)
from offhook.telephony.sip.trunks.server_choice import ServerChoice
from offhook.telephony.sip.trunks.trunks import Trunk

REFRESH_MARGIN_S = 70.0
"""Seconds before the end of a binding at which it is refreshed: two servers may time out (32 s
each, RFC 3261 §17.1.2.2) and a third is still in time. Short bindings are refreshed at half
time."""
REFRESH_SPREAD = 0.1
"""Fraction of that time by which a refresh may be early, at random: registrations that started
together, after a power cut, drift apart."""
MIN_REFRESH_S = 1.0
"""Shortest time between refreshes, however short the expiry granted."""
CONTACT_CHANGE_INTERVAL_S = 30.0
"""Seconds between two registrations for changes of our address, in case the registrar reports
another one for every packet."""
BACKOFF_FIRST_S = 5.0
"""Seconds to wait after the first round in which no server accepted; doubled each round. The
formula is that of RFC 5626 §4.5, with half of the time random; its 30 s are long for a phone that
nobody can call meanwhile."""
BACKOFF_MAX_S = 300.0
"""Maximum of that wait in s; it is not doubled further."""
RECONNECT_SPREAD_S = 1.0
"""Seconds within which a broken connection to the registrar is made again, at random: its other
clients have lost theirs at the same moment."""
STABLE_S = 120.0
"""Seconds after which a connection counts as stable (RFC 5626 §4.5): after one that breaks sooner,
the next is made after a wait as after failures."""
MAX_BREAKS = 3
"""Unstable connections in a row after which a registrar is taken for one that keeps none: it
connects to our Contact, and the binding counts."""
REFUSED_S = 600.0
"""Seconds until a registrar that rejected us is retried. Passwords do get corrected, but retrying a
wrong one too often locks the account."""
MAX_RETRY_AFTER_S = 3600
"""Longest Retry-After honoured, in s; a longer one is shortened to this."""

TEMPORARY = frozenset({408, 429, 430, 480, 486, 491})
"""Temporary failures: treated like an unreachable server. So are all 5xx (RFC 3261 §21.5, RFC 3263
§4.3)."""

_BOUND = frozenset(
    {RegistrationState.REGISTERED, RegistrationState.REFRESHING, RegistrationState.LAPSING}
)
_ENDING = frozenset(
    {
        RegistrationState.UNREGISTERED,
        RegistrationState.STOPPING,
        RegistrationState.UNREGISTERING,
    }
)


class Standing(StrEnum):
    """Whether calls reach us by a registration, as operators see it."""

    REGISTERING = "registering"
    """The first attempt is in progress."""
    REGISTERED = "registered"
    FAILED = "failed"
    """An attempt has failed, or the binding is lost; also while another attempt is in progress."""
    UNREGISTERED = "unregistered"
    """At the end, by us."""


@dataclass(frozen=True, slots=True)
class RegistrationStatus:
    """The status of a registration."""

    trunk: str
    state: RegistrationState
    expires_at: float | None
    """When the binding expires, in seconds of the owner's clock; None without one."""
    detail: str
    """Why it is not registered, or could not be refreshed; "" if there is nothing to report."""
    failed: bool = False
    """Whether anything has failed since it was registered last."""

    @property
    def standing(self) -> Standing:
        if self.state in _BOUND:
            return Standing.REGISTERED
        if self.state in _ENDING:
            return Standing.UNREGISTERED
        return Standing.FAILED if self.failed else Standing.REGISTERING


class Registration:
    """The binding of `contact` to the address of record of `trunk`.

    `uniform` returns a random number between two bounds. Raises SipError if the trunk cannot
    register.
    """

    def __init__(
        self,
        trunk: Trunk,
        contact: Uri,
        user_agent: str = "",
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        if not (trunk.server and trunk.username):
            raise SipError(f"trunk {trunk.name!r}: registering needs a server and a username")
        self.trunk = trunk
        self.requests = RegisterRequests(trunk, contact, user_agent)
        self.servers = ServerChoice()
        """The owner sets how many the trunk's name resolves to."""
        self.public_address: tuple[str, int] | None = None
        """Source address of our last request as the registrar saw it (RFC 3581)."""
        self._moved_at = -CONTACT_CHANGE_INTERVAL_S
        self._uniform = uniform
        self._state = RegistrationState.UNREGISTERED
        self._detail = ""
        self._expires_at: float | None = None
        self._due: float | None = None
        self._failed = False  # since the last success
        self._failures = 0  # rounds since the last success
        self._breaks = 0  # connections in a row that broke before they were stable
        self._broken = False  # the connection, since we registered
        self._bound_at = 0.0
        self._request: Request | None = None  # awaiting its final response
        self._unsent: Request | None = None
        self._granted = 0  # expiry of the last 2xx, in seconds
        self._again: Request | None = None

    # --- what the owner calls ---

    @property
    def status(self) -> RegistrationStatus:
        return RegistrationStatus(
            self.trunk.name, self._state, self._expires_at, self._detail, self._failed
        )

    @property
    def bound(self) -> bool:
        """Whether there is a binding, as far as we know."""
        return self._expires_at is not None

    def start(self, now: float) -> None:
        self._apply(Event.START, now)

    def unregister(self, now: float) -> None:
        """Remove the binding; complete when the state is UNREGISTERED."""
        self._apply(Event.STOP, now)

    def move(self, contact: Uri, now: float) -> None:
        """Replace the contact: the next REGISTER, sent at once if there is a binding, replaces the
        old one. At least CONTACT_CHANGE_INTERVAL_S between two
        changes."""
        if contact == self.requests.contact:
            return
        self.requests.move(contact, self.bound)
        if self._state in (RegistrationState.REGISTERED, RegistrationState.LAPSING):
            self._refresh_now(now)
            self.handle_timer(now)

    def connection_lost(self, why: str, now: float) -> None:
        """The connection to the server in use is gone, and with it the way by which the registrar
        reaches us; `why` says the reason, if known."""
        if self._state not in _BOUND or self._broken:
            return
        self._broken = True
        if now - self._bound_at >= STABLE_S:
            self._breaks = 0
        if self._breaks >= MAX_BREAKS:
            self._detail = "the registrar keeps no connections: calls must reach our Contact"
            self._apply(Event.CLOSED, now)
        else:
            self._detail = f"the connection to the registrar broke{why and f' ({why})'}"
            self._apply(Event.BROKEN, now)

    def refresh(self, now: float) -> None:
        """Refresh or renew the binding now: its server has gone, or has come back, or one before it
        has."""
        if self._state is not RegistrationState.REFUSED:
            self._apply(Event.DUE, now)

    def request_to_send(self) -> tuple[Request, int] | None:
        """Return a REGISTER without Via and the number of its server; usually None."""
        request, self._unsent = self._unsent, None
        if self.servers.current >= self.servers.number:  # there are fewer servers now
            self.servers.current = 0
        return None if request is None else (request, self.servers.current)

    def receive(self, response: Response, now: float) -> None:
        """Handle a response to our REGISTER; others, and provisional ones, are ignored."""
        request = self._request
        if request is None or response.status < 200 or response.call_id != self.requests.call_id:
            return
        if response.cseq != request.cseq:
            return
        self._request = None
        self.learn_address(response)
        before, event = self._detail, self._event_for(response, request, now)
        if event is Event.AGAIN:  # a challenge is no failure
            self._detail = before
        self._apply(event, now)

    def failed(self, reason: str, now: float) -> None:
        """Handle a REGISTER that timed out or could not be sent; `reason` says which."""
        if self._request is None:
            return
        self._request = self._unsent = None
        self._detail = f"no response from the registrar ({reason})"
        self._apply(self._after_failure(now), now)

    def get_timer(self) -> float | None:
        times = [self._due, self._expires_at]
        return min((t for t in times if t is not None), default=None)

    def handle_timer(self, now: float) -> None:
        if self._due is not None and now >= self._due:
            self._apply(Event.DUE, now)
        if self._expires_at is not None and now >= self._expires_at:
            self._apply(Event.LAPSED, now)

    # --- responses ---

    def _event_for(self, response: Response, request: Request, now: float) -> Event:
        status = response.status
        if status < 300:
            self._granted = self.requests.granted(response)
            if self._granted or self._state is RegistrationState.UNREGISTERING:
                return Event.ACCEPTED
            self._detail = "the registrar accepted the request but stored no contact of ours"
            return self._after_failure(now)
        self._detail = f"{status} {response.reason}".strip()
        try:
            if status in (401, 407):
                self._again = self.requests.authorize(response, request)
                return Event.AGAIN
            if status == 423 and self._state is not RegistrationState.UNREGISTERING:
                self._again = self.requests.raise_expiry(response)
                return Event.AGAIN
        except Denied as error:
            self._detail += f": {error}"
            return Event.DENIED
        if status in TEMPORARY or 500 <= status < 600:
            wait = number(response.headers.get("Retry-After"), MAX_RETRY_AFTER_S)
            if wait:
                self._detail += f", retry after {wait} s"
                self.servers.busy_until(now + wait)
            return self._after_failure(now)
        if status < 400:
            self._detail += ": redirects are not followed"
        return Event.DENIED

    def _after_failure(self, now: float) -> Event:
        return Event.NEXT if self.servers.next(now) else Event.EXHAUSTED

    def learn_address(self, response: Response) -> None:
        """Read from our own Via in a response of the registrar's which address it saw (RFC 3581
        §4)."""
        via = response.via
        try:
            host = str(ip_address(via.received or via.host))
            self.public_address = (host, parse_port(via.rport or str(via.port or 5060)))
        except ValueError:
            return

    # --- state machine ---

    def _apply(self, event: Event, now: float) -> None:
        row = TRANSITIONS.get((self._state, event))
        if row is not None:
            self._state, action = row
            self._perform(action, now)

    def _perform(self, action: Action, now: float) -> None:
        match action:
            case Action.START_ROUND:
                self.servers.start_round(now)
                self.requests.start_round()
                self._due = None
                self._send(self.requests.make())
            case Action.TRY_NEXT:
                self._send(self.requests.make())
            case Action.REPEAT:
                again, self._again = self._again, None
                if again is not None:
                    self.requests.repeated(again)
                    self._send(again)
            case Action.REMOVE:
                self._due = None
                self._send(self.requests.make(0))
            case Action.BIND:
                self._bind(now)
            case Action.BACK_OFF:
                self._back_off(now)
            case Action.RECONNECT:  # over another connection (RFC 5626 §4.5)
                self._lapse()
                self._defer(now)
            case Action.DEFER:
                self._defer(now)
            case Action.REST:
                self._failed = True
                self._expires_at = None
                self._due = now + self._uniform(REFUSED_S, REFUSED_S * (1 + REFRESH_SPREAD))
            case Action.LAPSE:
                self._lapse()
            case Action.FORGET:
                self._expires_at = self._due = None
                self._unsent = None
            case Action.NOTHING:
                pass

    def _send(self, request: Request) -> None:
        self._request = self._unsent = request

    def _bind(self, now: float) -> None:
        """Record the binding and schedule its refresh (RFC 3261 §10.2.4)."""
        life = self._granted
        self._failures = 0
        self._failed, self._detail = False, ""
        if not self._broken and now - self._bound_at >= STABLE_S:
            self._breaks = 0
        if self._broken or self._expires_at is None:
            self._bound_at = now
        self._broken = False
        self._expires_at = now + life
        ahead = max(life / 2, life - REFRESH_MARGIN_S)
        ahead *= self._uniform(1 - REFRESH_SPREAD, 1)
        self._due = now + max(ahead, MIN_REFRESH_S)
        if not self.requests.bind():
            self._refresh_now(now)

    def _refresh_now(self, now: float) -> None:
        """Schedule another REGISTER for a new contact."""
        self._moved_at = max(now, self._moved_at + CONTACT_CHANGE_INTERVAL_S)
        self._due = self._moved_at if self._due is None else min(self._due, self._moved_at)

    def _back_off(self, now: float) -> None:
        """Back off by RFC 5626 §4.5; longer if every server sent Retry-After."""
        self._failed = True
        self._due = now + self._wait(self._failures)
        self._failures += 1
        if (free_at := self.servers.all_busy_until) is not None:
            self._due = max(self._due, free_at)

    def _wait(self, failures: int) -> float:
        """Seconds to wait after `failures` earlier failures (RFC 5626 §4.5)."""
        longest = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(failures, 16))
        return self._uniform(longest / 2, longest)

    def _defer(self, now: float) -> None:
        first = self._uniform(0, RECONNECT_SPREAD_S)
        due = now + (self._wait(self._breaks - 1) if self._breaks else first)
        self._due = due if self._expires_at is None or self._due is None else min(due, self._due)
        self._breaks += 1

    def _lapse(self) -> None:
        self._failed = True
        self._detail = self._detail or "the registration has expired"
        self._expires_at = None
