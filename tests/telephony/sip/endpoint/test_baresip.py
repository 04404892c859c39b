"""Calls with a real phone, baresip: every codec, every protection, every transport."""

import asyncio

import pytest

from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.phones import (
    OUR_TONE,
    THEIR_TONE,
    Baresip,
    endpoint,
    needs_baresip,
    port_of,
    write_certificate,
)

pytestmark = needs_baresip

CODECS = {
    "pcmu": ("pcmu", 8000),
    "pcma": ("pcma", 8000),
    "g722": ("g722/16000/1", 16000),
    "opus": ("opus/48000/2", 48000),
}
PROTECTION = {
    "plain": "",
    "sdes": ";mediaenc=srtp-mand",
    "dtls": ";mediaenc=dtls_srtp",
}
QUICK_CALLS = [
    ("pcmu", "plain", "udp"),
    ("pcma", "plain", "tcp"),
    ("g722", "sdes", "tls"),
    ("opus", "dtls", "udp"),
]
"""Every codec, every protection and every transport once."""
CALLS = [
    *(("opus", protection, "tcp") for protection in ("sdes", "dtls")),
    *((codec, "plain", "udp") for codec in ("pcma", "g722", "opus")),
    *(("pcmu", protection, "udp") for protection in ("sdes", "dtls")),
    ("opus", "sdes", "tls"),
]
"""More of their combinations."""


@pytest.mark.parametrize(
    ("codec", "protection", "transport"),
    [*QUICK_CALLS, *(pytest.param(*call, marks=pytest.mark.slow) for call in CALLS)],
)
async def test_both_ends_hear_each_other(tmp_path, codec, protection, transport):
    certificate, key = write_certificate(tmp_path)
    name, rate = CODECS[codec]
    (tmp_path / "both.pem").write_text(certificate.read_text() + key.read_text())
    lines = [f"sip_certificate {tmp_path}/both.pem"]
    phone = Baresip(tmp_path / "phone", name, rate, PROTECTION[protection], lines)
    settings = {"certificate": certificate, "key": key, "tls": 0}
    async with endpoint(**settings) as (sip, host), phone.running():
        port = port_of(sip, transport.upper())
        await phone.dial(f"sip:agent@127.0.0.1:{port};transport={transport}")
        talk = await host.talk()
        await asyncio.sleep(2)
        await until(lambda: talk.hears(THEIR_TONE))
        await phone.hang_up()
        await asyncio.wait_for(talk.over.wait(), HANGS_S)
    assert phone.hears(OUR_TONE)
    record = host.records[0]
    assert record.end_reason
    assert record.ended_by == "remote"
    assert record.codec == codec
    assert bool(record.srtp) == (protection != "plain")


@pytest.mark.parametrize("codec", ["opus", "pcma"])
async def test_we_offer_ice_and_dtls_where_a_trunk_wants_webrtc_media(tmp_path, codec):
    name, rate = CODECS[codec]
    account = ";mediaenc=dtls_srtp;medianat=ice;answermode=auto"
    phone = Baresip(tmp_path / "phone", name, rate, account, ["rtcp_mux yes"])
    async with phone.running():
        server = f"127.0.0.1:{phone.port}"
        trunk = Trunk("phone", server=server, webrtc=True, options_seconds=0)
        async with endpoint(trunks=(trunk,)) as (sip, host):
            sip.dial(Dial(phone.uri))
            talk = await host.talk(seconds=300)
            await until(lambda: talk.hears(THEIR_TONE))
            await asyncio.sleep(1)
            await phone.hang_up()
            await asyncio.wait_for(talk.over.wait(), HANGS_S)
            await until(lambda: host.records)
    assert phone.hears(OUR_TONE)
    assert [attempt.media for attempt in host.records[0].attempts] == ["UDP/TLS/RTP/SAVPF"]


@pytest.mark.parametrize(
    "codec", ["opus", *(pytest.param(c, marks=pytest.mark.slow) for c in ("pcmu", "pcma", "g722"))]
)
async def test_a_phone_that_we_call_hears_us(tmp_path, codec):
    name, rate = CODECS[codec]
    phone = Baresip(tmp_path / "phone", name, rate, ";answermode=auto")
    trunk = Trunk("phone", server=f"127.0.0.1:{phone.port}")
    async with endpoint(trunks=(trunk,)) as (sip, host), phone.running():
        call = sip.dial(Dial(phone.uri))
        states = [progress.state async for progress in _until_answered(call)]
        talk = await host.talk()
        await asyncio.sleep(2)
        await until(lambda: talk.hears(THEIR_TONE))
        await call.hang_up("done")
        await phone.event("CALL_CLOSED")
    assert phone.hears(OUR_TONE)
    assert states[-1] == "answered"
    assert host.records[0].ended_by == "local"


async def _until_answered(call):
    async for progress in call.events():
        yield progress
        if progress.state in ("answered", "ended"):
            return


async def test_keys_are_heard_both_ways(tmp_path):
    phone = Baresip(tmp_path / "phone")
    async with endpoint() as (sip, host), phone.running():
        await phone.dial(f"sip:agent@127.0.0.1:{port_of(sip, 'UDP')}")
        talk = await host.talk()
        for key in "12#":
            await phone.command("sndcode", key)
            await asyncio.sleep(0.3)
        await until(lambda: talk.keys == "12#")
        talk.leg.send_dtmf("9*")
        assert (await phone.event("CALL_DTMF_START"))["param"] == "9"
        assert (await phone.event("CALL_DTMF_START"))["param"] == "*"


async def test_on_hold_nothing_is_sent_and_afterwards_all_is_as_before(tmp_path):
    phone = Baresip(tmp_path / "phone")
    async with endpoint() as (sip, host), phone.running():
        await phone.dial(f"sip:agent@127.0.0.1:{port_of(sip, 'UDP')}")
        talk = await host.talk()
        await asyncio.sleep(1)
        await phone.command("hold")
        await until(lambda: talk.leg.held)
        await asyncio.sleep(0.1)
        sent = talk.leg.statistics().packets_sent
        await asyncio.sleep(0.5)
        assert talk.leg.statistics().packets_sent == sent
        await phone.command("resume")
        await until(lambda: not talk.leg.held)
        await until(lambda: talk.hears(THEIR_TONE, 0.8))


async def test_we_put_a_phone_on_hold_and_take_it_back(tmp_path):
    phone = Baresip(tmp_path / "phone")
    async with endpoint() as (sip, host), phone.running():
        await phone.dial(f"sip:agent@127.0.0.1:{port_of(sip, 'UDP')}")
        talk = await host.talk()
        await asyncio.sleep(0.5)
        await talk.leg.hold()
        await asyncio.sleep(0.6)
        received = talk.leg.statistics().packets_received
        await asyncio.sleep(0.5)
        assert talk.leg.statistics().packets_received - received < 5
        await talk.leg.resume()
        await asyncio.sleep(1.5)
        await until(lambda: talk.hears(THEIR_TONE, 0.8))
