"""Real phones, baresip, registered here: they call each other, hold, transfer, call an agent, and
show that a message waits."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from offhook.telephony.sip.trunks.trunks import Route
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.extensions.desks import EXTENSIONS, all_over
from tests.telephony.sip.phones import (
    OUR_TONE,
    Baresip,
    endpoint,
    is_tone,
    needs_baresip,
    port_of,
    write_certificate,
)

pytestmark = needs_baresip
TONES = {"101": 440, "102": 620, "103": 740}


@asynccontextmanager
async def team(folder, *numbers, transport="udp", host=None, mwi=False, **settings):
    """A server, and a phone for each number that answers by itself."""
    chosen = {"trunks": (), "extensions": EXTENSIONS, "routes": (Route(called="500"),)}
    if transport == "tls":
        certificate, key = write_certificate(folder)
        (folder / "both.pem").write_text(certificate.read_text() + key.read_text())
        chosen |= {"tls": 0, "certificate": certificate, "key": key}
    async with endpoint(host, **{**chosen, **settings}) as (sip, host):
        port = port_of(sip, transport.upper())
        phones = []
        for number in numbers:
            account = (
                f"<sip:{number}@127.0.0.1:{port};transport={transport}>;auth_user={number}"
                f";auth_pass=pass-{number};regint=60;answermode=auto"
            )
            lines = ["module_app mwi.so"] if mwi else []
            if transport == "tls":
                lines.append(f"sip_certificate {folder}/both.pem")
            if mwi:
                account += ";mwi=yes"
            phone = Baresip(folder / number, account=account, lines=lines, hz=TONES[number])
            phones.append(phone)
        async with AsyncExitStack() as running:
            for phone in phones:
                await running.enter_async_context(phone.running())
            for number in numbers:
                await until(lambda n=number: sip.user_agent.phones.registrar.bindings(n))
            yield sip, host, phones


def was_heard(phone, hz):
    """Whether some half second of what it heard was this tone."""
    heard = phone.heard()
    return any(is_tone(heard[at : at + 4000], 8000, hz) for at in range(0, len(heard), 2000))


def at(sip, number, transport="udp"):
    return f"sip:{number}@127.0.0.1:{port_of(sip, transport.upper())};transport={transport}"


async def seconds_of_call(seconds=1.5):
    await asyncio.sleep(seconds)


@pytest.mark.parametrize("transport", ["udp", "tcp", "tls"])
async def test_two_phones_hear_each_other(tmp_path, transport):
    async with team(tmp_path, "101", "102", transport=transport) as (sip, host, (ann, bob)):
        await ann.dial(at(sip, "102", transport))
        await bob.event("CALL_ESTABLISHED")
        await seconds_of_call()
        await ann.hang_up()
        await bob.event("CALL_CLOSED")
        await all_over(sip)
    assert was_heard(ann, TONES["102"])
    assert was_heard(bob, TONES["101"])
    assert {record.codec for record in host.records} == {"pcmu"}


async def test_a_phone_holds_the_other_and_gives_it_to_a_third(tmp_path):
    async with team(tmp_path, "101", "102", "103") as (sip, _, (ann, bob, cleo)):
        await ann.dial(at(sip, "102"))
        await bob.event("CALL_ESTABLISHED")
        await bob.command("hold")
        await seconds_of_call(0.5)
        await bob.command("resume")
        await seconds_of_call(0.5)
        await bob.command("transfer", at(sip, "103"))
        await cleo.event("CALL_ESTABLISHED")
        await bob.event("CALL_CLOSED")
        await seconds_of_call()
        await ann.hang_up()
        await cleo.event("CALL_CLOSED")
        await all_over(sip)
    assert was_heard(ann, TONES["103"])
    assert was_heard(cleo, TONES["101"])


async def test_a_phone_talks_with_an_agent_and_is_given_to_a_phone(tmp_path):
    async with team(tmp_path, "101", "102") as (sip, host, (ann, bob)):
        await ann.dial(at(sip, "500"))
        talk = await host.talk()
        await until(lambda: talk.hears(TONES["101"], 0.5))
        await asyncio.wait_for(talk.leg.transfer("102"), HANGS_S)
        host.leave(talk)
        await seconds_of_call()
        await ann.hang_up()
        await bob.event("CALL_CLOSED")
        await all_over(sip)
    assert was_heard(ann, OUR_TONE)
    assert was_heard(ann, TONES["102"])
    assert was_heard(bob, TONES["101"])


async def test_a_phone_shows_that_a_message_waits(tmp_path):
    async with team(tmp_path, "101", mwi=True) as (sip, _, (ann,)):
        await until(lambda: len(sip.user_agent.phones.message_waiting))
        sip.show_messages({"101": (2, 1)})
        await ann.says("Voice-Message: 2/1")
        sip.show_messages({})
        await ann.says("Messages-Waiting: no")
