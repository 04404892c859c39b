"""GET /healthz, /readyz and /metrics, which every server has, and /health for clients of vLLM."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Table = dict[str, Any]


@dataclass(frozen=True)
class Health:
    health: Callable[[], Table]
    """Returns the body of /healthz."""
    readiness: Callable[[], Table]
    """Returns the body of /readyz, which is 503 unless its member `ready` is true."""
    registry: CollectorRegistry


HEALTH: web.AppKey[Health] = web.AppKey("health", Health)


async def healthz(request: web.Request) -> web.Response:
    return web.json_response(request.app[HEALTH].health())


async def readyz(request: web.Request) -> web.Response:
    state = request.app[HEALTH].readiness()
    return web.json_response(state, status=200 if state["ready"] else 503)


async def metrics(request: web.Request) -> web.Response:
    body = generate_latest(request.app[HEALTH].registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def add_health_routes(app: web.Application, health: Health) -> None:
    app[HEALTH] = health
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/health", readyz)  # vLLM listens when it is ready
    app.router.add_get("/metrics", metrics)
