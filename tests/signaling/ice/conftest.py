"""A port of this machine, which must have forgotten all calls in the end."""

from collections.abc import AsyncIterator

import pytest

from offhook.signaling.ice.port_io import IcePort
from tests.support.ports import free_port


@pytest.fixture
async def port(loopback: None) -> AsyncIterator[IcePort]:
    opened = IcePort(free_port())
    await opened.open()
    yield opened
    assert len(opened.demultiplexer) == 0
    assert not any(udp.local.paths for udp in opened.sockets.values())
    assert opened.demultiplexer._expected == {}
    await opened.close()
