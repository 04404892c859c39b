"""An edge with its own engines, for the tests of a module."""

from collections.abc import AsyncIterator

import pytest_asyncio

from offhook.web.config.config import Config
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge.edge_io import Edge

CONFIG = Config(webrtc=WebRtc(addresses=["127.0.0.1"]), server=Server(port=0, drain_seconds=0))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge() -> AsyncIterator[Edge]:
    import aioice.ice

    host_addresses = aioice.ice.get_host_addresses
    edge = Edge(CONFIG)
    await edge.start()
    yield edge
    await edge.close()
    aioice.ice.get_host_addresses = host_addresses
