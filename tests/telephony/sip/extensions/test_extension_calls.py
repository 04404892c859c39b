"""Registered phones call each other, an agent and outside, without a PBX."""

import asyncio
from dataclasses import replace

import pytest

from offhook.telephony.call_progress_io import DialError
from offhook.telephony.sip.messages.message import sdp_of
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.extension import Extension
from offhook.telephony.sip.trunks.trunks import Route, SipSettings, Trunk
from tests.telephony.sip.extensions.desks import EXTENSIONS, all_over, desks
from tests.telephony.sip.phones import OUR_TONE
from tests.telephony.sip.scripted_peer import udp_peer, ws_peer
from tests.telephony.sip.scripted_sound import sound


@pytest.mark.parametrize("ways", [("101", "102"), ("101 tcp", "102"), ("101", "102 tcp")])
async def test_two_phones_call_each_other(ways):
    async with desks(*ways) as (sip, host, (ann, bob)):
        await ann.begins_to_call("102")
        invite = await bob.rings()
        assert invite.from_.uri.user == "101"
        assert invite.from_.display_name == "Ann"
        await ann.far.response(180)
        bob.far.reply(invite, 200, sdp=bob.line.sdp())
        await bob.far.asked("ACK")
        await ann.is_answered()
        await ann.talks_with(bob)
        await ann.far.hang_up()
        await bob.far.is_hung_up()
        await all_over(sip)
    first, second = sorted(host.records, key=lambda record: record.direction)
    assert (first.caller, first.called, first.trunk) == ("101", "102", "ext:101")
    assert (second.caller, second.called, second.trunk) == ("101", "102", "ext:102")
    assert first.duration_seconds > 0


async def test_the_called_phone_may_hang_up_first():
    async with desks("101", "102") as (sip, _, (ann, bob)):
        await ann.begins_to_call("102")
        await bob.answers()
        await ann.is_answered()
        await bob.far.hang_up()
        await ann.far.is_hung_up()
        await all_over(sip)


async def test_all_phones_ring_and_the_first_that_answers_has_the_call():
    async with desks("101", "102", "102", "102 tcp") as (sip, _, (ann, *phones)):
        await ann.begins_to_call("102")
        ringing = [await phone.rings() for phone in phones]
        phones[1].far.reply(ringing[1], 200, sdp=phones[1].line.sdp())
        await phones[1].far.asked("ACK")
        for loser, invite in ((phones[0], ringing[0]), (phones[2], ringing[2])):
            cancel = await loser.far.asked("CANCEL")
            assert cancel.headers.get("Reason").startswith("SIP;cause=200")
            loser.far.reply(cancel, 200)
            loser.far.reply(invite, 487)
            await loser.far.asked("ACK")
        await ann.is_answered()
        await ann.talks_with(phones[1])
        await ann.far.hang_up()
        await phones[1].far.is_hung_up()
        await all_over(sip)


async def test_two_that_answer_at_once_are_not_both_left_on_the_line():
    async with desks("101", "102", "102") as (sip, _, (ann, one, other)):
        await ann.begins_to_call("102")
        invites = [await phone.rings() for phone in (one, other)]
        for phone, invite in zip((one, other), invites, strict=True):
            phone.far.reply(invite, 200, sdp=phone.line.sdp())
        for phone in (one, other):
            await phone.far.asked("ACK")
        hung_up = await first_of(one.far.asked("BYE"), other.far.asked("BYE"))
        assert "cause=200" in hung_up.headers.get("Reason")
        loser, winner = (one, other) if hung_up.call_id == one.far.call_id else (other, one)
        loser.far.reply(hung_up, 200)
        await ann.is_answered()
        await ann.talks_with(winner)
        await winner.far.hang_up()
        await ann.far.is_hung_up()
        await all_over(sip)


async def first_of(*waiting):
    tasks = [asyncio.ensure_future(each) for each in waiting]
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return done.pop().result()


