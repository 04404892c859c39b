"""Calls given to somebody else, in every order that the far ends may choose to say things in."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic

import pytest

from offhook.media.leg import LegError
from offhook.telephony.sip import media_watch_io, transfer_io
from offhook.telephony.sip.media import leg_io
from offhook.telephony.sip.messages.message import sdp_of
from offhook.telephony.sip.network.resolver_io import Resolver
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.waiting import until
from tests.telephony.sip.phones import LOOPBACK, THEIR_TONE, endpoint
from tests.telephony.sip.scripted_peer import udp_peer
from tests.telephony.sip.scripted_sound import sound
from tests.telephony.sip.services.service import known_hosts

TARGET_TONE = 620


class Call:
    """One with `far`, which may give it to `target`."""

    def __init__(self, sip, host, far, target, line, other):
        self.sip, self.host, self.far, self.target = sip, host, far, target
        self.line, self.other = line, other
        self.number = 0

    async def refer(self, *headers):
        self.far.ask("REFER", ("Refer-To", f"<{self.target.uri}>"), *headers)
        await self.far.response(202)
        assert await self.notified() == "SIP/2.0 100 Trying"

    async def notified(self):
        """What the next NOTIFY says; those that are repeats are passed over."""
        while True:
            notify = await self.far.asked("NOTIFY")
            self.far.reply(notify, 200)
            if notify.cseq.number > self.number:
                self.number = notify.cseq.number
                return notify.body.decode().strip()

    async def is_as_before(self):
        """Both still hear one another, and our side can hang up."""
        since = monotonic()
        talk = self.host.talks[0]
        await self.line.is_heard(talk)
        assert self.line.hears(since=since)
        assert self.sip.calls[talk.leg.call_id].state == "answered"
        leaving = asyncio.create_task(talk.leg.hang_up("done"))
        await self.far.is_hung_up()
        await leaving

    async def is_with_the_target(self):
        since = monotonic()
        await self.other.is_heard(self.host.talks[0], hz=TARGET_TONE)
        assert self.other.hears(since=since)
        await self.target.hang_up()
        await until(lambda: self.host.records)
        assert self.sip.user_agent.sessions == 0


@asynccontextmanager
async def in_a_call(follow=True, others=(), **settings):
    async with udp_peer() as target:
        server = f"127.0.0.1:{target.port}"
        trunk = Trunk("far", addresses=("127.0.0.0/8",), server=server, follow=follow)
        trunks = (trunk, *others)
        async with endpoint(trunks=trunks, **settings) as (sip, host), udp_peer(sip) as far:
            with sound() as line, sound() as other:
                line.aim(await far.call(line.sdp()))
                await host.talk()
                await asyncio.sleep(0.02)  # for the ACK
                yield Call(sip, host, far, target, line, other)


async def takes(call):
    """The target takes the call that comes."""
    invite = await call.target.asked("INVITE")
    call.target.learn(invite)
    call.other.aim(invite.body.decode())
    call.target.reply(invite, 200, sdp=call.other.sdp())
    await call.target.asked("ACK")
    return invite


# --- the far end asks us ---


async def test_the_far_end_gives_us_to_another_and_waits_for_our_bye():
    async with in_a_call() as call:
        await call.refer(("Referred-By", "<sip:boss@example.test>"))
        invite = await takes(call)
        assert invite.headers.get("Referred-By") == "<sip:boss@example.test>"
        assert await call.notified() == "SIP/2.0 200 OK"
        await call.far.is_hung_up()
        await call.is_with_the_target()
        assert len(call.host.talks) == len(call.host.records) == 1


async def test_the_far_end_hangs_up_before_the_target_has_answered():
    async with in_a_call() as call:
        await call.refer()
        invite = await call.target.asked("INVITE")
        await call.far.hang_up()
        await asyncio.sleep(0.1)
        assert call.host.talks[0].leg.closed is None
        call.target.learn(invite)
        call.other.aim(invite.body.decode())
        call.target.reply(invite, 200, sdp=call.other.sdp())
        await call.target.asked("ACK")
        assert await call.notified() == "SIP/2.0 200 OK"
        await call.is_with_the_target()
        assert "BYE" not in call.far.came


async def test_the_far_end_hangs_up_while_the_target_is_still_looked_up(monkeypatch):
    resolve = Resolver.resolve

    async def slowly(self, *arguments):
        await asyncio.sleep(0.2)
        return await resolve(self, *arguments)

    async with in_a_call() as call:
        monkeypatch.setattr(Resolver, "resolve", slowly)
        await call.refer()
        await call.far.hang_up()
        await takes(call)
        assert await call.notified() == "SIP/2.0 200 OK"
        await call.is_with_the_target()


async def test_a_bye_right_behind_the_refer_does_not_take_it_back():
    async with in_a_call() as call:
        call.far.ask("REFER", ("Refer-To", f"<{call.target.uri}>"))
        call.far.ask("BYE")
        await takes(call)
        assert await call.notified() == "SIP/2.0 100 Trying"
        assert await call.notified() == "SIP/2.0 200 OK"
        await call.is_with_the_target()


@pytest.mark.parametrize("first", [None, 180, 183])
async def test_a_target_that_is_busy_leaves_the_call_as_it_was(first):
    async with in_a_call() as call:
        await call.refer()
        invite = await call.target.asked("INVITE")
        if first is not None:
            early = call.other.sdp() if first == 183 else None
            call.target.reply(invite, first, sdp=early)
            await asyncio.sleep(0.05)
        call.target.reply(invite, 486)
        await call.target.asked("ACK")
        assert await call.notified() == "SIP/2.0 486 Busy Here"
        await call.is_as_before()
        assert not call.other.received


async def test_the_old_far_end_is_heard_until_the_target_answers():
    async with in_a_call() as call:
        await call.refer()
        invite = await call.target.asked("INVITE")
        call.target.learn(invite)
        call.target.reply(invite, 183, sdp=call.other.sdp())
        since = monotonic()
        await call.line.is_heard(call.host.talks[0])
        assert call.line.hears(since=since)
        call.other.aim(invite.body.decode())
        call.target.reply(invite, 200, sdp=call.other.sdp())
        await call.target.asked("ACK")
        await call.notified()
        await call.far.is_hung_up()
        await call.is_with_the_target()


async def test_after_a_transfer_that_failed_silence_is_still_noticed(monkeypatch):
    monkeypatch.setattr(media_watch_io, "MEDIA_CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr(leg_io, "MAX_SPEECH_S", 0.1)  # the agent says a tone without end
    async with in_a_call(media_timeout_seconds=0.3) as call:
        await call.refer()
        invite = await call.target.asked("INVITE")
        call.target.reply(invite, 180)
        call.target.reply(invite, 486)
        await call.target.asked("ACK")
        await call.notified()
        await call.line.says(0.1)
        await call.far.is_hung_up()


async def test_when_both_have_gone_the_call_is_over():
    async with in_a_call() as call:
        await call.refer()
        invite = await call.target.asked("INVITE")
        await call.far.hang_up()
        call.target.reply(invite, 486)
        await call.target.asked("ACK")
        assert await call.notified() == "SIP/2.0 486 Busy Here"
        await until(lambda: call.host.records)
        assert call.host.talks[0].leg.closed is not None
        await until(lambda: not call.sip.user_agent.sessions)
        assert call.host.records[0].ended_by == "remote"


async def test_our_side_hangs_up_while_the_target_rings():
    async with in_a_call() as call:
        await call.refer()
        invite = await call.target.asked("INVITE")
        call.target.reply(invite, 180)
        await asyncio.sleep(0.05)
        leaving = asyncio.create_task(call.host.talks[0].leg.hang_up("done"))
        call.target.reply(await call.target.asked("CANCEL"), 200)
        call.target.reply(invite, 487)
        await call.far.is_hung_up()
        assert await call.notified() == "SIP/2.0 487 Request Terminated"
        await leaving
        await until(lambda: not call.sip.user_agent.sessions)


async def test_where_a_trunk_may_not_send_us_on_the_call_goes_on():
    async with in_a_call(follow=False) as call:
        call.far.ask("REFER", ("Refer-To", f"<{call.target.uri}>"))
        await call.far.response(603)
        await call.is_as_before()
        assert "INVITE" not in call.target.came


async def test_a_second_transfer_meanwhile_is_refused():
    async with in_a_call() as call:
        await call.refer()
        invite = await call.target.asked("INVITE")
        call.far.ask("REFER", ("Refer-To", f"<{call.target.uri}>"))
        await call.far.response(491)
        call.target.reply(invite, 603)
        await call.target.asked("ACK")
        assert await call.notified() == "SIP/2.0 603 Decline"
        await call.is_as_before()


# --- we ask the far end ---


async def asked_to_transfer(call):
    asked = asyncio.create_task(call.host.talks[0].leg.transfer(call.target.uri))
    refer = await call.far.asked("REFER")
    assert refer.headers.get("Refer-To") == f"<{call.target.uri}>"
    return asked, refer


def notify(call, fragment, state="active;expires=60"):
    state = ("Subscription-State", state)
    event = ("Event", "refer")
    call.far.ask("NOTIFY", event, state, body=("message/sipfrag", f"SIP/2.0 {fragment}"))


@pytest.mark.parametrize("bye", ["ours", "theirs after the last NOTIFY", "theirs before it"])
async def test_the_far_end_goes_to_the_target_whoever_says_bye_first(bye):
    async with in_a_call() as call:
        asked, refer = await asked_to_transfer(call)
        call.far.reply(refer, 202)
        notify(call, "100 Trying")
        await call.far.response(200, "NOTIFY")
        if bye == "theirs before it":
            await call.far.hang_up()
            notify(call, "200 OK", "terminated;reason=noresource")
        else:
            notify(call, "200 OK", "terminated;reason=noresource")
            if bye == "ours":
                await call.far.is_hung_up()
            else:
                call.far.ask("BYE")
        await asked
        await until(lambda: call.host.records)
        assert call.host.records[0].transferred_to == call.target.uri
        await until(lambda: not call.sip.user_agent.sessions)


async def test_only_one_transfer_is_made_however_many_ask_for_it():
    async with in_a_call() as call:
        asked, refer = await asked_to_transfer(call)
        with pytest.raises(LegError, match="in progress"):
            await call.host.talks[0].leg.transfer("sip:other@127.0.0.1")
        call.far.reply(refer, 202)
        notify(call, "486 Busy Here", "terminated;reason=noresource")
        with pytest.raises(LegError, match="486"):
            await asked
        assert call.far.came.count("REFER") == 1
        await call.is_as_before()


async def test_a_far_end_that_does_not_transfer_is_connected_here():
    async with in_a_call() as call:
        asked, refer = await asked_to_transfer(call)
        call.host.leave(call.host.talks[0])
        call.far.reply(refer, 405)
        await takes(call)
        await asked
        await asyncio.gather(call.line.says(), call.other.says(hz=TARGET_TONE))
        assert call.line.hears(TARGET_TONE)
        assert call.other.hears(440)
        await call.target.hang_up()
        await call.far.is_hung_up()


async def test_a_uri_at_another_trunk_is_called_over_that_one_and_connected_here(
    monkeypatch, tmp_path
):
    known_hosts(monkeypatch, tmp_path, desk_test="127.0.0.1")
    async with udp_peer() as desk:
        other = Trunk("desk", server=f"desk.test:{desk.port}", options_seconds=0)
        async with in_a_call(others=(other,)) as call:
            talk = call.host.talks[0]
            call.host.leave(talk)
            call.target = desk
            moving = asyncio.create_task(talk.leg.transfer(f"sip:200@desk.test:{desk.port}"))
            await takes(call)
            await moving
            await asyncio.gather(call.line.says(), call.other.says(hz=TARGET_TONE))
            assert call.line.hears(TARGET_TONE)
            assert call.other.hears(440)
            assert "REFER" not in call.far.came
            await desk.hang_up()
            await call.far.is_hung_up()
            await until(lambda: len(call.host.records) == 2)
            assert {record.trunk for record in call.host.records} == {"far", "desk"}


async def test_a_far_end_whose_allow_has_no_refer_is_not_asked():
    async with in_a_call() as call:
        talk = call.host.talks[0]
        update = call.far.ask("UPDATE", ("Allow", "INVITE, ACK, BYE, CANCEL, OPTIONS"))
        await call.far.accepted(update)
        call.host.leave(talk)
        moving = asyncio.create_task(talk.leg.transfer(call.target.uri))
        await takes(call)
        await moving
        assert "REFER" not in call.far.came
        await call.target.hang_up()
        await call.far.is_hung_up()


# --- what the caller hears meanwhile ---


@pytest.mark.parametrize("answered", [True, False])
async def test_the_caller_hears_it_ring_until_the_target_answers_or_declines(answered):
    async with udp_peer() as target:
        server = f"127.0.0.1:{target.port}"
        trunk = replace(LOOPBACK, server=server, transfer="bridge", options_seconds=0)
        async with endpoint(trunks=(trunk,)) as (sip, host), udp_peer(sip) as far:
            with sound() as line, sound() as other:
                line.aim(await far.call(line.sdp()))
                talk = await host.talk()
                host.leave(talk)
                moving = asyncio.create_task(talk.leg.transfer(f"sip:desk@{server}"))
                invite = await target.asked("INVITE")
                target.learn(invite)
                target.reply(invite, 180)
                await until(lambda: line.hears(425))
                if not answered:
                    target.reply(invite, 486)
                    with pytest.raises(LegError):
                        await moving
                    await until(lambda: not line.hears(425))
                    await far.hang_up()
                    return
                other.aim(sdp_of(invite))
                target.reply(invite, 200, sdp=other.sdp())
                await target.asked("ACK")
                await moving
                while not line.hears(THEIR_TONE):
                    await other.says()
                await far.hang_up()
                await target.is_hung_up()


async def test_a_far_end_that_takes_the_caller_without_a_report_is_let_go():
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp())
            talk = await host.talk()
            await far.accepted(far.ask("OPTIONS"))  # the ACK has arrived
            moving = asyncio.create_task(talk.leg.transfer("sip:desk@127.0.0.1"))
            refer = await far.asked("REFER")
            far.reply(refer, 202, ("Refer-Sub", "false"))
            await moving
            await far.is_hung_up()


# --- a far end that says no more ---


def last_notify(call, says_no_more):
    """The far end tries, and stops reporting: it says so, or says nothing."""
    if says_no_more:
        notify(call, "100 Trying", "terminated;reason=noresource")
    else:
        notify(call, "100 Trying")


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(transfer_io, "REFER_TIMEOUT_S", 1.0)
    monkeypatch.setattr(transfer_io, "GONE_S", 0.5)


@pytest.mark.parametrize("says_no_more", [True, False])
async def test_a_far_end_that_sends_nothing_more_has_given_the_caller_away(soon, says_no_more):
    async with in_a_call() as call:
        await call.line.says(0.2)
        asked, refer = await asked_to_transfer(call)
        call.far.reply(refer, 202)
        last_notify(call, says_no_more)
        await call.far.is_hung_up()
        await asked
        assert call.host.talks[0].leg.closed is not None
        await until(lambda: call.host.records)
        assert call.host.records[0].transferred_to == call.target.uri


@pytest.mark.parametrize("says_no_more", [True, False])
async def test_a_far_end_that_still_sends_has_its_caller(soon, says_no_more, monkeypatch):
    monkeypatch.setattr(transfer_io, "GONE_S", 300)  # however late packets are
    async with in_a_call() as call:
        speaking = asyncio.create_task(call.line.says(3600))
        asked, refer = await asked_to_transfer(call)
        call.far.reply(refer, 202)
        last_notify(call, says_no_more)
        with pytest.raises(LegError, match="transfer"):
            await asked
        speaking.cancel()
        await call.is_as_before()


async def test_who_hangs_up_once_the_transfer_is_accepted_is_gone_at_once():
    async with in_a_call() as call:
        asked, refer = await asked_to_transfer(call)
        call.far.reply(refer, 202)
        notify(call, "100 Trying")
        await call.far.response(200, "NOTIFY")
        await call.far.hang_up()
        await asked
        assert call.host.talks[0].leg.closed is not None
        await until(lambda: call.host.records)
        assert call.host.records[0].transferred_to == call.target.uri
