"""What changes within a call: hold, codec, address, refresh; seen from the far end's sockets."""

import asyncio
from time import monotonic

import pytest

from offhook.media.leg import LegError
from offhook.telephony.sip.messages.message import sdp_of
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.listening import Listening
from tests.support.waiting import until
from tests.telephony.sip.phones import LOOPBACK, endpoint
from tests.telephony.sip.scripted_peer import Time, udp_peer
from tests.telephony.sip.scripted_sound import at_once, hears, in_a_call, sound

UPDATES = ("Allow", "INVITE, ACK, BYE, CANCEL, UPDATE")
TIMER = ("Supported", "timer")


@pytest.fixture
def time(monkeypatch):
    return Time(monkeypatch)


@pytest.fixture
async def edge():
    async with endpoint() as edge:
        yield edge


async def arrives(line, count=10):
    """So many packets from now on."""
    before = len(line.received)
    await until(lambda: len(line.received) >= before + count)


async def is_silent(line):
    await asyncio.sleep(0.06)  # for what was under way
    before = len(line.received)
    await asyncio.sleep(0.15)
    assert len(line.received) == before


async def changed(far, sdp, method="INVITE", headers=()):
    """Their answer to an offer in mid-call."""
    answer = await far.accepted(far.ask(method, *headers, sdp=sdp))
    if method == "INVITE":
        far.ack(answer)
    return sdp_of(answer)


# --- hold ---


async def test_the_far_end_holds_in_three_ways_and_comes_back_in_two(edge):
    async def run(how, direction, back):
        async with in_a_call(edge) as call:
            far, line, talk = call.far, call.line, call.talk
            await arrives(line)
            if how == "0.0.0.0":
                held = await changed(far, line.sdp(host=how, version=2))
            else:
                held = await changed(far, line.sdp(direction=how, version=2))
            assert f"a={direction}\r\n" in held
            assert talk.leg.held
            await is_silent(line)
            if back == "sendrecv":
                assert "a=sendrecv" in await changed(far, line.sdp(version=3))
            else:
                offered = await far.accepted(far.ask("INVITE"))
                assert "a=sendrecv" in sdp_of(offered)
                far.ack(offered, line.sdp(version=3))
            since = monotonic()
            await line.is_heard(talk)
            assert not talk.leg.held
            assert line.hears(since=since)

    holds = ("sendonly", "recvonly"), ("inactive", "inactive"), ("0.0.0.0", "recvonly")
    await at_once([(*h, back) for h in holds for back in ("sendrecv", "without SDP")], run)


async def test_held_twice_is_held_once():
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp())
            talk = await host.talk()
            told = []
            talk.leg.listener = Listening(on_held=told.append)
            for version, direction in enumerate(("sendonly", "inactive", "sendrecv"), 2):
                await changed(far, line.sdp(direction=direction, version=version))
            assert told == [True, False]
            await far.hang_up()


async def test_we_hold_and_what_the_far_end_says_meanwhile_is_not_heard():
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            line.aim(await far.call(line.sdp()))
            talk = await host.talk()
            asked = asyncio.create_task(talk.leg.hold())
            reinvite = await far.asked("INVITE")
            assert "a=sendonly" in sdp_of(reinvite)
            far.reply(reinvite, 200, sdp=line.sdp(direction="recvonly", version=2))
            await far.asked("ACK")
            await asked
            await line.says(0.3)
            assert not hears(talk)
            asked = asyncio.create_task(talk.leg.resume())
            reinvite = await far.asked("INVITE")
            assert "a=sendrecv" in sdp_of(reinvite)
            far.reply(reinvite, 200, sdp=line.sdp(version=3))
            await asked
            await line.is_heard(talk)
            await far.hang_up()


@pytest.mark.parametrize("status", [488, 500])
async def test_a_hold_that_is_refused_is_said_and_the_call_goes_on(status):
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            line.aim(await far.call(line.sdp()))
            talk = await host.talk()
            asked = asyncio.create_task(talk.leg.hold())
            reinvite = await far.asked("INVITE")
            far.reply(reinvite, status)
            await far.asked("ACK")
            with pytest.raises(LegError, match=str(status)):
                await asked
            assert "a=sendrecv" in await changed(far, line.sdp(version=2))
            since = monotonic()
            await line.is_heard(talk)
            assert line.hears(since=since)
            await far.hang_up()


# --- other changes ---


async def test_the_far_end_moves_to_another_port(edge):
    async def run(method):
        async with in_a_call(edge) as call:
            with sound() as moved:
                await arrives(call.line)
                moved.aim(await changed(call.far, moved.sdp(version=2), method))
                moved.ssrc, moved.number = call.line.ssrc, call.line.number
                await is_silent(call.line)
                await moved.is_heard(call.talk)
                assert moved.hears()

    await at_once([("INVITE",), ("UPDATE",)], run)


CODECS = [
    (("pcmu", 0), ("pcma", 8)),
    (("pcmu", 0), ("opus", 96)),
    (("opus", 96), ("g722", 9)),
    (("opus", 96), ("opus", 111)),
]


