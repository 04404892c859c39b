"""The routes of the page's builder, for the operator: the agents with their settings and flows, and
what to write into the configuration."""

from typing import Any

from aiohttp import web

from offhook.signaling.smallwebrtc import RequestError
from offhook.web.config.agents import Agent
from offhook.web.edge.builder.drafts import as_toml, draft_of, settings_of
from offhook.web.edge.builder.drawing import drawing
from offhook.web.edge.http_io import EDGE, json_of

MAX_VOICES = 200
"""Maximum voices that the builder suggests; more are left out."""


async def agents(request: web.Request) -> web.Response:
    """GET /builder: the agents that answer calls, the usual one first, and the voices."""
    edge = request.app[EDGE]
    named = {name.removeprefix("agents."): a for name, a in edge.config.named_agents().items()}
    there = {} if edge.bot is not None else named
    listed = [_described(name, a) for name, a in there.items() if a.of_kind.answers]
    voices = edge.engines.of_new_calls().synthesizer.voices()[:MAX_VOICES] if listed else []
    return web.json_response({"agents": listed, "voices": voices})


def _described(name: str, agent: Agent) -> dict[str, Any]:
    flow = agent.loaded_flow
    return {
        "name": name,
        "kind": agent.kind,
        "description": agent.description,
        "own_voice": agent.of_kind.own_voice,
        "settings": settings_of(agent),
        "instructions_file": agent.instructions_file,
        "flow": None if flow is None else drawing(flow),
    }


async def toml(request: web.Request) -> web.Response:
    """POST /builder/toml: what is tried, as lines of the configuration."""
    config = request.app[EDGE].config
    try:
        wanted = await json_of(request)
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    draft = draft_of(wanted, config)
    before = config.agent_called(draft.agent)
    assert before is not None
    return web.json_response({"toml": as_toml(draft, before)})


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/builder", agents)
    router.add_post("/builder/toml", toml)
