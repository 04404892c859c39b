"""Which address of ours a far end gets to see: on several interfaces, and by IPv6."""

import asyncio
import socket
from contextlib import closing

import pytest

from offhook.telephony.sip.messages.message import sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.network.resolver_io import Resolver, Target
from offhook.telephony.sip.network.udp_io import (
    ADDRESS_CACHE_S,
    ADDRESSES_KEPT,
    LocalAddresses,
    local_address_for,
)
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.telephony.sip import scripted_peer
from tests.telephony.sip.phones import (
    OUR_TONE,
    THEIR_TONE,
    Baresip,
    ToneHost,
    endpoint,
    needs_baresip,
    port_of,
    write_certificate,
)
from tests.telephony.sip.scripted_peer import udp_peer
from tests.telephony.sip.scripted_sound import sound

ELSEWHERE = local_address_for("198.51.100.1")
"""Ours on another interface than loopback, where there is one."""


def test_our_address_towards_a_peer_is_looked_up_once_in_a_while():
    asked, now = [], 0.0

    def find(host):
        asked.append(host)
        return f"10.0.0.{len(asked)}"

    addresses = LocalAddresses(find, lambda: now)
    assert [addresses.towards("a"), addresses.towards("b"), addresses.towards("a")] == [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.1",
    ]
    now = ADDRESS_CACHE_S - 0.1
    assert addresses.towards("a") == "10.0.0.1"
    now = ADDRESS_CACHE_S
    assert addresses.towards("a") == "10.0.0.3"
    for number in range(3 * ADDRESSES_KEPT):
        addresses.towards(f"peer {number}")
    assert len(addresses._found) <= ADDRESSES_KEPT


@pytest.mark.parametrize("here", sorted({"127.0.0.1", ELSEWHERE}))
async def test_on_all_interfaces_a_far_end_is_told_the_address_it_reaches_us_by(here, monkeypatch):
    monkeypatch.setattr(scripted_peer, "HOST", here)
    async with udp_peer() as far:
        trunk = Trunk("pbx", server=f"{here}:{far.port}", options_seconds=0)
        async with endpoint(host="0.0.0.0", trunks=(trunk,)) as (sip, _):
            call = sip.dial(Dial("100"))
            with sound() as line:
                invite = await far.asked("INVITE")
                assert invite.contacts[0].uri.host == here
                assert invite.via.host == here
                assert f"c=IN IP4 {here}\r\n" in sdp_of(invite)
                far.learn(invite)
                far.reply(invite, 200, sdp=line.sdp())
                await far.asked("ACK")
                await call.hang_up("done")
                await far.is_hung_up()


@pytest.mark.parametrize("here", sorted({"127.0.0.1", ELSEWHERE}))
async def test_so_is_who_calls_us(here, monkeypatch):
    monkeypatch.setattr(scripted_peer, "HOST", here)
    trunk = Trunk("pbx", addresses=(here,))
    async with endpoint(host="0.0.0.0", trunks=(trunk,)) as (sip, _), udp_peer(sip) as far:
        with sound() as line:
            assert f"c=IN IP4 {here}\r\n" in await far.call(line.sdp())
            assert Uri.parse(far.target).host == here
            await far.hang_up()


# --- IPv6 ---

SIX = Trunk("six", addresses=("::1",))


