"""Calls that we place, at far ends that are not content at once: media that do not suit, sound
before the answer, and messages too long for UDP."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from offhook.telephony.sip.messages.message import sdp_of
from offhook.telephony.sip.messages.sdp import parse
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.transactions.large_requests import LARGE_BYTES
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.waiting import until
from tests.telephony.sip.ends import Ear, decibels
from tests.telephony.sip.phones import (
    OUR_TONE,
    THEIR_TONE,
    Baresip,
    endpoint,
    is_tone,
    kamailio,
    needs_baresip,
    needs_kamailio,
)
from tests.telephony.sip.scripted_peer import HOST, udp_peer
from tests.telephony.sip.scripted_sound import RATE_IN, sound


def trunk_to(port, **options):
    return Trunk("pbx", server=f"{HOST}:{port}", **{"options_seconds": 0, **options})


@asynccontextmanager
async def calling(**options):
    """A call of ours that has reached a far end: the far end, its INVITE, the call, our side."""
    async with udp_peer() as far, endpoint(trunks=(trunk_to(far.port, **options),)) as (sip, host):
        call = sip.dial(Dial("100"))
        invite = await far.asked("INVITE")
        far.learn(invite)
        yield far, invite, call, host


async def end_of(call):
    return [progress async for progress in call.events()][-1]


def offered(invite):
    """Profile, whether there are SRTP keys in it, whether there is a certificate's fingerprint."""
    [audio] = parse(sdp_of(invite)).media
    return audio.protocol, "crypto" in dict(audio.attributes), bool(audio.fingerprints)


OPTIONAL = ("RTP/AVP", True, False)
SDES = ("RTP/SAVP", True, True)
DTLS = ("UDP/TLS/RTP/SAVP", False, True)


async def refusals(far, invite, call, answers=488, sdp=None):
    """What is offered until we give up, each refused."""
    found = []
    while True:
        found.append(offered(invite))
        far.reply(invite, answers, sdp=sdp)
        await far.asked("ACK")
        following = asyncio.create_task(far.asked("INVITE"))
        await until(lambda asked=following: asked.done() or call.state == "ended")
        if not following.done():
            following.cancel()
            return found
        invite = await following


@pytest.mark.parametrize(
    ("srtp", "status", "offers"),
    [
        ("optional", 488, [OPTIONAL, SDES, DTLS]),
        ("optional", 606, [OPTIONAL, SDES, DTLS]),
        ("required", 488, [SDES, DTLS]),
        ("off", 488, [("RTP/AVP", False, False)]),
        ("optional", 486, [OPTIONAL]),
        ("optional", 403, [OPTIONAL]),
    ],
)
async def test_media_that_do_not_suit_are_offered_otherwise_and_never_less_safe(
    srtp, status, offers
):
    async with calling(srtp=srtp) as (far, invite, call, host):
        assert await refusals(far, invite, call, status) == offers
        assert (await end_of(call)).status == status
        await until(lambda: host.records)
        [record] = host.records
        assert [(a.media, a.status) for a in record.attempts] == [(o[0], status) for o in offers]
        ids = tuple(attempt.sip_call_id for attempt in record.attempts)
        assert len(set(ids)) == len(offers)
        shown = call._endpoint.stack.trace.render(ids)
        assert all(f"{protocol} 111" in shown for protocol, *_ in offers)
        written = json.loads(record.line())["attempts"]
        assert written[0]["server"] == f"{HOST}:{far.port} UDP"
        assert not host.talks


@pytest.mark.parametrize(
    ("protocol", "offers"),
    [
        ("UDP/TLS/RTP/SAVPF", [OPTIONAL, DTLS]),
        ("RTP/SAVP", [OPTIONAL, SDES]),
        ("RTP/AVP", [OPTIONAL]),
    ],
)
async def test_a_far_end_that_says_what_it_wants_is_offered_that(protocol, offers):
    async with calling() as (far, invite, call, _):
        with sound() as line:
            assert await refusals(far, invite, call, 488, line.sdp(protocol=protocol)) == offers


async def test_whoever_gives_up_meanwhile_calls_nobody_again():
    async with calling() as (far, invite, call, _):
        await call.hang_up("changed my mind")
        far.reply(invite, 488)
        await far.asked("ACK")
        await asyncio.sleep(0.2)
        assert far.came.count("INVITE") == 1
        assert (await end_of(call)).reason == "changed my mind"


async def test_who_has_rung_is_not_called_again():
    async with calling() as (far, invite, call, _):
        far.reply(invite, 180)
        assert await refusals(far, invite, call) == [OPTIONAL]
        assert (await end_of(call)).reason.startswith("no common media")


async def test_an_answer_without_keys_ends_a_call_that_must_be_protected():
    async with calling(srtp="required") as (far, invite, call, host):
        with sound() as line:
            far.reply(invite, 200, sdp=line.sdp())
            await far.asked("ACK")
            await far.is_hung_up()
            ended = await end_of(call)
            assert ended.reason.startswith("no acceptable media")
            assert not host.talks


