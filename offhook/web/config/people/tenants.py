"""`[tenants.NAME]`: customers who share a server, what is theirs, and whose a call is."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from offhook.media.leg import CallInfo
from offhook.telephony.sip.trunks.extension import PREFIX as EXTENSION
from offhook.web.config.agents import DEFAULT
from offhook.web.config.section import Secret, Section
from offhook.web.config.server import MAX_CALLS, Server

TenantName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
Number = Annotated[
    str, Field(pattern=r"^[^\s*?\[\]]{1,64}\*?$", examples=["+4930222", "+4930222*"])
]
Things = Literal["agents", "trunks", "carriers", "queues", "numbers"]
THINGS: tuple[Things, ...] = ("agents", "trunks", "carriers", "queues")


def covers(pattern: str, other: str) -> bool:
    """Returns whether a number, or all numbers of another pattern, are of this one too."""
    wide, narrow = pattern.lower(), other.lower()
    return bool(narrow) and (wide == narrow or (wide[-1] == "*" and narrow.startswith(wide[:-1])))


class Tenant(Section):
    """A customer of several who share the server."""

    key: Secret = ""
    """Key of the customer's own operator: for the calls, agents, trunks and so on of this tenant,
    and for nothing else. It needs [server] admin_key."""
    reader_key: Secret = ""
    """Key of those who may look at this tenant's calls, but neither listen to recordings nor change
    anything."""
    agents: tuple[str, ...] = ()
    """Names of its [agents]; "agent" is [agent]."""
    trunks: tuple[str, ...] = ()
    """Names of its [[sip.trunks]]: all their calls are the tenant's."""
    carriers: tuple[str, ...] = ()
    """Names of its [[carriers]], likewise."""
    numbers: tuple[Number, ...] = Field((), examples=[["+49301234*", "101"]])
    """Its numbers and extensions, where a trunk or carrier is nobody's: those that are called, and
    of outgoing calls those that call. A * at the end stands for any further digits."""
    queues: tuple[str, ...] = ()
    """Names of its [queues]."""
    max_calls: int = Field(0, ge=0, le=MAX_CALLS)
    """Lines that it may have at a time in a process; a phone gets 486 for a further call, programs
    503. 0: as many as the server."""

    def has_number(self, number: str) -> bool:
        """Returns whether a number, or all numbers of a pattern, are among its own."""
        return any(covers(own, number) for own in self.numbers)


Tenants = Mapping[str, Tenant]


def owner(tenants: Tenants, things: Things, name: str) -> str:
    """Returns the tenant that has this agent, trunk, carrier, queue or number; "" for nobody."""
    if things == "numbers":
        return owner_of_number(tenants, name)
    return next((tenant for tenant, its in tenants.items() if name in getattr(its, things)), "")


def owner_of_agent(tenants: Tenants, agent: str) -> str:
    """The same of an agent as a call names it, "" being [agent]."""
    return owner(tenants, "agents", agent or DEFAULT)


def owner_of_number(tenants: Tenants, number: str) -> str:
    """The same of a number, or of a pattern of numbers."""
    return next((tenant for tenant, its in tenants.items() if its.has_number(number)), "")


def tenant_of(tenants: Tenants, info: CallInfo, agent: str | None) -> str:
    """Returns whose a call is: the tenant's that has its trunk or carrier, else its number, else
    its agent; "" for nobody. `agent` is None for a call that goes to none."""
    of_trunk = owner(tenants, "trunks" if info.edge == "sip" else "carriers", info.trunk)
    if of_trunk:
        return of_trunk
    extension = info.trunk.removeprefix(EXTENSION) if info.trunk.startswith(EXTENSION) else ""
    for number in (extension, info.caller if info.direction == "outbound" else info.called):
        if of_number := owner_of_number(tenants, number):
            return of_number
    return "" if agent is None else owner_of_agent(tenants, agent)


# --- what is wrong with them ---


@dataclass(frozen=True)
class Way:
    """How calls come to an agent, a queue or an extension, or go over a trunk or carrier."""

    where: str
    """The key of the configuration."""
    source: str
    """Whose calls come this way; "" for anybody's."""
    things: Things
    target: str
    only_own: bool = False
    """Whether those of nobody may not come to what is a tenant's, as they may be anybody's."""


def faults_between(tenants: Tenants, ways: Iterable[Way]) -> Iterator[str]:
    """Yields the ways on which the calls of one tenant come to what is another's."""
    for way in ways:
        its = owner(tenants, way.things, way.target)
        if its and its != way.source and (way.source or way.only_own):
            who = f"calls of {way.source}" if way.source else "calls of everybody"
            yield f"{way.where}: {way.target!r} is {its}'s, and {who} come here"


def faults_of_tenants(
    tenants: Tenants, known: Mapping[Things, Collection[str]], server: Server
) -> Iterator[str]:
    """Yields what is wrong with the tables; `known` are the names of all things."""
    for name, tenant in tenants.items():
        for things in THINGS:
            for one in getattr(tenant, things):
                if one not in known[things]:
                    there = ", ".join(known[things]) or "none"
                    words = f"there is no {things[:-1]} {one!r} (there: {there})"
                    yield f"tenants.{name}.{things}: {words}"
                elif (first := owner(tenants, things, one)) != name:
                    yield f"tenants.{name}.{things}: {one!r} is {first}'s already"
    yield from _faults_of_numbers(tenants)
    yield from _faults_of_keys(tenants, server)


def _faults_of_numbers(tenants: Tenants) -> Iterator[str]:
    named = [(name, number) for name, its in tenants.items() for number in its.numbers]
    for index, (name, number) in enumerate(named):
        for first, other in named[:index]:
            if first != name and (covers(other, number) or covers(number, other)):
                yield f"tenants.{name}.numbers: {number!r} is {first}'s already ({other!r})"


def _faults_of_keys(tenants: Tenants, server: Server) -> Iterator[str]:
    seen = {server.api_key, server.admin_key, server.reader_key} - {""}
    for name, tenant in tenants.items():
        for setting in ("key", "reader_key"):
            key = getattr(tenant, setting)
            if key and not server.admin_key:
                words = "needs [server] admin_key: without it this machine's user is the operator"
                yield f"tenants.{name}.{setting}: {words}"
            if key in seen:
                yield f"tenants.{name}.{setting}: somebody else has this key"
            seen |= {key} - {""}