@pytest.mark.parametrize(
    ("refusals", "status"),
    [((486,), 486), ((480, 486), 486), ((486, 480), 486), ((503, 404), 404), ((480, 603), 603)],
)
async def test_what_phones_refuse_with_is_passed_on(refusals, status):
    async with desks("101", *["102"] * len(refusals)) as (sip, _, (ann, *phones)):
        await ann.begins_to_call("102")
        invites = [await phone.rings() for phone in phones]
        for phone, invite, each in zip(phones, invites, refusals, strict=True):
            phone.far.reply(invite, each)
            await phone.far.asked("ACK")
        refusal = await ann.far.response(status)
        ann.far.ack_refusal(refusal)
        await all_over(sip)


async def test_one_that_declines_for_all_ends_the_ringing_of_the_others():
    async with desks("101", "102", "102") as (sip, _, (ann, one, other)):
        await ann.begins_to_call("102")
        invites = [await phone.rings() for phone in (one, other)]
        one.far.reply(invites[0], 603)
        cancel = await other.far.asked("CANCEL")
        assert cancel.headers.get("Reason") is None  # it was missed, not taken elsewhere
        other.far.reply(cancel, 200)
        other.far.reply(invites[1], 487)
        ann.far.ack_refusal(await ann.far.response(603))
        await all_over(sip)


async def test_a_phone_in_a_browser_rings_by_its_websocket():
    async with desks("101", ws=0, browsers=True) as (sip, _, (ann,)):
        async with ws_peer(sip) as far:
            with sound() as line:
                browser = type(ann)(sip, far, line, "102")
                far.contact = "<sip:102@df7jal23ls0d.invalid;transport=ws>"
                await browser.register()
                await ann.begins_to_call("102")
                invite = await far.asked("INVITE")
                assert "UDP/TLS/RTP/SAVPF" in sdp_of(invite)
                assert str(invite.uri) == "sip:102@df7jal23ls0d.invalid;transport=ws"
                far.reply(invite, 486)
                await far.asked("ACK")
        ann.far.ack_refusal(await ann.far.response(486))
        await all_over(sip)


async def test_a_caller_who_gives_up_ends_the_ringing():
    async with desks("101", "102") as (sip, _, (ann, bob)):
        await ann.begins_to_call("102")
        invite = await bob.rings()
        await ann.far.response(180)
        ann.far.cancel()
        cancel = await bob.far.asked("CANCEL")
        bob.far.reply(cancel, 200)
        bob.far.reply(invite, 487)
        ann.far.ack_refusal(await ann.far.response(487))
        await all_over(sip)


async def test_nobody_answers_after_the_time_to_ring():
    short = {**EXTENSIONS, "102": replace(EXTENSIONS["102"], ring_seconds=0.3)}
    async with desks("101", "102", extensions=short) as (sip, _, (ann, bob)):
        await ann.begins_to_call("102")
        invite = await bob.rings()
        bob.far.reply(await bob.far.asked("CANCEL"), 200)
        bob.far.reply(invite, 487)
        ann.far.ack_refusal(await ann.far.response(408))
        await all_over(sip)


async def test_an_extension_without_phones_is_not_available():
    async with desks("101") as (sip, _, (ann,)):
        await ann.begins_to_call("102")
        ann.far.ack_refusal(await ann.far.response(480))
        await all_over(sip)


async def test_a_phone_that_left_does_not_ring():
    async with desks("101", "102") as (sip, _, (ann, bob)):
        await bob.register(expires=0)
        await ann.begins_to_call("102")
        ann.far.ack_refusal(await ann.far.response(480))
        await all_over(sip)


async def test_hold_by_one_phone_leaves_the_other_on_the_line():
    async with desks("101", "102") as (sip, _, (ann, bob)):
        await ann.begins_to_call("102")
        await bob.answers()
        await ann.is_answered()
        await ann.talks_with(bob)
        hold = ann.far.ask("INVITE", sdp=ann.line.sdp(version=2, direction="sendonly"))
        answer = await ann.far.accepted(hold)
        ann.far.ack(answer)
        assert "a=recvonly" in sdp_of(answer)
        resume = ann.far.ask("INVITE", sdp=ann.line.sdp(version=3))
        ann.far.ack(await ann.far.accepted(resume))
        await ann.talks_with(bob)
        await ann.far.hang_up()
        await bob.far.is_hung_up()
        await all_over(sip)


