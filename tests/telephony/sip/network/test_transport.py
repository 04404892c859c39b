"""The sockets of the SIP edge, with real ones at the other end."""

import asyncio
import datetime
import errno
import ipaddress
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import MAX_MESSAGE_BYTES
from offhook.telephony.sip.network import stream_io, transport_io, websocket_io
from offhook.telephony.sip.network.stream_io import client_context
from offhook.telephony.sip.network.transport_io import Transports, local_address_for
from tests.attack import http
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S

LOCAL = "127.0.0.1"


def message(name: str = "one", body: bytes = b"") -> bytes:
    head = f"OPTIONS sip:a@b SIP/2.0\r\nCall-ID: {name}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Edge(Transports):
    """Keeps what it is told."""

    def __init__(self, **options: object) -> None:
        self.got: list[tuple[bytes, Flow]] = []
        self.gone: list[Flow] = []
        self.told = asyncio.Event()
        super().__init__(self._got, self._gone, **options)  # type: ignore[arg-type]

    def _got(self, data: bytes, flow: Flow) -> None:
        self.got.append((data, flow))
        self.told.set()

    def _gone(self, flow: Flow) -> None:
        self.gone.append(flow)
        self.told.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANGS_S):
            while not condition():
                self.told.clear()
                await self.told.wait()

    async def messages(self, number: int) -> list[bytes]:
        await self.until(lambda: len(self.got) >= number)
        return [data for data, _ in self.got]

    async def closed(self, number: int = 1) -> list[Flow]:
        await self.until(lambda: len(self.gone) >= number)
        return self.gone


@pytest.fixture
async def edge(nothing_left: None) -> AsyncIterator[Edge]:
    edge = Edge()
    yield edge
    await edge.close()


class Peer:
    """The far end of a TCP or TLS connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, address: tuple[str, int], **options: object) -> "Peer":
        return cls(*await asyncio.open_connection(*address, **options))  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        if not self.writer.is_closing():
            self.writer.write(data)

    async def receive(self, size: int) -> bytes:
        async with asyncio.timeout(HANGS_S):
            return await self.reader.readexactly(size)

    async def is_closed(self) -> bool:
        """What comes before the end is thrown away."""
        with suppress(ConnectionError, ssl.SSLError):
            async with asyncio.timeout(HANGS_S):
                while await self.reader.read(65536):
                    pass
        return True

    async def close(self) -> None:
        self.writer.transport.abort()
        with suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()


class Server:
    """One that we connect to; keeps the peers that came."""

    def __init__(self) -> None:
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self.all: list[Peer] = []

    async def start(self, context: ssl.SSLContext | None = None) -> tuple[str, int]:
        self.server = await asyncio.start_server(self._serve, LOCAL, 0, ssl=context)
        return self.server.sockets[0].getsockname()[:2]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.all.append(peer)
        self.peers.put_nowait(peer)

    async def peer(self) -> Peer:
        async with asyncio.timeout(HANGS_S):
            return await self.peers.get()

    async def close(self) -> None:
        self.server.close()
        for peer in self.all:
            await peer.close()
        await self.server.wait_closed()


@pytest.fixture
async def server(nothing_left: None) -> AsyncIterator[Server]:
    server = Server()
    yield server
    await server.close()


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test CA")])
        own = self._sign(
            self.name,
            self.key,
            [
                x509.BasicConstraints(ca=True, path_length=None),
                # Of the nine uses the sixth: it signs certificates.
                x509.KeyUsage(*(use == 6 for use in range(1, 10))),
            ],
        )
        self.file = folder / "ca.pem"
        self.file.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extensions: list[x509.ExtensionType],
        days: int = 10,
    ) -> x509.Certificate:
        """With the names of both keys: Python 3.13 verifies strictly, as RFC 5280 has it."""
        now = datetime.datetime.now(datetime.UTC)
        names = (
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=20))
            .not_valid_after(now + datetime.timedelta(days=days))
        )
        for extension in (*extensions, *names):
            critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            builder = builder.add_extension(extension, critical)
        return builder.sign(self.key, hashes.SHA256())

    def server(self, *names: str, days: int = 10, alpn: tuple[str, ...] = ()) -> ssl.SSLContext:
        """A context with a certificate for these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives: list[x509.GeneralName] = []
        for name in names:
            try:
                alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
            except ValueError:
                alternatives.append(x509.DNSName(name))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        signed = self._sign(subject, key, [x509.SubjectAlternativeName(alternatives)], days)
        certificate, key_file = self.folder / f"{names[0]}.pem", self.folder / f"{names[0]}.key"
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key_file)
        context.set_alpn_protocols(list(alpn))
        return context

    def trusting(self, alpn: tuple[str, ...] = ()) -> ssl.SSLContext:
        context = client_context(alpn=alpn)
        context.load_verify_locations(self.file)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


