"""Real edges behind a real Kamailio, set up as deploy/kamailio has it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from benchmarks.callers.rtp import offer
from benchmarks.processes.own_server import HOST
from benchmarks.servers.kamailio import Kamailio, kamailio
from benchmarks.sip.callers import Callers
from benchmarks.speech.lines import encode
from offhook.media.codecs.g711 import PcmuEncoder
from offhook.media.pcm import RATE_OUT
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.telephony.sip.phones import (
    ToneHost,
    endpoint,
)
from tests.telephony.sip.scripted_peer import Peer, tcp_peer, udp_peer

SILENCE = encode(np.zeros(RATE_OUT, np.int16), PcmuEncoder())
QUICK = {"PING_SECONDS": 1, "EDGE_ANSWER_MS": 700, "PROCESSES": 2}
PHONES = "127.0.0.2"
OTHER = "127.0.0.3"
"""An address of this machine that is nobody's."""


@dataclass
class Edge:
    sip: SipEndpoint
    host: ToneHost

    @property
    def asked(self) -> list[str]:
        """Messages so far, requests by method and answers by status; OPTIONS left out."""
        entries = [e for e in self.sip.stack.trace.as_dicts() if "OPTIONS" not in str(e["cseq"])]
        starts = [str(e["first_line"]).split()[:2] for e in entries]
        return [second if first == "SIP/2.0" else first for first, second in starts]


@dataclass
class Site:
    proxy: Kamailio
    edges: list[Edge]

    @property
    def calls(self) -> list[int]:
        """Up at each edge."""
        return [sum(not t.over.is_set() for t in edge.host.talks) for edge in self.edges]

    @property
    def bound(self) -> list[tuple[str, str, int]]:
        """For scripted peers, as if it were one of our endpoints."""
        return [(name, HOST, self.proxy.port) for name in ("UDP", "TCP")]

    @asynccontextmanager
    async def callers(self) -> AsyncIterator[Callers]:
        callers = Callers((HOST, self.proxy.port), 50, [SILENCE])
        try:
            yield callers
        finally:
            await callers.close()

    async def asked(self) -> None:
        """Wait until Kamailio has asked every edge whether it is there, and been answered."""

        async def answered() -> bool:
            return set((await states(self.proxy)).values()) == {"AP"}

        await until(answered)

    async def active(self, *wanted: bool) -> None:
        """Wait until Kamailio thinks so of the edges, in the order of the list."""
        await until(lambda: states_are(self.proxy, wanted))


async def kamcmd(proxy: Kamailio, *command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *("kamcmd", "-s", proxy.control, *command), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode()


async def states(proxy: Kamailio) -> dict[str, str]:
    """What Kamailio thinks of each edge: A for active, I for inactive..."""
    words = (await kamcmd(proxy, "dispatcher.list")).split()
    found = [(words[i + 1], words[i + 3]) for i, word in enumerate(words) if word == "URI:"]
    return {uri.rpartition(":")[2]: flags for uri, flags in found}


async def states_are(proxy: Kamailio, wanted: tuple[bool, ...]) -> bool:
    found = await states(proxy)
    ports = proxy.edges
    return [found[str(port)][0] in "AT" for port in ports] == list(wanted)


async def until(fits: Callable[[], object]) -> None:
    async with asyncio.timeout(HANGS_S):
        while True:
            found = fits()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.03)


@asynccontextmanager
async def site(
    *max_calls: int,
    max_load: int = 0,
    trunks: tuple[Trunk, ...] = (),
    listed: tuple[str, ...] = (HOST,),
    **defines: str | int,
) -> AsyncIterator[Site]:
    """As many edges as `max_calls` names, behind Kamailio, who is their trunk. `trunks`: others
    of theirs. `listed`: who may call Kamailio, and be called."""
    ports = [free_port() for _ in max_calls]
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(
            kamailio(ports, listed, max_load, **{**QUICK, **defines})
        )
        trunk = Trunk(
            "proxy",
            addresses=(HOST,),
            server=f"{HOST}:{proxy.port}",
            headers=("X-Source", "X-Trunk"),
        )
        edges = [
            Edge(
                *await stack.enter_async_context(
                    endpoint(udp=port, tcp=port, max_calls=most, trunks=(trunk, *trunks))
                )
            )
            for port, most in zip(ports, max_calls, strict=True)
        ]
        yield Site(proxy, edges)


def scripted(here: Site, transport: str = "UDP"):
    stand_in = SimpleNamespace(bound=here.bound)
    return udp_peer(stand_in) if transport == "UDP" else tcp_peer(stand_in)


def aim(peer: Peer, here: Site) -> None:
    peer.target = f"sip:agent@{HOST}:{here.proxy.port}"


async def called(peer: Peer) -> None:
    """The peer calls and is answered; it goes by the proxies that have recorded themselves."""
    peer.invite(offer(free_port()))
    answer = await peer.response(200)
    peer.routes = [str(route) for route in reversed(answer.record_routes)]
    peer.ack(answer)