async def test_codec_and_payload_type_change_within_the_call(edge):
    def lines(number):
        return [f"a=rtpmap:{number} opus/48000/2"] if number >= 96 else []

    async def run(first, second):
        (codec, number), (_, new) = first, second
        async with in_a_call(edge, str(number), *lines(number), codec=codec) as call:
            line = call.line
            await line.says(0.3)
            answer = await changed(call.far, line.sdp(str(new), *lines(new), version=2))
            assert f"RTP/AVP {new}" in answer
            line.use(*second)
            await asyncio.sleep(0.05)
            since = monotonic()
            await line.is_heard(call.talk)
            assert {p.payload_type for p in line.packets(since)} == {new}
            assert line.hears(since=since)

    await at_once(CODECS, run)
    _, host = edge
    await until(lambda: len(host.records) == len(CODECS))
    assert sorted(r.codec for r in host.records) == sorted(second[0] for _, second in CODECS)


async def test_a_change_that_leaves_no_sound_is_refused_and_the_call_goes_on(edge):
    async def run(formats, port):
        async with in_a_call(edge) as call:
            call.far.ask("INVITE", sdp=call.line.sdp(formats, port=port, version=2))
            await call.far.response(488)
            since = monotonic()
            await call.line.is_heard(call.talk)
            assert call.line.hears(since=since)

    await at_once([("0", 0), ("18", None)], run)


async def test_an_update_without_sdp_only_refreshes():
    async with endpoint() as (sip, _), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp(), TIMER, ("Session-Expires", "600"))
            far.ask("UPDATE", TIMER, ("Session-Expires", "300;refresher=uac"))
            answer = await far.response(200, "UPDATE")
            assert answer.headers.get("Session-Expires") == "300;refresher=uac"
            assert not answer.body
            await arrives(line)
            await far.hang_up()


async def test_two_changes_at_once_are_both_refused_and_ours_is_made_anew(time):
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp())
            talk = await host.talk()
            asked = asyncio.create_task(talk.leg.hold())
            ours = await far.asked("INVITE")
            far.ask("INVITE", sdp=line.sdp(version=2))
            await far.response(491)
            far.reply(ours, 491)
            await far.asked("ACK")
            assert not asked.done()
            await time.passes(sip, 2.1)  # who was called waits up to 2 s
            again = await far.asked("INVITE")
            assert again.cseq.number > ours.cseq.number
            far.reply(again, 200, sdp=line.sdp(direction="recvonly", version=3))
            await asked
            await far.hang_up()


# --- session timers ---


async def test_a_caller_who_refreshes_keeps_the_call_and_one_who_stops_is_hung_up(time):
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            timer = TIMER, ("Session-Expires", "120;refresher=uac")
            await far.call(line.sdp(), *timer)
            await time.passes(sip, 80)
            await changed(far, line.sdp(), headers=timer)
            await time.passes(sip, 80)
            assert "BYE" not in far.came
            await time.passes(sip, 10)
            bye = await far.is_hung_up()
            assert "did not refresh" in bye.headers.get("Reason")
        await until(lambda: host.records)
        assert host.records[0].ended_by == "timeout"


@pytest.mark.parametrize("updates", [True, False])
async def test_we_refresh_where_that_is_ours_to_do(time, updates):
    """By an UPDATE where the far end knows it, else by an offer that changes nothing."""
    async with endpoint() as (sip, _), udp_peer(sip) as far:
        with sound() as line:
            allow = UPDATES if updates else ("Allow", "INVITE, ACK, BYE, CANCEL")
            timer = ("Session-Expires", "120;refresher=uas")
            first = await far.call(line.sdp(), TIMER, timer, allow)
            for _ in range(3):
                await time.passes(sip, 60.2)
                refresh = await far.asked("UPDATE" if updates else "INVITE")
                assert refresh.headers.get("Session-Expires") == "120;refresher=uac"
                agreed = ("Session-Expires", "120;refresher=uac")
                if updates:
                    assert not refresh.body
                    far.reply(refresh, 200, agreed, allow)
                else:
                    assert places(sdp_of(refresh)) == places(first)
                    far.reply(refresh, 200, agreed, allow, sdp=line.sdp())
                    await far.asked("ACK")
                await asyncio.sleep(0.02)
            assert "BYE" not in far.came
            await arrives(line)
            await far.hang_up()


def places(sdp):
    """Where its sound is to be sent, and as what."""
    lines = sdp.split("\r\n")
    audio = next(text for text in lines if text.startswith("m=audio"))
    return [text for text in lines if text.startswith(("c=", "a=sendrecv"))], audio.split()[:3]


async def test_a_refresh_that_nobody_answers_ends_the_call(time):
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp(), TIMER, ("Session-Expires", "300;refresher=uas"), UPDATES)
            await time.passes(sip, 151)
            await far.asked("UPDATE")
            await time.passes(sip, 32)
            await far.is_hung_up()
        await until(lambda: host.records)
        assert "not answer" in host.records[0].end_reason


async def test_a_trunk_without_timers_of_its_own_is_refreshed_by_us(time):
    trunk = Trunk("far", addresses=LOOPBACK.addresses, session_seconds=120)
    async with endpoint(trunks=(trunk,)) as (sip, _), udp_peer(sip) as far:
        with sound() as line:
            far.invite(line.sdp(), UPDATES)
            answer = await far.response(200)
            assert answer.headers.get("Session-Expires") == "120;refresher=uas"
            assert "timer" not in answer.require
            far.ack(answer)
            await time.passes(sip, 60.2)
            far.reply(await far.asked("UPDATE"), 200)
            await far.hang_up()
