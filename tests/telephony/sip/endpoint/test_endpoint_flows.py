"""Ways that break: a registrar's connection, a phone's port or WebSocket, a server that falls
silent. Whoever was bound to them is reached again."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.messages.framing import StreamFramer
from offhook.telephony.sip.messages.message import Request, parse_message, respond
from offhook.telephony.sip.network.resolver_io import Resolver, Target
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.transactions import flow_failover, undelivered_byes
from offhook.telephony.sip.trunks import registration, trunk_watch
from offhook.telephony.sip.trunks.registration import Standing
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.waiting import until
from tests.telephony.sip.phones import LOOPBACK, endpoint, registered
from tests.telephony.sip.scripted_peer import HOST, Peer, tcp_peer, udp_peer, ws_peer
from tests.telephony.sip.scripted_sound import sound

# --- a registrar ---


class Registrar:
    """Takes registrations over TCP, and drops its connections when told to."""

    def __init__(self) -> None:
        self.registers: list[Request] = []
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        framer = StreamFramer()
        while data := await reader.read(65536):
            for piece in framer.receive(data):
                request = parse_message(piece) if isinstance(piece, bytes) else None
                if isinstance(request, Request):
                    self.registers.append(request)
                    contact = [("Contact", f"{request.headers.get('Contact')};expires=3600")]
                    writer.write(respond(request, 200, to_tag="r", headers=contact).serialize())
        writer.close()

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def drop(self) -> None:
        """Close the connections."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def stop(self) -> None:
        """Nobody listens here any more."""
        self._server.close()
        self.drop()


@asynccontextmanager
async def tcp_registrar() -> AsyncIterator[Registrar]:
    registrar = Registrar()
    await registrar.listen()
    try:
        yield registrar
    finally:
        registrar.stop()


def carrier(port: int, **options: object) -> Trunk:
    settings: dict[str, object] = {"options_seconds": 0, "transport": "TCP", **options}
    return Trunk(
        "carrier",
        username="us",
        password="secret",
        server=f"{HOST}:{port}",
        register=True,
        **settings,  # type: ignore[arg-type]
    )


async def test_a_registrar_that_drops_the_connection_hears_from_us_at_once() -> None:
    async with (
        tcp_registrar() as registrar,
        endpoint(trunks=(carrier(registrar.port),)) as (sip, _),
    ):
        await registered(sip)
        registrar.drop()
        await until(lambda: sip.registrations()[0].standing is Standing.FAILED)
        assert "connection to the registrar broke" in sip.registrations()[0].detail
        assert sip.trunk_states()[0].state == "down"
        await registered(sip)
        assert len(registrar.registers) == 2
        assert sip.trunk_states()[0].state == "up"


async def test_a_registrar_that_is_away_for_a_while_is_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "BACKOFF_FIRST_S", 0.1)
    async with (
        tcp_registrar() as registrar,
        endpoint(trunks=(carrier(registrar.port),)) as (sip, _),
    ):
        await registered(sip)
        registrar.stop()
        await until(lambda: "refused" in sip.registrations()[0].detail)
        assert sip.registrations()[0].standing is Standing.FAILED
        await registrar.listen()
        await registered(sip)


async def test_a_name_that_does_not_resolve_is_failed_from_the_start() -> None:
    trunk = replace(carrier(5060), server="nowhere.invalid")
    async with endpoint(trunks=(trunk,)) as (sip, _):
        [status] = sip.registrations()
        assert status.standing is Standing.REGISTERING
        await until(lambda: sip.registrations()[0].standing is Standing.FAILED)
        assert "nowhere.invalid" in sip.registrations()[0].detail


# --- a phone ---

WAYS = {"UDP": udp_peer, "TCP": tcp_peer, "WS": ws_peer}


@pytest.mark.parametrize("transport", WAYS)
async def test_a_phone_that_comes_back_another_way_is_answered_there(transport: str) -> None:
    """After a NAT has forgotten it, its Wi-Fi was gone, or the WebSocket was cut."""
    way, settings = WAYS[transport], {"ws": 0, "allow_anonymous": True}
    async with endpoint(**settings) as (sip, host):
        with sound() as line:
            async with way(sip) as before:
                await before.call(line.sdp())
                talk = await host.talk()
                if transport == "UDP":  # the old port is silent, and swallows what comes
                    await _comes_back(way, sip, before, talk)
            if transport != "UDP":
                await _comes_back(way, sip, before, talk)


