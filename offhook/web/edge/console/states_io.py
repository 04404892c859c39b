"""GET /trunks, /extensions, /engines and /agents: how the parts of a server are. What describes
them is imported when somebody asks: a server that waits for calls is small."""

from collections.abc import Callable, Sequence
from time import monotonic, time
from typing import Any

from aiohttp import web

from offhook.pipeline.conversation.call_io import Call
from offhook.web.config.people.tenants import Tenant
from offhook.web.edge.history_io import ask, parameters, store_of
from offhook.web.edge.http_io import EDGE, Handler, error, wanted_tenant
from offhook.web.records.live_look import AgentSums

States = Sequence[list[dict[str, Any]]]
"""Of trunks, extensions or engines, those of each process."""


async def trunks(request: web.Request) -> web.Response:
    """GET /trunks."""
    from offhook.web.edge.console.trunk_states import trunk_states

    edge, tenant = request.app[EDGE], wanted_tenant(request)
    states = trunk_states(edge)
    if tenant:
        its = edge.config.tenants.get(tenant, Tenant())
        states = [
            each
            for each in states
            if each["name"] in (its.trunks if each["kind"] == "sip" else its.carriers)
        ]
    return web.json_response({"trunks": states})


async def extensions(request: web.Request) -> web.Response:
    """GET /extensions."""
    from offhook.web.edge.console.extension_states import extension_states

    edge, tenant = request.app[EDGE], wanted_tenant(request)
    states = extension_states(edge, time() - monotonic())
    if tenant:
        its = edge.config.tenants.get(tenant, Tenant())
        states = [each for each in states if its.has_number(each["number"])]
    return web.json_response({"extensions": states})


async def engines(request: web.Request) -> web.Response:
    """GET /engines. A bot brings its own, and none is known."""
    from offhook.web.workers.engines.engine_states import engine_states

    edge = request.app[EDGE]
    if edge.bot is not None:
        return web.json_response({"engines": []})
    used = [c.engines for c in edge.conversations.values() if isinstance(c, Call)]
    states = engine_states(edge.engines, edge.config, used, edge.metrics.span)
    return web.json_response({"engines": states})


async def agents(request: web.Request) -> web.Response:
    """GET /agents?from=…: with the calls that began since then, of the last 24 hours by
    default."""
    from offhook.web.edge.console.agent_states import agent_states

    edge, sums = request.app[EDGE], None
    if edge.records.kept is not None:
        from offhook.web.records.errors import SearchError
        from offhook.web.records.search import read_time

        try:
            start = read_time("from", parameters(request).get("from", "24h"))
        except SearchError as fault:
            return error(400, str(fault))
        sums = await _sums(request, start)
    states = agent_states(
        edge.config, sums, edge.agents.faults(), edge.agents.probes.gone, edge.agents.tools
    )
    if tenant := wanted_tenant(request):
        names = edge.config.tenants.get(tenant, Tenant()).agents
        its = [each for each in states["agents"] if each["name"] in names]
        states = {**states, "agents": its, "others": [], "faults": []}
    return web.json_response({**states, "is_bot": edge.bot is not None})


async def _sums(request: web.Request, start: float) -> dict[str, AgentSums]:
    """Raises NoRecords."""
    return dict(await ask(request, store_of(request).live.agents, start))


def merged_trunks(states: States) -> list[dict[str, Any]]:
    from offhook.web.edge.console.trunk_states import merged

    return merged(states)


def merged_engines(states: States) -> list[dict[str, Any]]:
    from offhook.web.workers.engines.engine_states import merged

    return merged(states)


MERGED: dict[Handler, tuple[str, Callable[[States], list[dict[str, Any]]]]] = {
    trunks: ("trunks", merged_trunks),
    extensions: ("extensions", lambda states: [each for state in states for each in state]),
    engines: ("engines", merged_engines),
}
"""What is asked of all processes: its name in the answer, and how theirs become one."""


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/trunks", trunks)
    router.add_get("/extensions", extensions)
    router.add_get("/engines", engines)
    router.add_get("/agents", agents)