has_ipv6 = True
try:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        probe.bind(("::1", 0))
except OSError as error:
    has_ipv6 = error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
HOSTS = [LOCAL, pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6, reason="no IPv6"))]


# --- UDP ---


@pytest.mark.parametrize("host", HOSTS)
async def test_datagrams_come_with_their_flow_and_go_back_by_it(edge: Edge, host: str) -> None:
    bound = await edge.listen("UDP", host, 0)
    far = Edge()
    theirs = await far.listen("UDP", host, 0)
    try:
        flow = far.flow_to("UDP", *bound)
        assert flow == Flow("UDP", bound, theirs)
        far.send(message(), flow)
        assert await edge.messages(1) == [message()]
        assert edge.got[0][1] == Flow("UDP", theirs, bound)
        edge.send(message("two"), edge.got[0][1])
        assert await far.messages(1) == [message("two")]
        assert far.got[0][1] == flow
    finally:
        await far.close()


async def test_many_datagrams_at_once_all_come_in_order_keep_alives_too(edge: Edge) -> None:
    bound = await edge.listen("UDP", LOCAL, 0)
    sent = [each for i in range(100) for each in (message(str(i)), b"\r\n\r\n", b"", b"jaK\0")]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for each in sent:
            sock.sendto(each, bound)
    assert await edge.messages(400) == sent


async def test_the_longest_datagram_comes_whole_and_garbage_is_handed_on(edge: Edge) -> None:
    bound = await edge.listen("UDP", LOCAL, 0)
    long, garbage = bytes(65_507), bytes(range(256))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(long, bound)
        sock.sendto(garbage, bound)
    assert await edge.messages(2) == [long, garbage]


async def test_a_datagram_without_a_way_is_told_of_and_one_too_long_is_lost(edge: Edge) -> None:
    await edge.listen("UDP", LOCAL, 0)
    outside = edge.flow_to("UDP", "192.0.2.1", 5060)  # not from the loopback address
    edge.send(message(), outside)
    assert not edge.gone  # not from within send
    assert await edge.closed() == [outside]
    edge.send(bytes(70_000), edge.flow_to("UDP", LOCAL, 9))
    other_family = edge.flow_to("UDP", "2001:db8::1", 5060)
    edge.send(message(), other_family)
    assert await edge.closed(2) == [outside, other_family]


async def test_a_listener_on_every_ipv6_address_leaves_ipv4_to_its_own(edge: Edge) -> None:
    if not has_ipv6:
        pytest.skip("no IPv6")
    port = free_port()
    await edge.listen("UDP", "::", port)
    await edge.listen("UDP", "0.0.0.0", port)
    await edge.listen("TCP", "::", port)
    await edge.listen("TCP", "0.0.0.0", port)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(message(), (LOCAL, port))
        await edge.messages(1)
    flow = edge.got[0][1]
    assert (flow.remote[0], flow.local) == (LOCAL, ("0.0.0.0", port))
    assert edge.flow_to("UDP", "::1", 5070).local == ("::", port)


def test_the_address_that_a_peer_sees_is_the_kernels_choice() -> None:
    assert local_address_for(LOCAL) == LOCAL
    if has_ipv6:
        assert local_address_for("::1") == "::1"
    assert local_address_for("255.255.255.255") != ""


async def test_a_port_that_is_taken_is_said_at_once(edge: Edge) -> None:
    for transport in ("UDP", "TCP"):
        _, port = await edge.listen(transport, LOCAL, 0)  # type: ignore[arg-type]
        with pytest.raises(OSError, match="in use"):
            await edge.listen(transport, LOCAL, port)  # type: ignore[arg-type]


