"""Maintenance of trunks between calls: registrations, NAT keep-alives, and probes of servers we do
not register with.

Sans-io, a part of the user agent, which passes on the results of these requests by `answered` and
`failed`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.trunks.keep_alive import KeepAlives
from offhook.telephony.sip.trunks.registration_table import RegistrationState
from offhook.telephony.sip.trunks.registrations import RegistrationChanged, Registrations
from offhook.telephony.sip.trunks.trunk_servers import TrunkServers
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


@dataclass(frozen=True)
class TrunkChanged:
    """A monitored trunk has come up or gone down."""

    state: TrunkState


class Upkeep:
    """Maintains all trunks."""

    def __init__(
        self,
        settings: SipSettings,
        servers: TrunkServers,
        registrations: Registrations,
        send: Callable[[Request, Flow, float], object],
        introduction: Callable[[Flow, Trunk], Sequence[tuple[str, str]]],
        keep_alives: KeepAlives,
    ) -> None:
        """`send` starts a transaction. `introduction` returns the headers of OPTIONS that say to a
        trunk who we are. `keep_alives` knows the calls."""
        self.registrations = registrations
        self._settings = settings
        self._servers = servers
        self._send = send
        self._introduction = introduction
        self._watches = {
            trunk.name: TrunkWatch(trunk, settings.user_agent)
            for trunk in settings.trunks
            if trunk.server
        }
        self._reported_states: dict[str, TrunkState] = {}
        self._keep_alives = keep_alives
        self._events: deque[RegistrationChanged | TrunkChanged] = deque()

    # --- for the owner ---

    def use(self, settings: SipSettings, now: float) -> None:
        """Apply other trunks. Changed ones are treated as new and registered again."""
        self.registrations.use(settings, now)
        known = {trunk.name: trunk for trunk in self._settings.trunks}
        new = {trunk.name: trunk for trunk in settings.trunks}
        self._settings = settings
        for name in {n for n, trunk in known.items() if new.get(n) != trunk}:
            self._watches.pop(name, None)
        for name, trunk in new.items():
            if trunk.server and known.get(name) != trunk:
                self._watches[name] = TrunkWatch(trunk, settings.user_agent)

    def use_servers(self, trunk: str, flows: Sequence[Flow], now: float) -> None:
        """Set the flows to a trunk's servers, in the order to try."""
        flows = self._servers.use(trunk, flows)
        self.registrations.use_servers(trunk, len(flows))
        if (watch := self._watches.get(trunk)) is not None:
            watch.use(flows, now)
        self._update_keep_alives(now)

    def close(self, now: float) -> None:
        """Remove all registrations and stop probing."""
        self._watches.clear()
        self.registrations.unregister(now)

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
        registration = self.registrations.of(trunk)
        if registration is None or watched.state == "down":
            return watched
        status = registration.status
        reach = _REACH.get(status.state, "down" if status.detail else "unknown")
        return TrunkState(trunk.name, reach, status.detail)

    def sorted(self, trunk: Trunk, flows: Sequence[Flow]) -> list[Flow]:
        """Return the flows to a trunk in the order to try: first the server that has our
        registration, and none that is down unless all are."""
        watch, home = self._watches.get(trunk.name), self.registrations.home(trunk)
        left = list(flows)
        if watch is not None:
            left = [flow for flow in flows if not watch.is_down(flow)] or left
        if home is not None:
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

    # --- results ---

    def flow_failed(self, flow: Flow, why: str, now: float) -> None:
        """Handle the end of a connection, or a datagram that could not be sent: registrations over
        it are made again, and the servers behind it probed."""
        self.registrations.flow_failed(flow, why, now)
        for watch in self._watches.values():
            watch.probe_now(flow, now)

    def answered(self, response: Response, now: float) -> None:
        """Handle a response to a request sent here, if it is one."""
        if self.registrations.answered(response, now):
            return
        for watch in self._watches_asking(response.call_id):
            watch.receive(response, now)
            self.registrations.learn_address(response, watch.flow_of(response.call_id), now)
            return

    def failed(self, request: Request, reason: str, why: str, now: float) -> None:
        """Handle a request without a response: `reason` is "timeout" or "transport", `why` the
        details if known."""
        self.registrations.failed(request, why or reason, now)
        for watch in self._watches_asking(request.call_id):
            watch.failed(request, why, now)

    def get_timer(self) -> float | None:
        timers = [w.get_timer() for w in self._watches.values()]
        timers += [self.registrations.get_timer(), self._keep_alives.get_timer()]
        return min((t for t in timers if t is not None), default=None)

    def handle_timer(self, now: float) -> None:
        self.registrations.handle_timer(now)
        for watch in self._watches.values():
            watch.handle_timer(now)

    def update(self, now: float) -> None:
        """Send pending requests and report changes. A registration is refreshed at once if its
        server has gone down, so that another takes over, or has come back, and may have forgotten
        us; and if one before its server has come back, so that it returns there."""
        for watch in self._watches.values():
            for flow in watch.changed_servers():
                self.registrations.server_changed(watch.trunk, flow, watch.is_down(flow), now)
        if self.registrations.update(now):
            self._update_keep_alives(now)
        while self.registrations.events:
            self._events.append(self.registrations.events.popleft())
        for watch in self._watches.values():
            for request, flow in watch.probes_to_send():
                for name, value in self._introduction(flow, watch.trunk):
                    request.headers.add(name, value)
                self._send(request, flow, now)
            state = watch.state
            if state.state != "unknown" and self._reported_states.get(state.trunk) != state:
                self._reported_states[state.trunk] = state
                self._events.append(TrunkChanged(state))

    def _watches_asking(self, call_id: str) -> Iterator[TrunkWatch]:
        return (watch for watch in self._watches.values() if watch.owns(call_id))

    def _update_keep_alives(self, now: float) -> None:
        """Keep the NAT binding to the server with our registration open: over UDP nothing else is
        sent for minutes."""
        homes = self.registrations.homes
        self._keep_alives.use((flow for flow in homes if flow.transport == "UDP"), now)
