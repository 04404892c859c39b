"""A SIP leg and a phone made by hand: whose keys are right, and whose are not."""

import asyncio
import re
import socket

import pytest

from offhook.telephony.sip.media import sdes
from offhook.telephony.sip.media.dtls_io import local_fingerprint
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from offhook.telephony.sip.media.srtp import SdesSrtp
from tests.attack.webrtc import FORGERIES
from tests.support.waiting import until
from tests.telephony.sip.ends import (
    HIGH,
    NOWHERE,
    SUITES,
    OffersActive,
    answered,
    call,
    crypto,
    decibels,
    far_ends,
    frequency,
    hears,
    hears_nothing,
    key_in,
    new_leg,
    offer_dtls,
    plays,
    reoffer,
    talk,
    tone,
)

pytestmark = pytest.mark.usefixtures("nothing_left")


async def test_with_another_key_nothing_is_heard_or_sent_to(ports, clock):
    suite, key = SUITES[0], bytes(range(30))
    async with far_ends(2) as [phone, attacker]:
        leg = await new_leg(ports, "leg", ("pcmu",), "required")
        clock.add(leg)
        ours = key_in(leg.answer(phone.sdp(NOWHERE, None, crypto(suite, key), "RTP/SAVP")))
        attacker.srtp = SdesSrtp(suite, bytes(30), bytes(30))
        await attacker.play(leg, 3000, 0.3)
        await hears_nothing(leg)
        assert leg.remote == (NOWHERE, phone.address[1])
        assert leg.srtp_failures == 15
        attacker.srtp = None
        await attacker.play(leg, 3000, 0.2)
        assert leg.remote == (NOWHERE, phone.address[1])
        phone.srtp = SdesSrtp(suite, key, ours)
        phone.sock.sendto(phone.packet(), ("127.0.0.1", leg._transport.sockets.port))
        await until(lambda: leg.remote == phone.address)  # who has the key needs no second packet
        await asyncio.gather(plays(phone, leg, 440), attacker.play(leg, 3000))
        assert leg.remote == phone.address
        assert abs(decibels(phone.heard())) < 10  # and what we sent can be read


async def test_a_packet_played_back_is_not_heard_again(ports, clock):
    suite, key = SUITES[0], bytes(range(30))
    async with far_ends(2) as [phone, attacker]:
        leg = await new_leg(ports, "leg", ("pcmu",), "required")
        clock.add(leg)
        ours = key_in(leg.answer(phone.sdp(extra=crypto(suite, key), protocol="RTP/SAVP")))
        phone.srtp = SdesSrtp(suite, key, ours)
        packets = [phone.packet() for _ in range(10)]
        here = "127.0.0.1", leg._transport.sockets.port
        for data in packets:
            phone.sock.sendto(data, here)
        for data in packets:
            attacker.sock.sendto(data, here)
        await until(lambda: leg.srtp_failures == 10)
        assert leg.remote == phone.address


async def test_new_keys_are_used_and_old_ones_for_a_moment_more(ports, clock):
    suite, first, second = SUITES[0], bytes(range(30)), bytes(range(30, 60))
    async with far_ends(1) as [phone]:
        leg = await new_leg(ports, "leg", ("pcmu",), "required")
        clock.add(leg)
        ours = key_in(leg.answer(phone.sdp(extra=crypto(suite, first), protocol="RTP/SAVP")))
        phone.srtp = SdesSrtp(suite, first, ours)
        await plays(phone, leg, 440)
        renewed = leg.answer(phone.sdp(extra=crypto(suite, second), protocol="RTP/SAVP"))
        await phone.play(leg, 440, 0.2)  # still under way
        assert leg.srtp_failures == 0
        await asyncio.sleep(0.05)
        phone.received.clear()
        phone.srtp = SdesSrtp(suite, second, key_in(renewed))
        leg.playout.write(tone(600, 0.5))
        await asyncio.gather(phone.play(leg, 700, 0.4), hears(leg, 700))
        assert leg.srtp_failures == 0
        assert abs(frequency(phone.heard()[1600:6400]) - 600) < 5