# --- TCP ---


@pytest.mark.parametrize("host", HOSTS)
async def test_two_messages_in_one_segment_and_one_in_five(edge: Edge, host: str) -> None:
    peer = await Peer.connect(await edge.listen("TCP", host, 0))
    peer.send(message("one") + message("two", b"body"))
    assert await edge.messages(2) == [message("one"), message("two", b"body")]
    long = message("three", bytes(1000))
    for i in range(5):
        peer.send(long[i * 220 : (i + 1) * 220])
        await asyncio.sleep(0.02)
    assert (await edge.messages(3))[2] == long
    flow = edge.got[0][1]
    assert (flow.transport, flow.remote) == ("TCP", peer.writer.get_extra_info("sockname")[:2])
    assert flow.connection > 0
    edge.send(message("answer"), flow)
    assert await peer.receive(len(message("answer"))) == message("answer")
    await peer.close()
    assert await edge.closed() == [flow]


async def test_keep_alives_of_a_peer_are_answered(edge: Edge) -> None:
    peer = await Peer.connect(await edge.listen("TCP", LOCAL, 0))
    for _ in range(3):
        peer.send(b"\r\n\r\n")
        assert await peer.receive(2) == b"\r\n"
    peer.send(message() + b"\r\n\r\n")
    assert await peer.receive(2) == b"\r\n"
    assert await edge.messages(1) == [message()]
    await peer.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS sip:a SIP/2.0\r\nContent-Length: -1\r\n\r\n",
        b"OPTIONS sip:a SIP/2.0\r\nContent-Length: 99999999\r\n\r\n",
        b"A" * (MAX_MESSAGE_BYTES + 1),
    ],
    ids=["TLS", "HTTP", "negative length", "huge body", "endless line"],
)
async def test_what_cannot_be_cut_into_messages_ends_the_connection(
    edge: Edge, garbage: bytes
) -> None:
    peer = await Peer.connect(await edge.listen("TCP", LOCAL, 0))
    peer.send(garbage)
    assert await peer.is_closed()
    await edge.closed()
    assert not edge.got
    await peer.close()


async def test_a_peer_that_does_not_read_is_cut_off(edge: Edge) -> None:
    bound = await edge.listen("TCP", LOCAL, 0)
    slow = socket.create_connection(bound)
    slow.sendall(message())
    await edge.messages(1)
    flow = edge.got[0][1]
    data = message("big", bytes(60_000))
    sent = 0
    while not edge.gone:
        edge.send(data, flow)
        sent += len(data)
        await asyncio.sleep(0)
        assert sent < 20_000_000
    slow.close()