def has_ipv6() -> bool:
    with closing(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as sock:
        try:
            sock.bind(("::1", 0))
        except OSError:
            return False
        return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@needs_ipv6
@needs_baresip
@pytest.mark.parametrize("protection", ["", ";mediaenc=srtp-mand", ";mediaenc=dtls_srtp"])
async def test_a_phone_calls_by_ipv6(tmp_path, protection):
    phone = Baresip(tmp_path / "phone", host="::1", account=protection)
    async with endpoint(host="::1", trunks=(SIX,)) as (sip, host), phone.running():
        await phone.dial(f"sip:agent@[::1]:{port_of(sip, 'UDP')}")
        talk = await host.talk()
        await until(lambda: len(talk.heard) > 75 and talk.hears(THEIR_TONE))
        await phone.hang_up()
    assert phone.hears(OUR_TONE)


@needs_ipv6
@pytest.mark.parametrize("transport", ["UDP", "TCP", "TLS"])
async def test_two_of_us_call_each_other_by_ipv6(tmp_path, transport):
    certificate, key = write_certificate(tmp_path)
    theirs = {"certificate": certificate, "key": key, "tls": 0}
    async with endpoint(host="::1", trunks=(SIX,), **theirs) as (pbx, answering):
        server = f"[::1]:{port_of(pbx, transport)}"
        trunk = Trunk("pbx", server=server, transport=transport, tls_verify=False)
        async with endpoint(ToneHost(THEIR_TONE), host="::1", trunks=(trunk,)) as (sip, calling):
            call = sip.dial(Dial("100"))
            talks = await asyncio.gather(answering.talk(), calling.talk())
            await until(lambda: talks[0].hears(THEIR_TONE, 0.6) and talks[1].hears(OUR_TONE, 0.6))
            assert sip.trunk_states()[0].state == "up"
            assert "IN IP6 ::1" in sip.stack.trace.render("")
            await call.hang_up("done")
            await until(lambda: calling.records)
            assert calling.records[0].transport == transport
            assert calling.records[0].srtp


@needs_ipv6
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("who", ["they", "we"])
async def test_every_address_is_of_both_families(address, who):
    port = free_port()
    server = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    theirs = {"host": address, "udp": port if who == "we" else 0, "tcp": None}
    ours = {"host": "::", "udp": port if who == "they" else 0, "tcp": None}
    here = Trunk("here", addresses=("127.0.0.1", "::1"))
    there = Trunk("there", server=server, options_seconds=0)
    caller, callee = (theirs, ours) if who == "they" else (ours, theirs)
    async with (
        endpoint(**callee, trunks=(here,)) as (_, answering),
        endpoint(ToneHost(THEIR_TONE), **caller, trunks=(there,)) as (sip, calling),
    ):
        call = sip.dial(Dial("100"))
        talks = await asyncio.gather(answering.talk(), calling.talk())
        await until(lambda: talks[0].hears(THEIR_TONE, 0.6) and talks[1].hears(OUR_TONE, 0.6))
        assert f"IN IP{6 if ':' in address else 4} {address}" in sip.stack.trace.render("")
        await call.hang_up("done")
        await until(lambda: calling.records)


async def test_a_name_with_addresses_of_the_other_kind_only_is_said_to_be_so(monkeypatch):
    async def resolve(self, uri, default_transport="UDP"):
        return [Target("UDP", "2001:db8::1", 5060, uri.host)]

    monkeypatch.setattr(Resolver, "resolve", resolve)
    async with endpoint(trunks=(Trunk("six", server="six.example"),)) as (sip, _):
        call = sip.dial(Dial("100"))
        reason = [p.reason async for p in call.events()][-1]
        assert reason == "six.example has only IPv6 addresses; we listen on IPv4"
        await until(lambda: sip.trunk_states()[0].detail == reason)


async def test_of_a_name_with_both_kinds_the_one_we_listen_on_is_called(monkeypatch):
    async with udp_peer() as far:

        async def resolve(self, uri, default_transport="UDP"):
            return [
                Target("UDP", "2001:db8::1", 5060, uri.host),
                Target("UDP", "127.0.0.1", far.port, uri.host),
            ]

        monkeypatch.setattr(Resolver, "resolve", resolve)
        trunk = Trunk("both", server="both.example", options_seconds=0)
        async with endpoint(trunks=(trunk,)) as (sip, _):
            sip.dial(Dial("100"))
            far.reply(await far.asked("INVITE"), 486)
