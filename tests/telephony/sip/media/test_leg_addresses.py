"""A SIP leg and a phone made by hand, which is elsewhere than it says, moves, and is attacked."""

import asyncio
import socket
import struct
from time import monotonic

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offhook.telephony.sip.media.dtls_io import local_fingerprint
from offhook.telephony.sip.media.latch import LATCH_PACKETS
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.offer_answer import MediaSettings
from offhook.telephony.sip.media.rtp_transport_io import EARLY_PACKETS
from tests.support.waiting import until
from tests.telephony.sip.ends import (
    NOWHERE,
    SUITES,
    Ear,
    answered,
    crypto,
    far_ends,
    frequency,
    hears,
    hears_nothing,
    new_leg,
    plays,
    tone,
)

pytestmark = pytest.mark.usefixtures("nothing_left")


async def test_sound_goes_to_where_sdp_says_until_some_comes(ports, clock):
    async with far_ends(1) as [phone]:
        leg = await answered(ports, clock, phone.sdp())
        leg.playout.write(tone(600, 0.5))
        await until(lambda: len(phone.received) > 20)
        assert abs(frequency(phone.heard()[1600:6400]) - 600) < 5
        await plays(phone, leg, 440)


async def test_behind_a_nat_it_goes_to_where_sound_comes_from(ports, clock):
    async with far_ends(2) as [phone, attacker]:
        leg = await answered(ports, clock, phone.sdp(NOWHERE))
        assert leg.remote == (NOWHERE, phone.address[1])
        assert not phone.received
        await plays(phone, leg, 440)
        assert leg.remote == phone.address
        attacker.ssrc, attacker.number = phone.ssrc, phone.number  # as if it had listened in
        leg.playout.write(tone(600, 1))
        await asyncio.gather(
            phone.play(leg, 440, 0.6), hears(leg, 440), attacker.play(leg, 3000, 0.6)
        )
        assert leg.remote == phone.address
        assert not attacker.received
        assert leg.refused_packets > 20


@pytest.mark.parametrize("knows", ["nothing", "all"])
async def test_who_sprays_before_the_far_end_speaks_is_thrown_out_by_its_first_packet(
    ports, clock, knows
):
    async with far_ends(2) as [phone, attacker]:
        leg = await answered(ports, clock, phone.sdp())
        if knows == "all":
            attacker.ssrc, attacker.number = phone.ssrc, phone.number
        await attacker.play(leg, 3000, 0.3)
        assert leg.remote == attacker.address  # nobody could know better yet
        phone.sock.sendto(phone.packet(), ("127.0.0.1", leg._transport.sockets.port))
        await until(lambda: leg.remote == phone.address)
        stolen = len(attacker.received)
        await asyncio.gather(
            phone.play(leg, 440, 0.6), hears(leg, 440), attacker.play(leg, 3000, 0.6)
        )
        assert leg.remote == phone.address
        assert len(attacker.received) <= stolen + 1


async def test_blind_spraying_is_never_believed(ports, clock):
    async with far_ends(2) as [phone, attacker]:
        leg = await answered(ports, clock, phone.sdp())
        for number in range(200):
            attacker.number = number * 331
            attacker.ssrc = number
            attacker.sock.sendto(attacker.packet(3000), ("127.0.0.1", leg._transport.sockets.port))
            await asyncio.sleep(0)
        await hears_nothing(leg)
        assert leg.remote == phone.address
        assert not attacker.received


@pytest.mark.parametrize("host", [NOWHERE, "127.0.0.1"])
async def test_a_stream_that_moves_is_followed_at_once(ports, clock, host):
    async with far_ends(2) as [phone, elsewhere]:
        leg = await answered(ports, clock, phone.sdp(host))
        await plays(phone, leg, 440)
        number = phone.number
        moving = asyncio.create_task(phone.play(leg, 700, 5, via=elsewhere))
        await until(lambda: leg.remote == elsewhere.address)
        assert phone.number - number < 20  # packets of 20 ms
        await until(lambda: len(elsewhere.received) > 5)
        await hears(leg, 700)
        moving.cancel()


async def test_a_far_end_that_gives_another_port_is_followed(ports, clock):
    async with far_ends(2) as [phone, other]:
        leg = await answered(ports, clock, phone.sdp())
        await plays(phone, leg, 440)
        leg.answer(phone.sdp(port=other.address[1]))
        assert leg.remote == other.address
        before = len(phone.received)
        await plays(phone, leg, 700, via=other)
        assert len(other.received) > 5
        assert len(phone.received) <= before + 2


@pytest.mark.parametrize("how", ["sendonly", "inactive", "c=0.0.0.0"])
async def test_a_hold_keeps_the_address_that_was_found(ports, clock, how):
    async with far_ends(1) as [phone]:
        leg = await answered(ports, clock, phone.sdp(NOWHERE))
        await plays(phone, leg, 440)
        if how == "c=0.0.0.0":
            leg.answer(phone.sdp("0.0.0.0"))
        else:
            leg.answer(phone.sdp(NOWHERE, direction=how))
        assert leg.held
        await asyncio.sleep(0.05)
        before = len(phone.received)
        await asyncio.sleep(0.2)
        assert len(phone.received) == before
        leg.answer(phone.sdp(NOWHERE))
        assert not leg.held
        assert leg.remote == phone.address
        await until(lambda: len(phone.received) > before + 5)


async def test_an_address_of_nowhere_waits_for_sound(ports, clock):
    async with far_ends(1) as [phone]:
        leg = await answered(ports, clock, phone.sdp("0.0.0.0"))
        assert leg.remote is None
        await asyncio.sleep(0.1)
        leg.answer(phone.sdp("0.0.0.0"))
        await phone.play(leg, 440, 0.3)
        assert leg.remote == phone.address


