"""Two SIP legs joined by offer and answer, over real sockets on the loopback."""

import asyncio
import re
import struct
from time import monotonic
from unittest import mock

import numpy as np
import pytest

from offhook.media.leg import LegError
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.offer_answer import MediaSettings, NotAcceptable, SdpError
from offhook.telephony.sip.media.rtp_ports_io import NoPorts, RtpPorts
from tests.support.listening import Listening
from tests.support.waiting import until
from tests.telephony.sip.ends import (
    CODECS,
    HIGH,
    SAID_DBFS,
    SUITES,
    Ear,
    FarEnd,
    answered,
    call,
    decibels,
    far_ends,
    hears,
    hears_nothing,
    new_leg,
    plays,
    reoffer,
    talk,
    tone,
)

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("codec", CODECS)
async def test_a_tone_is_heard_both_ways_however_it_is_coded_and_protected(ports, clock, codec):
    ways = ("", *SUITES, "dtls", "dtls active")

    async def one(number, way):
        a, b = await call(ports, clock, codec, way, name=f"{way} ")
        assert a.codec == b.codec == codec
        # Tones of its own for each call: one that is heard in another would be noticed.
        await talk(a, b, 400 + 60 * number, 1200 + 60 * number)
        assert a.srtp == b.srtp
        assert a.srtp.split(" ")[-1] == ("AEAD_AES_128_GCM" if way.startswith("dtls") else way)
        assert a.srtp_failures + b.srtp_failures == 0

    await asyncio.gather(*(one(*numbered) for numbered in enumerate(ways)))


@pytest.mark.parametrize("codec", ["opus", "pcmu"])
async def test_keys_pressed_at_one_end_are_told_at_the_other(ports, clock, codec):
    a, b = await call(ports, clock, codec)
    pressed = {"caller": "", "callee": ""}

    def note(leg):
        leg.listener = Listening(
            on_dtmf=lambda digit: pressed.update({leg.call_id: pressed[leg.call_id] + digit})
        )

    note(a)
    note(b)
    b.playout.write(tone(440, 3))
    a.send_dtmf("15#")
    b.send_dtmf("*0D")
    await until(lambda: pressed == {"caller": "*0D", "callee": "15#"})
    await hears(a, 440)


async def test_hold_and_resume(ports, clock):
    a, b = await call(ports, clock)
    told = []
    b.listener = Listening(on_held=told.append)
    a.listener = Listening(on_held=lambda held: pytest.fail("it is the other who was put on hold"))
    await talk(a, b)
    reoffer(a, b, direction="sendonly")
    assert (a.held, b.held) == (False, True)
    a.playout.write(tone(500, 2))
    b.playout.write(tone(700, 0.5))
    await hears(b, 500)  # the music
    await hears_nothing(a)
    assert not b.sending
    assert not a.receiving
    reoffer(a, b)
    assert told == [True, False]
    a.playout.flush()
    await talk(a, b)


async def test_both_may_hold_each_other(ports, clock):
    a, b = await call(ports, clock)
    reoffer(a, b, direction="sendonly")
    b.accept(a.answer(b.offer("inactive")))
    assert (a.held, b.held) == (True, False)
    a.playout.write(tone(500, 0.5))
    await hears_nothing(b)
    b.accept(a.answer(b.offer()))
    assert a.held is False


async def test_the_codec_changes_with_a_new_offer(ports, clock):
    a, b = await call(ports, clock, "pcmu")
    await talk(a, b)
    for codec in ("opus", "pcma", "g722"):
        reoffer(a, b, only(codec))
        assert a.codec == b.codec == codec
        await talk(a, b)
    assert a.malformed_packets + b.malformed_packets == 0


def only(codec):
    """The offer with one codec left in it, and the telephone events."""

    def change(sdp):
        numbers = {
            n
            for n, name in re.findall(r"a=rtpmap:(\d+) ([\w-]+)", sdp)
            if name.lower() in (codec, "telephone-event")
        }
        lines = []
        for line in sdp.split("\r\n"):
            if line.startswith("m=audio"):
                words = line.split(" ")
                line = " ".join(words[:3] + [n for n in words[3:] if n in numbers])
            found = re.match(r"a=(?:rtpmap|fmtp):(\d+) ", line)
            if found is None or found[1] in numbers:
                lines.append(line)
        return "\r\n".join(lines)

    return change


