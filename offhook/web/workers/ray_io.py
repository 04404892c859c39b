"""Workers on Ray Serve: it places, heals, counts and upgrades them; sound never passes through it.

A `Worker` minds one worker process, which listens on a port of its own; edges connect to it
directly. A `Directory` lists the workers to them. Needs ray[serve], and of offhook's other packages
none: the worker processes are started from another environment.
"""

import math
import os
from time import monotonic
from typing import Any

import ray
from pydantic import BaseModel, Field, field_validator
from ray import serve
from ray.serve.config import AutoscalingContext
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse

from offhook.web.workers.minder_io import Minder

KEY = "OFFHOOK_WORKER_API_KEY"
"""Variable of the environment of `ray start`, which workers inherit."""
DRAIN_S = 45.0
"""Time in s in which a worker that drains must have ended, longer than it waits for its streams."""
LIST_KEPT_S = 0.5
"""Time in s for which a list of the workers is kept: edges cannot make many requests of one."""
ASK_S = 1.0
"""Time limit in s for the workers' answers to the directory, as an edge waits for 2; of workers
that do not answer the last known address is kept."""


class WorkerSettings(BaseModel, extra="forbid"):
    """The `args` of an application in Serve's configuration."""

    command: list[str] = Field(min_length=1)
    """Command line of a worker without `--listen`."""

    @field_validator("command")
    @classmethod
    def _without_key(cls, command: list[str]) -> list[str]:
        """Ray shows its configuration to whoever asks."""
        if any(word.startswith("--api-key") for word in command):
            raise ValueError(f"the key belongs into {KEY}, where Ray is started")
        return command


class Worker:
    """Minds a worker process on a free port of this node's address."""

    async def __init__(self, command: list[str]) -> None:  # type: ignore[misc]
        if not os.environ.get(KEY):
            raise RuntimeError(f"Ray was started without {KEY}: anyone could use the worker")
        if os.getpriority(os.PRIO_PROCESS, 0) > 0:
            raise RuntimeError("Ray was started without RAY_worker_niceness=0: sound would stutter")
        self._minder = Minder(command, ray.util.get_node_ip_address())
        await self._minder.start()

    def url(self) -> str:
        return self._minder.url

    async def check_health(self) -> None:
        await self._minder.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return {"streams": float((await self._minder.check()).get("streams", 0))}

    async def __del__(self) -> None:
        """Called by Serve before it ends the replica."""
        if hasattr(self, "_minder"):
            await self._minder.stop(DRAIN_S)


class Directory:
    """Answers every request with the workers' addresses, for `[asr] url` and `[tts] url`."""

    def __init__(self, workers: DeploymentHandle) -> None:
        self._workers = workers
        self._listed: list[str] | None = None
        """None: not known yet."""
        self._kept_until = 0.0

    async def __call__(self, request: Request) -> JSONResponse:
        if monotonic() > self._kept_until:
            await self._refresh()
        if self._listed is None:
            return JSONResponse({"error": "no worker has answered yet"}, 503)
        return JSONResponse({"workers": [{"url": url} for url in self._listed]})

    async def _refresh(self) -> None:
        """Where workers do not answer, what was known is kept."""
        try:
            answers = await self._workers.broadcast("url").results_async(
                timeout_s=ASK_S, return_exceptions=True
            )
        except (TimeoutError, RayServeException):
            answers = []
        urls = [answer for answer in answers if isinstance(answer, str)]
        if urls:
            self._listed = sorted(urls)
        self._kept_until = monotonic() + LIST_KEPT_S


def by_streams(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Policy of an `autoscaling_config`: as many workers as hold `target_ongoing_requests` streams
    each. It takes none away while some have not reported, as after a restart of the head."""
    assert context.config is not None
    held = (context.aggregated_metrics or {}).get("streams", {})
    wanted = math.ceil(sum(held.values()) / context.config.target_ongoing_requests)
    if len(held) < context.current_num_replicas:
        wanted = max(wanted, context.target_num_replicas)
    return wanted, {}


WORKER = serve.deployment(
    max_surge_percent=100,  # an upgrade starts the new worker before the old one drains
    health_check_period_s=1,
    health_check_timeout_s=5,
    graceful_shutdown_wait_loop_s=0.1,
    graceful_shutdown_timeout_s=DRAIN_S + 5,
)(Worker)
DIRECTORY = serve.deployment(max_surge_percent=100, ray_actor_options={"num_cpus": 0})(Directory)
"""Serve's configuration may set these options anew."""


def app(settings: WorkerSettings) -> serve.Application:
    """Builds the application: `import_path` in Serve's configuration."""
    return DIRECTORY.bind(WORKER.bind(settings.command))
