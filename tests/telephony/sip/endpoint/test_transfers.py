"""Calls given to somebody else, with real phones: who hears whom afterwards."""

import asyncio
from dataclasses import replace

import pytest

from offhook.media.leg import LegError
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.phones import (
    LOOPBACK,
    OUR_TONE,
    THEIR_TONE,
    Baresip,
    ToneHost,
    endpoint,
    is_tone,
    kamailio,
    needs_baresip,
    needs_kamailio,
    port_of,
    registered,
)

TARGET_TONE = 620


@pytest.fixture
def target(tmp_path):
    return Baresip(tmp_path / "target", account=";answermode=auto", hz=TARGET_TONE)


@pytest.fixture
def caller(tmp_path):
    return Baresip(tmp_path / "caller")


def ends_with(phone: Baresip, hz: float, rate: int = 8000) -> bool:
    """The last thing heard for a second."""
    return is_tone(phone.heard()[-rate:], rate, hz)


@needs_baresip
async def test_a_phone_is_asked_to_call_the_target_itself(caller, target):
    async with endpoint() as (sip, host), caller.running(), target.running():
        await caller.dial(f"sip:agent@127.0.0.1:{port_of(sip, 'UDP')}")
        talk = await host.talk()
        await asyncio.sleep(0.5)
        await talk.leg.transfer(target.uri)
        await asyncio.wait_for(talk.over.wait(), HANGS_S)
        await asyncio.sleep(2)
        await caller.command("hangup")
        await asyncio.sleep(0.5)
    assert ends_with(caller, TARGET_TONE)
    assert ends_with(target, THEIR_TONE)
    assert host.records[0].transferred_to == target.uri


@needs_baresip
async def test_where_a_trunk_is_bridged_the_lines_are_connected_here(caller, target):
    trunk = replace(LOOPBACK, transfer="bridge")
    async with endpoint(trunks=(trunk,)) as (sip, host), caller.running(), target.running():
        await caller.dial(f"sip:agent@127.0.0.1:{port_of(sip, 'UDP')}")
        talk = await host.talk()
        await asyncio.sleep(0.5)
        host.leave(talk)
        await talk.leg.transfer(target.uri)
        assert talk.leg.closed is None
        await asyncio.sleep(2)
        await caller.hang_up()
        await target.event("CALL_CLOSED")
    assert ends_with(caller, TARGET_TONE)
    assert ends_with(target, THEIR_TONE)


@needs_baresip
async def test_a_target_that_declines_leaves_the_call_as_it_was(tmp_path, caller):
    target = Baresip(tmp_path / "busy")
    trunk = replace(LOOPBACK, transfer="bridge")
    async with endpoint(trunks=(trunk,)) as (sip, host), caller.running(), target.running():
        await caller.dial(f"sip:agent@127.0.0.1:{port_of(sip, 'UDP')}")
        talk = await host.talk()
        await asyncio.sleep(0.5)
        asked = asyncio.create_task(talk.leg.transfer(target.uri))
        await target.event("CALL_INCOMING")
        await target.command("hangup")
        with pytest.raises(LegError, match=r"busy|declined|refused"):
            await asked
        before = len(talk.heard)
        await until(lambda: len(talk.heard) > before + 60 and talk.hears(THEIR_TONE))
        await caller.hang_up()
    assert ends_with(caller, OUR_TONE)


@needs_baresip
async def test_a_phone_that_is_told_of_a_busy_target_says_so(tmp_path, caller):
    target = Baresip(tmp_path / "busy")
    async with endpoint() as (sip, host), caller.running(), target.running():
        await caller.dial(f"sip:agent@127.0.0.1:{port_of(sip, 'UDP')}")
        talk = await host.talk()
        await asyncio.sleep(0.5)
        asked = asyncio.create_task(talk.leg.transfer(target.uri))
        await target.event("CALL_INCOMING")
        await target.command("hangup")
        with pytest.raises(LegError, match="transfer failed"):
            await asked
        assert talk.leg.closed is None


@needs_baresip
async def test_a_phone_gives_its_call_with_us_to_another_phone(caller, target):
    trunk = replace(LOOPBACK, server=f"127.0.0.1:{target.port}", follow=True)
    async with endpoint(trunks=(trunk,)) as (sip, host), caller.running(), target.running():
        await caller.dial(f"sip:agent@127.0.0.1:{port_of(sip, 'UDP')}")
        talk = await host.talk()
        await asyncio.sleep(0.5)
        await caller.command("transfer", target.uri)
        await caller.event("CALL_CLOSED", 10)
        before = len(talk.heard)
        await until(lambda: len(talk.heard) > before + 90 and talk.hears(TARGET_TONE))
        assert talk.leg.closed is None
        await talk.leg.hang_up("done")
        await target.event("CALL_CLOSED")
    assert ends_with(target, OUR_TONE)


@needs_baresip
async def test_nobody_is_called_at_our_cost(caller, target):
    """A stranger's REFER to a number that is not of its own trunk."""
    async with endpoint() as (sip, host), caller.running(), target.running():
        await caller.dial(f"sip:agent@127.0.0.1:{port_of(sip, 'UDP')}")
        await host.talk()
        await asyncio.sleep(0.3)
        await caller.command("transfer", target.uri)
        await until(lambda: "603 Decline" in sip.stack.trace.render())
    assert not len(target.heard())


@needs_kamailio
async def test_an_attended_transfer_joins_the_two_far_ends(tmp_path):
    """All three are ours, at a proxy: the caller, the one in the middle, the target."""
    caller_host, target_host = ToneHost(THEIR_TONE), ToneHost(TARGET_TONE)
    async with kamailio(tmp_path) as port:

        def at_the_proxy(user: str) -> dict[str, object]:
            server = f"127.0.0.1:{port}"
            trunk = Trunk(
                *("proxy",),
                username=user,
                password="secret",
                server=server,
                follow=True,
                register=True,
                transfer="attended",
            )
            return {"trunks": (trunk,)}

        async with (
            endpoint(**at_the_proxy("1002")) as (middle, host),
            endpoint(target_host, **at_the_proxy("1003")) as (target, _),
            endpoint(caller_host, **at_the_proxy("1001")) as (caller, _),
        ):
            for sip in (middle, target, caller):
                await registered(sip)
            caller.dial(Dial("1002"))
            talk = await host.talk()
            await caller_host.talk()
            await asyncio.sleep(0.3)
            await talk.leg.transfer("1003")
            await asyncio.wait_for(talk.over.wait(), HANGS_S)
            await until(lambda: caller_host.talks[0].hears(TARGET_TONE, 0.8))
            await until(lambda: target_host.talks[0].hears(THEIR_TONE, 0.8))
            assert len(target_host.talks) == 1
            assert middle.user_agent.sessions == 0