async def notified(desk, status):
    while True:
        notify = await desk.far.asked("NOTIFY")
        desk.far.reply(notify, 200)
        if str(status) in notify.body.decode():
            return


async def test_a_phone_gives_its_caller_to_another_extension():
    async with desks("101", "102", "103") as (sip, _, (ann, bob, cleo)):
        await ann.begins_to_call("102")
        await bob.answers()
        await ann.is_answered()
        bob.far.ask("REFER", ("Refer-To", "<sip:103@127.0.0.1>"))
        await bob.far.response(202)
        await cleo.answers()
        await notified(bob, 200)
        await bob.far.is_hung_up()
        await ann.talks_with(cleo)
        await cleo.far.hang_up()
        await ann.far.is_hung_up()
        await all_over(sip)


@pytest.mark.parametrize("answers", [True, False])
async def test_a_phone_may_hang_up_before_its_transfer_is_done(answers):
    async with desks("101", "102", "103") as (sip, _, (ann, bob, cleo)):
        await ann.begins_to_call("102")
        await bob.answers()
        await ann.is_answered()
        bob.far.ask("REFER", ("Refer-To", "<sip:103@127.0.0.1>"))
        await bob.far.response(202)
        invite = await cleo.rings()
        await bob.far.hang_up()
        if answers:
            cleo.far.reply(invite, 200, sdp=cleo.line.sdp())
            await cleo.far.asked("ACK")
            await ann.talks_with(cleo)
            await ann.far.hang_up()
            await cleo.far.is_hung_up()
        else:
            cleo.far.reply(invite, 486)
            await ann.far.is_hung_up()
        await all_over(sip)


async def test_a_transfer_that_fails_leaves_the_two_together():
    async with desks("101", "102", "103") as (sip, _, (ann, bob, cleo)):
        await ann.begins_to_call("102")
        await bob.answers()
        await ann.is_answered()
        ann.far.ask("REFER", ("Refer-To", "<sip:103@127.0.0.1>"))
        await ann.far.response(202)
        cleo.far.reply(await cleo.rings(), 486)
        await notified(ann, 486)
        await ann.talks_with(bob)
        await ann.far.hang_up()
        await bob.far.is_hung_up()
        await all_over(sip)


async def test_a_phone_asks_first_and_then_connects_its_two_calls():
    async with desks("101", "102", "103") as (sip, _, (ann, bob, cleo)):
        await ann.begins_to_call("102")
        await bob.answers()
        await ann.is_answered()
        async with udp_peer(sip) as second_line:
            with sound() as line:
                again = type(bob)(sip, second_line, line, "102")
                await again.begins_to_call("103")
                await cleo.answers()
                await again.is_answered()
                call = again.far
                dialog = f"{call.call_id};to-tag={call.their_tag};from-tag={call.tag}"
                quoted = dialog.replace(";", "%3B").replace("=", "%3D")
                bob.far.ask("REFER", ("Refer-To", f"<sip:103@127.0.0.1?Replaces={quoted}>"))
                await bob.far.response(202)
                await notified(bob, 200)
                await bob.far.is_hung_up()
                await call.is_hung_up()
        await ann.talks_with(cleo)
        await ann.far.hang_up()
        await cleo.far.is_hung_up()
        await all_over(sip)


async def test_nobody_takes_another_extensions_call_by_replaces():
    async with desks("101", "102", "103") as (sip, _, (ann, bob, cleo)):
        await ann.begins_to_call("102")
        await bob.answers()
        await ann.is_answered()
        async with udp_peer(sip) as second_line:
            with sound() as line:
                theirs = type(bob)(sip, second_line, line, "101")
                await theirs.begins_to_call("103")
                await cleo.answers()
                await theirs.is_answered()
                call = theirs.far
                dialog = f"{call.call_id};to-tag={call.their_tag};from-tag={call.tag}"
                quoted = dialog.replace(";", "%3B").replace("=", "%3D")
                bob.far.ask("REFER", ("Refer-To", f"<sip:103@127.0.0.1?Replaces={quoted}>"))
                await bob.far.response(603)
                await call.hang_up()
                await cleo.far.is_hung_up()
        await ann.talks_with(bob)
        await ann.far.hang_up()
        await bob.far.is_hung_up()
        await all_over(sip)


