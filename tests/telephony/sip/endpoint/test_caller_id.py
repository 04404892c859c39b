"""Who calls, as far ends are told and as we are told: at registrars that know an account by its
From, as Asterisk does, and with the identities of RFC 3325."""

import asyncio
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from offhook.telephony.sip.auth.digest import DigestServer
from offhook.telephony.sip.messages.message import sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.sessions.refer import Replaces
from offhook.telephony.sip.trunks.trunks import Trunk, caller_identity
from tests.support.waiting import until
from tests.telephony.sip.phones import OUR_TONE, endpoint
from tests.telephony.sip.scripted_peer import udp_peer
from tests.telephony.sip.scripted_sound import sound

ACCOUNT, PASSWORD = "offhook", "secret"
STRANGER = "+4930555"
TARGET_TONE = 620
FROM_A_STRANGER = "From", f'"Ann Lee" <sip:{STRANGER}@127.0.0.1>;tag=far'


async def identified(pbx):
    """The INVITE that the registrar lets through: From names an account, and the password is that
    account's. Any other is challenged, however often it comes."""
    digest = DigestServer("pbx")
    while True:
        invite = await pbx.asked("INVITE")
        account = invite.from_.uri.user
        passwords = {ACCOUNT: PASSWORD} if account == ACCOUNT else {}
        verdict = digest.check(invite, passwords.get, monotonic(), "127.0.0.1")
        if verdict.ok and verdict.username == account:
            return invite
        lines = digest.challenge(invite, monotonic(), verdict.stale, "127.0.0.1")
        pbx.reply(invite, 401, *lines)


async def takes(pbx, line):
    invite = await identified(pbx)
    pbx.learn(invite)
    line.aim(sdp_of(invite))
    pbx.reply(invite, 200, sdp=line.sdp())
    await pbx.asked("ACK")
    return invite


@asynccontextmanager
async def at_the_registrar(**settings):
    async with udp_peer() as pbx:
        trunk = Trunk(
            "pbx",
            server=f"127.0.0.1:{pbx.port}",
            username=ACCOUNT,
            password=PASSWORD,
            options_seconds=0,
            **settings,
        )
        async with endpoint(trunks=(trunk,)) as (sip, host):
            yield sip, host, pbx


# --- calls that we place ---


@pytest.mark.parametrize(
    ("setting", "header", "written"),
    [
        (None, "P-Asserted-Identity", f'"Ann Lee" <sip:{STRANGER}@127.0.0.1>'),
        ("diversion", "Diversion", f"<sip:{STRANGER}@127.0.0.1>;reason=unknown;counter=1"),
    ],
)
async def test_a_number_that_is_not_the_account_is_shown_and_the_call_gets_through(
    setting, header, written
):
    async with at_the_registrar(caller_id_header=setting) as (sip, host, pbx):
        with sound() as line:
            sip.dial(Dial("200", caller=STRANGER, caller_name="Ann Lee"))
            invite = await takes(pbx, line)
            assert str(invite.from_.uri) == "sip:offhook@127.0.0.1"
            assert list(invite.headers.all(header)) == [written]
            await line.is_heard(await host.talk())
            await pbx.hang_up()
        await until(lambda: host.records)
        assert host.records[0].caller == STRANGER


@pytest.mark.parametrize("transfer", ["attended", "bridge"])
async def test_a_strangers_call_is_given_to_somebody_at_the_registrar(transfer):
    async with at_the_registrar(transfer=transfer) as (sip, host, pbx), udp_peer(sip) as far:
        with sound() as line, sound() as other:
            line.aim(await far.call(line.sdp(), FROM_A_STRANGER))
            talk = await host.talk()
            assert (talk.leg.info.caller, talk.leg.info.caller_name) == (STRANGER, "Ann Lee")
            host.leave(talk)
            giving = asyncio.create_task(talk.leg.transfer("200"))
            invite = await takes(pbx, other)
            assert str(invite.from_.uri) == "sip:offhook@127.0.0.1"
            assert f"sip:{STRANGER}@" in invite.headers.get("P-Asserted-Identity")
            if transfer == "attended":
                refer = await far.asked("REFER")
                [named] = [v for n, v in Uri.parse(refer_to(refer)).headers if n == "Replaces"]
                assert Replaces.parse(named).call_id == invite.call_id
                far.reply(refer, 202)
                state = ("Event", "refer"), ("Subscription-State", "terminated;reason=noresource")
                far.ask("NOTIFY", *state, body=("message/sipfrag", "SIP/2.0 200 OK"))
                await far.is_hung_up()
                await pbx.is_hung_up()
                await giving
            else:
                await giving
                since = monotonic()
                await asyncio.gather(line.says(), other.says(hz=TARGET_TONE))
                await until(lambda: line.hears(TARGET_TONE, since=since))
                assert not line.hears(OUR_TONE, since=since)
                await far.hang_up()
                await pbx.is_hung_up()


