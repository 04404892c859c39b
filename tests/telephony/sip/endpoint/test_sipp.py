"""Calls with sipp: its own scenarios, a digest trunk, DTMF from a capture, lost signalling."""

import asyncio
import os
from pathlib import Path

import pytest

from offhook.media.pcm import RATE_IN
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.telephony.sip.phones import endpoint, level, needs_sipp, port_of, sipp

pytestmark = needs_sipp


@pytest.mark.parametrize("transport", ["u1", "t1"])
async def test_calls_of_sipp_are_answered_and_end(tmp_path, transport):
    async with endpoint() as (sip, host):
        port = port_of(sip, "UDP")
        code, output = await sipp(
            tmp_path,
            *("-sn", "uac", "-t", transport, f"127.0.0.1:{port}", "-p", str(free_port())),
            *("-m", "5", "-r", "10", "-d", "500"),
        )
        assert code == 0, output
        async with asyncio.timeout(HANGS_S):
            while len(host.records) < 5:
                await asyncio.sleep(0.02)
        assert {r.ended_by for r in host.records} == {"remote"}
        assert sip.user_agent.sessions == 0


async def test_sipp_is_called_and_hangs_up(tmp_path):
    port = free_port()
    trunk = Trunk("sipp", server=f"127.0.0.1:{port}", options_seconds=0)
    async with endpoint(trunks=(trunk,)) as (sip, _host):
        answering = asyncio.create_task(
            sipp(tmp_path, "-sn", "uas", "-p", str(port), "-m", "1", "-mp", str(free_port()))
        )
        await asyncio.sleep(0.5)
        call = sip.dial(Dial("service"))
        states = []
        async for progress in call.events():
            states.append(progress.state)
            if progress.state == "answered":
                await asyncio.sleep(0.3)
                await call.hang_up("done")
        code, output = await answering
    assert code == 0, output
    assert states == ["dialing", "ringing", "answered", "ended"]


CHALLENGED = """<?xml version="1.0" encoding="UTF-8" ?>
<scenario name="a phone with a password">
  <send retrans="500"><![CDATA[
INVITE sip:100@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:phone@[local_ip]>;tag=[call_number]
To: <sip:100@[remote_ip]>
Call-ID: [call_id]
CSeq: 1 INVITE
Contact: <sip:phone@[local_ip]:[local_port]>
Max-Forwards: 70
Content-Type: application/sdp
Content-Length: [len]

v=0
o=- 1 1 IN IP4 [local_ip]
s=-
c=IN IP4 [media_ip]
t=0 0
m=audio [media_port] RTP/AVP 0
]]></send>
  <recv response="401" auth="true"/>
  <send><![CDATA[
ACK sip:100@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:phone@[local_ip]>;tag=[call_number]
To: <sip:100@[remote_ip]>[peer_tag_param]
Call-ID: [call_id]
CSeq: 1 ACK
Max-Forwards: 70
Content-Length: 0

]]></send>
  <send retrans="500"><![CDATA[
INVITE sip:100@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:phone@[local_ip]>;tag=[call_number]
To: <sip:100@[remote_ip]>
Call-ID: [call_id]
CSeq: 2 INVITE
Contact: <sip:phone@[local_ip]:[local_port]>
[authentication]
Max-Forwards: 70
Content-Type: application/sdp
Content-Length: [len]

v=0
o=- 1 1 IN IP4 [local_ip]
s=-
c=IN IP4 [media_ip]
t=0 0
m=audio [media_port] RTP/AVP 0
]]></send>
  <recv response="100" optional="true"/>
  <recv response="{status}"/>
  {after}
</scenario>
"""
TAKEN = """<send><![CDATA[
ACK [next_url] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:phone@[local_ip]>;tag=[call_number]
To: <sip:100@[remote_ip]>[peer_tag_param]
Call-ID: [call_id]
CSeq: 2 ACK
Max-Forwards: 70
Content-Length: 0

]]></send>
  <pause milliseconds="300"/>
  <send retrans="500"><![CDATA[
BYE sip:100@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:phone@[local_ip]>;tag=[call_number]
To: <sip:100@[remote_ip]>[peer_tag_param]
Call-ID: [call_id]
CSeq: 3 BYE
Max-Forwards: 70
Content-Length: 0

]]></send>
  <recv response="200"/>"""