async def test_our_own_key_goes_on_when_only_the_far_ends_is_new(ports, clock):
    """Once the sequence numbers have wrapped, a count begun anew would repeat the keystream."""
    suite, first, second = SUITES[0], bytes(range(30)), bytes(range(30, 60))
    async with far_ends(1) as [phone]:
        leg = await new_leg(ports, "leg", ("pcmu",), "required")
        ours = key_in(leg.offer())
        leg.accept(phone.sdp(extra=crypto(suite, first), protocol="RTP/SAVP"))
        phone.srtp = SdesSrtp(suite, first, ours)
        leg._sender.sequence_number = 65_531
        clock.add(leg)
        await until(lambda: len(phone.received) > 10)
        assert key_in(leg.offer()) == ours
        leg.accept(phone.sdp(extra=crypto(suite, second), protocol="RTP/SAVP"))
        phone.srtp = phone.srtp.renewed(suite, second, ours)
        await until(lambda: len(phone.received) > 20)
        assert len(phone.heard()) > 20 * 320
        await plays(phone, leg, 440)


async def test_a_suite_change_by_reoffer_goes_on_sounding(ports, clock):
    key = bytes(range(30))
    async with far_ends(1) as [phone]:
        leg = await new_leg(ports, "leg", ("pcmu",), "optional")
        clock.add(leg)
        leg.answer(phone.sdp())
        assert leg.srtp == ""
        await plays(phone, leg, 440)
        for suite in ("AES_CM_128_HMAC_SHA1_32", "AES_CM_128_HMAC_SHA1_80"):
            answer = leg.answer(phone.sdp(extra=crypto(suite, key), protocol="RTP/SAVP"))
            assert leg.srtp == f"SDES {suite}"
            phone.srtp = SdesSrtp(suite, key, key_in(answer))
            await plays(phone, leg, 500)
        leg.answer(phone.sdp())
        assert leg.srtp == ""
        phone.srtp = None
        await plays(phone, leg, 600)


async def test_before_dtls_has_agreed_on_keys_nothing_is_sent_in_the_clear(ports, clock):
    extra = f"a=fingerprint:{local_fingerprint()}\r\na=setup:passive\r\na=rtcp-mux\r\n"
    async with far_ends(1) as [phone]:
        sdp = phone.sdp(extra=extra, protocol="UDP/TLS/RTP/SAVP")
        leg = await answered(ports, clock, sdp, srtp="required")
        leg.playout.write(tone(440, 0.5))
        await until(lambda: phone.received and not leg.playout.queued)
        assert all(data[0] == 22 for data in phone.received)  # handshake
        assert leg.srtp == ""


async def test_a_far_end_with_another_certificate_than_its_sdp_says_gets_no_call(ports, clock):
    def lie(sdp):
        first = re.search(r"fingerprint:sha-256 (..)", sdp)[1]
        return sdp.replace(f"sha-256 {first}", f"sha-256 {'01' if first == '00' else '00'}")

    a, b = await call(ports, clock, security="dtls", change=lie)
    await until(lambda: a.closed and b.closed)
    assert "fingerprint" in a.closed
    assert a.srtp == ""


@pytest.mark.parametrize("who", ["caller", "callee"])
async def test_dtls_works_with_a_far_end_that_sends_from_another_address(ports, clock, who):
    """A phone on a machine of several addresses names one of them and sends from another."""

    def elsewhere(sdp):
        return sdp.replace("c=IN IP4 127.0.0.1", f"c=IN IP4 {NOWHERE}")

    all_addresses = RtpPorts("0.0.0.0", HIGH + 1, HIGH + 40, drain_seconds=0)
    ours, theirs = (ports, all_addresses) if who == "callee" else (all_addresses, ports)
    a = await new_leg(ours, "caller", ("pcmu",), "required")
    b = await new_leg(theirs, "callee", ("pcmu",), "required")
    offer_dtls(a)
    if who == "caller":
        a.accept(b.answer(elsewhere(a.offer())))
    else:
        a.accept(elsewhere(b.answer(a.offer())))
    for leg in (a, b):
        leg.connect()
        clock.add(leg)
    await talk(a, b)
    assert {a.remote[0], b.remote[0]} == {"127.0.0.1"}


async def test_dtls_behind_a_nat_works_if_the_far_end_begins(ports, clock):
    def nat(sdp):
        return sdp.replace("c=IN IP4 127.0.0.1", f"c=IN IP4 {NOWHERE}")

    a = await new_leg(ports, "caller", srtp="required")
    b = await new_leg(ports, "callee", srtp="required")
    offer_dtls(a, OffersActive)
    a.accept(b.answer(nat(a.offer())))
    clock.add(a)
    clock.add(b)
    await talk(a, b)
    assert b.remote == ("127.0.0.1", a._transport.sockets.port)