def refer_to(refer):
    return refer.headers.get("Refer-To").strip("<>")


async def test_a_call_that_we_are_sent_on_with_is_ours_and_not_the_callers():
    async with at_the_registrar(follow=True) as (sip, host, pbx), udp_peer(sip) as far:
        with sound() as line, sound() as other:
            line.aim(await far.call(line.sdp(), FROM_A_STRANGER))
            await host.talk()
            far.ask("REFER", ("Refer-To", f"<{pbx.uri}>"))
            invite = await takes(pbx, other)
            assert invite.from_.uri.user == ACCOUNT
            assert STRANGER not in (invite.headers.get("P-Asserted-Identity") or "")
            await pbx.hang_up()


AT = {"server": "sip.test", "username": "acct"}


@pytest.mark.parametrize(
    ("settings", "number", "from_", "lines"),
    [
        (AT, "4711", "acct@sip.test", [("P-Asserted-Identity", '"N" <sip:4711@sip.test>')]),
        (
            {**AT, "caller_id_header": "ppi", "domain": "d.test"},
            "4711",
            "acct@d.test",
            [("P-Preferred-Identity", '"N" <sip:4711@d.test>')],
        ),
        (
            {**AT, "caller_id_header": "diversion"},
            "4711",
            "acct@sip.test",
            [("Diversion", "<sip:4711@sip.test>;reason=unknown;counter=1")],
        ),
        ({**AT, "caller_id_header": "from"}, "4711", "4711@sip.test", []),
        (AT, "acct", "acct@sip.test", []),
        (AT, "", "acct@sip.test", []),
        (AT, "Anonymous", "acct@sip.test", []),
        ({"server": "10.0.0.1"}, "4711", "4711@10.0.0.1", []),
        ({}, "4711", "4711@ours.test", []),
        (
            {"server": "10.0.0.1", "caller_id_header": "pai"},
            "4711",
            "4711@10.0.0.1",
            [("P-Asserted-Identity", '"N" <sip:4711@10.0.0.1>')],
        ),
    ],
)
def test_who_calls_is_said_as_the_trunk_wants_it(settings, number, from_, lines):
    caller, headers = caller_identity(Trunk("t", **settings), number, "N", "ours.test")
    assert str(caller) == f'"N" <sip:{from_}>'
    assert list(headers) == lines


# --- calls that come in ---


@pytest.mark.parametrize(
    ("trusted", "asserted", "caller"),
    [
        (True, ('"Bo" <sip:+4989777@trunk.test>',), ("+4989777", "Bo")),
        (True, ("<tel:+4989777>", "<sip:bo@trunk.test>"), ("+4989777", "")),
        (True, ("nonsense", "<tel:+4989777>"), ("+4989777", "")),
        (True, ("nonsense",), (STRANGER, "Ann Lee")),
        (True, (), (STRANGER, "Ann Lee")),
        (False, ('"Bo" <sip:+4989777@trunk.test>',), (STRANGER, "Ann Lee")),
    ],
)
async def test_only_of_a_trusted_trunk_an_asserted_identity_is_the_caller(
    trusted, asserted, caller
):
    trunk = Trunk("pbx", addresses=("127.0.0.1",), trust_identity=trusted)
    async with endpoint(trunks=(trunk,)) as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            invite = far.request("INVITE", FROM_A_STRANGER, sdp=line.sdp())
            for value in asserted:
                invite.headers.add("P-Asserted-Identity", value)
            far.send(invite)
            far.ack(await far.response(200))
            info = (await host.talk()).leg.info
            assert (info.caller, info.caller_name) == caller
            await far.hang_up()


VOICEMAIL = (
    "<sip:bob@trunk.test?Reason=SIP%3Bcause%3D302>;index=1",
    "<sip:bob@192.0.2.4>;index=1.1;rc=1",
    "<sip:agent@ours.test;cause=302>;index=1.2;mp=1",
    "<sip:agent@192.0.2.1>;index=1.2.1;rc=1.2",
)
"""As in RFC 7131: Bob's phone forwards to us, whom a proxy knows by another address."""


