"""What is done for the trunks between calls: registrations are kept up, the way in through a NAT
is kept open, and servers that we do not register with are asked whether they are there.

Sans-io, a part of the user agent: it hands on what comes of these requests, by `answered` and
`failed`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.trunks.keep_alive import KeepAlives
from offhook.telephony.sip.trunks.registration import Registration, RegistrationStatus
from offhook.telephony.sip.trunks.registration_table import RegistrationState
from offhook.telephony.sip.trunks.trunk_watch import Reach, TrunkState, TrunkWatch
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk

_REACH: dict[RegistrationState, Reach] = {
    RegistrationState.REGISTERED: "up",
    RegistrationState.REFRESHING: "up",
    RegistrationState.LAPSING: "up",
    RegistrationState.WAITING: "down",
    RegistrationState.REFUSED: "down",
}
"""What a registration says of its trunk. In all other states it is "down" when something has gone
wrong before, else "unknown"."""


OVER = (RegistrationState.UNREGISTERED, RegistrationState.REFUSED)


@dataclass(frozen=True)
class RegistrationChanged:
    status: RegistrationStatus


@dataclass(frozen=True)
class TrunkChanged:
    """A trunk that is watched has come up or gone down."""

    state: TrunkState


class Upkeep:
    """Of all trunks."""

    def __init__(
        self,
        settings: SipSettings,
        send: Callable[[Request, Flow, float], object],
        address_of: Callable[[Flow], tuple[str, int]],
    ) -> None:
        """`send` begins a transaction. `address_of`: our host and port towards the far end of a
        flow."""
        self._settings = settings
        self._send = send
        self._address_of = address_of
        self._targets: dict[str, Sequence[Flow]] = {}
        """Of trunks, in the order of trying."""
        self._registrations: dict[str, Registration] = {}
        """By Call-ID."""
        self._leaving: set[str] = set()
        """Of the registrations those of trunks that are no longer in the settings."""
        self._told: dict[str, RegistrationStatus] = {}
        self._watches = {
            trunk.name: TrunkWatch(trunk, settings.user_agent)
            for trunk in settings.trunks
            if trunk.watch_s
        }
        self._told_of: dict[str, TrunkState] = {}
        self._keep_alives = KeepAlives()
        self._events: deque[RegistrationChanged | TrunkChanged] = deque()

    # --- for the owner ---

    def use(self, settings: SipSettings, now: float) -> None:
        """Other trunks. Those that have changed are as new ones, to be registered again."""
        known = {trunk.name: trunk for trunk in self._settings.trunks}
        new = {trunk.name: trunk for trunk in settings.trunks}
        self._settings = settings
        for name in {n for n, trunk in known.items() if new.get(n) != trunk}:
            self._watches.pop(name, None)
            for call_id, registration in self._registrations.items():
                if registration.trunk.name == name and call_id not in self._leaving:
                    self._leaving.add(call_id)
                    registration.unregister(now)
        for name, trunk in new.items():
            if trunk.watch_s and known.get(name) != trunk:
                self._watches[name] = TrunkWatch(trunk, settings.user_agent)

    def use_targets(self, trunk: str, flows: Sequence[Flow], now: float) -> None:
        """Where a trunk's server is, in the order of trying. Where DNS gives the same servers in
        another order, as it may each time, the registration stays with its own."""
        before = self._targets.get(trunk, ())
        flows = before if set(flows) == set(before) else flows
        self._targets[trunk] = flows
        for registration in self._registrations.values():
            if registration.trunk.name == trunk:
                registration.targets = len(flows)
        if (watch := self._watches.get(trunk)) is not None:
            watch.use(flows, now)
        self._choose_ways(now)

    def register(self, registration: Registration, now: float) -> None:
        """Begin it and keep it up; `use_targets` has been called."""
        registration.targets = len(self._targets[registration.trunk.name])
        self._registrations[registration.call_id] = registration
        registration.start(now)

    def unregister(self, now: float) -> None:
        """Take all registrations back, and ask nothing more."""
        self._watches.clear()
        for registration in self._registrations.values():
            registration.unregister(now)

    @property
    def registrations(self) -> list[RegistrationStatus]:
        return [r.status for c, r in self._registrations.items() if c not in self._leaving]

    @property
    def busy(self) -> bool:
        """A registration is not taken back yet."""
        return any(r.status.state not in OVER for r in self._registrations.values())

    def next_event(self) -> RegistrationChanged | TrunkChanged | None:
        return self._events.popleft() if self._events else None

    def keep_alives_to_send(self, now: float) -> list[Flow]:
        """To whom `KEEP_ALIVE` is to be sent now."""
        return self._keep_alives.take_due(now)

    # --- what is known of a trunk ---

    def state(self, trunk: Trunk) -> TrunkState:
        """As its registration says, and the answers of its servers where they are asked."""
        watch = self._watches.get(trunk.name)
        watched = watch.state if watch is not None else TrunkState(trunk.name, "unknown")
        registration = self._of(trunk)
        if registration is None or watched.state == "down":
            return watched
        status = registration.status
        reach = _REACH.get(status.state, "down" if status.detail else "unknown")
        return TrunkState(trunk.name, reach, status.detail)

    def sorted(self, trunk: Trunk, flows: Sequence[Flow]) -> list[Flow]:
        """The ways to a trunk in the order of trying: first to the server that has our
        registration, and none to a server that is down when another is not."""
        watch, registration = self._watches.get(trunk.name), self._of(trunk)
        left = list(flows)
        if watch is not None:
            left = [flow for flow in flows if not watch.is_down(flow)] or left
        if registration is not None and registration.bound:
            home = self._target(registration)
            left.sort(key=lambda flow: flow.remote != home.remote)
        return left

    def doubt(self, trunk: Trunk, flow: Flow, now: float) -> None:
        """A call has not got through to this server of the trunk."""
        if (watch := self._watches.get(trunk.name)) is not None:
            watch.doubt(flow, now)

    def is_target(self, flow: Flow) -> bool:
        """Whether a trunk's server is at the flow's far end."""
        return any(f.remote == flow.remote for flows in self._targets.values() for f in flows)

    def seen_at(self, trunk: Trunk | None, host: str) -> tuple[str, int] | None:
        """Where the registrar sees us, when that is not `host`, which is ours, because a NAT is
        between (RFC 3581). None where there is no NAT, or nobody who could say."""
        registration = self._of(trunk) if trunk is not None else None
        seen = registration.public_address if registration is not None else None
        if seen is None or seen[0] == host or self._settings.public_address:
            return None
        return None if ip_address(host).is_global else seen

    # --- what comes ---

    def answered(self, response: Response, now: float) -> bool:
        """Whether the response is to something asked here."""
        call_id = response.call_id
        if (registration := self._registrations.get(call_id)) is not None:
            registration.receive(response, now)
            self._move(registration, now)
            return True
        for watch in self._asking(call_id):
            watch.receive(response, now)
            return True
        return False

    def failed(self, request: Request, reason: str, why: str, now: float) -> None:
        """There is no answer to a request: `reason` "timeout" or "transport", `why` in words, as
        far as they are known."""
        if (registration := self._registrations.get(request.call_id)) is not None:
            registration.failed(why or reason, now)
        for watch in self._asking(request.call_id):
            watch.failed(request, why, now)

    def get_timer(self) -> float | None:
        timers = [r.get_timer() for r in self._registrations.values()]
        timers += [w.get_timer() for w in self._watches.values()]
        timers.append(self._keep_alives.get_timer())
        return min((t for t in timers if t is not None), default=None)

    def handle_timer(self, now: float) -> None:
        for registration in self._registrations.values():
            timer = registration.get_timer()
            if timer is not None and timer <= now:
                registration.handle_timer(now)
        for watch in self._watches.values():
            watch.handle_timer(now)

    def tend(self, now: float) -> None:
        """Send what is to be sent, and note what has changed."""
        for call_id, registration in tuple(self._registrations.items()):
            while (asked := registration.request_to_send()) is not None:
                self._send(asked[0], self._target(registration), now)
            status = registration.status
            if call_id in self._leaving:
                if status.state in OVER:
                    del self._registrations[call_id]
                    self._leaving.discard(call_id)
                continue
            if self._told.get(status.trunk) != status:
                self._told[status.trunk] = status
                self._events.append(RegistrationChanged(status))
                self._choose_ways(now)
        for watch in self._watches.values():
            for request, flow in watch.questions_to_send():
                self._send(request, flow, now)
            state = watch.state
            if state.state != "unknown" and self._told_of.get(state.trunk) != state:
                self._told_of[state.trunk] = state
                self._events.append(TrunkChanged(state))

    # --- inside ---

    def _of(self, trunk: Trunk) -> Registration | None:
        of = self._registrations.items()
        found = (r for c, r in of if r.trunk.name == trunk.name and c not in self._leaving)
        return next(found, None)

    def _asking(self, call_id: str) -> Iterator[TrunkWatch]:
        return (watch for watch in self._watches.values() if watch.asked(call_id))

    def _target(self, registration: Registration) -> Flow:
        targets = self._targets[registration.trunk.name]
        return targets[min(registration.target, len(targets) - 1)]

    def _move(self, registration: Registration, now: float) -> None:
        """The registrar says where our packets come from: that is how it reaches us through a NAT,
        unless the settings know better. Of a connection that is true of this one alone, so there
        it only counts when a NAT is between."""
        seen, contact = registration.public_address, registration.contact
        flow = self._target(registration)
        if flow.reliable:
            seen = self.seen_at(registration.trunk, self._address_of(flow)[0])
        if seen is not None and not self._settings.public_address:
            registration.move(replace(contact, host=seen[0], port=seen[1]), now)

    def _choose_ways(self, now: float) -> None:
        """Over UDP nothing else is sent for minutes to the server that has our binding."""
        homes = (self._target(r) for r in self._registrations.values() if r.bound)
        self._keep_alives.use((flow for flow in homes if flow.transport == "UDP"), now)
