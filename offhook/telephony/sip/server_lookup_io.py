"""Resolves the servers of trunks and the next hops of calls by DNS (RFC 3263).

The addresses of the trunks' servers are refreshed regularly; a trunk that registers does so once
its server has been resolved.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from time import monotonic

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.telephony.call_progress_io import DialError
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.network.resolver_io import ResolveError, Resolver, Target
from offhook.telephony.sip.stack_io import SipStack
from offhook.telephony.sip.trunks.registration import Registration, RegistrationStatus
from offhook.telephony.sip.trunks.registration_table import RegistrationState
from offhook.telephony.sip.trunks.trunk_watch import TrunkState
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk

RESOLVE_INTERVAL_S = 300.0
"""Interval of refreshing the addresses of the trunks' servers..."""
RESOLVE_RETRY_S = 30.0
"""...and after a failed look-up."""


class ServerLookup:
    """DNS look-ups for one stack."""

    def __init__(
        self,
        stack: SipStack,
        ip_versions: Collection[int],
        on_error: Callable[[str], None] = lambda trunk: None,
    ) -> None:
        """`ip_versions`: those of the addresses we listen on, 4 and 6; media use the same
        version. `on_error` is called with the name of a trunk whose server cannot be resolved, for
        each reason."""
        self.resolver = Resolver()
        self._stack = stack
        self._agent = stack.agent
        self._ip_versions = ip_versions
        self._on_error = on_error
        self._settings = SipSettings()
        self._errors: dict[str, str] = {}
        """By the name of a trunk whose server has not been resolved yet."""
        self._trunks: dict[str, asyncio.Task[None]] = {}
        """Look-up tasks by trunk name."""
        self._tasks = TaskSet()
        """These, and the look-ups of next hops."""

    def use(self, settings: SipSettings) -> None:
        """Resolve these trunks' servers; unchanged trunks continue."""
        before = {trunk.name: trunk for trunk in self._settings.trunks}
        there = {trunk.name: trunk for trunk in settings.trunks}
        self._settings = settings
        for name, trunk in before.items():
            if there.get(name) != trunk:
                self._errors.pop(name, None)
                if (task := self._trunks.pop(name, None)) is not None:
                    task.cancel()
        for name, trunk in there.items():
            if before.get(name) != trunk and trunk.server:
                self._trunks[name] = self._tasks.spawn(self._refresh_trunk(trunk), f"trunk {name}")

    def trunk_states(self) -> list[TrunkState]:
        """Return the state of each trunk with a server: whether it can place calls, and why not."""
        return [
            TrunkState(trunk.name, "down", self._errors[trunk.name])
            if trunk.name in self._errors
            else self._agent.upkeep.state(trunk)
            for trunk in self._settings.trunks
            if trunk.server
        ]

    def trunks_down(self) -> list[str]:
        """Return the names of the trunks with `ready_probe` that can place or receive no calls."""
        probed = {trunk.name for trunk in self._settings.trunks if trunk.ready_probe}
        states = self.trunk_states() if probed else []
        return [s.trunk for s in states if s.trunk in probed and s.state == "down"]

    def registrations(self) -> list[RegistrationStatus]:
        """Return the status of each trunk that registers, also while its server is unknown."""
        known = {status.trunk: status for status in self._agent.upkeep.registrations.statuses}
        unknown = (t.name for t in self._settings.trunks if t.register and t.name not in known)
        for name in unknown:
            error = self._errors.get(name, "")
            registering = RegistrationState.REGISTERING
            known[name] = RegistrationStatus(name, registering, None, error, bool(error))
        return list(known.values())

    def locate(self, hop: Uri) -> None:
        """Resolve a next hop and report it to the user agent."""
        self._tasks.spawn(self._locate(hop), "sip look-up")

    async def close(self) -> None:
        await self._tasks.close()

    async def _refresh_trunk(self, trunk: Trunk) -> None:
        registration: Registration | None = None
        found, told = False, ""
        while True:
            try:
                flows = await self._find(trunk.server_uris, trunk)
            except DialError as error:
                if str(error) != told:
                    logger.warning("trunk {}: {}", trunk.name, error)
                told = str(error)
                if not found:
                    self._errors[trunk.name] = str(error)
                    self._on_error(trunk.name)
                await asyncio.sleep(RESOLVE_RETRY_S)
                continue
            found, told = True, ""
            self._errors.pop(trunk.name, None)
            self._agent.use_targets(trunk.name, flows, monotonic())
            if trunk.register and registration is None:
                contact = self._agent.addresses.contact(flows[0], trunk)
                registration = Registration(trunk, contact, self._settings.user_agent)
                self._agent.register(registration, monotonic())
            self._stack.process()
            await asyncio.sleep(RESOLVE_INTERVAL_S)

    async def flows_to(self, target: Uri, trunk: Trunk | None) -> Sequence[Flow]:
        """Return the flows to try for a request to `target`, in order. Raises DialError."""
        if trunk is None or not trunk.server:
            return await self._find((target,), trunk)
        return self._agent.upkeep.sorted(trunk, await self._find(trunk.server_uris, trunk))

    async def _find(self, hops: Sequence[Uri], trunk: Trunk | None) -> Sequence[Flow]:
        """Return the flows to these hosts, regardless of their known state. Raises DialError if
        none of them can be found."""
        usual = trunk.transport if trunk is not None else "UDP"
        resolving = (self.resolver.resolve(hop, usual) for hop in hops)
        found = await asyncio.gather(*resolving, return_exceptions=True)
        targets: dict[tuple[str, str, int], Target] = {}
        for result in found:
            if isinstance(result, ResolveError):
                continue
            if isinstance(result, BaseException):
                raise result
            for t in result:  # two names of one address are one server
                targets.setdefault((t.transport, t.host, t.port), t)
        if not targets:
            raise DialError(0, str(found[0]))
        verify = trunk.tls_verify if trunk is not None else True
        versions = self._ip_versions
        reachable = [t for t in targets.values() if (6 if ":" in t.host else 4) in versions]
        if not reachable:
            there, here = ("IPv4", "IPv6") if 6 in versions else ("IPv6", "IPv4")
            raise DialError(0, f"{hops[0].host} has only {there} addresses; we listen on {here}")
        return [
            self._stack.transports.flow_to(t.transport, t.host, t.port, t.server_name, verify)
            for t in reachable
        ]

    async def _locate(self, hop: Uri) -> None:
        found = None
        try:
            found = (await self.flows_to(hop, None))[0]
        except DialError as error:
            logger.info("next hop {} of a call: {}", hop.host, error)
        finally:
            self._agent.next_hops.located(hop, found)
        loop = asyncio.get_running_loop()
        loop.call_later(RESOLVE_INTERVAL_S, self._agent.next_hops.located, hop, None)
