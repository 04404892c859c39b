"""Our server with Twilio as a child of a benchmark: a real edge behind its real routes, signatures
included, with one of these in place of the conversation.

echo       what a caller says comes back: jitter buffer, decoder, resampler, playout, encoder
vad        the same, and the voice detector hears every call
"""

import argparse
import asyncio
import os

from aiohttp import web

from offhook.bench.process import LoopLag, stats_route, stay
from offhook.bench.sip_server import Lines, counted, edge_of
from offhook.pipeline.vad_io import MAX_CALLS
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.web.config import Config, Log, Server, WebRtc
from offhook.web.edge_io import Edge
from offhook.web.logs import set_up
from offhook.web.loop_io import run
from offhook.web.server_io import application

SECRET = "0123456789abcdef0123456789abcdef"
TWILIO = CarrierSettings("twilio", account="AC0123456789abcdef0123456789abcdef", secret=SECRET)


def carriers_route(app: web.Application, edge: Edge, lines: Lines) -> None:
    """GET /carried: what the lines heard, and how long their marks take."""

    async def carried(request: web.Request) -> web.Response:
        statistics = [leg.statistics() for leg in edge.legs.values()]
        return web.json_response(
            {
                "lines": lines.take(),
                "round_trip_ms": [s.round_trip_ms for s in statistics if s.round_trip_ms],
                "tick_late_ms": round(edge.clock.lateness_ms(), 2),
                "skipped_ticks": edge.clock.skipped_ticks,
            }
        )

    app.router.add_get("/carried", carried)


async def serve(kind: str) -> None:
    edge = edge_of(
        kind,
        Config(
            server=Server(max_calls=MAX_CALLS, drain_seconds=0),
            webrtc=WebRtc(addresses=["127.0.0.1"]),
            carriers=(TWILIO,),
        ),
    )
    await edge.start()
    app, lag = application(edge), LoopLag()
    stats_route(app, lag)
    carriers_route(app, edge, counted(edge))
    watching = asyncio.create_task(lag.watch())
    try:
        await stay(app)
    finally:
        watching.cancel()
        await edge.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("echo", "vad"))
    parser.add_argument("--cpu", type=int, help="to run on, of those there are")
    arguments = parser.parse_args()
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    set_up(Log(level="WARNING"))
    run(serve(arguments.kind))


if __name__ == "__main__":
    main()
