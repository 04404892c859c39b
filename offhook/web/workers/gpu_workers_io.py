"""A worker process for each GPU, on a port of its own: `--device all` of `offhook worker`.

Edges know them by one address, http://HOST:PORT/workers, which lists all ports, and choose among
them by load. One shared port (SO_REUSEPORT) would spread connections blindly.
"""

import asyncio
import socket
from contextlib import ExitStack
from dataclasses import replace

from loguru import logger

from offhook.processes.restarts import Backoff
from offhook.web.http.listening_io import BACKLOG, Address
from offhook.web.http.stop_io import Stop
from offhook.web.workers.local_worker_io import GIVEN_UP_S, LocalWorker, of_all_gpus
from offhook.web.workers.worker_child_io import ChildSettings


async def serve_gpus(settings: ChildSettings, address: Address, stop: Stop) -> None:
    """Runs a worker for each GPU until `stop`; one that crashes is started again. `settings` has
    the door with any ports. Raises EngineError if there is no GPU, OSError if a port is taken."""
    assert settings.door is not None
    children = list(of_all_gpus(settings))
    with ExitStack() as sockets:
        listening = [
            sockets.enter_context(_listen(address.host, address.port and address.port + i))
            for i in range(len(children))
        ]
        ports = tuple(int(each.getsockname()[1]) for each in listening)
        door = replace(settings.door, ports=ports)
        running = [
            asyncio.create_task(_run(replace(child, door=door), each, number), name="GPU worker")
            for number, (child, each) in enumerate(zip(children, listening, strict=True))
        ]
        at = f"http://{address.host}:{ports[0]}/workers"
        logger.bind(listening=at).info("{} workers, listed at {}", len(ports), at)
        try:
            await stop.drain.wait()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _run(settings: ChildSettings, listening: socket.socket, number: int) -> None:
    given_up, name = Backoff(GIVEN_UP_S, GIVEN_UP_S), f"{settings.kind} worker {number}"
    await LocalWorker(settings, listening, given_up, name, at_once=True).run()


def _listen(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    listening.setblocking(False)
    return listening
