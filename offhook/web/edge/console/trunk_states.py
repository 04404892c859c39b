"""The trunks and carriers of an edge as the console shows them, without secrets."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from offhook.telephony.carriers.providers import provider_called
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.trunks.trunks import Trunk
from offhook.web.edge.carriers.carriers_io import Carriers
from offhook.web.edge.edge_io import Edge
from offhook.web.records.times import iso


def trunk_states(edge: Edge) -> list[dict[str, Any]]:
    """Returns the trunks and carriers of a process."""
    phones = _phones(edge.sip) if edge.sip is not None else []
    return [*phones, *(_carriers(edge.carriers) if edge.carriers is not None else ())]


def _phones(sip: SipEndpoint) -> list[dict[str, Any]]:
    lines = Counter(sip.calls[call].info.trunk for call in sip.lines if call in sip.calls)
    standings = {status.trunk: status.standing for status in sip.registrations()}
    histories = sip.trunk_histories()
    found = []
    for trunk in sip.stack.settings.trunks:
        state = {**_trunk(trunk), "lines": lines[trunk.name]}
        if (history := histories.get(trunk.name)) is not None:
            state |= {"state": history.state, "since": iso(history.since)}
            state["fault"] = history.fault
            state["fault_at"] = None if history.fault_at is None else iso(history.fault_at)
        state["registration"] = str(standings.get(trunk.name, ""))
        found.append(state)
    if others := sum(number for name, number in lines.items() if not name):
        found.append({**_none("", "strangers"), "lines": others})
    return found


def _none(name: str, kind: str) -> dict[str, Any]:
    nothing = {"server": "", "transport": "", "registration": "", "state": "", "since": None}
    return {"name": name, "kind": kind, **nothing, "fault": "", "fault_at": None, "max_lines": 0}


def _trunk(trunk: Trunk) -> dict[str, Any]:
    servers = ", ".join(uri.host for uri in trunk.server_uris) if trunk.server else ""
    where = {"server": servers, "transport": trunk.transport if trunk.server else ""}
    return {**_none(trunk.name, "sip"), **where, "max_lines": trunk.max_calls}


def _carriers(carriers: Carriers) -> list[dict[str, Any]]:
    lines = Counter(call.carrier for call in carriers.calls.in_progress())
    found = []
    for name, carrier in carriers.by_name.items():
        settings = carrier.settings
        state = {**_none(name, settings.provider), "max_lines": settings.max_calls}
        state["server"] = settings.public_url
        if name in carriers.bound:
            host, port = carriers.bound[name]
            state["server"] = f"{provider_called(settings.provider).listens} at {host}:{port}"
        found.append({**state, "lines": lines[name]})
    return found


def merged(states: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merges the trunks of several processes: their lines are added."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for state in (each for of_process in states for each in of_process):
        key = state["kind"], state["name"]
        if key in found:
            found[key]["lines"] += state["lines"]
        else:
            found[key] = dict(state)
    return list(found.values())
