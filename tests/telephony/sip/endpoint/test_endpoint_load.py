"""Two hundred calls at once, twenty new ones a second."""

import asyncio

import pytest

from offhook.telephony.sip.endpoint_io import SipEndpoint
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.telephony.sip.endpoint.test_sipp import sipp
from tests.telephony.sip.phones import ToneHost, endpoint, needs_sipp, port_of

CALLS = 200
PER_SECOND = 20


class QuietHost(ToneHost):
    """Ticks every call, says nothing, and counts how many there were at once."""

    most = 0

    async def run_call(self, leg, agent):
        self.clock.add(leg)
        self.talks.append(leg)
        self.most = max(self.most, sum(leg.closed is None for leg in self.talks))
        try:
            await leg.until_closed()
        finally:
            self.clock.remove(leg)


@pytest.mark.slow
@needs_sipp
async def test_two_hundred_calls_at_once_begin_and_end_as_they_should(tmp_path):
    host = QuietHost()
    sip: SipEndpoint
    async with endpoint(host, max_calls=CALLS, rtp_ports=(30000, 31999)) as (sip, _):
        seconds = CALLS // PER_SECOND + 2
        code, output = await sipp(
            tmp_path,
            *("-sn", "uac", f"127.0.0.1:{port_of(sip, 'UDP')}", "-p", str(free_port())),
            *("-m", str(CALLS), "-l", str(CALLS), "-r", str(PER_SECOND)),
            *("-d", str(seconds * 1000)),
            seconds=60,
        )
        assert code == 0, output
        async with asyncio.timeout(HANGS_S):
            while len(host.records) < CALLS:
                await asyncio.sleep(0.05)
        assert {r.ended_by for r in host.records} == {"remote"}
        assert host.most == CALLS
        assert max(r.setup_ms for r in host.records) < 1000
        assert not sip.calls
        assert sip.user_agent.sessions == 0