# --- agents ---


async def test_a_number_with_a_route_reaches_its_agent():
    routes = (Route("helper", called="500"),)
    async with desks("101", routes=routes) as (sip, host, (ann,)):
        await ann.begins_to_call("500")
        await ann.is_answered()
        talk = await host.talk()
        await ann.line.is_heard(talk)
        assert talk.agent == "helper"
        assert (talk.leg.info.caller, talk.leg.info.caller_name) == ("101", "Ann")
        await ann.far.hang_up()
        await all_over(sip)


async def test_a_route_rings_an_extension_for_a_caller_from_outside():
    trunks = (Trunk("pbx", addresses=("127.0.0.0/8",)),)
    routes = (Route(extension="102", called="5550102"), Route("helper"))
    async with desks("102", trunks=trunks, routes=routes) as (sip, _, (bob,)):
        async with udp_peer(sip) as far:
            with sound() as line:
                far.target = "sip:5550102@127.0.0.1"
                far.invite(line.sdp())
                await bob.answers()
                far.ack(await far.response(200, "INVITE"))
                await far.hang_up()
                await bob.far.is_hung_up()
        await all_over(sip)


@pytest.mark.parametrize("to", ["102", "ext:102"])
async def test_an_agent_calls_an_extension(to):
    async with desks("102", "102") as (sip, host, (bob, other)):
        call = sip.dial(Dial(to, agent="helper"))
        invite, second = await bob.rings(), await other.rings()
        assert invite.from_.uri.user == "helper"
        bob.far.reply(invite, 200, sdp=bob.line.sdp())
        await bob.far.asked("ACK")
        other.far.reply(await other.far.asked("CANCEL"), 200)
        other.far.reply(second, 487)
        talk = await host.talk()
        await bob.line.is_heard(talk, bob.hz)
        assert talk.leg.call_id == call.call_id
        assert [p.state for p in call.progress] == ["dialing", "ringing", "answered"]
        await bob.far.hang_up()
        await all_over(sip)
    [record] = host.records
    assert (record.called, record.trunk, record.status) == ("102", "ext:102", 200)


async def test_an_extension_that_is_none_is_not_dialled():
    async with desks() as (sip, _, _):
        with pytest.raises(DialError, match="no extension '999'"):
            sip.dial(Dial("ext:999"))


async def test_an_agent_transfers_to_an_extension():
    async with desks("101", "102", routes=(Route(called="500"),)) as (sip, host, (ann, bob)):
        await ann.begins_to_call("500")
        await ann.is_answered()
        talk = await host.talk()
        moving = asyncio.create_task(talk.leg.transfer("102"))
        await bob.answers()
        await moving
        host.leave(talk)
        await ann.talks_with(bob)
        await bob.far.hang_up()
        await ann.far.is_hung_up()
        await all_over(sip)


async def test_a_phone_gives_its_caller_to_an_agent():
    async with desks("101", "102", routes=(Route(called="500"),)) as (sip, host, (ann, bob)):
        await ann.begins_to_call("102")
        await bob.answers()
        await ann.is_answered()
        await ann.talks_with(bob)
        bob.far.ask("REFER", ("Refer-To", "<sip:500@127.0.0.1>"))
        await bob.far.response(202)
        await notified(bob, 200)
        await bob.far.is_hung_up()
        talk = await host.talk()
        await ann.line.is_heard(talk, ann.hz)
        assert ann.line.hears(OUR_TONE)
        await ann.far.hang_up()
        await all_over(sip)


async def test_who_is_called_is_given_to_no_agent():
    async with desks("101", "102", routes=(Route(called="500"),)) as (sip, _, (ann, bob)):
        await ann.begins_to_call("102")
        await bob.answers()
        await ann.is_answered()
        ann.far.ask("REFER", ("Refer-To", "<sip:500@127.0.0.1>"))
        await ann.far.response(603)
        await ann.talks_with(bob)
        await ann.far.hang_up()
        await bob.far.is_hung_up()
        await all_over(sip)


