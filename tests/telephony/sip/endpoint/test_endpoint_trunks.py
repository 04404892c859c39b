"""What trunks need of an endpoint besides calls, over real sockets: NATs, dead servers, few lines,
bad certificates."""

import asyncio
import socket
import ssl
from dataclasses import replace

import pytest

from offhook.telephony.call_progress_io import DialError
from offhook.telephony.sip.messages.grammar import SipError, with_raw_parameter
from offhook.telephony.sip.messages.message import Request, parse_message, respond, sdp_of
from offhook.telephony.sip.network import resolver_io
from offhook.telephony.sip.network.resolver_io import Resolver, Target
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks import keep_alive, trunk_watch
from offhook.telephony.sip.trunks.keep_alive import KEEP_ALIVE
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.telephony.sip.phones import (
    LOOPBACK,
    ToneHost,
    endpoint,
    port_of,
    registered,
    write_certificate,
)
from tests.telephony.sip.scripted_peer import HOST, udp_peer
from tests.telephony.sip.scripted_sound import sound


class Registrar(asyncio.DatagramProtocol):
    """Takes registrations, sees who asks as `seen_as`, and keeps all that comes."""

    def __init__(self, seen_as):
        self.seen_as = seen_as
        self.came = []

    def connection_made(self, transport):
        self.transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data, source):
        self.came.append((data, source))
        if data == KEEP_ALIVE:
            return
        request = parse_message(data)
        if isinstance(request, Request) and request.method == "REGISTER":
            host, port = self.seen_as or source
            via = with_raw_parameter(str(request.via), "received", host)
            request.headers.set("Via", with_raw_parameter(via, "rport", str(port)))
            contact = ("Contact", f"{request.headers.get('Contact')};expires=300")
            self.transport.sendto(respond(request, 200, headers=[contact]).serialize(), source)

    def requests(self, method):
        messages = (parse_message(data) for data, _ in self.came if data != KEEP_ALIVE)
        return [m for m in messages if isinstance(m, Request) and m.method == method]


async def registrar(seen_as=None):
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_datagram_endpoint(
        lambda: Registrar(seen_as), local_addr=(HOST, 0)
    )
    return protocol


def carrier(port, **options):
    server = f"{HOST}:{port}"
    account = {"username": "me", "password": "x", "register": True, "options_seconds": 0}
    return Trunk("carrier", server=server, **account, **options)


async def test_a_registered_trunk_hears_from_our_socket_every_so_often(monkeypatch):
    monkeypatch.setattr(keep_alive, "KEEP_ALIVE_INTERVAL_S", 0.15)
    server = await registrar()
    async with endpoint(trunks=(carrier(server.port),)) as (sip, _):
        await registered(sip)

        def kept():
            return [source for data, source in server.came if data == KEEP_ALIVE]

        await until(lambda: len(kept()) >= 3)
        assert set(kept()) == {(HOST, port_of(sip, "UDP"))}
        assert "CRLF" not in sip.stack.trace.render()
        assert len(sip.stack.trace.as_dicts()) == 2  # a keep-alive is no message
    server.transport.close()


async def test_behind_a_nat_contact_and_sdp_say_what_the_registrar_sees():
    server = await registrar(("203.0.113.5", 40_123))
    async with endpoint(trunks=(carrier(server.port),)) as (sip, _):
        await registered(sip)
        sip.dial(Dial("100"))
        await until(lambda: server.requests("INVITE"))
        [invite] = server.requests("INVITE")[:1]
        assert str(invite.contacts[0].uri) == "sip:me@203.0.113.5:40123"
        assert "c=IN IP4 203.0.113.5" in sdp_of(invite)
        assert invite.via.host == HOST  # the way back is the one it came by
    server.transport.close()


async def test_an_address_from_the_settings_goes_before_what_the_registrar_sees():
    server = await registrar(("203.0.113.5", 40_123))
    settings = {"trunks": (carrier(server.port),), "public_address": "198.51.100.9"}
    async with endpoint(**settings) as (sip, _):
        await registered(sip)
        sip.dial(Dial("100"))
        await until(lambda: server.requests("INVITE"))
        [invite] = server.requests("INVITE")[:1]
        assert invite.contacts[0].uri.host == "198.51.100.9"
        assert "c=IN IP4 198.51.100.9" in sdp_of(invite)
    server.transport.close()


# --- whether a server is there ---


