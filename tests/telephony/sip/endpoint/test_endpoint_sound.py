"""What is heard of a far end whose sound is odd, and what it gets: packets over real sockets."""

import asyncio
import base64
import itertools
import os
import re

import numpy as np
import pytest

from offhook.media.codecs.g711 import PcmuDecoder
from offhook.media.rtp.rtp import RtpPacket
from offhook.telephony.sip.media.srtp import SdesSrtp
from offhook.telephony.sip.messages.message import sdp_of
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.phones import OUR_TONE, THEIR_TONE, endpoint, level
from tests.telephony.sip.scripted_peer import udp_peer
from tests.telephony.sip.scripted_sound import at_once, ends_with, hears, in_a_call, sound

EVENT = "a=rtpmap:{0} telephone-event/{1}"


@pytest.fixture
async def edge():
    async with endpoint() as edge:
        yield edge


# --- lengths of packets ---


LENGTHS = [
    *(("pcmu", "0", (f"a=ptime:{ms}",), ms, ms * 8) for ms in (10, 20, 30, 40, 60)),
    ("pcmu", "0", ("a=ptime:60", "a=maxptime:30"), 30, 240),
    ("g722", "9", ("a=ptime:30",), 30, 240),  # its clock is 8 kHz, its sound is not
    ("opus", "96", ("a=rtpmap:96 opus/48000/2", "a=ptime:60"), 60, 2880),
    ("opus", "96", ("a=rtpmap:96 opus/48000/2", "a=ptime:10"), 10, 480),
]


async def test_packets_are_as_long_as_the_far_end_wants_and_its_own_are_heard(edge):
    async def run(codec, formats, lines, ms, ticks):
        async with in_a_call(edge, formats, *lines, codec=codec, ptime_ms=ms) as call:
            await call.line.is_heard(call.talk)
            assert call.line.hears()
            packets = call.line.packets()[1:]
            pairs = list(itertools.pairwise(packets))
            assert {b.timestamp - a.timestamp for a, b in pairs} == {ticks}
            assert {b.sequence_number - a.sequence_number for a, b in pairs} == {1}
            if codec != "opus":
                assert {len(p.payload) for p in packets} == {8 * ms}
            assert f"a=ptime:{ms}" in call.answer

    await at_once(LENGTHS, run)


# --- streams that are not as they should be ---


def packets(line, count):
    return [line.packet() for _ in range(count)]


async def test_numbers_wrap_unheard(edge):
    async with in_a_call(edge) as call:
        line = call.line
        line.number, line.timestamp = 0xFFFF - 15, 0xFFFF_FFFF - 160 * 15
        await line.says(0.4)
        await line.is_heard(call.talk)
        assert call.statistics.packets_lost == 0
        async with asyncio.timeout(HANGS_S):  # half a second without a hole
            while level(call.talk.sound[-8000:]) <= 5000:  # but for those of a busy machine
                await line.says(0.4)


async def test_a_stream_that_jumps_is_heard_again_at_once(edge):
    async def run(jump):
        async with in_a_call(edge) as call:
            line = call.line
            await line.is_heard(call.talk)
            if jump in ("SSRC", "all"):
                line.ssrc ^= 0x5A5A5A5A
            if jump in ("timestamp", "all"):
                line.timestamp += 9_000_000
            if jump == "timestamp back":
                line.timestamp -= 100_000
            if jump in ("number", "all"):
                line.number += 20_000
            await line.is_heard(call.talk, hz=700)

    jumps = "SSRC", "timestamp", "timestamp back", "number", "all"
    await at_once([(jump,) for jump in jumps], run)


async def test_packets_twice_and_out_of_order_are_heard_once_and_in_order(edge):
    async with in_a_call(edge) as call:
        line = call.line
        await line.says(0.3)
        sent = packets(line, 30)
        for first, second, third in zip(sent[::3], sent[1::3], sent[2::3], strict=True):
            for packet in (second, first, first, third):
                line.send(packet)
            await asyncio.sleep(0.06)
        await asyncio.sleep(0.1)
        assert call.statistics.packets_lost == 0
        assert ends_with(call.talk.sound[:-3200], THEIR_TONE)


async def test_a_burst_of_loss_is_concealed_counted_and_over(edge):
    async with in_a_call(edge) as call:
        line = call.line
        sent = packets(line, 40)
        sent[15:20] = [None] * 5
        await line.sends(sent)
        await line.is_heard(call.talk)
        assert call.statistics.packets_lost == 5
        assert call.statistics.concealed_ms >= 60


async def test_silence_that_is_not_sent_is_silence_and_no_loss(edge):
    async with in_a_call(edge) as call:
        line = call.line
        await line.says(0.4)
        ticks = len(call.talk.heard)
        await until(lambda: len(call.talk.heard) >= ticks + 13)  # the clock of the call goes on
        assert level(call.talk.sound[-1600:]) < 300
        line.timestamp += 8 * 300
        await line.is_heard(call.talk, hz=700)
        assert call.statistics.packets_lost == 0