@needs_baresip
@pytest.mark.parametrize(
    ("account", "srtp", "offers", "protection"),
    [
        (";mediaenc=srtp-mand", "optional", ["RTP/AVP", "RTP/SAVP"], "SDES"),
        (";mediaenc=dtls_srtp", "optional", ["RTP/AVP", "RTP/SAVP"], "DTLS"),
        (";mediaenc=dtls_srtp", "required", ["RTP/SAVP"], "DTLS"),
        (";mediaenc=srtp", "optional", ["RTP/AVP"], "SDES"),
    ],
)
async def test_a_phone_that_demands_srtp_is_talked_to(tmp_path, account, srtp, offers, protection):
    phone = Baresip(tmp_path / "phone", account=f"{account};answermode=auto")
    trunk = trunk_to(phone.port, srtp=srtp)
    async with endpoint(trunks=(trunk,)) as (sip, host), phone.running():
        call = sip.dial(Dial(phone.uri))
        talk = await host.talk()
        await asyncio.sleep(1.5)
        await until(lambda: talk.hears(THEIR_TONE))
        await call.hang_up("done")
        await until(lambda: host.records)
        await asyncio.sleep(0.2)
    assert phone.hears(OUR_TONE)
    [record] = host.records
    assert [attempt.media for attempt in record.attempts] == offers
    assert record.srtp.startswith(protection)


@needs_baresip
async def test_a_phone_without_srtp_is_not_talked_to_where_it_is_required(tmp_path):
    phone = Baresip(tmp_path / "phone", account=";answermode=auto")
    trunk = trunk_to(phone.port, srtp="required")
    async with endpoint(trunks=(trunk,)) as (sip, host), phone.running():
        ended = await end_of(sip.dial(Dial(phone.uri)))
        assert ended.reason.startswith("no common media")
        assert not host.talks


# --- sound before the answer ---


async def test_sound_before_the_answer_is_heard_and_the_agent_comes_with_the_answer():
    async with calling(srtp="off") as (far, invite, call, host):
        with sound() as line:
            line.aim(sdp_of(invite))
            far.reply(invite, 183, sdp=line.sdp())
            await until(lambda: call.state == "early_media")
            ear = Ear(call.leg)
            while not is_tone(ear.last(0.6), RATE_IN, 425):  # whole, once no packet was late
                await line.says(1.0, 425)
            assert line.packets()  # many a gateway sends nothing before it has heard us
            assert not host.talks
            far.reply(invite, 183, sdp=line.sdp())
            far.reply(invite, 200, sdp=line.sdp())
            await far.asked("ACK")
            talk = await host.talk()
            assert [leg for phase in host.clock._phases for leg in phase] == [call.leg]
            await line.says(1.0)
            assert talk.hears(THEIR_TONE, 0.6)
            assert line.hears(OUR_TONE)
            ear.stop()
            await call.hang_up("done")
            await far.is_hung_up()
            states = [progress.state for progress in call.progress]
            assert states[:3] == ["dialing", "early_media", "answered"]


async def test_a_line_that_only_rang_is_silent_until_the_answer():
    async with calling(srtp="off") as (far, invite, call, host):
        with sound() as line:
            line.aim(sdp_of(invite))
            far.reply(invite, 180)
            await until(lambda: call.state == "ringing")
            await line.says(0.3)
            assert not line.packets()
            far.reply(invite, 200, sdp=line.sdp())
            talk = await host.talk()
            await line.says(0.8)
            assert talk.hears(THEIR_TONE, 0.5)
            await far.asked("ACK")
            await call.hang_up("done")
            await far.is_hung_up()


async def test_an_announcement_instead_of_an_answer_ends_as_the_far_end_says():
    async with calling(srtp="off") as (far, invite, call, host):
        with sound() as line:
            line.aim(sdp_of(invite))
            far.reply(invite, 183, sdp=line.sdp())
            await until(lambda: call.state == "early_media")
            ear = Ear(call.leg)
            await line.says(0.5)
            assert decibels(ear.last(0.2)) > 60
            far.reply(invite, 404)
            ended = await end_of(call)
            assert (ended.status, ended.reason) == (404, "no such number: 404 Not Found")
            await until(lambda: host.records)
            [record] = host.records
            assert (record.status, record.ended_by, record.answered) == (404, "remote", None)
            assert record.codec == "pcmu"
            assert not host.talks
            sent = len(line.packets())
            await asyncio.sleep(0.15)
            assert len(line.packets()) == sent


