"""What the lines of a server of ours have heard, for whoever measures it."""

from collections import Counter

from aiohttp import web

from offhook.media.leg import Leg
from offhook.web.config.config import Agent as AgentSettings
from offhook.web.edge.edge_io import Edge

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


def lines_route(app: web.Application, edge: Edge) -> None:
    """Adds GET /lines: statistics of all calls and of the clock; of SIP, where it is on, the port
    and what goes on."""
    lines = counted(edge)

    async def read(request: web.Request) -> web.Response:
        trips = [leg.statistics().round_trip_ms for leg in edge.legs]
        found = {
            "lines": lines.read(),
            "round_trip_ms": [ms for ms in trips if ms],
            "tick_late_ms": round(edge.clock.lateness_ms(), 2),
            "skipped_ticks": edge.clock.skipped_ticks,
        }
        if (endpoint := edge.sip) is not None:
            agent = endpoint.user_agent
            found |= {
                "port": endpoint.bound[0][2],
                "calls": len(endpoint.calls),
                "in_use": len(edge.lines | endpoint.lines),
                "sessions": agent.sessions,
                "transactions": agent.transactions,
            }
        return web.json_response(found)

    app.router.add_get("/lines", read)
