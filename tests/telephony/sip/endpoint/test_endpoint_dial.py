"""Calls that our endpoint places, and what a far end by hand may answer to them."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from offhook.telephony.sip.messages.message import sdp_of
from offhook.telephony.sip.network.resolver_io import Resolver, Target
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.phones import OUR_TONE, endpoint
from tests.telephony.sip.scripted_peer import Time, udp_peer
from tests.telephony.sip.scripted_sound import hears, sound


@pytest.fixture
def time(monkeypatch):
    return Time(monkeypatch)


@asynccontextmanager
async def trunk_by_hand(**options):
    """Our endpoint, and the server of its only trunk."""
    settings = {key: options.pop(key) for key in ("ring_seconds",) if key in options}
    async with udp_peer() as far:
        chosen = {"server": f"127.0.0.1:{far.port}", "options_seconds": 0, **options}
        trunk = Trunk("far", username="us", **chosen)
        async with endpoint(trunks=(trunk,), **settings) as (sip, host):
            yield sip, host, far


async def last(call):
    """How it ended."""
    async with asyncio.timeout(HANGS_S):
        return [progress async for progress in call.events()][-1]


def states(call):
    return [progress.state for progress in call.progress]


# --- taken ---


async def test_a_call_rings_is_taken_and_heard():
    async with trunk_by_hand() as (sip, host, far):
        with sound("pcma", 8) as line:
            call = sip.dial(Dial("4711", headers={"X-Order": "17"}))
            invite = await far.asked("INVITE")
            assert str(invite.uri) == f"sip:4711@127.0.0.1:{far.port}"
            assert invite.headers.get("X-Order") == "17"
            far.learn(invite)
            far.reply(invite, 180)
            line.aim(sdp_of(invite))
            far.reply(invite, 200, sdp=line.sdp("8"))
            await far.asked("ACK")
            await line.is_heard(await host.talk())
            assert line.hears()
            await far.hang_up(("Reason", 'SIP;cause=200;text="Call completed elsewhere"'))
            ended = await last(call)
        assert states(call) == ["dialing", "ringing", "answered", "ended"]
        assert ended.reason == "Call completed elsewhere"
        await until(lambda: host.records)
        assert host.records[0].end_reason == "Call completed elsewhere"


async def test_sound_before_the_200_is_heard_once_the_200_is_there():
    """The far end speaks as soon as it has our offer; its 200 comes later."""
    async with trunk_by_hand() as (sip, host, far):
        with sound() as line:
            sip.dial(Dial("4711"))
            invite = await far.asked("INVITE")
            line.aim(sdp_of(invite))
            far.learn(invite)
            speaking = asyncio.create_task(line.says(0.5))
            await asyncio.sleep(0.2)
            far.reply(invite, 200, sdp=line.sdp())
            await far.asked("ACK")
            await speaking
            assert hears(await host.talk())
            # What came before the 200 was kept, and is no loss.
            leg = host.talks[0].leg
            await until(lambda: leg.statistics().packets_received == 25)
            await far.hang_up()


@pytest.mark.parametrize("again", [True, False])
async def test_early_media_are_answered_by_the_183_and_hold_at_the_200(again):
    async with trunk_by_hand() as (sip, host, far):
        with sound() as line:
            call = sip.dial(Dial("4711"))
            invite = await far.asked("INVITE")
            line.aim(sdp_of(invite))
            far.learn(invite)
            far.reply(invite, 183, sdp=line.sdp())
            await until(lambda: call.state == "early_media")
            far.reply(invite, 200, sdp=line.sdp() if again else None)
            await far.asked("ACK")
            await line.is_heard(await host.talk())
            assert line.hears()
            await far.hang_up()


async def test_ringing_that_must_be_acknowledged_is(time):
    async with trunk_by_hand() as (sip, _, far):
        with sound() as line:
            call = sip.dial(Dial("4711"))
            invite = await far.asked("INVITE")
            assert "100rel" in invite.supported
            far.learn(invite)
            reliable = ("Require", "100rel"), ("RSeq", "7")
            far.reply(invite, 183, *reliable, sdp=line.sdp())
            prack = await far.asked("PRACK")
            assert prack.headers.get("RAck") == "7 1 INVITE"
            far.reply(prack, 200)
            far.reply(invite, 183, *reliable, sdp=line.sdp())  # ours was lost, it thinks
            await asyncio.sleep(0.05)
            assert far.came.count("PRACK") == 1
            far.reply(invite, 200)
            await far.asked("ACK")
            assert states(call)[-2:] == ["early_media", "answered"]
            await far.hang_up()


async def test_a_200_that_comes_again_is_acknowledged_again(time):
    async with trunk_by_hand() as (sip, host, far):
        with sound() as line:
            sip.dial(Dial("4711"))
            invite = await far.take(line.sdp())
            for _ in range(2):
                far.reply(invite, 200, sdp=line.sdp())
                await far.asked("ACK")
            await time.passes(sip, 40)
            assert "BYE" not in far.came
            assert len(host.talks) == 1
            await far.hang_up()


async def test_of_two_who_take_the_call_the_second_is_told_that_it_is_over():
    async with trunk_by_hand() as (sip, host, far):
        with sound() as line:
            sip.dial(Dial("4711"))
            invite = await far.take(line.sdp())
            far.reply(invite, 200, sdp=line.sdp(), tag="other")
            ack, bye = await far.asked("ACK"), await far.asked("BYE")
            assert ack.to.tag == bye.to.tag == "other"
            far.reply(bye, 200)
            await asyncio.sleep(0.05)
            assert (await host.talk()).leg.closed is None
            await far.hang_up()


async def test_a_far_end_that_hangs_up_with_its_very_answer_ends_the_call():
    async with trunk_by_hand() as (sip, host, far):
        with sound() as line:
            call = sip.dial(Dial("4711"))
            invite = await far.asked("INVITE")
            far.learn(invite)
            far.reply(invite, 200, sdp=line.sdp())
            far.ask("BYE")
            await far.response(200, "BYE")
            assert (await last(call)).state == "ended"
            await until(lambda: host.records)
            assert host.talks[0].leg.closed is not None
            assert host.records[0].ended_by == "remote"


# --- payload types ---


async def test_numbers_of_the_answer_are_sent_and_ours_arrive():
    """Opus and key presses have one number in each direction."""
    async with trunk_by_hand() as (sip, host, far):
        with sound("opus", 96) as line:
            sip.dial(Dial("4711"))
            invite = await far.asked("INVITE")
            offer = sdp_of(invite)
            ours = {
                text.split()[1].split("/")[0]: int(text.split()[0][9:])
                for text in offer.split("\r\n")
                if text.startswith("a=rtpmap:")
            }
            assert ours["opus"] != 97
            line.aim(offer)
            far.learn(invite)
            lines = "a=rtpmap:97 opus/48000/2", "a=rtpmap:99 telephone-event/48000"
            far.reply(invite, 200, sdp=line.sdp("97 99", *lines))
            await far.asked("ACK")
            line.use("opus", ours["opus"])
            talk = await host.talk()
            await line.is_heard(talk)
            assert {p.payload_type for p in line.packets()} == {97}
            assert line.hears()
            talk.leg.send_dtmf("5")
            await until(lambda: any(p.payload_type == 99 for p in line.packets()))
            await far.hang_up()


# --- refused, given up ---


async def test_giving_up_sends_a_cancel_once_it_rings():
    async with trunk_by_hand() as (sip, host, far):
        call = sip.dial(Dial("4711"))
        invite = await far.asked("INVITE")
        await call.hang_up("changed my mind")
        await asyncio.sleep(0.05)
        assert "CANCEL" not in far.came  # nothing has come back yet (RFC 3261 §9.1)
        far.reply(invite, 180)
        cancel = await far.asked("CANCEL")
        assert cancel.via.branch == invite.via.branch
        far.reply(cancel, 200)
        far.reply(invite, 487)
        await far.asked("ACK")
        assert (await last(call)).reason == "changed my mind"
        await until(lambda: not sip.user_agent.sessions)
        assert not host.talks


@pytest.mark.parametrize("late", [False, True])
async def test_a_200_that_crosses_the_cancel_is_acknowledged_and_hung_up(late):
    """`late`: even after the CANCEL had its own 200."""
    async with trunk_by_hand() as (sip, host, far):
        with sound() as line:
            call = sip.dial(Dial("4711"))
            invite = await far.asked("INVITE")
            far.learn(invite)
            far.reply(invite, 180)
            await until(lambda: call.state == "ringing")
            await call.hang_up("changed my mind")
            cancel = await far.asked("CANCEL")
            if late:
                far.reply(cancel, 200)
                await until(lambda: host.records)
            far.reply(invite, 200, sdp=line.sdp())
            await far.asked("ACK")
            await far.is_hung_up()
            await until(lambda: not sip.user_agent.sessions)
        assert not host.talks
        assert host.records[0].status == 487


async def test_nobody_answers_in_time(time):
    async with trunk_by_hand() as (sip, host, far):
        call = sip.dial(Dial("4711", ring_seconds=20))
        invite = await far.asked("INVITE")
        far.reply(invite, 180)
        await time.passes(sip, 20.1)
        await far.asked("CANCEL")
        far.reply(invite, 487)
        assert (await last(call)).reason == "no answer after 20 s"
        await until(lambda: host.records)
        assert (host.records[0].status, host.records[0].ended_by) == (408, "timeout")


async def test_a_bye_before_the_answer_ends_the_call():
    async with trunk_by_hand() as (sip, host, far):
        call = sip.dial(Dial("4711"))
        invite = await far.asked("INVITE")
        far.learn(invite)
        far.reply(invite, 180)
        await until(lambda: call.state == "ringing")
        await far.hang_up()
        await far.asked("CANCEL")
        far.reply(invite, 487)
        await last(call)
        await until(lambda: host.records)
        assert host.records[0].ended_by == "remote"
        assert not host.talks


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("m=audio 4000 RTP/AVP 18", "no codec from the offer"),
        ("m=audio 0 RTP/AVP 0", "rejects the audio"),
    ],
)
async def test_an_answer_that_does_not_fit_is_acknowledged_and_hung_up(answer, said):
    async with trunk_by_hand() as (sip, host, far):
        call = sip.dial(Dial("4711"))
        head = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
        await far.take(f"{head}{answer}\r\n")
        await far.is_hung_up()
        ended = await last(call)
        assert said in ended.reason
        assert ended.status == 488
        assert not host.talks


async def test_a_200_without_sdp_ends_the_call_and_rings_nobody_again(time):
    async with trunk_by_hand() as (sip, host, far):
        call = sip.dial(Dial("4711"))
        invite = await far.asked("INVITE")
        far.learn(invite)
        far.reply(invite, 200)
        await far.asked("ACK")
        bye = await far.is_hung_up()
        assert "without SDP" in bye.headers.get("Reason")
        ended = await last(call)
        assert (ended.status, ended.reason) == (488, "the far end answered without SDP")
        await time.passes(sip, 40)
        assert far.came.count("INVITE") == 1
        assert not host.talks


async def test_a_peer_that_is_not_there_is_said_so(time):
    trunk = Trunk("far", server=f"127.0.0.1:{free_port()}", options_seconds=0)
    async with endpoint(trunks=(trunk,)) as (sip, host):
        call = sip.dial(Dial("4711"))
        await asyncio.sleep(0.05)
        await time.passes(sip, 33)
        ended = await last(call)
        assert ended.status in (408, 503)
        assert ended.reason
        await until(lambda: host.records)
        assert host.records[0].ended_by == "timeout"


# --- challenges, 422 ---

CHALLENGES = {
    401: ("WWW-Authenticate", 'Digest realm="{}", nonce="{}", qop="auth", algorithm=SHA-256{}'),
    407: ("Proxy-Authenticate", 'Digest realm="{}", nonce="{}", qop="auth", algorithm=MD5{}'),
}


def challenge(status, realm, nonce, more=""):
    name, value = CHALLENGES[status]
    return name, value.format(realm, nonce, more)


async def test_a_server_and_a_proxy_of_two_realms_both_get_their_answer():
    async with trunk_by_hand(password="secret") as (sip, _, far):
        with sound() as line:
            sip.dial(Dial("4711"))
            first = await far.asked("INVITE")
            far.reply(first, 407, challenge(407, "proxy", "a"))
            second = await far.asked("INVITE")
            assert 'realm="proxy"' in second.headers.get("Proxy-Authorization")
            assert second.cseq.number == first.cseq.number + 1
            assert second.call_id == first.call_id
            far.reply(second, 401, challenge(401, "server", "b"))
            third = await far.asked("INVITE")
            assert 'realm="proxy"' in third.headers.get("Proxy-Authorization")
            authorization = third.headers.get("Authorization")
            assert 'realm="server"' in authorization
            assert "SHA-256" in authorization
            far.learn(third)
            far.reply(third, 200, sdp=line.sdp())
            await far.asked("ACK")
            await far.hang_up()


async def test_only_the_realm_of_the_trunk_gets_an_answer():
    async with trunk_by_hand(password="secret", realm="ours") as (sip, _, far):
        call = sip.dial(Dial("4711"))
        both = challenge(407, "theirs", "a"), challenge(407, "ours", "b")
        far.reply(await far.asked("INVITE"), 407, *both)
        second = await far.asked("INVITE")
        [answer] = second.headers.all("Proxy-Authorization")
        assert 'realm="ours"' in answer
        far.reply(second, 407, challenge(407, "theirs", "c"))
        assert (await last(call)).status == 407
        assert far.came.count("INVITE") == 2


async def test_a_stale_nonce_costs_a_request_and_a_wrong_password_ends_the_call():
    async with trunk_by_hand(password="secret") as (sip, host, far):
        call = sip.dial(Dial("4711"))
        far.reply(await far.asked("INVITE"), 401, challenge(401, "r", "one"))
        far.reply(await far.asked("INVITE"), 401, challenge(401, "r", "two", ", stale=true"))
        third = await far.asked("INVITE")
        assert 'nonce="two"' in third.headers.get("Authorization")
        far.reply(third, 401, challenge(401, "r", "two"))
        ended = await last(call)
        assert (ended.status, "password" in ended.reason) == (401, True)
        assert far.came.count("INVITE") == 3
        assert not host.talks


async def test_a_server_that_is_never_content_is_left():
    async with trunk_by_hand(password="secret") as (sip, _, far):
        call = sip.dial(Dial("4711"))

        async def challenging():
            for number in range(20):
                invite = await far.asked("INVITE")
                far.reply(invite, 401, challenge(401, "r", f"n{number}", ", stale=true"))

        answering = asyncio.create_task(challenging())
        assert (await last(call)).status == 401
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        assert far.came.count("INVITE") <= 4


async def test_a_bye_is_challenged_too():
    async with trunk_by_hand(password="secret") as (sip, host, far):
        with sound() as line:
            call = sip.dial(Dial("4711"))
            await far.take(line.sdp())
            await host.talk()
            leaving = asyncio.create_task(call.hang_up("done"))
            first = await far.asked("BYE")
            far.reply(first, 401, challenge(401, "r", "n"))
            again = await far.asked("BYE")
            assert again.cseq.number == first.cseq.number + 1
            assert 'nonce="n"' in again.headers.get("Authorization")
            far.reply(again, 200)
            await leaving


async def test_a_longer_session_is_asked_for_where_ours_is_too_short():
    async with trunk_by_hand(session_seconds=600) as (sip, _, far):
        with sound() as line:
            sip.dial(Dial("4711"))
            first = await far.asked("INVITE")
            assert first.headers.get("Session-Expires") == "600"
            far.reply(first, 422, ("Min-SE", "1200"))
            await far.asked("ACK")
            second = await far.asked("INVITE")
            assert second.headers.get("Session-Expires") == "1200"
            assert second.headers.get("Min-SE") == "1200"
            assert (second.call_id, second.cseq.number) == (first.call_id, 2)
            far.learn(second)
            far.reply(second, 200, ("Session-Expires", "1200;refresher=uas"), sdp=line.sdp())
            await far.asked("ACK")
            await far.hang_up()


# --- ways ---


async def test_another_server_is_tried_when_the_first_cannot(monkeypatch):
    async with udp_peer() as first, udp_peer() as second:

        async def both(self, uri, transport):
            return [Target("UDP", "127.0.0.1", p.port, "") for p in (first, second)]

        monkeypatch.setattr(Resolver, "resolve", both)
        trunk = Trunk("far", server="trunk.test", options_seconds=0)
        async with endpoint(trunks=(trunk,)) as (sip, host):
            with sound() as line:
                call = sip.dial(Dial("4711"))
                far_away = await first.asked("INVITE")
                first.reply(far_away, 503)
                await first.asked("ACK")
                invite = await second.take(line.sdp())
                assert sdp_of(invite).count("m=audio") == 1
                line.aim(sdp_of(invite))
                await line.is_heard(await host.talk())
                assert line.hears(OUR_TONE)
                await second.hang_up()
                assert (await last(call)).state == "ended"
            await until(lambda: host.records)
            assert len(host.records) == 1
            assert host.records[0].status == 200


async def test_a_domain_behind_a_proxy_is_named_and_the_proxy_is_sent_to():
    async with trunk_by_hand(domain="carrier.test") as (sip, _, far):
        sip.dial(Dial("4711"))
        invite = await far.asked("INVITE")
        assert str(invite.uri) == "sip:4711@carrier.test"
        assert invite.to.uri.host == invite.from_.uri.host == "carrier.test"
        far.reply(invite, 486)
        await far.asked("ACK")
