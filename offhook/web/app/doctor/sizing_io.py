"""`offhook doctor --calls 200`: what this machine measures, and what so many calls need."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import aiohttp

from offhook.pipeline.speech.engine_spec import KINDS, Cost, Kind
from offhook.pipeline.speech.remote.pool import WorkerAddress
from offhook.pipeline.speech.remote.worker_client_io import WorkerClient
from offhook.pipeline.speech.remote.worker_list_io import WorkerList
from offhook.web.app.doctor.call_cost_io import measure
from offhook.web.app.doctor.sizing import (
    Assumptions,
    Engine,
    Host,
    cost_of,
    lines,
    size,
)
from offhook.web.config.config import Config, load
from offhook.web.config.engines import OPENAI, Asr, Tts
from offhook.web.workers.engines.choice import Machine, choice_for
from offhook.web.workers.engines.engines_io import usual_model
from offhook.web.workers.engines.machine_io import keep_offline, look

GPU_QUERY_TIMEOUT_S = 5
ANSWER_S = 5.0
"""Time in s within which a configured worker answers."""


def report(calls: int, path: Path | None, as_json: bool) -> str:
    """Measures for three seconds. Raises ConfigError, OSError."""
    config = load(path)
    keep_offline(config)
    machine = look()
    host = Host(machine.cores, machine.memory_bytes, machine.instructions, _gpus())
    engines = {kind: _engine(config, kind, machine, host) for kind in KINDS}
    parts, assumptions = measure(), Assumptions()
    sizing = size(calls, parts, host, engines, assumptions)
    if not as_json:
        return "\n".join(lines(sizing, parts, host, assumptions))
    told = {"assumptions": assumptions, "measured": parts}
    plain = {name: vars(value) for name, value in told.items()}
    here = vars(host) | {"instructions": host.instructions.value}
    return json.dumps({**sizing.as_dict(), **plain, "machine": here}, indent=1)


def _gpus() -> tuple[str, ...]:
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        found = subprocess.run(
            query, capture_output=True, text=True, timeout=GPU_QUERY_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(found.stdout.strip().splitlines())


def _engine(config: Config, kind: Kind, machine: Machine, host: Host) -> Engine:
    section: Asr | Tts = config.asr if kind == "asr" else config.tts
    if section.engine == OPENAI:
        return Engine(f"of the server at {section.url}", None)
    if section.url:
        return asyncio.run(_workers(kind, section))
    engine, model = str(section.engine), section.model
    if section.automatic:
        choice = choice_for(config, kind, machine)
        engine, model = str(choice.engine), choice.model
    name = model or usual_model(kind, engine)
    on_gpu = bool(host.gpus) and section.device != "cpu"
    cost = cost_of(kind, engine, name, host.instructions, on_gpu)
    return Engine(" ".join(filter(None, (engine, name.rpartition("/")[2]))), cost)


async def _workers(kind: Kind, section: Asr | Tts) -> Engine:
    """Asks the workers of the configuration how many streams they take."""
    given = [section.url] if isinstance(section.url, str) else section.url
    listed = WorkerList(given)
    async with aiohttp.ClientSession() as http:
        await listed.refresh(http)
    asking = (_readiness(kind, address, section.api_key) for address in listed.addresses)
    states = [state for state in await asyncio.gather(*asking) if state.get("max_streams")]
    if not states:
        return Engine(f"of {', '.join(given)}, where no worker answers", None)
    name = str(states[0].get("model", "")).rpartition("/")[2] or "of workers"
    source = f"as the {len(states)} worker{'s' * (len(states) > 1)} of [{kind}] url take"
    most = sum(int(state["max_streams"]) for state in states) / len(states)
    return Engine(name, Cost("worker", most, source))


async def _readiness(kind: Kind, address: WorkerAddress, api_key: str) -> dict[str, Any]:
    """Returns the body of a worker's /readyz; empty without an answer."""
    client = WorkerClient(kind, address.url, api_key, address.ip)
    try:
        async with asyncio.timeout(ANSWER_S):
            return (await client.readiness())[1]
    except TimeoutError:
        return {}
    finally:
        await client.close()
