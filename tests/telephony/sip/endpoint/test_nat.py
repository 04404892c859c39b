"""Real phones behind a NAT that keeps their private addresses, and that gives them other ports
during a call."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import AsyncExitStack

import numpy as np
import pytest

from offhook.media.codecs.g711 import PcmuEncoder
from offhook.media.pcm import RATE_OUT
from offhook.telephony.sip.transactions import flow_failover
from offhook.telephony.sip.trunks import keep_alive
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.networks import OURS, PHONE, PUBLIC, NatNetwork
from tests.support.waiting import until
from tests.telephony.sip.phones import (
    OUR_TONE,
    THEIR_TONE,
    Baresip,
    endpoint,
    is_tone,
    needs_baresip,
    needs_sipp,
    port_of,
    sipp,
)
from tests.telephony.sip.scripted_peer import udp_peer
from tests.telephony.sip.scripted_sound import sound

BEHIND = Trunk("behind", addresses=(PUBLIC,))


@pytest.fixture
def nat() -> Iterator[NatNetwork]:
    """The test is in our network, at OURS; the phone's is to be entered."""
    missing = [tool for tool in ("ip", "nft", "sysctl") if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root{''.join(f' and {tool}' for tool in missing)}")
    networks = NatNetwork()
    try:
        with networks.ours.entered():
            yield networks
    finally:
        networks.close()


async def hung_up(phone: Baresip) -> None:
    """By us; by itself it ends a call when its sound is over."""
    closed = await phone.event("CALL_CLOSED")
    assert closed["param"] != "end of file"


@needs_baresip
@pytest.mark.parametrize(("transport", "rebinds"), [("UDP", False), ("UDP", True), ("TCP", False)])
async def test_a_phone_behind_a_nat_is_heard_hears_and_is_hung_up(
    tmp_path, nat: NatNetwork, transport: str, rebinds: bool
) -> None:
    phone = Baresip(tmp_path / "phone", host=PHONE)
    async with AsyncExitStack() as stack:
        sip, host = await stack.enter_async_context(endpoint(host=OURS, trunks=(BEHIND,)))
        with nat.phone.entered():
            await stack.enter_async_context(phone.running())
        port = port_of(sip, transport)
        await phone.dial(f"sip:agent@{OURS}:{port};transport={transport.lower()}")
        talk = await host.talk()
        await until(lambda: talk.hears(THEIR_TONE))
        [route] = sip.user_agent.routes
        before = route.flow.remote
        if rebinds:
            nat.rebind()
            talk.heard.clear()
            await until(lambda: talk.hears(THEIR_TONE))
            await phone.command("hold")
            await until(lambda: talk.leg.held)
            await phone.command("resume")
            await until(lambda: not talk.leg.held)
            assert (route.flow.remote[0], route.flow.remote != before) == (PUBLIC, True)
        await asyncio.sleep(2)
        await talk.leg.hang_up("done")
        await hung_up(phone)
    assert is_tone(phone.heard()[-8000:], 8000, OUR_TONE)


@needs_baresip
async def test_a_phone_is_hung_up_after_a_call_longer_than_its_nat_remembers(
    tmp_path, nat: NatNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep_alive, "KEEP_ALIVE_INTERVAL_S", 0.5)
    nat.forgets_after(2)
    phone = Baresip(tmp_path / "phone", host=PHONE)
    async with AsyncExitStack() as stack:
        sip, host = await stack.enter_async_context(endpoint(host=OURS, trunks=(BEHIND,)))
        with nat.phone.entered():
            await stack.enter_async_context(phone.running())
        await phone.dial(f"sip:agent@{OURS}:{port_of(sip, 'UDP')}")
        talk = await host.talk()
        await asyncio.sleep(5)
        await talk.leg.hang_up("done")
        await hung_up(phone)


@pytest.mark.parametrize("sign", ["OPTIONS", "keep-alive"])
async def test_a_phone_that_says_nothing_in_its_call_behind_another_port_is_hung_up(
    nat: NatNetwork, sign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent to the port before, the NAT drops."""
    monkeypatch.setattr(flow_failover, "SILENCE_S", 0.3)
    async with AsyncExitStack() as stack:
        sip, host = await stack.enter_async_context(endpoint(host=OURS, trunks=(BEHIND,)))
        with nat.phone.entered():
            phone = await stack.enter_async_context(udp_peer(sip, PHONE, OURS))
        await phone.call(stack.enter_context(sound()).sdp())
        talk = await host.talk()
        [route] = sip.user_agent.routes
        before = route.flow.remote
        nat.rebind()
        if sign == "OPTIONS":
            call_id, phone.call_id = phone.call_id, "question"
            phone.ask("OPTIONS", to_tag="")
            await phone.response(200, "OPTIONS")
            phone.call_id = call_id
        else:
            phone.send_bytes(b"\r\n\r\n")
        assert route.flow.remote == before
        await talk.leg.hang_up("done")
        bye = await phone.is_hung_up()
        assert bye.call_id == phone.call_id


HEADERS = """Via: SIP/2.0/UDP SENT-BY:[local_port];branch=[branch];rport
From: <sip:phone@[local_ip]>;tag=[call_number]
Call-ID: [call_id]
Contact: <sip:phone@[local_ip]:[local_port]>
Max-Forwards: 70"""
SDP = """Content-Type: application/sdp
Content-Length: [len]

v=0
o=- 1 {version} IN IP4 [local_ip]
s=-
c=IN IP4 [media_ip]
t=0 0
m=audio [rtpstream_audio_port] RTP/AVP 0
"""
ACK = (
    """<recv response="100" optional="true"/>
  <recv response="200"/>
  <send><![CDATA[
ACK sip:agent@[remote_ip]:[remote_port] SIP/2.0
"""
    + HEADERS
    + """
To: <sip:agent@[remote_ip]>[peer_tag_param]
CSeq: {cseq} ACK
Content-Length: 0

]]></send>"""
)
CALLS = f"""<?xml version="1.0" encoding="UTF-8" ?>
<scenario name="a phone that calls, speaks, and offers its media anew">
  <send retrans="500"><![CDATA[
INVITE sip:agent@[remote_ip]:[remote_port] SIP/2.0
{HEADERS}
To: <sip:agent@[remote_ip]>
CSeq: 1 INVITE
{SDP.format(version=1)}
]]></send>
  {ACK.format(cseq=1)}
  <nop><action><exec rtp_stream="tone.ul,-1,0"/></action></nop>
  <pause milliseconds="4000"/>
  <send retrans="500"><![CDATA[
INVITE sip:agent@[remote_ip]:[remote_port] SIP/2.0
{HEADERS}
To: <sip:agent@[remote_ip]>[peer_tag_param]
CSeq: 2 INVITE
{SDP.format(version=2)}
]]></send>
  {ACK.format(cseq=2)}
  <recv request="BYE"/>
  <send><![CDATA[
SIP/2.0 200 OK
[last_Via:]
[last_From:]
[last_To:]
[last_Call-ID:]
[last_CSeq:]
Content-Length: 0

]]></send>
</scenario>
"""


@needs_sipp
@pytest.mark.parametrize("sent_by", [PHONE, PUBLIC])
async def test_sipp_goes_on_from_another_port_and_is_hung_up(
    tmp_path, nat: NatNetwork, sent_by: str
) -> None:
    """Also where the NAT, or STUN, has put the public address into its Via, and not its Contact."""
    (tmp_path / "phone.xml").write_text(CALLS.replace("SENT-BY", sent_by))
    tone = 8000 * np.sin(2 * np.pi * THEIR_TONE / RATE_OUT * np.arange(RATE_OUT))
    (tmp_path / "tone.ul").write_bytes(PcmuEncoder().encode(tone.astype(np.int16)))
    async with endpoint(host=OURS, trunks=(BEHIND,)) as (sip, host):
        calling = asyncio.create_task(
            sipp(
                tmp_path,
                *("-sf", "phone.xml", f"{OURS}:{port_of(sip, 'UDP')}", "-m", "1"),
                host=PHONE,
                network=nat.phone.path,
            )
        )
        talk = await host.talk()
        await until(lambda: talk.hears(THEIR_TONE))
        [route] = sip.user_agent.routes
        before = route.flow.remote
        nat.rebind()
        talk.heard.clear()
        await until(lambda: route.flow.remote != before)
        assert route.flow.remote[0] == PUBLIC
        await until(lambda: talk.hears(THEIR_TONE))
        await asyncio.sleep(0.5)  # for SIPp's ACK
        await talk.leg.hang_up("done")
        code, output = await calling
    assert code == 0, output