async def test_a_peer_that_connects_and_stalls_is_let_go(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_io, "FIRST_MESSAGE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(transport_io, "CHECK_INTERVAL_S", 0.05)
    bound = await edge.listen("TCP", LOCAL, 0)
    silent, half, pinging, good = [await Peer.connect(bound) for _ in range(4)]
    half.send(message()[:20])
    good.send(message())
    for _ in range(8):
        pinging.send(b"\r\n\r\n")
        await asyncio.sleep(0.05)
    assert len(edge.gone) == 3
    for peer in (silent, half, pinging):
        assert await peer.is_closed()
    good.send(message("two"))
    assert await edge.messages(2) == [message(), message("two")]
    for peer in (silent, half, pinging, good):
        await peer.close()


async def test_a_peer_that_does_nothing_but_ping_is_let_go(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_io, "PINGS_PER_SECOND", 0.0)
    monkeypatch.setattr(stream_io, "PINGS_BURST", 5.0)
    bound = await edge.listen("TCP", LOCAL, 0)
    usual, peer = await Peer.connect(bound), await Peer.connect(bound)
    for _ in range(5):
        usual.send(b"\r\n\r\n")
        await asyncio.sleep(0.02)
    for _ in range(20):
        peer.send(b"\r\n\r\n")
        await asyncio.sleep(0.02)
    assert await peer.is_closed()
    usual.send(message())
    assert await edge.messages(1) == [message()]
    await usual.close()
    await peer.close()


async def test_a_connection_that_is_idle_is_closed_and_keep_alives_keep_a_peers(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_io, "IDLE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(transport_io, "CHECK_INTERVAL_S", 0.05)
    bound = await edge.listen("TCP", LOCAL, 0)
    idle, kept = await Peer.connect(bound), await Peer.connect(bound)
    for peer in (idle, kept):
        peer.send(message())
    for _ in range(12):
        kept.send(b"\r\n\r\n")
        await asyncio.sleep(0.05)
    assert await idle.is_closed()
    assert len(edge.gone) == 1
    for peer in (idle, kept):
        await peer.close()


async def test_one_source_has_so_many_connections_and_all_together_so_many(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_io, "MAX_CONNECTIONS_PER_SOURCE", 3)
    monkeypatch.setattr(transport_io, "MAX_CONNECTIONS", 5)
    _, port = bound = await edge.listen("TCP", "0.0.0.0", 0)
    peers = [await Peer.connect((LOCAL, port)) for _ in range(4)]
    assert await peers[3].is_closed()
    others = [await Peer.connect((LOCAL, port), local_addr=(f"127.0.0.{i}", 0)) for i in (2, 3)]
    for i, peer in enumerate((*peers[:3], *others)):
        peer.send(message(str(i)))
    assert len(await edge.messages(5)) == 5
    for _, flow in edge.got:
        edge.send(message("answer"), flow)
    for i in (4, 5):
        others.append(await Peer.connect((LOCAL, port), local_addr=(f"127.0.0.{i}", 0)))
        assert await others[-1].is_closed()
    await peers[0].close()
    await edge.closed()
    again = await Peer.connect((LOCAL, bound[1]))
    again.send(message("again"))
    await edge.messages(6)
    for peer in (*peers, *others, again):
        await peer.close()


async def test_the_oldest_that_was_not_answered_makes_room(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_io, "MAX_CONNECTIONS", 3)
    address = await edge.listen("TCP", LOCAL, 0)
    known = await Peer.connect(address)
    known.send(message("known"))
    await edge.messages(1)
    edge.send(message("answer"), edge.got[0][1])
    silent = await Peer.connect(address)
    strange = await Peer.connect(address)
    strange.send(message("strange"))
    await edge.messages(2)
    fourth = await Peer.connect(address)
    assert await silent.is_closed()
    fourth.send(message("fourth"))
    await edge.messages(3)
    fifth = await Peer.connect(address)
    assert await strange.is_closed()
    known.send(message("still"))
    assert (await edge.messages(4))[-1] == message("still")
    for peer in (known, silent, strange, fourth, fifth):
        await peer.close()


# --- connections of ours ---


async def test_what_is_sent_before_the_connection_is_made_arrives_and_it_is_used_again(
    edge: Edge, server: Server
) -> None:
    address = await server.start()
    flow = edge.flow_to("TCP", *address)
    assert not server.all
    edge.send(message("one"), flow)
    edge.send(message("two"), flow)
    peer = await server.peer()
    assert await peer.receive(2 * len(message())) == message("one") + message("two")
    assert edge.flow_to("TCP", *address) == flow
    peer.send(message("back"))
    assert await edge.messages(1) == [message("back")]
    assert edge.got[0][1] == flow
    assert server.peers.empty()


async def test_a_flow_of_ours_is_connected_again_after_its_connection_broke(
    edge: Edge, server: Server
) -> None:
    flow = edge.flow_to("TCP", *await server.start())
    for name in ("first", "other"):
        edge.send(message(name), flow)
        peer = await server.peer()
        assert await peer.receive(len(message(name))) == message(name)
        await peer.close()
        await edge.closed()
        assert edge.gone == [flow]
        edge.gone.clear()


async def test_a_stream_flow_without_a_connection_gets_one(edge: Edge, server: Server) -> None:
    address = await server.start()
    flow = Flow("TCP", address, (LOCAL, 5060))
    edge.send(message("one"), flow)
    edge.send(message("two"), flow)
    peer = await server.peer()
    assert await peer.receive(2 * len(message())) == message("one") + message("two")
    await peer.close()
    await edge.closed(2)
    assert flow in edge.gone


async def test_a_peer_that_refuses_is_told_of(edge: Edge) -> None:
    with socket.socket() as sock:
        sock.bind((LOCAL, 0))
        address = sock.getsockname()
        flow, without = edge.flow_to("TCP", *address), Flow("TCP", address, (LOCAL, 0))
        edge.send(message(), flow)
        edge.send(message(), without)
        assert not edge.gone
        assert set(await edge.closed(2)) == {flow, without}


async def test_a_peer_that_never_answers_is_given_up(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_io, "CONNECT_TIMEOUT_S", 0.1)
    with socket.socket() as full:
        full.bind((LOCAL, 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):
            flow = edge.flow_to("TCP", *full.getsockname())
            edge.send(message(), flow)
            assert await edge.closed() == [flow]


async def test_what_waits_for_a_connection_is_bounded(edge: Edge) -> None:
    with socket.socket() as full:
        full.bind((LOCAL, 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):
            flow = edge.flow_to("TCP", *full.getsockname())
            for _ in range(5):
                edge.send(message("big", bytes(60_000)), flow)
            assert await edge.closed() == [flow]


async def test_we_keep_our_connections_alive_and_notice_when_no_answer_comes_any_more(
    edge: Edge, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_io, "PING_INTERVAL_S", (0.1, 0.1))
    monkeypatch.setattr(stream_io, "PONG_TIMEOUT_S", 0.2)
    monkeypatch.setattr(transport_io, "CHECK_INTERVAL_S", 0.02)
    flow = edge.flow_to("TCP", *await server.start())
    edge.send(message(), flow)
    peer = await server.peer()
    await peer.receive(len(message()))
    for _ in range(4):  # a peer that never answers may not know how
        assert await peer.receive(4) == b"\r\n\r\n"
    assert not edge.gone
    peer.send(b"\r\n")
    assert await edge.closed() == [flow]


async def test_a_socket_that_a_peer_has_connected_from_is_reached_by_it(edge: Edge) -> None:
    peer = await Peer.connect(await edge.listen("TCP", LOCAL, 0))
    peer.send(message())
    await edge.messages(1)
    address = peer.writer.get_extra_info("sockname")[:2]
    assert edge.flow_to("TCP", *address) == edge.got[0][1]
    await peer.close()
    await edge.closed()
    assert edge.flow_to("TCP", *address) != edge.got[0][1]


async def test_routes_are_bounded_and_those_in_use_stay(
    edge: Edge, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_io, "MAX_ROUTES", 3)
    used = edge.flow_to("TCP", *await server.start())
    edge.send(message(), used)
    await server.peer()
    for port in range(1, 50):
        edge.flow_to("TCP", LOCAL, port)
    assert len(edge._routes) == len(edge._route_ids) == 3
    assert edge.flow_to("TCP", *used.remote) == used


async def test_nobody_is_called_back_after_the_end(server: Server) -> None:
    edge = Edge()
    peer = await Peer.connect(await edge.listen("TCP", LOCAL, 0))
    peer.send(message())
    await edge.messages(1)
    edge.send(message(), edge.flow_to("TCP", *await server.start()))
    await edge.close()
    edge.send(message(), edge.got[0][1])
    assert await peer.is_closed()
    await asyncio.sleep(0.05)
    assert not edge.gone
    await peer.close()


def test_streams_work_on_uvloop_too(authority: Authority) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def exchange() -> None:
        ours, theirs = Edge(authorities=authority.trusting()), Edge()
        try:
            for transport, context in (("TCP", None), ("TLS", authority.server(LOCAL))):
                bound = await theirs.listen(transport, LOCAL, 0, context)  # type: ignore[arg-type]
                ours.send(message("there"), ours.flow_to(transport, *bound))  # type: ignore[arg-type]
                await theirs.until(lambda: bool(theirs.got))
                theirs.send(message("back"), theirs.got.pop()[1])
                await ours.until(lambda: bool(ours.got))
                assert ours.got.pop()[0] == message("back")
        finally:
            await ours.close()
            await theirs.close()

    uvloop.run(exchange())


# --- TLS ---


async def test_tls_carries_messages_both_ways_between_two_edges(
    authority: Authority, nothing_left: None
) -> None:
    ours, theirs = Edge(authorities=authority.trusting(("sip/2",))), Edge()
    try:
        context = authority.server("trunk.test", alpn=("sip/2",))
        bound = await theirs.listen("TLS", LOCAL, 0, context)
        flow = ours.flow_to("TLS", *bound, server_name="trunk.test")
        ours.send(message("one"), flow)
        assert await theirs.messages(1) == [message("one")]
        back = theirs.got[0][1]
        assert back.transport == "TLS"
        assert back.secure
        theirs.send(message("two", bytes(60_000)), back)
        assert await ours.messages(1) == [message("two", bytes(60_000))]
        assert ours.got[0][1] == flow
    finally:
        await ours.close()
        await theirs.close()


@pytest.mark.parametrize(
    ("names", "asked", "days", "verify", "works"),
    [
        (("trunk.test",), "trunk.test", 10, True, True),
        (("trunk.test",), "other.test", 10, True, False),
        (("trunk.test",), "", 10, True, False),
        ((LOCAL,), "", 10, True, True),
        (("old.test",), "old.test", -1, True, False),
        (("old.test",), "other.test", -1, False, True),
        (("trunk.test",), "..", 10, True, False),
    ],
)
async def test_a_certificate_must_be_valid_and_for_the_name_unless_told_otherwise(
    authority: Authority,
    server: Server,
    names: tuple[str, ...],
    asked: str,
    days: int,
    verify: bool,
    works: bool,
) -> None:
    edge = Edge(authorities=authority.trusting())
    try:
        address = await server.start(authority.server(*names, days=days))
        flow = edge.flow_to("TLS", *address, server_name=asked, verify=verify)
        edge.send(message(), flow)
        if works:
            assert await (await server.peer()).receive(len(message())) == message()
        else:
            assert await edge.closed() == [flow]
    finally:
        await edge.close()


async def test_a_certificate_of_an_unknown_authority_is_refused(
    edge: Edge, server: Server, authority: Authority
) -> None:
    address = await server.start(authority.server("trunk.test"))
    flow = edge.flow_to("TLS", *address, server_name="trunk.test")
    edge.send(message(), flow)
    assert await edge.closed() == [flow]


async def test_connections_with_other_demands_on_the_certificate_are_apart(edge: Edge) -> None:
    flows = [
        edge.flow_to("TLS", LOCAL, 5061, "a.test"),
        edge.flow_to("TLS", LOCAL, 5061, "b.test"),
        edge.flow_to("TLS", LOCAL, 5061, "a.test", verify=False),
    ]
    assert len({flow.connection for flow in flows}) == 3
    assert edge.flow_to("TLS", LOCAL, 5061, "a.test") == flows[0]


async def test_handshakes_that_stall_or_fail_count_and_end(
    edge: Edge, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_io, "HANDSHAKE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(transport_io, "MAX_CONNECTIONS_PER_SOURCE", 2)
    bound = await edge.listen("TLS", LOCAL, 0, authority.server("trunk.test"))
    stalled, garbage, third = [await Peer.connect(bound) for _ in range(3)]
    garbage.send(b"OPTIONS sip:a SIP/2.0\r\n\r\n")
    for peer in (third, garbage, stalled):
        assert await peer.is_closed()
        await peer.close()
    await edge.closed(2)
    trusting = authority.trusting()
    good = await Peer.connect(bound, ssl=trusting, server_hostname="trunk.test")
    good.send(message())
    assert await edge.messages(1) == [message()]
    await good.close()


async def test_a_tls_peer_that_does_not_read_is_cut_off(edge: Edge, authority: Authority) -> None:
    bound = await edge.listen("TLS", LOCAL, 0, authority.server("trunk.test"))
    slow = await Peer.connect(
        bound, ssl=authority.trusting(), server_hostname="trunk.test", limit=1024
    )
    slow.send(message())
    await edge.messages(1)
    data = message("big", bytes(60_000))
    sent = 0
    while not edge.gone:
        edge.send(data, edge.got[0][1])
        sent += len(data)
        await asyncio.sleep(0)
        assert sent < 20_000_000
    await slow.close()


# --- WebSocket ---


@pytest.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def url(bound: tuple[str, int], scheme: str = "ws") -> str:
    return f"{scheme}://{bound[0]}:{bound[1]}/"


async def test_a_browser_speaks_sip_over_a_websocket(
    edge: Edge, browser: aiohttp.ClientSession
) -> None:
    bound = await edge.listen("WS", LOCAL, 0)
    async with browser.ws_connect(url(bound), protocols=["other", "sip"]) as ws:
        assert ws.protocol == "sip"
        await ws.send_str(message("text").decode())
        await ws.send_bytes(message("bytes"))
        await ws.send_str("\r\n\r\n")
        assert await ws.receive_str(timeout=HANGS_S) == "\r\n"
        assert await edge.messages(2) == [message("text"), message("bytes")]
        flow = edge.got[0][1]
        assert (flow.transport, flow.local) == ("WS", bound)
        edge.send(message("answer"), flow)
        edge.send(message("utf-8", "ä".encode()), flow)
        edge.send(message("other", b"\xff"), flow)
        assert await ws.receive_str(timeout=HANGS_S) == message("answer").decode()
        assert (await ws.receive_str(timeout=HANGS_S)).endswith("ä")
        assert await ws.receive_bytes(timeout=HANGS_S) == message("other", b"\xff")
    assert await edge.closed() == [flow]
    edge.send(message(), flow)
    assert await edge.closed(2) == [flow, flow]


async def test_a_browser_that_reads_gets_any_amount(
    edge: Edge, browser: aiohttp.ClientSession
) -> None:
    bound = await edge.listen("WS", LOCAL, 0)
    async with browser.ws_connect(url(bound), protocols=["sip"]) as ws:
        await ws.send_str(message().decode())
        await edge.messages(1)
        for i in range(10):
            long = message(str(i), bytes(60_000))
            edge.send(long, edge.got[0][1])
            assert await ws.receive_str(timeout=HANGS_S) == long.decode()


async def test_failed_handshakes_of_wss_leave_nothing_behind(
    edge: Edge, authority: Authority
) -> None:
    bound = await edge.listen("WSS", LOCAL, 0, authority.server(LOCAL))
    for _ in range(3):
        peer = await Peer.connect(bound)
        peer.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await peer.is_closed()
        await peer.close()
    await edge.closed(3)
    (listener,) = edge._listeners
    assert listener.websockets is not None
    assert not listener.websockets._peers
    assert not edge._connections


async def test_over_wss_it_is_the_same(
    edge: Edge, browser: aiohttp.ClientSession, authority: Authority
) -> None:
    bound = await edge.listen("WSS", LOCAL, 0, authority.server(LOCAL))
    trusting = authority.trusting()
    async with browser.ws_connect(url(bound, "wss"), protocols=["sip"], ssl=trusting) as ws:
        await ws.send_str(message().decode())
        assert await edge.messages(1) == [message()]
        assert edge.got[0][1].secure
        edge.send(message("back"), edge.got[0][1])
        assert await ws.receive_str(timeout=HANGS_S) == message("back").decode()


@pytest.mark.parametrize("protocols", [(), ("chat",)])
async def test_a_websocket_without_the_subprotocol_sip_is_refused(
    edge: Edge, browser: aiohttp.ClientSession, protocols: tuple[str, ...]
) -> None:
    bound = await edge.listen("WS", LOCAL, 0)
    with pytest.raises(aiohttp.WSServerHandshakeError, match="400"):
        await browser.ws_connect(url(bound), protocols=protocols)
    async with browser.get(url(bound).replace("ws", "http", 1)) as response:
        assert response.status == 400


@pytest.mark.parametrize("coding", ["", "gzip"])
async def test_a_body_before_the_upgrade_is_not_read(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, coding: str
) -> None:
    received = 0
    real = web.RequestHandler.data_received

    def counted(self: web.RequestHandler, data: bytes) -> None:
        nonlocal received
        received += len(data)
        real(self, data)

    monkeypatch.setattr(web.RequestHandler, "data_received", counted)
    monkeypatch.setattr(zlib, "decompressobj", None)
    host, port = await edge.listen("WS", LOCAL, 0)
    base = f"http://{host}:{port}"
    headers = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Protocol: sip"]
    for some in (headers, []):
        more = [*some, f"Content-Length: {1 << 40}"]
        if coding:
            more.append(f"Content-Encoding: {coding}")
        async with http.connected(base) as (reader, writer), asyncio.timeout(HANGS_S):
            writer.write(http.head(base, "POST", "/", *more))
            assert await http.status_of(reader) == "400"
            with suppress(ConnectionError):
                while True:
                    writer.write(http.CHUNK)
                    await writer.drain()
                    await asyncio.sleep(0)
    assert received < 2 << 20


async def test_a_message_too_long_ends_the_websocket(
    edge: Edge, browser: aiohttp.ClientSession
) -> None:
    bound = await edge.listen("WS", LOCAL, 0)
    async with browser.ws_connect(url(bound), protocols=["sip"]) as ws:
        await ws.send_str("A" * (MAX_MESSAGE_BYTES + 1))
        assert (await ws.receive(timeout=HANGS_S)).type is aiohttp.WSMsgType.CLOSE
    await edge.closed()
    assert not edge.got


async def test_a_browser_that_pings_and_is_gone_leaves_no_traceback(
    edge: Edge, browser: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    bound = await edge.listen("WS", LOCAL, 0)
    for _ in range(5):
        ws = await browser.ws_connect(url(bound), protocols=["sip"])
        connection = ws._response.connection
        assert connection is not None
        assert connection.transport is not None
        connection.transport.write(b"\x89\x81\0\0\0\0x" * 1_000)
        connection.transport.abort()
    await edge.closed(5)
    await asyncio.sleep(0.1)
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_browser_that_does_not_read_is_cut_off(
    edge: Edge, browser: aiohttp.ClientSession
) -> None:
    bound = await edge.listen("WS", LOCAL, 0)
    ws = await browser.ws_connect(url(bound), protocols=["sip"])
    await ws.send_str(message().decode())
    await edge.messages(1)
    connection = ws._response.connection
    assert connection is not None
    assert connection.transport is not None
    connection.transport.pause_reading()
    data = message("big", bytes(60_000))
    sent = 0
    while not edge.gone:
        edge.send(data, edge.got[0][1])
        sent += len(data)
        await asyncio.sleep(0)
        assert sent < 20_000_000
    connection.transport.abort()


async def test_a_connection_that_never_becomes_a_websocket_or_stays_silent_is_let_go(
    edge: Edge, browser: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_io, "UPGRADE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(websocket_io, "FIRST_MESSAGE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(transport_io, "CHECK_INTERVAL_S", 0.05)
    bound = await edge.listen("WS", LOCAL, 0)
    silent, half = await Peer.connect(bound), await Peer.connect(bound)
    half.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
    async with (
        browser.ws_connect(url(bound), protocols=["sip"]) as quiet,
        browser.ws_connect(url(bound), protocols=["sip"]) as good,
    ):
        await good.send_str(message().decode())
        for peer in (silent, half):
            assert await peer.is_closed()
            await peer.close()
        assert (await quiet.receive(timeout=HANGS_S)).type is aiohttp.WSMsgType.CLOSED
        await edge.closed(3)
        assert not good.closed
        assert len(edge.gone) == 3


async def test_websockets_count_among_the_connections_of_a_source(
    edge: Edge, browser: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_io, "MAX_CONNECTIONS_PER_SOURCE", 1)
    bound = await edge.listen("WS", LOCAL, 0)
    async with browser.ws_connect(url(bound), protocols=["sip"]):
        with pytest.raises(aiohttp.ClientError):
            await browser.ws_connect(url(bound), protocols=["sip"])
    await edge.closed()
    async with browser.ws_connect(url(bound), protocols=["sip"]) as ws:
        await ws.send_str(message().decode())
        await edge.messages(1)


async def test_a_browser_cannot_be_connected_to(edge: Edge) -> None:
    flow = edge.flow_to("WS", LOCAL, 8080)
    edge.send(message(), flow)
    assert await edge.closed() == [flow]
