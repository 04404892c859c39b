"""`[webrtc] port`: one port for all calls of a process."""

import asyncio
import re
from collections.abc import Iterator

import aioice.ice
import pytest
from pydantic import ValidationError

from offhook.signaling.peer_io import PeerLeg
from offhook.signaling.smallwebrtc import Offer
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.siblings_io import NumberedEdge
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(aioice.ice, "get_host_addresses", aioice.ice.get_host_addresses)
    return


def config(**webrtc: object) -> Config:
    settings = WebRtc.model_validate({"addresses": ["127.0.0.1"], **webrtc})
    return Config(webrtc=settings, server=Server(port=0, drain_seconds=0))


async def test_calls_are_offered_the_port_and_the_public_address() -> None:
    number = free_port()
    edge = Edge(config(port=number, public_address="203.0.113.7"))
    await edge.start()
    caller = PeerLeg("caller")
    try:
        for _ in range(2):
            silent = PeerLeg("caller")
            offer = Offer(await silent.offer(), None, False, {})
            answer, _ = await edge.browsers.offer(offer)
            await silent.hang_up("")
            offered = set(re.findall(r"a=candidate:\S+ 1 (\S+) \d+ (\S+) (\d+) typ host", answer))
            assert offered == {(kind, "203.0.113.7", str(number)) for kind in ("udp", "tcp")}
        other = Edge(edge.config)
        with pytest.raises(ConfigError, match=rf"webrtc.port: 127.0.0.1 port {number}/udp is in"):
            await other.browsers.start()
        # the private address is the one that packets go to, by the NAT
        offer = Offer(await caller.offer(), None, False, {})
        answer, _ = await edge.browsers.offer(offer)
        await caller.accept(answer.replace("203.0.113.7", "127.0.0.1"))
        assert await asyncio.wait_for(caller.until_connected(), HANGS_S)
        scrape = edge.metrics.registry.get_sample_value(
            "offhook_webrtc_dropped_total", {"reason": "unknown_ufrag"}
        )
        assert scrape == 0
    finally:
        await caller.hang_up("test over")
        await edge.close()
    assert edge.browsers.port is not None
    assert len(edge.browsers.port.demultiplexer) == 0


def test_each_process_has_a_port_of_its_own() -> None:
    ports = [NumberedEdge(config(port=7861), None, n).config.webrtc.port for n in (1, 2, 3)]
    assert ports == [7861, 7862, 7863]
    assert NumberedEdge(config(), None, 2).config.webrtc.port == 0


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"port": 70_000}, "65535"),
        ({"port": 7861, "public_address": "voice.example"}, "does not appear to be an IPv4 or"),
        ({"public_address": "203.0.113.7"}, "needs a port"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        config(**settings)