async def test_comfort_noise_stands_for_what_is_not_sent(edge):
    async with in_a_call(edge, "0 13") as call:
        line = call.line
        await line.says(0.4)
        line.number += 1
        line.timestamp += 160
        noise = RtpPacket(13, line.number & 0xFFFF, line.timestamp, line.ssrc, bytes([40]))
        line.send(noise)
        await until(lambda: 50 < level(call.talk.sound[-1600:]) < 1000)  # −40 dBov is 328
        line.timestamp += 8 * 300
        await line.is_heard(call.talk)
        assert call.statistics.packets_lost == 0


# --- addresses ---


async def test_a_private_address_in_sdp_is_answered_where_the_sound_comes_from(edge):
    async with in_a_call(edge, host="10.20.30.40") as call:
        await asyncio.sleep(0.1)
        assert not call.line.received
        await call.line.is_heard(call.talk)
        assert call.line.hears()


async def test_once_the_far_end_was_heard_nobody_else_is(edge):
    async with in_a_call(edge) as call:
        with sound() as stranger:
            stranger.aim(call.answer)
            await asyncio.gather(call.line.says(0.6), stranger.says(0.6, hz=1000))
            await call.line.is_heard(call.talk)
            assert call.talk.hears(THEIR_TONE)
            assert not stranger.received
            assert call.line.hears()


# --- reports ---


@pytest.mark.parametrize("mux", [True, False])
async def test_reports_go_beside_the_sound_or_to_their_own_port(edge, frequent_reports, mux):
    with sound() as reports:
        own = f"a=rtcp:{reports.port}"
        async with in_a_call(edge, "0", *(("a=rtcp-mux",) if mux else (own,))) as call:
            assert ("a=rtcp-mux" in call.answer) == mux
            used, other = (call.line, reports) if mux else (reports, call.line)
            await call.line.says(0.3)
            await until(lambda: len(used.rtcp) >= 2)
            port = call.line.remote[1]
            assert {source for _, source in used.rtcp} == {port if mux else port + 1}
            assert not other.rtcp


# --- keys ---


OPUS = "a=rtpmap:110 opus/48000/2"
KEYS = [
    ("0 101", "pcmu", (EVENT.format(101, 8000),), 101),
    ("0 96", "pcmu", (EVENT.format(96, 8000),), 96),
    ("110 100", "opus", (OPUS, EVENT.format(100, 48000)), 100),
    ("110 101", "opus", (OPUS, EVENT.format(101, 8000)), 101),
]


async def test_keys_are_told_though_the_packets_of_their_end_are_lost(edge):
    async def run(formats, codec, lines, number):
        async with in_a_call(edge, formats, *lines, codec=codec) as call:
            line = call.line
            for key, ends, marker in ((1, 3, True), (2, 0, True), (2, 1, True), (11, 3, False)):
                await line.says(0.1)
                line.key(key, number, ends, marker)
            await line.says(0.1)
            assert call.talk.keys == "122#"
            assert call.statistics.packets_lost == 0

    await at_once(KEYS, run)


# --- keys of SRTP ---

SUITE = "AES_CM_128_HMAC_SHA1_80"


def inline(key):
    return f"inline:{base64.b64encode(key).decode()}"


async def test_the_first_key_that_fits_is_taken_whatever_is_offered_beside_it(edge):
    key, other = os.urandom(30), os.urandom(30)
    lines = (
        f"a=crypto:1 F8_128_HMAC_SHA1_80 {inline(other)}",
        f"a=crypto:2 {SUITE} {inline(other)} KDR=1",
        f"a=crypto:3 {SUITE} {inline(other)} UNENCRYPTED_SRTP",
        f"a=crypto:4 {SUITE} {inline(key)}|2^31 WSH=128",
        f"a=crypto:5 AES_CM_128_HMAC_SHA1_32 {inline(other)}",
    )
    sip, host = edge
    async with udp_peer(sip) as far:
        with sound() as line:
            far.invite(line.sdp("0", *lines, protocol="RTP/SAVP"))
            response = await far.response(200)
            answer = sdp_of(response)
            far.ack(response)
            [(tag, suite, theirs)] = re.findall(r"a=crypto:(\d+) (\S+) inline:(\S+)", answer)
            assert (tag, suite) == ("4", SUITE)
            assert "RTP/SAVP 0" in answer
            srtp = SdesSrtp(SUITE, key, base64.b64decode(theirs))
            line.aim(answer)
            talk = await host.talk()
            for _ in range(20):
                line.sock.sendto(srtp.protect(line.packet().serialize()), line.remote)
                await asyncio.sleep(0.02)
            assert hears(talk)
            await until(lambda: len(line.received) > 15)
            await far.hang_up()
            assert ends_with(unprotected(line, srtp), OUR_TONE)
        await until(lambda: host.records)
        assert host.records[0].srtp == f"SDES {SUITE}"


def unprotected(line, srtp):
    decoder = PcmuDecoder()
    plain = [srtp.unprotect(p.serialize()) for p in line.packets()]
    return np.concatenate([decoder.decode(RtpPacket.parse(data).payload) for data in plain])