async def _comes_back(way, sip, before, talk) -> None:
    async with way(sip) as now:
        now.go_on_with(before)
        await now.accepted(now.ask("INFO"))
        await talk.leg.hang_up("done")
        await now.is_hung_up()
        assert "BYE" not in before.came


@pytest.mark.parametrize("back", [True, False])
@pytest.mark.parametrize("transport", ["TCP", "WS"])
async def test_a_phone_that_says_nothing_when_it_is_back_is_hung_up(
    transport: str, back: bool
) -> None:
    """Whether it is back when the call ends, or only then comes. It is not known which it is."""
    way, settings = WAYS[transport], {"ws": 0, "allow_anonymous": True}
    async with endpoint(**settings) as (sip, host):
        with sound() as line:
            async with way(sip) as before:
                await before.call(line.sdp())
                talk = await host.talk()
            if not back:
                await talk.leg.hang_up("done")
            async with way(sip) as now, way(sip) as another:
                if back:
                    await talk.leg.hang_up("done")
                for peer, status in ((another, 481), (now, 200)):
                    bye = await peer.asked("BYE")
                    assert bye.call_id == before.call_id
                    peer.reply(bye, status)
                await asyncio.sleep(2 * undelivered_byes.INTERVAL_S)
                assert now.came == another.came == ["BYE"]


async def test_a_phone_whose_connection_is_silent_is_hung_up_over_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A NAT has forgotten the connection, so nobody has closed it."""
    monkeypatch.setattr(undelivered_byes, "SILENCE_S", 0.3)
    async with endpoint() as (sip, host), tcp_peer(sip) as before:
        with sound() as line:
            await before.call(line.sdp())
            talk = await host.talk()
            async with tcp_peer(sip) as now:
                await talk.leg.hang_up("done")
                bye = await now.is_hung_up()
                assert bye.call_id == before.call_id
                assert before.came[-1] == "BYE"


@pytest.mark.parametrize("sign", ["OPTIONS", "keep-alive"])
async def test_a_phone_on_another_port_that_says_nothing_in_its_call_is_hung_up(
    sign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old port swallows what comes, as a NAT does that has dropped the binding."""
    monkeypatch.setattr(flow_failover, "SILENCE_S", 0.3)
    async with endpoint() as (sip, host), udp_peer(sip) as before, udp_peer(sip) as now:
        with sound() as line:
            await before.call(line.sdp())
            talk = await host.talk()
            if sign == "OPTIONS":
                now.contact = before.contact
                now.ask("OPTIONS")
                await now.response(200)
            else:
                now.send_bytes(b"\r\n\r\n")
            await talk.leg.hang_up("done")
            bye = await now.is_hung_up()
            assert bye.call_id == before.call_id
            assert before.came[-1] == "BYE"


async def test_a_retransmission_or_an_old_request_moves_nobody() -> None:
    async with endpoint() as (sip, host), udp_peer(sip) as phone, udp_peer(sip) as other:
        with sound() as line:
            await phone.call(line.sdp())
            talk = await host.talk()
            other.go_on_with(phone)
            other.ask("INFO", cseq=1)
            await other.response(500)
            await talk.leg.hang_up("done")
            await phone.is_hung_up()
            assert "BYE" not in other.came


VIA = "SIP/2.0/UDP {}:{};branch=z9hG4bKnat{};rport"


@pytest.mark.parametrize(
    ("contact", "claims", "there"),
    [
        (None, "127.0.0.2", False),  # its own address, behind a NAT
        (None, "127.0.0.3", False),  # another of its own: a NAT is in between all the same
        (None, HOST, True),  # no NAT: another host of the far end, without Record-Route
        ("as given", "127.0.0.2", True),
        ("source", HOST, False),
    ],
)
async def test_a_contact_behind_a_nat_is_not_called_at_its_own_address(
    contact: str | None, claims: str, there: bool
) -> None:
    trunk = replace(LOOPBACK, contact=contact)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as elsewhere:
        elsewhere.bind(("127.0.0.2", 0))
        elsewhere.settimeout(300)
        port = elsewhere.getsockname()[1]
        async with endpoint(trunks=(trunk,)) as (sip, host), udp_peer(sip) as phone:
            phone.contact = f"<sip:phone@127.0.0.2:{port}>"
            with sound() as line:
                await phone.call(line.sdp(), ("Via", VIA.format(claims, phone.port, port)))
                talk = await host.talk()
                await talk.leg.hang_up("done")
                if there:
                    bye = await asyncio.to_thread(elsewhere.recv, 4096)
                    assert bye.startswith(b"BYE ")
                    phone.reply(parse_message(bye), 200)  # type: ignore[arg-type]
                else:
                    await phone.is_hung_up()