async def test_a_hold_keeps_the_keys_of_dtls_and_another_address_makes_new_ones(ports, clock):
    def held(sdp):
        return sdp.replace("c=IN IP4 127.0.0.1", "c=IN IP4 0.0.0.0")

    a, b = await call(ports, clock, security="dtls")
    await talk(a, b)
    before = b._transport._srtp
    reoffer(a, b, held)
    assert b.held
    reoffer(a, b)
    await talk(a, b)
    assert b._transport._srtp is before
    c = await new_leg(ports, "elsewhere", ("pcmu",), "required")
    offer_dtls(c)
    clock.add(c)
    c.accept(b.answer(c.offer()))
    await talk(c, b)
    assert b._transport._srtp is not before


@pytest.mark.parametrize("kind", ["ServerHello", "HelloVerifyRequest", "ClientHello", "SRTP"])
async def test_a_strangers_packets_do_not_end_a_call_that_is_being_set_up(ports, clock, kind):
    a = await new_leg(ports, "caller", ("pcmu",), "required")
    b = await new_leg(ports, "callee", ("pcmu",), "required")
    offer_dtls(a)
    offer = a.offer()
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    async def spray():
        while True:
            for leg in (a, b):
                stranger.sendto(FORGERIES[kind](), ("127.0.0.1", leg._transport.sockets.port))
            await asyncio.sleep(0.002)

    spraying = asyncio.create_task(spray())
    try:
        await asyncio.sleep(0.02)
        answer = b.answer(offer)
        await asyncio.sleep(0.02)
        a.accept(answer)
        for leg in (a, b):
            leg.connect()
            clock.add(leg)
        await talk(a, b)
    finally:
        spraying.cancel()
        stranger.close()
    assert a.closed is b.closed is None
    assert {a.srtp.split()[0], b.srtp.split()[0]} == {"DTLS"}


@pytest.mark.parametrize("suite", ["AES_256_CM_HMAC_SHA1_80", "AES_CM_256_HMAC_SHA1_32"])
async def test_a_phone_that_offers_aes_256_first_gets_it(ports, clock, suite):
    key = bytes(range(46))
    lines = crypto(suite, key) + crypto(SUITES[0], bytes(30), tag=2)
    async with far_ends(1) as [phone]:
        leg = await new_leg(ports, "leg", ("pcmu",), "required")
        clock.add(leg)
        ours = key_in(leg.answer(phone.sdp(extra=lines, protocol="RTP/SAVP")))
        assert leg.srtp == f"SDES {suite}"
        phone.srtp = SdesSrtp(suite, key, ours)
        await plays(phone, leg, 440)
        leg.playout.write(tone(600, 0.5))
        await until(lambda: len(phone.received) > 20)
        assert abs(frequency(phone.heard()[-4800:]) - 600) < 5


@pytest.mark.parametrize("suite", [SUITES[0], "AEAD_AES_256_GCM"])
async def test_a_phone_with_a_master_key_identifier_is_answered_with_it(ports, clock, suite):
    key, mki = bytes(range(sdes.SUITES[suite])), b"\0\0\0\1"
    line = f"a=crypto:{sdes.Crypto(1, suite, key, mki)}\r\n"
    assert "|1:4" in line
    async with far_ends(1) as [phone]:
        leg = await new_leg(ports, "leg", ("pcmu",), "required")
        clock.add(leg)
        answer = leg.answer(phone.sdp(extra=line, protocol="RTP/SAVP"))
        assert re.search(r"a=crypto:1 \S+ inline:\S+\|1:4\r", answer)
        phone.srtp = SdesSrtp(suite, key, key_in(answer), mki, mki)
        await plays(phone, leg, 440)
        leg.playout.write(tone(600, 0.5))
        await until(lambda: len(phone.received) > 20)
        assert abs(frequency(phone.heard()[-4800:]) - 600) < 5
        assert not leg.srtp_failures
        renewed = leg.offer()  # our keys and MKI go on, and theirs may change
        assert re.search(r"a=crypto:1 \S+ inline:\S+\|1:4\r", renewed)
        leg.accept(phone.sdp(extra=crypto(suite, key), protocol="RTP/SAVP"))
        phone.srtp = phone.srtp.renewed(suite, key, key_in(renewed), b"", mki)
        await plays(phone, leg, 500)
        assert not leg.srtp_failures