PHONE = Trunk("phone", username="phone", password="secret")


@pytest.mark.parametrize(("password", "status"), [("secret", 200), ("guess", 401)])
async def test_a_phone_with_a_password_is_challenged(tmp_path, password, status):
    text = CHALLENGED.format(status=status, after=TAKEN if status == 200 else "")
    (tmp_path / "phone.xml").write_text(text)
    async with endpoint(trunks=(PHONE,)) as (sip, host):
        code, output = await sipp(
            tmp_path,
            *("-sf", "phone.xml", f"127.0.0.1:{port_of(sip, 'UDP')}", "-p", str(free_port())),
            *("-m", "1", "-au", "phone", "-ap", password),
        )
        await asyncio.sleep(0.1)
    assert code == 0, output
    assert len(host.records) == (1 if status == 200 else 0)


async def test_strangers_get_no_answer(tmp_path):
    async with endpoint(trunks=()) as (sip, host):
        code, _ = await sipp(
            tmp_path,
            *("-sn", "uac", f"127.0.0.1:{port_of(sip, 'UDP')}", "-p", str(free_port())),
            *("-m", "1", "-recv_timeout", "1500", "-nr"),
        )
        assert code != 0
        assert sip.user_agent.transactions == 0
    assert not host.records


async def test_when_all_lines_are_busy_the_caller_is_told_when_to_come_back(tmp_path):
    async with endpoint() as (sip, host):
        host.full = True
        code, _ = await sipp(
            tmp_path,
            *("-sn", "uac", f"127.0.0.1:{port_of(sip, 'UDP')}", "-p", str(free_port())),
            *("-m", "1", "-trace_msg", "-message_file", "messages.log"),
        )
        assert code != 0
    messages = (tmp_path / "messages.log").read_text()
    assert "SIP/2.0 503" in messages
    assert "Retry-After: 10" in messages


async def test_calls_survive_signalling_that_is_lost_and_repeated(tmp_path):
    async with endpoint() as (sip, host):
        code, output = await sipp(
            tmp_path,
            *("-sn", "uac", f"127.0.0.1:{port_of(sip, 'UDP')}", "-p", str(free_port())),
            *("-m", "20", "-r", "10", "-d", "300", "-lost", "10"),
            seconds=40,
        )
        # sipp's own uac does not repeat its ACK, so a 200 of ours may be repeated: that is enough.
        assert code == 0, output
        async with asyncio.timeout(HANGS_S):
            while sip.calls:
                await asyncio.sleep(0.05)
    assert len(host.records) == 20


CAPTURES = Path("/usr/share/sip-tester")
"""Of speech in PCMA and of keys, which `uac_pcap` plays."""


@pytest.mark.skipif(not (CAPTURES / "g711a.pcap").exists(), reason="sipp has no captures")
@pytest.mark.skipif(os.geteuid() != 0, reason="sipp plays captures by raw sockets")
async def test_speech_and_a_key_of_a_capture_are_heard(tmp_path):
    (tmp_path / "pcap").symlink_to(CAPTURES)
    async with endpoint() as (sip, host):
        port, media = port_of(sip, "UDP"), free_port(4)
        calling = asyncio.create_task(
            sipp(
                tmp_path,
                *("-sn", "uac_pcap", f"127.0.0.1:{port}", "-p", str(free_port())),
                *("-mi", "127.0.0.1", "-mp", str(media), "-m", "1"),
            )
        )
        talk = await host.talk()
        code, output = await calling
        await asyncio.wait_for(talk.over.wait(), HANGS_S)
    assert code == 0, output
    assert talk.keys == "1"
    assert host.records[0].codec == "pcma"
    seconds = talk.sound[: len(talk.sound) // RATE_IN * RATE_IN].reshape(-1, RATE_IN)
    assert sum(level(second) > 200 for second in seconds) >= 3
