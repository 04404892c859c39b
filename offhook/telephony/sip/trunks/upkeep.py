"""Maintenance of trunks between calls: registrations, NAT keep-alives, and probes of servers we do
not register with.

Sans-io, a part of the user agent, which passes on the results of these requests by `answered` and
`failed`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.trunks.keep_alive import KeepAlives
from offhook.telephony.sip.trunks.registration import (
    Registration,
    RegistrationStatus,
    Standing,
)
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
"""What a registration says about its trunk. In all other states it is "down" if something has
failed before, else "unknown"."""


OVER = (RegistrationState.UNREGISTERED, RegistrationState.REFUSED)
TRYING = (RegistrationState.REGISTERING, RegistrationState.REFRESHING)


@dataclass(frozen=True)
class RegistrationChanged:
    """A trunk is registered, is not any more, or is not for another reason."""

    status: RegistrationStatus


@dataclass(frozen=True)
class TrunkChanged:
    """A monitored trunk has come up or gone down."""

    state: TrunkState


class Upkeep:
    """Maintains all trunks."""

    def __init__(
        self,
        settings: SipSettings,
        send: Callable[[Request, Flow, float], object],
        address_of: Callable[[Flow], tuple[str, int]],
        introduction: Callable[[Flow, Trunk], Sequence[tuple[str, str]]],
    ) -> None:
        """`send` starts a transaction. `address_of` returns our host and port as a flow's far end
        reaches them, `introduction` the headers of OPTIONS that say to a trunk who we are."""
        self._settings = settings
        self._send = send
        self._address_of = address_of
        self._introduction = introduction
        self._targets: dict[str, Sequence[Flow]] = {}
        """Flows of each trunk, in the order to try."""
        self._registrations: dict[str, Registration] = {}
        """By Call-ID."""
        self._removed: set[str] = set()
        """Call-IDs of registrations whose trunks were removed from the settings, or changed..."""
        self._superseded: dict[str, Sequence[Flow]] = {}
        """...and the flows of those that are kept until the changed trunk has registered."""
        self._reported: dict[str, RegistrationStatus] = {}
        self._told: dict[str, tuple[Standing, str]] = {}
        """Standing and detail of each trunk in the last event."""
        self._watches = {
            trunk.name: TrunkWatch(trunk, settings.user_agent)
            for trunk in settings.trunks
            if trunk.server
        }
        self._reported_states: dict[str, TrunkState] = {}
        self._keep_alives = KeepAlives()
        self._events: deque[RegistrationChanged | TrunkChanged] = deque()

    # --- for the owner ---

    def use(self, settings: SipSettings, now: float) -> None:
        """Apply other trunks. Changed ones are treated as new and registered again; a binding is
        removed once its trunk has another, so that calls arrive all the while."""
        known = {trunk.name: trunk for trunk in self._settings.trunks}
        new = {trunk.name: trunk for trunk in settings.trunks}
        self._settings = settings
        forgotten: list[str] = []
        for name in {n for n, trunk in known.items() if new.get(n) != trunk}:
            self._watches.pop(name, None)
            for call_id, registration in self._registrations.items():
                if registration.trunk.name != name:
                    continue
                stays = name in new and new[name].register
                if call_id in self._removed:
                    if not stays and self._superseded.pop(call_id, None) is not None:
                        registration.unregister(now)
                    continue
                self._removed.add(call_id)
                if stays and registration.bound:
                    self._superseded[call_id] = self._targets[name]
                elif stays and new[name].address_of_record == registration.trunk.address_of_record:
                    forgotten.append(call_id)  # the new one takes its place at the registrar
                else:
                    registration.unregister(now)
        for call_id in forgotten:
            del self._registrations[call_id]
            self._removed.discard(call_id)
        for name, trunk in new.items():
            if trunk.server and known.get(name) != trunk:
                self._watches[name] = TrunkWatch(trunk, settings.user_agent)

    def use_targets(self, trunk: str, flows: Sequence[Flow], now: float) -> None:
        """Set the flows to a trunk's servers, in the order to try. If DNS returns the same servers
        in another order, as it may each time, the registration stays with its server."""
        before = self._targets.get(trunk, ())
        flows = before if set(flows) == set(before) else flows
        self._targets[trunk] = flows
        for registration in self._registrations.values():
            if registration.trunk.name == trunk:
                registration.targets = len(flows)
        if (watch := self._watches.get(trunk)) is not None:
            watch.use(flows, now)
        self._update_keep_alives(now)

    def register(self, registration: Registration, now: float) -> None:
        """Start a registration and maintain it; `use_targets` must have been called."""
        registration.targets = len(self._targets[registration.trunk.name])
        self._registrations[registration.call_id] = registration
        registration.start(now)

    def unregister(self, now: float) -> None:
        """Remove all registrations and stop probing."""
        self._watches.clear()
        for registration in self._registrations.values():
            registration.unregister(now)

    @property
    def registrations(self) -> list[RegistrationStatus]:
        return [r.status for c, r in self._registrations.items() if c not in self._removed]

    @property
    def busy(self) -> bool:
        """Whether a registration is still being removed."""
        return any(r.status.state not in OVER for r in self._registrations.values())

    def next_event(self) -> RegistrationChanged | TrunkChanged | None:
        return self._events.popleft() if self._events else None

    def keep_alives_to_send(self, now: float) -> list[Flow]:
        """Return the flows to send `KEEP_ALIVE` to now."""
        return self._keep_alives.pop_due(now)

    # --- trunk state ---

    def state(self, trunk: Trunk) -> TrunkState:
        """Return a trunk's state from its registration and the probes of its servers."""
        watch = self._watches.get(trunk.name)
        watched = watch.state if watch is not None else TrunkState(trunk.name, "unknown")
        registration = self._registration_of(trunk)
        if registration is None or watched.state == "down":
            return watched
        status = registration.status
        reach = _REACH.get(status.state, "down" if status.detail else "unknown")
        return TrunkState(trunk.name, reach, status.detail)

    def sorted(self, trunk: Trunk, flows: Sequence[Flow]) -> list[Flow]:
        """Return the flows to a trunk in the order to try: first the server that has our
        registration, and none that is down unless all are."""
        watch, registration = self._watches.get(trunk.name), self._registration_of(trunk)
        left = list(flows)
        if watch is not None:
            left = [flow for flow in flows if not watch.is_down(flow)] or left
        if registration is not None and registration.bound:
            home = self._target(registration)
            left.sort(key=lambda flow: flow.remote != home.remote)
        return left

    def call_failed(self, trunk: Trunk, flow: Flow, why: str, now: float) -> None:
        """A call to this server of the trunk failed: it is probed. If it did not respond, as `why`
        says, others are called before it until it does."""
        if (watch := self._watches.get(trunk.name)) is not None:
            watch.call_failed(flow, why, now)

    def call_taken(self, trunk: Trunk, flow: Flow) -> None:
        """This server of the trunk has responded to a call."""
        if (watch := self._watches.get(trunk.name)) is not None:
            watch.call_taken(flow)

    def is_target(self, flow: Flow) -> bool:
        """Return whether a trunk's server is at the flow's far end."""
        return any(f.remote == flow.remote for flows in self._targets.values() for f in flows)

    def public_address_of(self, trunk: Trunk | None, host: str) -> tuple[str, int] | None:
        """Return the address at which the registrar sees us, if it differs from `host`, ours,
        because of a NAT (RFC 3581). None without a NAT, or if unknown."""
        registration = self._registration_of(trunk) if trunk is not None else None
        seen = registration.public_address if registration is not None else None
        if seen is None or seen[0] == host or self._settings.public_address:
            return None
        return None if ip_address(host).is_global else seen

    # --- results ---

    def flow_failed(self, flow: Flow, why: str, now: float) -> None:
        """Handle the end of a connection, or a datagram that could not be sent: registrations over
        it are made again, and the servers behind it probed."""
        for registration in self._registrations.values():
            if self._target(registration) == flow:
                registration.connection_lost(why, now)
        for watch in self._watches.values():
            watch.probe_now(flow, now)

    def answered(self, response: Response, now: float) -> bool:
        """Handle a response. Returns whether it was to a request sent here."""
        call_id = response.call_id
        if (registration := self._registrations.get(call_id)) is not None:
            registration.receive(response, now)
            self._update_contact(registration, now)
            return True
        for watch in self._watches_asking(call_id):
            watch.receive(response, now)
            self._learn_address(response, watch.flow_of(call_id), now)
            return True
        return False

    def failed(self, request: Request, reason: str, why: str, now: float) -> None:
        """Handle a request without a response: `reason` is "timeout" or "transport", `why` the
        details if known."""
        if (registration := self._registrations.get(request.call_id)) is not None:
            registration.failed(why or reason, now)
        for watch in self._watches_asking(request.call_id):
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

    def update(self, now: float) -> None:
        """Send pending requests and report changes. A registration is refreshed at once if its
        server has gone down, so that another takes over, or has come back, and may have forgotten
        us."""
        changed = {flow for watch in self._watches.values() for flow in watch.changed_servers()}
        for registration in self._registrations.values() if changed else ():
            if any(flow.remote == self._target(registration).remote for flow in changed):
                registration.refresh(now)
        for call_id, registration in tuple(self._registrations.items()):
            while (asked := registration.request_to_send()) is not None:
                self._send(asked[0], self._target(registration), now)
            status = registration.status
            if call_id in self._removed:
                self._replace(registration, now)
                if call_id in self._registrations and status.state in OVER:
                    del self._registrations[call_id]
                    self._superseded.pop(call_id, None)
                    self._removed.discard(call_id)
                continue
            if self._reported.get(status.trunk) != status:
                self._report(status)
                self._update_keep_alives(now)
        for watch in self._watches.values():
            for request, flow in watch.probes_to_send():
                for name, value in self._introduction(flow, watch.trunk):
                    request.headers.add(name, value)
                self._send(request, flow, now)
            state = watch.state
            if state.state != "unknown" and self._reported_states.get(state.trunk) != state:
                self._reported_states[state.trunk] = state
                self._events.append(TrunkChanged(state))

    # --- internals ---

    def _report(self, status: RegistrationStatus) -> None:
        """Report a change of standing at once, and another reason at the end of an attempt."""
        self._reported[status.trunk] = status
        standing, detail = self._told.get(status.trunk, (None, ""))
        if status.standing is standing and (status.detail == detail or status.state in TRYING):
            return
        self._told[status.trunk] = status.standing, status.detail
        self._events.append(RegistrationChanged(status))

    def _registration_of(self, trunk: Trunk) -> Registration | None:
        of = self._registrations.items()
        found = (r for c, r in of if r.trunk.name == trunk.name and c not in self._removed)
        return next(found, None)

    def _watches_asking(self, call_id: str) -> Iterator[TrunkWatch]:
        return (watch for watch in self._watches.values() if watch.owns(call_id))

    def _replace(self, old: Registration, now: float) -> None:
        """Remove the binding of a changed trunk once the new one exists. If both are one at the
        registrar, the old is only forgotten: to remove it would remove the new one."""
        new = self._registration_of(old.trunk)
        if old.call_id not in self._superseded or new is None or not new.bound:
            return
        same = (new.trunk.address_of_record, new.contact) == (
            old.trunk.address_of_record,
            old.contact,
        )
        if same:  # also at another server: they may share what they know
            del self._registrations[old.call_id], self._superseded[old.call_id]
            self._removed.discard(old.call_id)
        else:
            old.unregister(now)
            while (asked := old.request_to_send()) is not None:
                self._send(asked[0], self._target(old), now)

    def _target(self, registration: Registration) -> Flow:
        targets = self._superseded.get(registration.call_id)
        targets = targets or self._targets[registration.trunk.name]
        return targets[min(registration.target, len(targets) - 1)]

    def _learn_address(self, response: Response, flow: Flow | None, now: float) -> None:
        """Learn from the response to a probe that a NAT has given us another address since we
        registered, long before the refresh would."""
        if not (response.via.received or response.via.rport):
            return
        for registration in self._registrations.values():
            if registration.bound and flow == self._target(registration) and not flow.reliable:
                registration.learn_address(response)
                self._update_contact(registration, now)

    def _update_contact(self, registration: Registration, now: float) -> None:
        """Use the address at which the registrar sees us, which is how it reaches us through a NAT,
        unless an address or a name is configured. For a connection it holds for that connection
        only, so it counts only if there is a NAT."""
        if registration.trunk.public_name:
            return
        seen, contact = registration.public_address, registration.contact
        flow = self._target(registration)
        if flow.reliable:
            seen = self.public_address_of(registration.trunk, self._address_of(flow)[0])
        if seen is not None and not self._settings.public_address:
            registration.move(replace(contact, host=seen[0], port=seen[1]), now)

    def _update_keep_alives(self, now: float) -> None:
        """Keep the NAT binding to the server with our registration open: over UDP nothing else is
        sent for minutes."""
        homes = (self._target(r) for r in self._registrations.values() if r.bound)
        self._keep_alives.use((flow for flow in homes if flow.transport == "UDP"), now)