@pytest.mark.parametrize("with_sound", [True, False])
async def test_we_give_up_before_the_answer(with_sound):
    async with calling(srtp="off") as (far, invite, call, host):
        with sound() as line:
            far.reply(invite, 183 if with_sound else 180, sdp=line.sdp() if with_sound else None)
            await until(lambda: call.state != "dialing")
            await call.hang_up("the caller has gone")
            far.reply(await far.asked("CANCEL"), 200)
            far.reply(invite, 487)
            await far.asked("ACK")
            ended = await end_of(call)
            assert (ended.status, ended.reason) == (487, "the caller has gone")
            await until(lambda: host.records)
            [record] = host.records
            assert (record.status, record.ended_by) == (487, "local")
            assert record.end_reason == "the caller has gone"
            assert not host.talks


async def test_a_far_end_that_says_goodbye_before_the_answer_is_believed():
    async with calling(srtp="off") as (far, invite, call, host):
        with sound() as line:
            far.reply(invite, 183, sdp=line.sdp())
            await until(lambda: call.state == "early_media")
            far.ask("BYE", ("Reason", 'Q.850;cause=16;text="gone"'))
            far.reply(await far.asked("CANCEL"), 200)
            far.reply(invite, 487)
            ended = await end_of(call)
            assert ended.reason == "gone"
            await until(lambda: host.records)
            assert host.records[0].ended_by == "remote"


# --- messages too long for UDP ---

LONG = {"X-Story": "word " * 250}


@needs_kamailio
async def test_what_is_too_long_for_udp_goes_by_tcp_where_that_is_spoken(tmp_path):
    async with kamailio(tmp_path) as port:
        trunk = trunk_to(port, username="1002", password="secret")
        async with endpoint(trunks=(trunk,)) as (sip, _):
            ended = await end_of(sip.dial(Dial("4711", headers=LONG)))
            assert ended.status == 404
            await end_of(sip.dial(Dial("4711")))
            sent = [m for m in sip.stack.trace.as_dicts() if m["sent"]]
            ways = [(m["transport"], m["first_line"].split()[0]) for m in sent]
            long = [("TCP", "INVITE"), ("TCP", "ACK")] * 2  # 407, 404
            assert ways[:4] == long
            assert ("UDP", "INVITE") in ways[4:]


async def test_who_speaks_no_tcp_gets_it_by_udp_and_is_not_asked_again():
    async with udp_peer() as far, endpoint(trunks=(trunk_to(far.port),)) as (sip, _):
        for first in (True, False):
            call = sip.dial(Dial("100", headers=LONG))
            invite = await far.asked("INVITE")
            assert len(invite.serialize()) > LARGE_BYTES
            assert invite.via.transport == "UDP"
            far.reply(invite, 486)
            assert (await end_of(call)).reason == "busy"
            tcp = [m for m in sip.stack.trace.as_dicts() if m["transport"] == "TCP"]
            assert len(tcp) == 1, first


async def test_an_invite_of_ours_with_all_codecs_and_keys_fits_a_packet():
    async with udp_peer() as far:
        trunk = trunk_to(far.port, username="4930123456789")
        async with endpoint(trunks=(trunk,)) as (sip, _):
            dial = Dial("+4915112345678", caller="4930123456789", caller_name="Somebody Important")
            call = sip.dial(dial)
            invite = await far.asked("INVITE")
            assert "crypto" in sdp_of(invite)
            assert len(invite.serialize()) < LARGE_BYTES - 200  # for credentials
            far.reply(invite, 486)
            await end_of(call)


# --- moved ---


@pytest.mark.parametrize("redirects", [True, False])
async def test_a_call_that_has_moved_is_placed_again_where_its_trunk_allows_it(redirects):
    async with calling(redirects=redirects) as (far, invite, call, host):
        moved = f"<sip:+49301234@{HOST}:1>"  # the number counts, at our trunk: not the host
        far.reply(invite, 302, ("Contact", moved))
        await far.asked("ACK")
        if not redirects:
            assert "moved: 302" in (await end_of(call)).reason
            return
        again = await far.asked("INVITE")
        assert str(again.uri) == f"sip:+49301234@{HOST}:{far.port}"
        assert again.call_id != invite.call_id
        far.reply(again, 302, ("Contact", f"<sip:100@{HOST}>"))  # where it began
        await far.asked("ACK")
        assert "moved: 302" in (await end_of(call)).reason
        await until(lambda: host.records)
        assert [attempt.status for attempt in host.records[0].attempts] == [302, 302]


async def test_a_call_does_not_move_for_ever():
    async with calling(redirects=True) as (far, invite, call, _):
        for number in range(200, 203):
            far.reply(invite, 301, ("Contact", f"<tel:{number}>"), ("Contact", "<sip:x@y>"))
            await far.asked("ACK")
            invite = await far.asked("INVITE")
            assert invite.uri.number == str(number)
        far.reply(invite, 301, ("Contact", "<sip:203@y>"))
        assert "moved: 301" in (await end_of(call)).reason