async def test_an_offer_refused_changes_nothing(ports, clock):
    a, b = await call(ports, clock)
    offer = a.offer("sendonly")
    with pytest.raises(NotAcceptable):
        b.answer(offer.replace("RTP/AVP", "RTP/XYZ"))
    with pytest.raises(SdpError):
        b.answer("nonsense")
    a.negotiation.rollback()
    assert not b.held
    await talk(a, b)


@pytest.mark.parametrize("mux", [True, False])
@pytest.mark.parametrize("security", ["", SUITES[0], "dtls"])
async def test_reports_go_both_ways(ports, clock, frequent_reports, mux, security):
    def change(sdp):
        return sdp if mux else sdp.replace("a=rtcp-mux\r\n", "")

    a, b = await call(ports, clock, security=security, change=change)
    a.playout.write(tone(440, 2))
    await until(lambda: all(leg.statistics().round_trip_ms is not None for leg in (a, b)))
    assert a.malformed_packets + a.refused_packets + a.srtp_failures == 0
    assert a._transport.plan.rtcp_mux is mux


async def test_the_far_ends_goodbye_to_its_stream_ends_no_call(ports, clock):
    a, b = await call(ports, clock)
    await talk(a, b)
    a.send_bye(monotonic())
    await asyncio.sleep(0.1)
    assert b.closed is None
    await talk(a, b)


async def test_opus_is_sent_at_the_bitrate_asked_for(ports, clock):
    def ask(sdp):
        return sdp.replace("minptime=10", "minptime=10;maxaveragebitrate=12000")

    a, b = await call(ports, clock, "opus", change=ask)
    await talk(a, b)
    full, full_b = await call(ports, clock, "opus")
    await talk(full, full_b)
    assert a._sender.octets / a._sender.packets < 0.7 * full._sender.octets / full._sender.packets


async def test_silence_is_noticed_from_the_start_and_in_the_middle(ports, clock):
    async with far_ends(1) as [phone]:
        leg = await new_leg(ports, "leg", ("pcmu",))
        clock.add(leg)
        assert leg.media_timeout(monotonic() + 1000, 60, 30) is None  # no answer yet
        leg.answer(phone.sdp())
        leg.connect()
        now = monotonic()
        assert leg.media_timeout(now + 59, 60, 30) is None
        assert leg.media_timeout(now + 61, 60, 30) == "initial"
        await phone.play(leg, 440, 0.1)
        assert leg.media_timeout(now + 29, 60, 30) is None
        assert leg.media_timeout(now + 61, 60, 30) == "mid-call"
        leg.last_said_at = now + 40  # a phone that sends nothing while it listens
        assert leg.media_timeout(now + 69, 60, 30) is None
        assert leg.media_timeout(now + 71, 60, 30) == "mid-call"
        assert leg.media_timeout(now + 71, 60, 0) is None
        leg.last_said_at = now + 1000
        assert leg.media_timeout(now + 1000, 60, 30) == "mid-call"
        reporting = struct.pack("!BBHI", 0x80, 201, 1, phone.ssrc)
        before = leg.last_packet_at
        there = phone.address[0], phone.address[1] + 1
        leg._transport._rtcp_received(reporting, there, monotonic())
        assert leg.last_packet_at > before  # it is there, and silent


@pytest.mark.parametrize("direction", ["sendonly", "inactive", "recvonly"])
async def test_nobody_waits_for_sound_while_on_hold(ports, clock, direction, monkeypatch):
    async with far_ends(1) as [phone]:
        leg = await answered(ports, clock, phone.sdp())
        await phone.play(leg, 440, 0.1)
        leg.answer(phone.sdp(direction=direction))
        assert leg.media_timeout(monotonic() + 1000, 60, 30) is None
        later = monotonic() + 1000
        monkeypatch.setattr("offhook.telephony.sip.media.leg_io.monotonic", lambda: later)
        leg.answer(phone.sdp())
        assert leg.media_timeout(later + 29, 60, 30) is None  # waiting begins anew
        assert leg.media_timeout(later + 31, 60, 30) == "mid-call"


