"""Our server with phones as a child of a benchmark: a real edge behind its real routes and a real
SIP endpoint, with one of these in place of the conversation.

echo       what a caller says comes back: jitter buffer, decoder, resampler, playout, encoder
vad        the same, and the voice detector hears every call
scripted   a whole conversation with the engines and the agent of `scripted`
"""

import argparse
import asyncio
import os
from collections import Counter

from aiohttp import web

from offhook.bench.edge_server import EchoCall, EchoEdge, ScriptedEdge
from offhook.bench.memory import memory_route
from offhook.bench.process import LoopLag, stats_route, stay
from offhook.media.leg import Leg
from offhook.pipeline.speech.vad.vad import SpeechDetector
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.web.config.config import MAX_CALLS, Config, Log, Server, WebRtc
from offhook.web.config.config import Agent as AgentSettings
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run

LOOPBACK = Trunk("loopback", addresses=("127.0.0.0/8",))
WORDS = 13
"""Words of a scripted reply."""
RTP_PORTS = (16_384, 32_767)
COUNTED = ("heard_ms", "packets_received", "packets_lost", "packets_late", "concealed_ms")


class LineStats:
    """Statistics of all calls of a process, including ended ones."""

    def __init__(self) -> None:
        self._live: set[Leg] = set()
        self._ended: Counter[str] = Counter()
        self._mos: list[float] = []
        """MOS of calls that ended since the last query."""

    def enter(self, leg: Leg) -> None:
        self._live.add(leg)

    def leave(self, leg: Leg) -> None:
        self._live.discard(leg)
        self._ended += _counts(leg)
        self._mos += _mos(leg)

    def read(self) -> dict[str, object]:
        """Returns sums since the start, and the MOS of current calls and of those that ended since
        the last query."""
        total, mos = self._ended.copy(), self._mos
        self._mos = []
        for leg in self._live:
            total += _counts(leg)
            mos += _mos(leg)
        return {**{name: total[name] for name in COUNTED}, "mos": sorted(mos)}


def _counts(leg: Leg) -> Counter[str]:
    statistics = leg.statistics().as_dict()
    return Counter(
        {"heard_ms": leg.heard_ms, **{name: int(statistics[name] or 0) for name in COUNTED[1:]}}
    )


def _mos(leg: Leg) -> list[float]:
    mos = leg.statistics().mos
    return [] if mos is None else [round(mos, 3)]


class VadCall(EchoCall):
    """An echoed call that the voice detector hears."""

    async def converse(self, agent: AgentSettings) -> None:
        detector = SpeechDetector()

        def window(probability: float, level: float, end_sample: int) -> None:
            for _ in detector.window(probability, level, end_sample):
                pass

        stream = self._host.engines.configured.turn_detection.vad.open(window)
        stop = self.leg.listen(lambda heard, said, now: stream.feed(heard))
        try:
            await super().converse(agent)
        finally:
            stop()
            stream.close()


class VadEdge(EchoEdge):
    call_class = VadCall


def edge_of(kind: str, config: Config) -> Edge:
    match kind:
        case "echo":
            return EchoEdge(config)
        case "vad":
            return VadEdge(config)
    return ScriptedEdge(config, WORDS)


def counted(edge: Edge) -> LineStats:
    """Collects statistics of every further call of the edge."""
    lines = LineStats()

    class CountedCall(edge.call_class):  # type: ignore[misc, name-defined]
        async def converse(self, agent: AgentSettings) -> None:
            lines.enter(self.leg)
            try:
                await super().converse(agent)
            finally:
                lines.leave(self.leg)

    edge.call_class = CountedCall
    return lines


def sip_route(app: web.Application, edge: Edge, lines: LineStats) -> None:
    """Adds GET /sip: the SIP port, the calls' statistics, and the endpoint's counts."""

    async def sip(request: web.Request) -> web.Response:
        endpoint = edge.sip
        assert endpoint is not None
        agent = endpoint.user_agent
        return web.json_response(
            {
                "port": endpoint.bound[0][2],
                "lines": lines.read(),
                "calls": len(endpoint.calls),
                "sessions": agent.sessions,
                "transactions": agent.transactions,
                "tick_late_ms": round(edge.clock.lateness_ms(), 2),
                "skipped_ticks": edge.clock.skipped_ticks,
            }
        )

    app.router.add_get("/sip", sip)


def configuration(max_calls: int) -> Config:
    sip = SipSettings(
        udp=0, tcp=None, trunks=(LOOPBACK,), rtp_ports=RTP_PORTS, max_calls=2 * max_calls
    )
    return Config(
        server=Server(max_calls=max_calls, drain_seconds=0),
        webrtc=WebRtc(addresses=["127.0.0.1"]),
        sip=sip,
    )


async def serve(kind: str, max_calls: int) -> None:
    edge = edge_of(kind, configuration(max_calls))
    await edge.start()
    app, lag = application(edge), LoopLag()
    stats_route(app, lag)
    memory_route(app)
    sip_route(app, edge, counted(edge))
    watching = asyncio.create_task(lag.watch())
    try:
        await stay(app)
    finally:
        watching.cancel()
        await edge.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("echo", "vad", "scripted"))
    parser.add_argument("--max-calls", type=int, default=MAX_CALLS)
    parser.add_argument("--cpu", type=int, help="to run on, of those there are")
    arguments = parser.parse_args()
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    set_up(Log(level="WARNING"))
    run(serve(arguments.kind, arguments.max_calls))


if __name__ == "__main__":
    main()
