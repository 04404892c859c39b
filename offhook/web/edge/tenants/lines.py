"""The lines of tenants: whose a call is, and whether there is another line for it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from offhook.media.leg import CallInfo
from offhook.web.config.people.tenants import (
    Tenants,
    owner_of_agent,
    owner_of_number,
    tenant_of,
)
from offhook.web.edge.refusals import Busy
from offhook.web.http.metrics import Reason

Held = Mapping[str, CallInfo]
"""The calls that hold a line, by their ids."""


class TenantLines(Collector):
    """The tenants of a server, and the lines that each has now, which are a metric too."""

    def __init__(
        self,
        tenants: Callable[[], Tenants],
        held: Callable[[], Held],
        refusal: Callable[[Reason, str], Busy],
    ) -> None:
        """`refusal` counts a refusal and returns what to raise."""
        self._tenants, self._held, self._refusal = tenants, held, refusal

    def named(self, info: CallInfo, agent: str | None) -> CallInfo:
        """Returns a call to this agent, None for no agent, with its tenant. One that has its tenant
        keeps it, whatever the configuration has become."""
        tenants = self._tenants()
        if not tenants or info.tenant:
            return info
        return replace(info, tenant=tenant_of(tenants, info, agent))

    def check(
        self, info: CallInfo, agent: str | None, call_id: str = "", extension: str = ""
    ) -> None:
        """Raises Busy if the call's tenant has as many lines as it may, apart from this call's, or
        if the agent or the extension is another tenant's."""
        tenants = self._tenants()
        if not tenants:
            return
        if self.is_foreign(info, agent, extension):
            raise self._refusal("foreign", "")
        tenant = tenants.get(info.tenant)
        if tenant is None or not tenant.max_calls:
            return
        others = (one.tenant for known, one in self._held().items() if known != call_id)
        if sum(name == info.tenant for name in others) >= tenant.max_calls:
            words = f"all {tenant.max_calls} lines of {info.tenant} are in use"
            raise self._refusal("tenant", words)

    def is_foreign(self, info: CallInfo, agent: str | None, extension: str) -> bool:
        """Returns whether the agent or the extension that a call is to reach is another tenant's.
        A call of nobody's may reach any extension: no tenant can place one."""
        tenants = self._tenants()
        of_agent = "" if agent is None else owner_of_agent(tenants, agent)
        of_extension = owner_of_number(tenants, extension) if info.tenant else ""
        return not {of_agent, of_extension} <= {"", info.tenant}

    def check_agent(self, agent: str) -> None:
        """Raises Busy if the tenant of an agent has no line for a call that is nobody else's."""
        self.check(self.named(CallInfo(), agent), agent)

    def collect(self) -> Iterable[Metric]:
        """Counts the lines of each tenant of the configuration, on each scrape."""
        words = "Lines of each tenant now"
        family = GaugeMetricFamily("offhook_tenant_lines", words, labels=["tenant"])
        if tenants := self._tenants():
            lines = Counter(info.tenant for info in self._held().values())
            for name in tenants:
                family.add_metric([name], lines[name])
        yield family
