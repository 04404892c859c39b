"""More than two phones in a call: all hear each other, and the others go on when one leaves."""

import asyncio

import pytest

from offhook.telephony.call_progress_io import DialError
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.extensions.pairs_io import MAX_TOGETHER
from tests.support.waiting import until
from tests.telephony.sip.extensions.desks import Desk, all_over, desks


def call_of(sip: SipEndpoint, number: str) -> SipCall:
    (found,) = (
        c for c in sip.calls.values() if c.trunk is not None and c.trunk.extension == number
    )
    return found


async def three_talk(sip: SipEndpoint, ann: Desk, bob: Desk, cleo: Desk) -> None:
    await ann.begins_to_call("102")
    await bob.answers()
    await ann.is_answered()
    await ann.talks_with(bob)
    adding = asyncio.create_task(sip.extension_calls.add(call_of(sip, "101"), "103"))
    await cleo.answers()
    await adding
    for one, other in ((ann, bob), (bob, cleo), (cleo, ann)):
        await one.talks_with(other)


@pytest.mark.parametrize("leaver", [0, 1, 2])
async def test_whoever_leaves_the_others_go_on(leaver: int) -> None:
    async with desks("101", "102", "103") as (sip, _, three):
        await three_talk(sip, *three)
        await three[leaver].far.hang_up()
        first, second = (desk for desk in three if desk is not three[leaver])
        await until(lambda: len(sip.calls) == 2)
        await first.talks_with(second)
        await first.far.hang_up()
        await second.far.is_hung_up()
        await all_over(sip)


async def test_a_call_of_three_is_not_transferred_and_each_is_ticked_once() -> None:
    async with desks("101", "102", "103") as (sip, host, (ann, bob, cleo)):
        await three_talk(sip, ann, bob, cleo)
        ticked = [one for phase in host.clock._phases for one in phase]
        assert len(ticked) == 1
        ann.far.ask("REFER", ("Refer-To", "<sip:102@127.0.0.1>"))
        await ann.far.response(603)
        with pytest.raises(DialError, match="cannot be called"):
            await sip.extension_calls.add(call_of(sip, "101"), "4711")
        await ann.far.hang_up()
        await bob.far.hang_up()
        await cleo.far.is_hung_up()
        await all_over(sip)


async def test_no_more_are_called_at_a_time_than_there_is_room_for() -> None:
    async with desks("101", "102", "103") as (sip, _, (ann, bob, cleo)):
        await ann.begins_to_call("102")
        await bob.answers()
        await ann.is_answered()
        call = call_of(sip, "101")
        room = MAX_TOGETHER - 2
        adding = [
            asyncio.create_task(sip.extension_calls.add(call, "103")) for _ in range(room + 3)
        ]
        await cleo.rings()
        full, ringing = await asyncio.wait(adding, return_when=asyncio.ALL_COMPLETED, timeout=0)
        assert (len(full), len(ringing)) == (3, room)
        assert all("it can have no more" in str(each.exception()) for each in full)
        await ann.far.hang_up()
        await bob.far.is_hung_up()
        await asyncio.gather(*adding, return_exceptions=True)
        await all_over(sip)


async def test_who_declines_leaves_the_call_as_it_was() -> None:
    async with desks("101", "102", "103") as (sip, _, (ann, bob, cleo)):
        await ann.begins_to_call("102")
        await bob.answers()
        await ann.is_answered()
        adding = asyncio.create_task(sip.extension_calls.add(call_of(sip, "101"), "103"))
        cleo.far.reply(await cleo.rings(), 486)
        with pytest.raises(DialError):
            await adding
        await ann.talks_with(bob)
        await bob.far.hang_up()
        await ann.far.is_hung_up()
        await all_over(sip)