@pytest.mark.parametrize(
    ("headers", "number"),
    [
        ((("Diversion", "<sip:+4930111@trunk.test>;reason=no-answer;counter=1"),), "+4930111"),
        ((("Diversion", "<sip:2@x>;reason=unknown, <sip:1@x>;reason=user-busy"),), "2"),
        ((("Diversion", "<tel:+4930111>"),), "+4930111"),
        ((("Diversion", "<sip:2@x>;privacy=full"),), ""),
        ((("Diversion", "nonsense"), ("History-Info", "<sip:3@x>;index=1")), ""),
        (tuple(("History-Info", value) for value in VOICEMAIL), "bob"),
        ((("History-Info", ", ".join(VOICEMAIL)),), "bob"),
        (
            (
                ("History-Info", "<sip:3@x>;index=1"),
                ("History-Info", "<sip:4@x>;index=1.1;mp=1"),
                ("History-Info", "<sip:us@x;cause=486>;index=1.1.1;mp=1.1"),
            ),
            "4",
        ),
        (  # RFC 4244: the entry that was given up has the reason
            (
                ("History-Info", "<sip:5@x?Reason=SIP%3Bcause%3D486%3Btext%3D%22Busy%22>;index=1"),
                ("History-Info", "<sip:us@x>;index=2"),
            ),
            "5",
        ),
        (  # RFC 4458
            (
                ("History-Info", "<sip:6@x>;index=1"),
                ("History-Info", "<sip:us@x;cause=408>;index=1.1"),
            ),
            "6",
        ),
        (
            (
                ("History-Info", "<sip:7@x?Privacy=history>;index=1"),
                ("History-Info", "<sip:us@x>;index=1.1;mp=1"),
            ),
            "",
        ),
        ((("History-Info", "<sip:us@x>;index=1"),), ""),
        ((("History-Info", "<sip:8@x>;index=1, <sip:us@x>;index=1.1;mp=9"),), ""),
        (
            (
                ("Diversion", "<sip:9@x>;reason=user-busy"),
                ("History-Info", "<sip:10@x>;index=1, <sip:us@x>;index=1.1;mp=1"),
            ),
            "9",
        ),
    ],
)
async def test_whose_calls_are_forwarded_to_us_is_known(headers, number):
    trunk = Trunk("pbx", addresses=("127.0.0.1",), trust_identity=True)
    async with endpoint(trunks=(trunk,)) as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            invite = far.request("INVITE", FROM_A_STRANGER, sdp=line.sdp())
            for name, value in (*headers, ("P-Asserted-Identity", "<tel:+4989777>")):
                invite.headers.add(name, value)
            far.send(invite)
            far.ack(await far.response(200))
            info = (await host.talk()).leg.info
            assert (info.caller, info.diverted_from) == ("+4989777", number)
            await far.hang_up()
        await until(lambda: host.records)
        assert host.records[0].diverted_from == number


async def test_who_is_not_trusted_forwards_nothing():
    trunk = Trunk("phone", addresses=("127.0.0.1",))
    async with endpoint(trunks=(trunk,)) as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            history = ("History-Info", ", ".join(VOICEMAIL))
            await far.call(line.sdp(), ("Diversion", "<sip:boss@x>;reason=user-busy"), history)
            assert (await host.talk()).leg.info.diverted_from == ""
            await far.hang_up()


async def test_nobody_is_believed_where_everybody_may_call():
    async with endpoint(trunks=(), allow_anonymous=True) as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp(), ("P-Asserted-Identity", "<sip:boss@trunk.test>"))
            assert (await host.talk()).leg.info.caller == "far"
            await far.hang_up()


@pytest.mark.parametrize(
    ("values", "caller"),
    [
        (('"Ann" <sip:4711@10.0.0.1>;party=calling;screen=yes;privacy=off',), ("4711", "Ann")),
        (("<sip:4712@10.0.0.1>",), ("4712", "")),
        (("<sip:4713@x>;party=called", "<sip:4714@x>;party=calling"), ("4714", "")),
        (("<sip:4713@x>;party=called",), ("far", "")),
    ],
)
async def test_a_remote_party_id_names_the_caller_where_nothing_is_asserted(values, caller):
    trunk = Trunk("pbx", addresses=("127.0.0.1",), trust_identity=True)
    async with endpoint(trunks=(trunk,)) as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            invite = far.request("INVITE", sdp=line.sdp())
            for value in values:
                invite.headers.add("Remote-Party-ID", value)
            far.send(invite)
            far.ack(await far.response(200))
            info = (await host.talk()).leg.info
            assert (info.caller, info.caller_name) == caller
            await far.hang_up()