async def test_a_server_that_does_not_answer_is_passed_over_and_said_so(monkeypatch):
    monkeypatch.setattr(trunk_watch, "RESPONSE_TIMEOUT_S", 0.3)
    dead = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    dead.bind((HOST, 0))
    async with udp_peer() as far:
        ports = dead.getsockname()[1], far.port

        async def resolve(self, uri, default_transport="UDP"):
            return [Target("UDP", HOST, port, uri.host) for port in ports]

        monkeypatch.setattr(Resolver, "resolve", resolve)
        async with endpoint(trunks=(Trunk("pbx", server="pbx.example"),)) as (sip, _):
            far.reply(await far.asked("OPTIONS"), 200)
            await until(lambda: "servers down" in sip.trunk_states()[0].detail)
            [state] = sip.trunk_states()
            assert state.state == "up"
            where = f"{HOST}:{ports[0]} by UDP"
            assert state.detail == f"1 of 2 servers down: {where} has not responded for 0.3 s"
            call = sip.dial(Dial("100"))
            far.reply(await far.asked("INVITE"), 486)
            assert [p.reason async for p in call.events()][-1] == "busy"
    dead.close()


async def test_a_trunk_that_dns_does_not_know_is_down_and_says_why():
    async with endpoint(trunks=(Trunk("pbx", server="nowhere.invalid"),)) as (sip, _):
        await until(lambda: sip.trunk_states()[0].state == "down")
        [state] = sip.trunk_states()
        assert "nowhere.invalid" in state.detail


async def test_a_trunk_that_only_calls_us_has_no_state():
    async with endpoint() as (sip, _):
        assert not sip.trunk_states()


# --- lines ---


async def test_a_trunk_has_so_many_lines_both_ways():
    trunk = replace(LOOPBACK, name="few", server="127.0.0.1:9", max_calls=1, options_seconds=0)
    async with endpoint(trunks=(trunk,)) as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp())
            await host.talk()
            with pytest.raises(DialError, match="all 1 lines of the trunk 'few' are in use"):
                sip.dial(Dial("100"))
            async with udp_peer(sip) as second:
                second.invite(line.sdp())
                refused = await second.response(503)
                second.ack_refusal(refused)
                assert refused.headers.get("Retry-After")
            await far.hang_up()
            await until(lambda: len(host.records) == 2)
            async with udp_peer(sip) as third:
                await third.call(line.sdp())
                await third.hang_up()


class Lingering(ToneHost):
    """Whose conversations take a while to end after their calls have."""

    def __init__(self):
        super().__init__()
        self.done = asyncio.Event()

    async def run_call(self, leg, agent):
        await super().run_call(leg, agent)
        await self.done.wait()


@pytest.mark.parametrize("of_trunk", [True, False])
async def test_a_call_that_has_ended_holds_no_line_while_its_conversation_ends(of_trunk):
    limits = {"trunks": (replace(LOOPBACK, max_calls=1),)} if of_trunk else {"max_calls": 1}
    host = Lingering()
    async with endpoint(host, **limits) as (sip, _):
        with sound() as line:
            for _ in range(3):
                async with udp_peer(sip) as far:
                    await far.call(line.sdp())
                    async with udp_peer(sip) as second:
                        second.invite(line.sdp())
                        second.ack_refusal(await second.response(503))
                    await far.hang_up()
        assert len(sip.calls) == 3
        assert not sip.lines
        host.done.set()
        await until(lambda: not sip.calls)


async def test_when_all_lines_are_in_use_nobody_is_called():
    trunk = replace(LOOPBACK, server="127.0.0.1:9", options_seconds=0)
    async with endpoint(trunks=(trunk,), max_calls=1) as (sip, _), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp())
            with pytest.raises(DialError, match="all 1 lines are in use"):
                sip.dial(Dial("100"))
            await far.hang_up()


# --- TLS ---


@pytest.fixture
def names(tmp_path, monkeypatch):
    """Of this machine."""
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost pbx.example\n")
    monkeypatch.setattr(resolver_io, "HOSTS", file)


NO_WAY = "the far end cannot be reached: "