async def test_a_phone_may_answer_our_offer_with_an_identifier(ports, clock):
    suite, key, mki = SUITES[0], bytes(range(30)), b"\7"
    async with far_ends(1) as [phone]:
        leg = await new_leg(ports, "leg", ("pcmu",), "required")
        clock.add(leg)
        ours = key_in(leg.offer())
        line = f"a=crypto:{sdes.Crypto(1, suite, key, mki)}\r\n"
        leg.accept(phone.sdp(extra=line, protocol="RTP/SAVP"))
        phone.srtp = SdesSrtp(suite, key, ours, mki, b"")
        await plays(phone, leg, 440)
        leg.playout.write(tone(600, 0.5))
        await until(lambda: len(phone.received) > 20)
        assert abs(frequency(phone.heard()[-4800:]) - 600) < 5


async def test_a_new_stream_from_elsewhere_under_the_calls_keys_is_followed(ports, clock):
    """Behind a switch: another host sends, with another SSRC, and without a new SDP."""
    suite, key = SUITES[0], bytes(range(30))
    async with far_ends(2) as [phone, switch]:
        leg = await new_leg(ports, "leg", ("pcmu",), "required")
        clock.add(leg)
        ours = key_in(leg.answer(phone.sdp(extra=crypto(suite, key), protocol="RTP/SAVP")))
        phone.srtp = SdesSrtp(suite, key, ours)
        await plays(phone, leg, 440)
        assert phone.ssrc != switch.ssrc
        switch.number = 40_000
        switch.srtp = SdesSrtp(suite, key, ours)
        await plays(switch, leg, 700)
        assert leg.remote == switch.address
        await plays(phone, leg, 440)  # and back
        assert leg.remote == phone.address
        assert leg.srtp_failures == 0


async def test_a_stream_that_begins_anew_under_its_ssrc_and_key_is_said_once(ports, clock, caplog):
    suite, key = SUITES[0], bytes(range(30))
    async with far_ends(1) as [phone]:
        leg = await new_leg(ports, "leg", ("pcmu",), "required")
        clock.add(leg)
        ours = key_in(leg.answer(phone.sdp(extra=crypto(suite, key), protocol="RTP/SAVP")))
        phone.srtp, phone.number = SdesSrtp(suite, key, ours), 20_000
        await plays(phone, leg, 440)
        phone.srtp, phone.number = SdesSrtp(suite, key, ours), 100
        for _ in range(2):
            await phone.play(leg, 440, 0.7)
        await until(lambda: leg.srtp_failures >= 60)
        said = [r.message for r in caplog.records if "not authentic" in r.message]
        host, port = phone.address
        assert said == [
            f"leg: SRTP from {host}:{port} is not authentic: its sequence numbers have begun again "
            "under the same key (RFC 3711 §3.3.2)"
        ]


async def test_another_key_than_that_of_the_sdp_is_said_once(ports, clock, caplog):
    suite = SUITES[0]
    async with far_ends(2) as [phone, stranger]:
        leg = await new_leg(ports, "leg", ("pcmu",), "required")
        clock.add(leg)
        leg.answer(phone.sdp(extra=crypto(suite, bytes(30)), protocol="RTP/SAVP"))
        for end in (stranger, phone, phone):
            end.srtp = SdesSrtp(suite, bytes(range(30)), bytes(30))
            await end.play(leg, 440, 0.7)
        await until(lambda: leg.srtp_failures >= 90)
        said = [r.message for r in caplog.records if "not authentic" in r.message]
        assert len(said) == 1
        assert f"{phone.address[1]} is not authentic: its key is not" in said[0]


async def test_single_packets_that_fail_are_no_news(ports, clock, caplog):
    """A network that doubles packets: of each the second one is a replay."""
    suite, key = SUITES[0], bytes(range(30))
    async with far_ends(1) as [phone]:
        leg = await new_leg(ports, "leg", ("pcmu",), "required")
        clock.add(leg)
        ours = key_in(leg.answer(phone.sdp(extra=crypto(suite, key), protocol="RTP/SAVP")))
        phone.srtp = SdesSrtp(suite, key, ours)
        here = "127.0.0.1", leg._transport.sockets.port
        for _ in range(60):
            data = phone.packet()
            phone.sock.sendto(data, here)
            phone.sock.sendto(data, here)
            await asyncio.sleep(0.005)
        await until(lambda: leg.srtp_failures == 60)
        assert not [r for r in caplog.records if "not authentic" in r.message]