# --- a server ---


@pytest.fixture
def two_servers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ports of a trunk's servers by SRV, to be filled in."""
    ports: list[int] = []

    async def resolve(self: object, uri: object, default_transport: str = "UDP") -> list[Target]:
        return [Target("UDP", HOST, port, "pbx.example") for port in ports]

    monkeypatch.setattr(Resolver, "resolve", resolve)
    return ports


def named(**options: object) -> Trunk:
    return Trunk("pbx", server="pbx.example", failover_seconds=0.3, **options)  # type: ignore[arg-type]


async def refused_by(peer: Peer, sip: SipEndpoint) -> None:
    """Place a call, which this server refuses."""
    before = {message.call_id for message in peer.log}
    call = sip.dial(Dial("100"))
    while (invite := await peer.asked("INVITE")).call_id in before:
        pass  # of a call that was given up
    peer.reply(invite, 486)
    assert [p.reason async for p in call.events()][-1] == "busy"


async def test_the_next_server_is_called_soon_and_then_first_until_the_other_returns(
    two_servers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trunk_watch, "DOWN_INTERVAL_S", 0.5)
    async with udp_peer() as first, udp_peer() as second:
        two_servers += [first.port, second.port]
        async with endpoint(trunks=(named(),)) as (sip, _):
            for server in (first, second):
                server.reply(await server.asked("OPTIONS"), 200)
            await until(lambda: sip.trunk_states()[0].state == "up")
            await refused_by(first, sip)
            # it falls silent
            await refused_by(second, sip)
            given_up = len(first.log)
            assert "INVITE" in first.came[2:]
            await refused_by(second, sip)
            assert "INVITE" not in first.came[given_up:]
            assert "1 of 2 servers down" in sip.trunk_states()[0].detail
            # it returns
            while sip.trunk_states()[0].detail:
                first.reply(await first.asked("OPTIONS"), 200)
                await asyncio.sleep(0.02)
            await refused_by(first, sip)


async def test_a_server_that_answers_after_all_is_hung_up(two_servers: list[int]) -> None:
    async with udp_peer() as late, udp_peer() as second:
        two_servers += [late.port, second.port]
        async with endpoint(trunks=(named(options_seconds=0),)) as (sip, host):
            sip.dial(Dial("100"))
            invite = await late.asked("INVITE")
            with sound() as line, sound() as other:
                await second.take(line.sdp())
                talk = await host.talk()
                late.learn(invite)
                late.reply(invite, 200, sdp=other.sdp())
                await late.asked("ACK")
                await late.is_hung_up()
                assert not talk.over.is_set()
                await talk.leg.hang_up("done")
                await second.is_hung_up()
            await until(lambda: len(host.records) == 1)
            [record] = host.records
            assert [attempt.status for attempt in record.attempts] == [408, 200]


async def test_a_callee_who_does_not_answer_is_no_server_that_is_down(
    two_servers: list[int],
) -> None:
    async with udp_peer() as first, udp_peer() as second:
        two_servers += [first.port, second.port]
        async with endpoint(trunks=(named(options_seconds=0),)) as (sip, _):
            call = sip.dial(Dial("100", ring_seconds=0.5))
            invite = await first.asked("INVITE")
            first.reply(invite, 180)
            cancel = await first.asked("CANCEL")
            first.reply(cancel, 200)
            first.reply(invite, 487)
            assert "no answer" in [p.reason async for p in call.events()][-1]
            assert sip.trunk_states()[0].state == "unknown"
            await refused_by(first, sip)


async def test_the_last_server_may_take_its_time(two_servers: list[int]) -> None:
    async with udp_peer() as only:
        two_servers.append(only.port)
        async with endpoint(trunks=(named(options_seconds=0),)) as (sip, _):
            call = sip.dial(Dial("100"))
            await only.asked("INVITE")
            await asyncio.sleep(0.6)
            assert call.state == "dialing"
            invite = await only.asked("INVITE")  # a retransmission
            only.reply(invite, 486)
            assert [p.reason async for p in call.events()][-1] == "busy"
