"""Our registration, seen by a registrar by hand."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.trunks import registration
from offhook.telephony.sip.trunks.registration_table import RegistrationState
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.waiting import until
from tests.telephony.sip.phones import endpoint, registered
from tests.telephony.sip.scripted_peer import Time, udp_peer


@pytest.fixture
def time(monkeypatch):
    monkeypatch.setattr(registration, "REFRESH_SPREAD", 0)
    return Time(monkeypatch)


@asynccontextmanager
async def registering(**options):
    async with udp_peer() as registrar:
        trunk = Trunk(
            "far",
            username="us",
            password="secret",
            server=f"127.0.0.1:{registrar.port}",
            register=True,
            **options,
        )
        async with endpoint(trunks=(trunk,)) as (sip, _):
            yield sip, registrar
            if [r.state for r in sip.registrations()] != [RegistrationState.REGISTERED]:
                return
            closing = asyncio.create_task(sip.close())
            last = await registrar.asked("REGISTER")
            assert expires(last) == 0
            registrar.reply(last, 200)
            await closing


def expires(register):
    contact = NameAddr.parse(register.headers.get("Contact"))
    return int(contact.parameter("expires") or register.headers.get("Expires"))


def take(registrar, register, seconds):
    contact = register.headers.get("Contact").partition(";")[0]
    registrar.reply(register, 200, ("Contact", f"{contact};expires={seconds}"))


async def test_it_is_refreshed_before_it_ends_in_the_same_call(time):
    async with registering() as (sip, registrar):
        first = await registrar.asked("REGISTER")
        assert expires(first) == 300
        take(registrar, first, 300)
        await registered(sip)
        await time.passes(sip, 229)
        assert registrar.came.count("REGISTER") == 1
        await time.passes(sip, 1.2)  # 70 s before its end
        again = await registrar.asked("REGISTER")
        take(registrar, again, 300)
        assert again.call_id == first.call_id
        assert again.from_.tag == first.from_.tag
        assert again.cseq.number > first.cseq.number
        await time.passes(sip, 30)
        assert sip.registrations()[0].state is RegistrationState.REGISTERED


async def test_a_longer_life_is_asked_for_where_ours_is_too_brief():
    async with registering() as (sip, registrar):
        registrar.reply(await registrar.asked("REGISTER"), 423, ("Min-Expires", "900"))
        again = await registrar.asked("REGISTER")
        assert expires(again) == 900
        take(registrar, again, 900)
        await registered(sip)


async def test_a_challenge_is_answered_and_a_stale_nonce_again(time):
    async with registering() as (sip, registrar):
        value = 'Digest realm="r", nonce="{}", qop="auth", algorithm=SHA-256'
        first = await registrar.asked("REGISTER")
        registrar.reply(first, 401, ("WWW-Authenticate", value.format("one")))
        second = await registrar.asked("REGISTER")
        assert 'nonce="one"' in second.headers.get("Authorization")
        take(registrar, second, 300)
        await registered(sip)
        await time.passes(sip, 230.2)
        refresh = await registrar.asked("REGISTER")
        assert 'nonce="one"' in refresh.headers.get("Authorization")
        stale = value.format("two") + ", stale=true"
        registrar.reply(refresh, 401, ("WWW-Authenticate", stale))
        again = await registrar.asked("REGISTER")
        assert 'nonce="two"' in again.headers.get("Authorization")
        take(registrar, again, 300)
        await until(lambda: sip.registrations()[0].state is RegistrationState.REGISTERED)


async def test_a_password_that_is_wrong_is_not_sent_again_and_again(time):
    async with registering() as (sip, registrar):
        for nonce in ("one", "two"):
            challenge = f'Digest realm="r", nonce="{nonce}", qop="auth"'
            asked = await registrar.asked("REGISTER")
            registrar.reply(asked, 401, ("WWW-Authenticate", challenge))
        await until(lambda: "password" in sip.registrations()[0].detail)
        await time.passes(sip, 60)
        assert registrar.came.count("REGISTER") == 2


async def test_a_domain_is_registered_at_the_proxy_that_is_its_server():
    async with registering(domain="carrier.test") as (sip, proxy):
        register = await proxy.asked("REGISTER")
        assert str(register.uri) == "sip:carrier.test"
        assert register.to.uri.host == "carrier.test"
        take(proxy, register, 300)
        await registered(sip)


async def test_other_trunks_are_used_without_a_restart():
    """The new one is there before the old one goes; the rest of the settings is the new one's."""
    async with registering() as (sip, registrar):
        first = await registrar.asked("REGISTER")
        take(registrar, first, 300)
        await registered(sip)
        before = sip.stack.settings
        (trunk,) = before.trunks
        assert trunk.username == "us"
        sip.reload(replace(before, trunks=(replace(trunk, username="new"),), max_calls=7))
        new = await registrar.asked("REGISTER")
        assert new.call_id != first.call_id
        assert "new@" in str(new.headers.get("To"))
        assert expires(new) > 0
        await asyncio.sleep(0.2)
        assert registrar.came.count("REGISTER") == 2  # calls still come by the first
        take(registrar, new, 300)
        leaving = await registrar.asked("REGISTER")
        assert (leaving.call_id, expires(leaving)) == (first.call_id, 0)
        registrar.reply(leaving, 200)
        await until(
            lambda: [r.state for r in sip.registrations()] == [RegistrationState.REGISTERED]
        )
        assert sip.stack.settings.max_calls == 7
        sip.reload(replace(sip.stack.settings, max_calls=8))  # the trunk stays: nothing is sent
        await asyncio.sleep(0.2)
        assert registrar.came.count("REGISTER") == 3


async def test_a_trunk_with_another_limit_keeps_its_binding():
    """Both are one at the registrar: to remove the old would remove the new."""
    async with registering() as (sip, registrar):
        first = await registrar.asked("REGISTER")
        take(registrar, first, 300)
        await registered(sip)
        (trunk,) = sip.stack.settings.trunks
        sip.reload(replace(sip.stack.settings, trunks=(replace(trunk, max_calls=3),)))
        new = await registrar.asked("REGISTER")
        assert new.call_id != first.call_id
        take(registrar, new, 300)
        await until(lambda: [r.trunk for r in sip.registrations()] == ["far"])
        await asyncio.sleep(0.2)
        assert registrar.came.count("REGISTER") == 2


async def test_a_trunk_that_goes_is_unregistered_at_once():
    async with registering() as (sip, registrar):
        first = await registrar.asked("REGISTER")
        take(registrar, first, 300)
        await registered(sip)
        sip.reload(replace(sip.stack.settings, trunks=()))
        leaving = await registrar.asked("REGISTER")
        assert (leaving.call_id, expires(leaving)) == (first.call_id, 0)
        registrar.reply(leaving, 200)
        await until(lambda: not sip.registrations())