async def test_who_was_put_through_by_an_agent_is_given_to_a_colleague():
    routes = (Route(called="500"),)
    async with desks("101", "102", "103", routes=routes) as (sip, host, (ann, bob, cleo)):
        await ann.begins_to_call("500")
        await ann.is_answered()
        talk = await host.talk()
        moving = asyncio.create_task(talk.leg.transfer("102"))
        await bob.answers()
        await moving
        host.leave(talk)
        await ann.talks_with(bob)
        bob.far.ask("REFER", ("Refer-To", "<sip:103@127.0.0.1>"))
        await bob.far.response(202)
        await cleo.answers()
        await notified(bob, 200)
        await bob.far.is_hung_up()
        await ann.talks_with(cleo)
        await ann.far.hang_up()
        await cleo.far.is_hung_up()
        await all_over(sip)


# --- outside ---


async def outside(right, number="+4930123", **settings):
    """What becomes of a call of an extension to a number outside."""
    async with udp_peer() as carrier:
        trunk = Trunk("carrier", server=f"127.0.0.1:{carrier.port}", options_seconds=0)
        people = {**EXTENSIONS, "101": Extension(password="pass-101", outside=right)}
        async with desks("101", trunks=(trunk,), extensions=people, **settings) as (sip, _, [ann]):
            await ann.begins_to_call(number)
            if not right:
                refusal = await ann.far.response(403)
                ann.far.ack_refusal(refusal)
                assert "INVITE" not in carrier.came
            else:
                with sound() as line:
                    while True:
                        invite = await carrier.asked("INVITE")
                        carrier.learn(invite)
                        if "RTP/AVP " in sdp_of(invite):
                            break
                        carrier.reply(invite, 488)
                    assert invite.uri.user == number
                    assert "101" not in str(invite.from_)
                    carrier.reply(invite, 200, sdp=line.sdp())
                    await ann.is_answered()
                    await ann.far.hang_up()
                    await carrier.is_hung_up()
            await all_over(sip)


async def test_an_extension_calls_outside_only_where_it_may():
    await outside("", routes=(Route("helper", called="500"),))
    await outside("carrier", routes=(Route("helper", called="500"),))


async def test_a_transfer_outside_needs_the_right_too():
    async with udp_peer() as carrier:
        trunk = Trunk("carrier", server=f"127.0.0.1:{carrier.port}", options_seconds=0)
        routes = (Route("helper", called="500"),)
        found = desks("101", "102", trunks=(trunk,), routes=routes)
        async with found as (sip, _, (ann, bob)):
            await ann.begins_to_call("102")
            await bob.answers()
            await ann.is_answered()
            bob.far.ask("REFER", ("Refer-To", "<sip:+4930123@127.0.0.1>"))
            await bob.far.response(603)
            await ann.far.hang_up()
            await bob.far.is_hung_up()
            await all_over(sip)
        assert "INVITE" not in carrier.came


async def test_without_the_password_nothing_rings():
    async with desks("102", unknown="refuse") as (sip, _, (bob,)):
        async with udp_peer(sip) as far:
            with sound() as line:
                far.uri = "sip:101@127.0.0.1"
                far.target = "sip:102@127.0.0.1"
                far.invite(line.sdp())
                far.ack_refusal(await far.response(401))
        assert "INVITE" not in bob.far.came
        assert not sip.calls


@pytest.mark.parametrize(
    ("number", "fields", "fault"),
    [
        ("10x", {"password": "a"}, "digits"),
        ("101", {"password": ""}, "password"),
        ("101", {"password": "a", "outside": "nobody"}, "nobody"),
        ("101", {"password": "a", "mail": "a b@c"}, "mail"),
        ("101", {"password": "a", "ring_seconds": 0}, "ring_seconds"),
    ],
)
def test_settings_that_do_not_fit_are_named(number, fields, fault):
    with pytest.raises(ValueError, match=fault):
        SipSettings(extensions={number: Extension(**fields)})
