"""The registrations of all trunks, also of those that were removed from the settings or changed, as
long as their bindings exist.

A changed trunk is registered again, and its old binding removed once it has another, so that calls
arrive all the while.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.trunks.registration import (
    Registration,
    RegistrationStatus,
    Standing,
)
from offhook.telephony.sip.trunks.registration_table import RegistrationState
from offhook.telephony.sip.trunks.trunk_servers import TrunkServers
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk

OVER = (RegistrationState.UNREGISTERED, RegistrationState.REFUSED)
TRYING = (RegistrationState.REGISTERING, RegistrationState.REFRESHING)


@dataclass(frozen=True)
class RegistrationChanged:
    """A trunk is registered, is not any more, or is not for another reason."""

    status: RegistrationStatus


class Registrations:
    """Maintains the registrations of all trunks."""

    def __init__(
        self,
        settings: SipSettings,
        servers: TrunkServers,
        send: Callable[[Request, Flow, float], object],
        address_of: Callable[[Flow], tuple[str, int]],
    ) -> None:
        """`send` starts a transaction. `address_of` returns our host and port as a flow's far end
        reaches them."""
        self._settings = settings
        self._servers = servers
        self._send = send
        self._address_of = address_of
        self._by_call_id: dict[str, Registration] = {}
        self._removed: set[str] = set()
        """Call-IDs of registrations whose trunks were removed from the settings, or changed..."""
        self._superseded: dict[str, Sequence[Flow]] = {}
        """...and the flows of those that are kept until the changed trunk has registered."""
        self._reported: dict[str, RegistrationStatus] = {}
        self._told: dict[str, tuple[Standing, str]] = {}
        """Standing and detail of each trunk in the last event."""
        self.events: deque[RegistrationChanged] = deque()
        """For the owner, who takes them."""

    # --- for the owner ---

    def use(self, settings: SipSettings, now: float) -> None:
        """Apply other trunks. The registrations of changed ones are kept until `register` has
        replaced them."""
        known = {trunk.name: trunk for trunk in self._settings.trunks}
        new = {trunk.name: trunk for trunk in settings.trunks}
        self._settings = settings
        for call_id, registration in tuple(self._by_call_id.items()):
            name = registration.trunk.name
            if name not in known or new.get(name) == known[name]:
                continue
            stays = name in new and new[name].register
            if call_id in self._removed:
                if not stays and self._superseded.pop(call_id, None) is not None:
                    registration.unregister(now)
                continue
            self._removed.add(call_id)
            if stays and registration.bound:
                self._superseded[call_id] = self._servers.of(name)
            elif stays and new[name].address_of_record == registration.trunk.address_of_record:
                self._forget(call_id)  # the new one takes its place at the registrar
            else:
                registration.unregister(now)

    def use_servers(self, trunk: str, number: int) -> None:
        """Set the number of a trunk's servers."""
        for registration in self._by_call_id.values():
            if registration.trunk.name == trunk:
                registration.servers.number = number

    def register(self, registration: Registration, now: float) -> None:
        """Start a registration and maintain it."""
        registration.servers.number = len(self._servers.of(registration.trunk.name))
        self._by_call_id[registration.requests.call_id] = registration
        registration.start(now)

    def unregister(self, now: float) -> None:
        """Remove all registrations."""
        for registration in self._by_call_id.values():
            registration.unregister(now)

    @property
    def statuses(self) -> list[RegistrationStatus]:
        return [r.status for c, r in self._by_call_id.items() if c not in self._removed]

    @property
    def busy(self) -> bool:
        """Whether a registration is still being removed."""
        return any(r.status.state not in OVER for r in self._by_call_id.values())

    @property
    def homes(self) -> Iterator[Flow]:
        """The flows to the servers that have our registrations."""
        return (self._target(r) for r in self._by_call_id.values() if r.bound)

    def of(self, trunk: Trunk) -> Registration | None:
        """Return a trunk's registration."""
        every = self._by_call_id.items()
        found = (r for c, r in every if r.trunk.name == trunk.name and c not in self._removed)
        return next(found, None)

    def home(self, trunk: Trunk) -> Flow | None:
        """Return the flow to the server that has a trunk's registration; None without one."""
        registration = self.of(trunk)
        bound = registration is not None and registration.bound
        return self._target(registration) if registration is not None and bound else None

    def public_address_of(self, trunk: Trunk | None, host: str) -> tuple[str, int] | None:
        """Return the address at which the registrar sees us, if it differs from `host`, ours,
        because of a NAT (RFC 3581). None without a NAT, or if unknown."""
        registration = self.of(trunk) if trunk is not None else None
        seen = registration.public_address if registration is not None else None
        if seen is None or seen[0] == host or self._settings.public_address:
            return None
        return None if ip_address(host).is_global else seen

    # --- results ---

    def flow_failed(self, flow: Flow, why: str, now: float) -> None:
        """Make the registrations over a connection that is gone again."""
        for registration in self._by_call_id.values():
            if self._target(registration) == flow:
                registration.connection_lost(why, now)

    def answered(self, response: Response, now: float) -> bool:
        """Handle a response. Returns whether it was to a request sent here."""
        registration = self._by_call_id.get(response.call_id)
        if registration is None:
            return False
        registration.receive(response, now)
        self._update_contact(registration, now)
        return True

    def failed(self, request: Request, why: str, now: float) -> None:
        """Handle a request without a response."""
        if (registration := self._by_call_id.get(request.call_id)) is not None:
            registration.failed(why, now)

    def learn_address(self, response: Response, flow: Flow | None, now: float) -> None:
        """Learn from the response to a probe that a NAT has given us another address since we
        registered, long before the refresh would."""
        if not (response.via.received or response.via.rport):
            return
        for registration in self._by_call_id.values():
            if registration.bound and flow == self._target(registration) and not flow.reliable:
                registration.learn_address(response)
                self._update_contact(registration, now)

    def server_changed(self, trunk: Trunk, flow: Flow, down: bool, now: float) -> None:
        """A server of a trunk has gone down or come back: refresh the registrations at it, and
        move the trunk's to one that is back and comes before its own."""
        for registration in self._by_call_id.values():
            if self._target(registration).remote == flow.remote:
                registration.refresh(now)
        own, flows = self.of(trunk), self._servers.of(trunk.name)
        back = not down and flow in flows
        if own is not None and back and own.servers.back(flows.index(flow)):
            own.refresh(now)

    # --- time ---

    def get_timer(self) -> float | None:
        timers = (r.get_timer() for r in self._by_call_id.values())
        return min((t for t in timers if t is not None), default=None)

    def handle_timer(self, now: float) -> None:
        for registration in self._by_call_id.values():
            timer = registration.get_timer()
            if timer is not None and timer <= now:
                registration.handle_timer(now)

    def update(self, now: float) -> bool:
        """Send pending requests. Returns whether a status has changed."""
        changed = False
        for call_id, registration in tuple(self._by_call_id.items()):
            self._send_pending(registration, now)
            status = registration.status
            if call_id in self._removed:
                self._replace(registration, now)
                if call_id in self._by_call_id and status.state in OVER:
                    self._forget(call_id)
            elif self._reported.get(status.trunk) != status:
                self._report(status)
                changed = True
        return changed

    def _send_pending(self, registration: Registration, now: float) -> None:
        while (asked := registration.request_to_send()) is not None:
            self._send(asked[0], self._target(registration), now)

    def _report(self, status: RegistrationStatus) -> None:
        """Report a change of standing at once, and another reason at the end of an attempt."""
        self._reported[status.trunk] = status
        standing, detail = self._told.get(status.trunk, (None, ""))
        if status.standing is standing and (status.detail == detail or status.state in TRYING):
            return
        self._told[status.trunk] = status.standing, status.detail
        self.events.append(RegistrationChanged(status))

    def _replace(self, old: Registration, now: float) -> None:
        """Remove the binding of a changed trunk once the new one exists. If both are one at the
        registrar, the old is only forgotten: to remove it would remove the new one."""
        new = self.of(old.trunk)
        if old.requests.call_id not in self._superseded or new is None or not new.bound:
            return
        same = (new.trunk.address_of_record, new.requests.contact) == (
            old.trunk.address_of_record,
            old.requests.contact,
        )
        if same:  # also at another server: they may share what they know
            self._forget(old.requests.call_id)
        else:
            old.unregister(now)
            self._send_pending(old, now)

    def _forget(self, call_id: str) -> None:
        del self._by_call_id[call_id]
        self._superseded.pop(call_id, None)
        self._removed.discard(call_id)

    def _target(self, registration: Registration) -> Flow:
        targets = self._superseded.get(registration.requests.call_id)
        targets = targets or self._servers.of(registration.trunk.name)
        return targets[min(registration.servers.current, len(targets) - 1)]

    def _update_contact(self, registration: Registration, now: float) -> None:
        """Use the address at which the registrar sees us, which is how it reaches us through a NAT,
        unless an address or a name is configured. For a connection it holds for that connection
        only, so it counts only if there is a NAT."""
        if registration.trunk.public_name:
            return
        seen, contact = registration.public_address, registration.requests.contact
        flow = self._target(registration)
        if flow.reliable:
            seen = self.public_address_of(registration.trunk, self._address_of(flow)[0])
        if seen is not None and not self._settings.public_address:
            registration.move(replace(contact, host=seen[0], port=seen[1]), now)