async def test_a_far_end_cannot_have_us_send_to_our_own_machine(ports):
    leg = SipLeg("leg", MediaSettings(srtp="off"), ports, "192.0.2.1")
    await leg.bind()
    try:
        async with far_ends(1) as [phone]:
            leg.answer(phone.sdp())
            assert leg.remote is None
    finally:
        await leg.hang_up("test over")


async def test_the_latch_needs_as_many_packets_as_it_says(ports, clock):
    async with far_ends(1) as [phone]:
        leg = await answered(ports, clock, phone.sdp(NOWHERE))
        await phone.play(leg, 440, 0.02 * (LATCH_PACKETS - 1))
        await asyncio.sleep(0.02)
        assert leg.remote[0] == NOWHERE
        await phone.play(leg, 440, 0.02)
        await until(lambda: leg.remote == phone.address)


async def test_sound_before_the_answer_is_heard_once_the_answer_is_there(ports, clock):
    async with far_ends(1) as [phone]:
        leg = await new_leg(ports, "leg", ("pcmu",))
        clock.add(leg)
        leg.offer()
        await phone.play(leg, 440, 0.2)
        ear = Ear(leg)
        leg.accept(phone.sdp())
        leg.accept(phone.sdp())  # the 200 after the 183
        await until(lambda: leg.statistics().packets_received == 10)
        assert leg.remote == phone.address
        await until(lambda: len(ear.heard) > 8)
        assert abs(frequency(np.concatenate(ear.heard)) - 440) < 30


async def test_not_more_than_half_a_second_is_kept_before_the_answer(ports, clock):
    async with far_ends(1) as [phone]:
        leg = await new_leg(ports, "leg", ("pcmu",))
        clock.add(leg)
        leg.offer()
        for _ in range(EARLY_PACKETS + 20):
            phone.sock.sendto(phone.packet(), ("127.0.0.1", leg._transport.sockets.port))
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        leg.accept(phone.sdp())
        assert leg.statistics().packets_received == EARLY_PACKETS


async def test_reports_of_a_far_end_behind_a_nat_are_heard_and_answered(
    ports, clock, frequent_reports
):
    async with far_ends(2) as [phone, reporter]:
        leg = await answered(ports, clock, phone.sdp(NOWHERE))
        report = struct.pack("!BBHI", 0x80, 201, 1, phone.ssrc)
        there = "127.0.0.1", leg._transport.sockets.rtcp_port
        reporter.sock.sendto(report, there)
        await until(lambda: leg.refused_packets == 1)  # nobody knows that SSRC yet
        await phone.play(leg, 440, 0.3)
        assert not reporter.reports
        reporter.sock.sendto(report, there)
        await until(lambda: reporter.reports)
        assert not phone.reports


async def test_reports_of_strangers_are_not_read(ports, clock):
    async with far_ends(2) as [phone, attacker]:
        leg = await answered(ports, clock, phone.sdp())
        await phone.play(leg, 440, 0.2)
        attacker.sock.sendto(
            struct.pack("!BBHIBBHI", 0x80, 201, 1, 9, 0x81, 203, 1, phone.ssrc),
            ("127.0.0.1", leg._transport.sockets.rtcp_port),
        )
        attacker.sock.sendto(
            struct.pack("!BBHI", 0x80, 201, 1, phone.ssrc),
            ("127.0.0.1", leg._transport.sockets.port),
        )
        await until(lambda: leg.refused_packets == 2)


datagrams = st.one_of(
    st.binary(max_size=40),
    st.binary(max_size=40).map(lambda b: b"\x80\x00" + b),
    st.binary(max_size=40).map(lambda b: b"\x80\x65" + b),
    st.binary(max_size=40).map(lambda b: b"\xbf\x80" + b),
    st.binary(max_size=40).map(lambda b: b"\x81\xc9" + b),
    st.binary(max_size=40).map(lambda b: b"\x16\xfe\xfd" + b),
)


@pytest.mark.parametrize("way", ["", "sdes", "dtls"])
async def test_garbage_from_anybody_disturbs_nothing(ports, clock, way):
    extra = {
        "": "",
        "sdes": crypto(SUITES[0], bytes(30)),
        "dtls": f"a=fingerprint:{local_fingerprint()}\r\na=setup:active\r\n",
    }[way]
    protocol = {"": "RTP/AVP", "sdes": "RTP/SAVP", "dtls": "UDP/TLS/RTP/SAVP"}[way]
    async with far_ends(1) as [phone]:
        sdp = phone.sdp(extra=extra, protocol=protocol)
        leg = await answered(ports, clock, sdp, "required" if way else "off")

        @settings(
            suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        )
        @given(datagrams, st.booleans(), st.booleans())
        def spray(data, own, rtcp):
            source = phone.address if own else ("127.0.0.1", 9)
            transport = leg._transport
            receive = transport._rtcp_received if rtcp else transport._rtp_received
            receive(data, source, monotonic())

        spray()
        assert leg.closed is None
        assert leg.remote == phone.address
        if way == "":
            phone.number += 5000
            await plays(phone, leg, 440)


async def test_a_far_end_whose_port_is_closed_disturbs_nothing(ports, clock):
    async with far_ends(2) as [phone, other]:
        leg = await answered(ports, clock, phone.sdp())
        phone.close()
        leg.playout.write(tone(440, 0.2))
        await asyncio.sleep(0.2)
        assert leg.closed is None
        leg.answer(other.sdp())
        await plays(other, leg, 440)
        phone.sock = socket.socket()  # for the closing
        asyncio.get_running_loop().add_reader(phone.sock, lambda: None)
