"""What the tests of the SIP leg share: ports, a clock that ticks, short waits."""

import asyncio

import pytest

from offhook.media.clock_io import PacketClock
from offhook.media.rtp import rtcp
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from tests.telephony.sip.ends import (
    HIGH,
    LOW,
)


@pytest.fixture(scope="module")
def ports():
    return RtpPorts("127.0.0.1", LOW, HIGH, drain_seconds=0)


@pytest.fixture
async def clock():
    """Ticks what is added to it until the test is over."""
    clock = PacketClock()
    legs = []
    add = clock.add
    clock.add = lambda leg: (legs.append(leg), add(leg))
    yield clock
    await asyncio.gather(*(leg.hang_up("test over") for leg in legs))
    for leg in legs:
        clock.remove(leg)


@pytest.fixture
def frequent_reports(monkeypatch):
    monkeypatch.setattr(rtcp, "REPORT_INTERVAL_S", 0.08)