@pytest.mark.parametrize(
    ("name", "trusted", "outcome"),
    [
        ("localhost", True, ""),
        ("127.0.0.1", True, ""),
        ("pbx.example", True, "the certificate of pbx.example is not for that name"),
        (
            "localhost",
            False,
            "the certificate of localhost is self-signed",
        ),
    ],
)
async def test_a_server_is_called_by_tls_only_when_its_certificate_is_good(
    tmp_path, names, name, trusted, outcome
):
    certificate, key = write_certificate(tmp_path)
    theirs = {"certificate": certificate, "key": key, "tls": 0}
    async with endpoint(**theirs) as (pbx, host):
        server = f"{name}:{port_of(pbx, 'TLS')}"
        trunk = Trunk("pbx", server=server, transport="TLS")
        ours = {"authorities": certificate} if trusted else {}
        async with endpoint(trunks=(trunk,), **ours) as (sip, records):
            call = sip.dial(Dial("100"))
            async for progress in call.events():
                if progress.state == "answered":
                    await host.talk()
                    await call.hang_up("done")
            await until(lambda: records.records)
            if outcome:
                assert progress.reason == NO_WAY + outcome
                assert records.records[0].end_reason == progress.reason
                [state] = sip.trunk_states()
                assert state.state == "down"
                assert outcome in state.detail
                assert not host.talks
            else:
                assert records.records[0].transport == "TLS"
                assert sip.trunk_states()[0].state == "up"


async def test_why_a_trunk_cannot_register_by_tls_is_said(tmp_path, names):
    certificate, key = write_certificate(tmp_path)
    async with endpoint(certificate=certificate, key=key, tls=0) as (pbx, _):
        trunk = replace(carrier(port_of(pbx, "TLS")), transport="TLS")
        async with endpoint(trunks=(trunk,)) as (sip, _):
            await until(lambda: sip.trunk_states()[0].state == "down")
            [status] = sip.registrations()
            assert "the certificate of 127.0.0.1 is self-signed" in status.detail


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (b"220 mail.example ESMTP\r\n", "the server does not speak TLS"),
        (b"", "the server closed the connection"),
        (None, "connection refused"),
    ],
)
async def test_what_listens_in_the_place_of_a_tls_server_is_said(greeting, words):
    def greet(reader, writer):
        writer.write(greeting)
        writer.close()

    port = free_port()
    if greeting is not None:
        server = await asyncio.start_server(greet, HOST, port)
    trunk = Trunk("pbx", server=f"{HOST}:{port}", transport="TLS", options_seconds=0)
    async with endpoint(trunks=(trunk,)) as (sip, _):
        call = sip.dial(Dial("100"))
        assert [p.reason async for p in call.events()][-1] == NO_WAY + words
    if greeting is not None:
        server.close()


async def test_a_call_that_is_hung_up_the_moment_it_is_taken_is_over():
    async with udp_peer() as far:
        trunk = Trunk("pbx", server=f"{HOST}:{far.port}", options_seconds=0)
        with sound() as line:
            async with endpoint(trunks=(trunk,)) as (sip, host):
                call = sip.dial(Dial("100"))
                invite = await far.asked("INVITE")
                far.learn(invite)
                move = call.set_state

                def hang_up_at_once(state, *rest):
                    move(state, *rest)
                    if state == "answered":
                        call.end("changed my mind")

                call.set_state = hang_up_at_once
                far.reply(invite, 200, sdp=line.sdp())
                assert [p.state async for p in call.events()] == ["dialing", "answered", "ended"]
                await far.is_hung_up()
                await until(lambda: host.records)
                assert not sip.calls


async def test_authorities_that_cannot_be_read_are_said_at_the_start(tmp_path):
    (tmp_path / "empty.pem").touch()
    with pytest.raises(SipError, match=r"the authorities in .*empty\.pem"):
        async with endpoint(authorities=tmp_path / "empty.pem"):
            pass


async def test_a_renewed_certificate_is_used_without_a_restart(tmp_path):
    certificate, key = write_certificate(tmp_path)

    async def shown(sip):
        port = port_of(sip, "TLS")
        found = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        return found.strip()

    async with endpoint(certificate=certificate, key=key, tls=0) as (sip, _):
        old = certificate.read_text().strip()
        assert await shown(sip) == old
        certificate.write_text("no certificate")
        with pytest.raises(SipError):
            sip.reload(sip.stack.settings)
        assert await shown(sip) == old
        write_certificate(tmp_path)
        assert certificate.read_text().strip() != old
        sip.reload(sip.stack.settings)
        assert await shown(sip) == certificate.read_text().strip()