class Control:
    def __init__(self):
        self.asked = []

    async def hang_up(self, reason):
        self.asked.append(("hang_up", reason))

    async def transfer(self, target):
        self.asked.append(("transfer", target))
        if target == "nobody":
            raise LegError("the transfer was refused: 404 Not Found")

    async def hold(self):
        self.asked.append("hold")

    async def resume(self):
        self.asked.append("resume")

    def send_info_dtmf(self, digit):
        self.asked.append(digit)


async def test_what_needs_signalling_is_asked_of_the_control(ports, clock):
    async with far_ends(1) as [phone]:
        leg = await new_leg(ports, "leg")
        clock.add(leg)
        for ask in (leg.hold, leg.resume, lambda: leg.transfer("100")):
            with pytest.raises(LegError, match="not connected"):
                await ask()
        leg.answer(phone.sdp())
        leg.control = control = Control()
        await leg.hold()
        await leg.resume()
        await leg.transfer("100")
        with pytest.raises(LegError, match="404"):
            await leg.transfer("nobody")
        await asyncio.gather(leg.hang_up("done"), leg.hang_up("done again"))
        await leg.hang_up("and again")
        asked = ["hold", "resume", ("transfer", "100"), ("transfer", "nobody"), ("hang_up", "done")]
        assert control.asked == asked
        assert leg.closed == "done"
        with pytest.raises(LegError, match="not connected"):
            await leg.transfer("100")
        assert leg.send_message("hello") is False


async def test_keys_go_by_info_where_tones_would_be_garbled(ports, clock):
    def without_events(sdp):
        return "\r\n".join(line for line in sdp.split("\r\n") if "telephone-event" not in line)

    opus, far = await call(ports, clock, "opus", change=without_events)
    opus.control = Control()
    opus.send_dtmf("1,a")
    assert opus.control.asked == ["1", "A"]
    with pytest.raises(LegError):
        opus.send_dtmf("x")
    opus.control = far.control = None
    pcmu, far = await call(ports, clock, "pcmu", change=without_events)
    pcmu.control = Control()
    ear, keys = Ear(far), []
    far.listener = Listening(on_dtmf=keys.append)
    pcmu.send_dtmf("5")
    await asyncio.sleep(0.5)
    assert pcmu.control.asked == []
    assert keys == ["5"]  # heard as tones, which are no sound of the call
    assert decibels(np.concatenate(ear.heard)) < SAID_DBFS - 20
    pcmu.control = None


async def test_hanging_up_says_goodbye_and_gives_the_ports_back_to_rest(clock):
    two = RtpPorts("127.0.0.1", HIGH + 1, HIGH + 4, drain_seconds=0.3)
    async with far_ends(1) as [phone]:
        legs = [await new_leg(two, "one", ("pcmu",)), await new_leg(two, "two", ("pcmu",))]
        with pytest.raises(NoPorts):
            await new_leg(two, "three")
        legs[0].answer(phone.sdp(extra="a=rtcp-mux\r\n"))
        await legs[0].hang_up("done")
        await until(lambda: phone.reports)
        assert phone.reports[-1][-8:-4] == b"\x81\xcb\x00\x01"  # BYE of one source
        with pytest.raises(NoPorts):
            await new_leg(two, "three")
        await asyncio.sleep(0.3)
        third = await new_leg(two, "three", ("pcmu",))
        await asyncio.gather(third.hang_up("done"), legs[1].hang_up("done"))


async def test_a_leg_never_bound_or_answered_can_be_hung_up(ports):
    await SipLeg("leg", MediaSettings(), ports, "127.0.0.1").hang_up("never mind")
    bound = await new_leg(ports, "bound")
    assert bound.media_timeout(1e9, 1, 1) is None
    bound.tick(0.0)
    await bound.hang_up("never mind")


async def test_ports_are_given_back_even_if_the_signalling_fails(ports):
    leg = await new_leg(ports, "leg")
    leg.control = Control()
    leg.control.hang_up = mock.AsyncMock(side_effect=RuntimeError("lost"))
    with pytest.raises(RuntimeError, match="lost"):
        await leg.hang_up("done")
    assert leg._transport.sockets._release is None


async def test_a_phone_whose_timestamps_stand_still_is_heard(ports, clock):
    async with far_ends(1) as [phone]:
        leg = await answered(ports, clock, phone.sdp())

        def stopped(hz):
            data = FarEnd.packet(phone, hz)
            return data[:4] + bytes(4) + data[8:]

        phone.packet = stopped
        await plays(phone, leg, 440)
