"""What strangers and callers try at the WebRTC of a server, over real sockets: `tests/attack`."""

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aioice.ice
import pytest
from loguru import logger
from prometheus_client import generate_latest

from offhook.signaling.peer_io import PeerLeg
from offhook.signaling.smallwebrtc import Offer
from offhook.web.config.config import Config
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.refusals import Busy
from offhook.web.edge.server_io import application
from offhook.web.http.listening_io import Runner
from tests.attack import webrtc
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S

TABLE: dict[str, Any] = {
    "server": {"port": 0, "drain_seconds": 0},
    "webrtc": {"addresses": ["127.0.0.1"]},
    "agent": {"kind": "silent"},
    "tts": {"engine": "espeak"},
}


@asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[tuple[str, Edge]]:
    """A server; with a port, its calls share that."""
    host_addresses = aioice.ice.get_host_addresses
    table = {**TABLE, "webrtc": {**TABLE["webrtc"], "port": port}}
    edge = Edge(Config.model_validate(table))
    await edge.start()
    runner = Runner(application(edge))
    await runner.setup()
    try:
        await runner.listen("127.0.0.1", 0)
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", edge
    finally:
        await edge.close()
        await runner.cleanup()
        aioice.ice.get_host_addresses = host_addresses


@pytest.mark.parametrize("shared", [False, True])
async def test_forged_dtls_kills_no_call_that_is_being_set_up(shared: bool) -> None:
    async with serving(free_port() if shared else 0) as (base, _):
        calls = len(webrtc.FORGERIES)
        assert await webrtc.forged_dtls(base, 0) == f"{calls} of {calls} connected"


async def test_a_message_without_an_end_closes_the_channel() -> None:
    async with serving() as (base, _):
        assert (await webrtc.endless_message(base, 20)).startswith("channel closed after")


@pytest.mark.parametrize("attack", [webrtc.holes, webrtc.streams, webrtc.crumbs])
async def test_of_what_comes_after_a_gap_little_is_kept(attack: Any) -> None:
    async with serving() as (base, _):
        assert " 32 TSNs after a gap" in await attack(base, 2)


async def test_offers_that_are_none_are_refused_in_the_terms_of_sdp_and_hold_no_line() -> None:
    async with serving() as (base, edge):
        said = await webrtc.broken_offers(base, 10)
        assert " offers: " in said
        assert " × 400" in said
        async with asyncio.timeout(HANGS_S):
            while edge.legs:
                await asyncio.sleep(0.02)


async def test_channels_are_few() -> None:
    async with serving() as (base, _):
        assert (await webrtc.channels(base, 10)).startswith("channel closed after")


async def test_packets_that_no_peer_sends_harm_nobody() -> None:
    async with serving() as (base, edge):
        said = await webrtc.odd_packets(base, 5)
        assert "kinds closed the channel" in said
        assert (await webrtc.forged_dtls(base, 0)).startswith(f"{len(webrtc.FORGERIES)} of")
        async with asyncio.timeout(HANGS_S):
            while edge.legs:
                await asyncio.sleep(0.02)


async def test_callers_who_hold_their_handshake_are_let_go(monkeypatch: Any) -> None:
    monkeypatch.setattr("offhook.signaling.peer_io.CONNECT_TIMEOUT_S", 2)
    async with serving() as (base, edge):
        said = await webrtc.held_handshakes(base, 1.5)
        assert not said.startswith("0 calls")
        async with asyncio.timeout(HANGS_S):
            while edge.legs:
                await asyncio.sleep(0.02)
        assert (await webrtc.forged_dtls(base, 0)).startswith(f"{len(webrtc.FORGERIES)} of")


@contextmanager
def no_files_left() -> Iterator[None]:
    """Meanwhile the process may open no file, and so no socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = max(map(int, os.listdir("/proc/self/fd")))
    free = {number for number in range(opened) if not os.path.exists(f"/proc/self/fd/{number}")}
    taken = [os.dup(0) for _ in free]
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in taken:
            os.close(number)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="tells open files by /proc")
@pytest.mark.usefixtures("nothing_left")
async def test_without_a_port_a_call_is_refused_in_words_and_leaves_nothing() -> None:
    caller = PeerLeg("caller")
    offer = Offer(await caller.offer(), None, False, {})
    logged: list[str] = []
    async with serving() as (_, edge):
        sink = logger.add(lambda message: logged.append(str(message)), level="ERROR")
        try:
            for _ in range(3):
                with no_files_left(), pytest.raises(Busy) as refusal:
                    await edge.browsers.offer(offer)
                assert refusal.value.sentence == "the server has no UDP port left for another call"
                assert not edge.legs
            answer, _ = await edge.browsers.offer(offer)
            await caller.accept(answer)
            async with asyncio.timeout(HANGS_S):
                while not caller.connected:
                    await asyncio.sleep(0.01)
        finally:
            logger.remove(sink)
            await caller.hang_up("test over")
    assert "ulimit -n" in logged[0]
    assert 'reason="ports"} 3.0' in generate_latest(edge.metrics.registry).decode()
