"""Our server with Twilio as a child of a benchmark: a real edge behind its real routes, signatures
included, with one of these in place of the conversation.

echo       what a caller says comes back: jitter buffer, decoder, resampler, playout, encoder
vad        the same, and the voice detector hears every call

It may be one of several processes that share a port, as those of `offhook serve` do.
"""

import argparse
import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from offhook.bench.edge_server import EchoEdge
from offhook.bench.phones.server import LineStats, VadEdge, counted, edge_of
from offhook.bench.process import LoopLag, stats_route, stay
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.web.config.config import MAX_CALLS, Config, Log, Server, WebRtc
from offhook.web.edge import processes_io
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.edge.siblings_io import NumberedEdge
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run

SECRET = "0123456789abcdef0123456789abcdef"
TWILIO = CarrierSettings("twilio", account="AC0123456789abcdef0123456789abcdef", secret=SECRET)


def carriers_route(app: web.Application, edge: Edge, lines: LineStats) -> None:
    """GET /carried: what the lines heard, and how long their marks take."""

    async def carried(request: web.Request) -> web.Response:
        statistics = [leg.statistics() for leg in edge.legs]
        return web.json_response(
            {
                "lines": lines.read(),
                "round_trip_ms": [s.round_trip_ms for s in statistics if s.round_trip_ms],
                "tick_late_ms": round(edge.clock.lateness_ms(), 2),
                "skipped_ticks": edge.clock.skipped_ticks,
            }
        )

    app.router.add_get("/carried", carried)


class NumberedEcho(NumberedEdge, EchoEdge):
    """One of several."""


class NumberedVad(NumberedEdge, VadEdge):
    """One of several."""


@dataclass(frozen=True)
class Shared:
    """The processes that this is one of."""

    number: int
    processes: int
    directory: Path
    port: int


def configuration(shared: Shared | None) -> Config:
    place = {} if shared is None else {"port": shared.port, "processes": shared.processes}
    server = Server.model_validate({"max_calls": MAX_CALLS, "drain_seconds": 0, **place})
    return Config(server=server, webrtc=WebRtc(addresses=["127.0.0.1"]), carriers=(TWILIO,))


async def serve_alone(kind: str) -> None:
    edge = edge_of(kind, configuration(None))
    await edge.start()
    try:
        await _stay(application(edge), edge)
    finally:
        await edge.close()


async def serve_shared(kind: str, shared: Shared) -> None:
    """Says on a port of its own how it is doing."""
    of_kind = NumberedEcho if kind == "echo" else NumberedVad
    edge = of_kind(configuration(shared), None, shared.number)
    await edge.start()
    async with processes_io.shared(edge, shared.directory):
        await _stay(web.Application(), edge)


async def _stay(app: web.Application, edge: Edge) -> None:
    lag = LoopLag()
    stats_route(app, lag)
    carriers_route(app, edge, counted(edge))
    watching = asyncio.create_task(lag.watch())
    try:
        await stay(app)
    finally:
        watching.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("echo", "vad"))
    parser.add_argument("--cpu", type=int, help="to run on, of those there are")
    parser.add_argument("--number", type=int, default=1, help="of several processes")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="where the processes find each other")
    parser.add_argument("--port", type=int, default=0, help="that they share")
    a = parser.parse_args()
    if a.cpu is not None:
        os.sched_setaffinity(0, {a.cpu})
    set_up(Log(level="WARNING"))
    if a.processes == 1:
        run(serve_alone(a.kind))
    else:
        run(serve_shared(a.kind, Shared(a.number, a.processes, a.directory, a.port)))


if __name__ == "__main__":
    main()
