"""Calls through Kamailio as registrar and proxy: digest both ways, Record-Route, UDP and TCP."""

import pytest

from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks import registration, trunk_watch
from offhook.telephony.sip.trunks.registration_table import RegistrationState
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.telephony.sip.phones import (
    OUR_TONE,
    THEIR_TONE,
    Baresip,
    endpoint,
    kamailio,
    needs_baresip,
    needs_kamailio,
    registered,
)

pytestmark = [needs_baresip, needs_kamailio]


@pytest.mark.parametrize(
    ("algorithm", "transport"), [("MD5", "UDP"), ("SHA-256", "UDP"), ("MD5", "TCP")]
)
async def test_calls_go_through_a_proxy_both_ways(tmp_path, algorithm, transport):
    async with kamailio(tmp_path, algorithm) as port:
        trunk = Trunk(
            "kamailio",
            username="1002",
            password="secret",
            server=f"127.0.0.1:{port}",
            transport=transport,
            register=True,
        )
        # baresip knows no SHA-256: it only takes calls there, and does not register.
        phone = Baresip(tmp_path / "phone", account=_account(port, algorithm))
        async with endpoint(trunks=(trunk,)) as (sip, host), phone.running():
            await registered(sip)
            if algorithm == "MD5":
                await phone.says("200 OK")
                await phone.dial(f"sip:1002@127.0.0.1:{port}")
                await _speaks(phone, await host.talk())
                await phone.hang_up()
                call = sip.dial(Dial("1001"))
            else:
                call = sip.dial(Dial(phone.uri))
            talk = await host.talk(1 if algorithm == "MD5" else 0)
            await _speaks(phone, talk)
            await call.hang_up("done")
            await phone.event("CALL_CLOSED")
        assert phone.hears(OUR_TONE)
        assert sip.registrations()[0].state is RegistrationState.UNREGISTERED
        assert "SIP/2.0 407" in sip.stack.trace.render()
        assert "SIP/2.0 401" in sip.stack.trace.render()


def _account(port: int, algorithm: str) -> str:
    if algorithm != "MD5":
        return ";answermode=auto"
    return f"<sip:1001@127.0.0.1:{port}>;auth_user=1001;auth_pass=secret;regint=60;answermode=auto"


async def _speaks(phone, talk) -> None:
    await until(lambda: len(talk.heard) > 90 and talk.hears(THEIR_TONE))


async def test_a_number_that_is_not_there_is_said_so(tmp_path):
    async with kamailio(tmp_path, "MD5") as port:
        trunk = Trunk("k", username="1002", password="secret", server=f"127.0.0.1:{port}")
        async with endpoint(trunks=(trunk,)) as (sip, host):
            call = sip.dial(Dial("4711"))
            last = [progress async for progress in call.events()][-1]
    assert last.status == 404
    assert last.reason == "no such number: 404 Not Found"
    assert host.records[0].status == 404
    assert not host.talks


async def test_a_wrong_password_is_said_so(tmp_path):
    async with kamailio(tmp_path, "MD5") as port:
        trunk = Trunk("k", username="1002", password="wrong", server=f"127.0.0.1:{port}")
        async with endpoint(trunks=(trunk,)) as (sip, _):
            call = sip.dial(Dial("1001"))
            last = [progress async for progress in call.events()][-1]
        assert last.status == 407
        assert "password" in last.reason


@pytest.mark.parametrize("transport", ["TCP", "UDP"])
async def test_after_a_registrar_was_killed_its_phones_reach_us_again(
    tmp_path, transport, monkeypatch
):
    monkeypatch.setattr(registration, "BACKOFF_FIRST_S", 0.5)
    monkeypatch.setattr(trunk_watch, "DOWN_INTERVAL_S", 0.5)
    monkeypatch.setattr(trunk_watch, "RESPONSE_TIMEOUT_S", 1.0)
    port = free_port()
    trunk = Trunk(
        "kamailio",
        username="1002",
        password="secret",
        server=f"127.0.0.1:{port}",
        transport=transport,
        register=True,
        options_seconds=1,
    )
    async with endpoint(trunks=(trunk,)) as (sip, host):
        async with kamailio(tmp_path, port=port, killed=True):
            await registered(sip)
            before = sip.registrations()[0].expires_at
        await until(lambda: sip.trunk_states()[0].state == "down")
        assert sip.registrations()[0].detail or transport == "UDP"
        async with kamailio(tmp_path, port=port):
            phone = Baresip(tmp_path / "phone", account=_account(port, "MD5"))
            async with phone.running():
                await phone.says("200 OK")
                await until(lambda: sip.trunk_states()[0].state == "up")
                await until(lambda: sip.registrations()[0].expires_at not in (None, before))
                await phone.dial(f"sip:1002@127.0.0.1:{port}")
                await _speaks(phone, await host.talk())
                await phone.hang_up()
            await sip.close()
