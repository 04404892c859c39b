"""Two ends of a DTLS-SRTP handshake, joined by a line in memory that can lose and mangle."""

import asyncio
import struct
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from OpenSSL import SSL

from offhook.telephony.sip.media import dtls_io
from offhook.telephony.sip.media.dtls_io import (
    MAX_UNKNOWN_SOURCES,
    MTU_BYTES,
    RECORD_HEADER_BYTES,
    DtlsSrtp,
    Handshakes,
    local_fingerprint,
)
from offhook.telephony.sip.media.keying import Dtls
from tests.attack.webrtc import FORGERIES
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.usefixtures("nothing_left")

A, B, C = ("192.0.2.1", 1000), ("192.0.2.2", 2000), ("192.0.2.3", 3000)


def fingerprints():
    """Ours, as a far end reads it in SDP."""
    name, digits = local_fingerprint().split(" ")
    return ((name, digits),)


def wrong():
    name, digits = local_fingerprint().split(" ")
    return ((name, digits[:-1] + ("0" if digits[-1] != "0" else "1")),)


def rtp(number):
    return struct.pack("!BBHII", 0x80, 0, number, number * 160, 7) + b"\x55" * 160


class End:
    """One end; what it sends goes to `other` through `line(datagram) -> datagrams`."""

    def __init__(self, role, expected=None, line=lambda data: [data], context=None):
        self.other = None
        self.sent, self.keys, self.failed = [], [], []
        self._line = line
        self._role, self._expected = role, expected or fingerprints()
        self._context = context
        self.dtls = None

    def start(self):
        with pytest.MonkeyPatch.context() as patch:
            if self._context is not None:
                patch.setattr(dtls_io, "_context", lambda: self._context)
            self.dtls = DtlsSrtp(
                self._role, self._expected, self._send, self.keys.append, self.failed.append
            )

    def _send(self, data):
        self.sent.append(data)
        for datagram in self._line(data):
            asyncio.get_running_loop().call_soon(self._deliver, datagram)

    def _deliver(self, datagram):
        if self.other.dtls is not None:
            self.other.dtls.receive(datagram)


async def shake_hands(client, server, seconds=60.0, until=None):
    client.other, server.other = server, client
    server.start()
    client.start()
    ready = until or (lambda: client.keys and server.keys)
    try:
        async with asyncio.timeout(seconds):
            while not ready():
                await asyncio.sleep(0.002)
    finally:
        client.dtls.close()
        server.dtls.close()


def understand(a, b):
    [one], [other] = a.keys, b.keys
    assert other.unprotect(one.protect(rtp(1))) == rtp(1)
    assert one.unprotect(other.protect(rtp(1))) == rtp(1)
    assert one.protect(rtp(2)) != other.protect(rtp(2))  # each its own key


async def test_a_handshake_gives_both_ends_their_keys():
    client, server = End("client"), End("server")
    await shake_hands(client, server)
    understand(client, server)
    assert client.keys[0].suite == "AEAD_AES_128_GCM"
    assert not client.failed + server.failed
    assert all(len(data) <= MTU_BYTES for data in client.sent + server.sent)


def certificate_of(key):
    """As a phone has it: its own, and expired."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "phone")])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=900))
        .not_valid_after(now - timedelta(days=400))
        .sign(key, hashes.SHA256())
    )


def phone(key, profiles=b"SRTP_AES128_CM_SHA1_80"):
    """The context of another implementation, and its fingerprint."""
    certificate = certificate_of(key)
    context = SSL.Context(SSL.DTLS_METHOD)
    context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
    context.use_certificate(certificate)
    context.use_privatekey(key)
    if profiles:
        context.set_tlsext_use_srtp(profiles)
    return context, (("sha-1", certificate.fingerprint(hashes.SHA1()).hex(":").upper()),)


@pytest.mark.parametrize("role", ["client", "server"])
async def test_a_far_end_with_an_rsa_certificate_and_the_older_profile_is_understood(role):
    context, fingerprint = phone(rsa.generate_private_key(65_537, 2048))
    ours = End("server" if role == "client" else "client", fingerprint)
    theirs = End(role, context=context)
    await shake_hands(*((theirs, ours) if role == "client" else (ours, theirs)))
    understand(ours, theirs)
    assert ours.keys[0].suite == "AES_CM_128_HMAC_SHA1_80"


async def test_a_far_end_without_srtp_gets_no_keys():
    context, fingerprint = phone(ec.generate_private_key(ec.SECP256R1()), profiles=b"")
    client, server = End("client", context=context), End("server", fingerprint)
    await shake_hands(client, server, until=lambda: server.failed)
    assert not server.keys
    assert "no SRTP profile" in server.failed[0]


async def test_a_far_end_without_a_certificate_gets_no_keys():
    context = SSL.Context(SSL.DTLS_METHOD)
    context.set_tlsext_use_srtp(b"SRTP_AES128_CM_SHA1_80")
    client, server = End("client", context=context), End("server")
    await shake_hands(client, server, until=lambda: server.failed)
    assert not server.keys


@pytest.mark.parametrize("liar", ["client", "server"])
async def test_another_certificate_than_that_of_sdp_gets_no_keys(liar):
    client = End("client", wrong() if liar == "server" else None)
    server = End("server", wrong() if liar == "client" else None)
    deceived = client if liar == "server" else server
    await shake_hands(client, server, until=lambda: deceived.failed)
    assert not deceived.keys
    assert "fingerprint" in deceived.failed[0]


@pytest.mark.parametrize(
    ("given_fingerprints", "good"),
    [
        ((*wrong(), *fingerprints()), True),  # one of several certificates (RFC 8122 §5.1)
        ((("sha-512", "00:11"), *fingerprints()), False),  # the strongest hash decides
        ((("md5", "00:11"), *fingerprints()), True),
        ((("md5", "00:11"),), False),
        (((fingerprints()[0][0], fingerprints()[0][1].lower().replace(":", "")),), True),
    ],
)
async def test_which_fingerprint_counts(given_fingerprints, good):
    client, server = End("client", given_fingerprints), End("server")
    await shake_hands(client, server, until=lambda: client.keys or client.failed)
    assert bool(client.keys) is good


async def test_a_lost_flight_is_repeated():
    async def losing(lost):
        count = 0

        def lossy(data):
            nonlocal count
            count += 1
            return [] if count == lost else [data]

        client, server = End("client", line=lossy), End("server", line=lossy)
        await shake_hands(client, server)
        understand(client, server)
        return count

    sent = await asyncio.gather(*(losing(lost) for lost in (1, 2, 3, 4)))
    assert min(sent) > 4  # without a loss there are four flights


async def test_the_first_hello_is_repeated_at_once_for_a_far_end_that_comes_late():
    client, server = End("client"), End("server")
    client.other, server.other = server, client
    client.start()
    client.dtls._stop_timer()  # OpenSSL's own, after a second
    await asyncio.sleep(0.05)  # lost: nobody listens yet
    server.start()
    async with asyncio.timeout(HANGS_S):
        while not (client.keys and server.keys):
            await asyncio.sleep(0.002)
    client.dtls.close()
    server.dtls.close()
    understand(client, server)


async def test_a_far_end_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(dtls_io, "TIMEOUTS", 0)
    client = End("client", line=lambda data: [])
    client.start()
    async with asyncio.timeout(HANGS_S):
        while not client.failed:
            await asyncio.sleep(0.01)
    assert "did not answer" in client.failed[0]
    assert len(client.sent) == 1 + len(dtls_io.HELLO_RETRANSMIT_S)


async def test_closed_it_says_nothing_more():
    client, server = End("client"), End("server")
    client.other, server.other = server, client
    server.start()
    client.start()
    client.dtls.close()
    server.dtls.close()
    sent = len(client.sent)
    await asyncio.sleep(0.15)
    assert len(client.sent) == sent
    assert not client.keys + server.keys + client.failed + server.failed


async def test_records_cut_off_are_dropped_whole():
    """Fed in, a cut-off record would swallow the start of the next datagram."""
    client, server = (
        End("client", line=lambda data: [data[:-1], data[: len(data) // 2], data]),
        End("server", line=lambda data: [data[:20], data + b"\x16\xfe\xfd", data]),
    )
    await shake_hands(client, server)
    understand(client, server)


@settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(
        st.binary(max_size=200)
        | st.binary(max_size=60).map(
            lambda body: b"\x16\xfe\xfd" + bytes(8) + len(body).to_bytes(2, "big") + body
        ),
        max_size=10,
    )
)
def test_whatever_comes_nothing_is_raised(datagrams):
    async def main():
        for role in ("client", "server"):
            end = End(role, line=lambda data: [])
            end.start()
            for data in datagrams:
                end.dtls.receive(data)
            assert not end.keys
            end.dtls.close()

    asyncio.run(main())


async def test_repeated_duplicated_and_disordered_datagrams_do_no_harm():
    client = End("client", line=lambda data: [data, data])
    server = End("server", line=lambda data: [data, data])
    await shake_hands(client, server)
    understand(client, server)


def test_a_flight_longer_than_a_datagram_is_split_between_records():
    def record(size):
        body = size - RECORD_HEADER_BYTES
        return b"\x16\xfe\xfd" + bytes(8) + body.to_bytes(2, "big") + bytes(body)

    class Bio:
        def __init__(self, *pieces):
            self.pieces = list(pieces)

        def bio_read(self, size):
            if not self.pieces:
                raise SSL.WantReadError
            return self.pieces.pop(0)

    flight = record(700) + record(600) + record(500) + record(90)
    dtls = DtlsSrtp.__new__(DtlsSrtp)
    dtls._connection = Bio(flight[:1000], flight[1000:])
    assert [len(datagram) for datagram in dtls._datagrams()] == [700, 1190]


class Port:
    """One port's handshakes on a network of addresses."""

    def __init__(self, network, here, security, expected):
        self.keys, self.failed, self.slow = [], [], []
        network[here] = self

        def send(data, to):
            asyncio.get_running_loop().call_soon(
                lambda: to in network and network[to].handshakes.receive(data, here)
            )

        def got(keys, source):
            self.keys.append((keys, source))

        self.handshakes = Handshakes(
            security, expected, send, got, self.failed.append, self.slow.append
        )


async def settle(condition, seconds=60.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


async def test_the_address_of_sdp_is_shaken_hands_with():
    network = {}
    server = Port(network, A, Dtls(fingerprints(), "server"), B)
    client = Port(network, B, Dtls(fingerprints(), "client"), A)
    await settle(lambda: server.keys and client.keys)
    assert server.keys[0][1] == B
    assert client.keys[0][1] == A
    server.handshakes.close()
    client.handshakes.close()


async def test_behind_a_nat_the_fingerprint_tells_the_far_end():
    network = {}
    server = Port(network, A, Dtls(fingerprints(), "server"), ("10.0.0.5", 4000))
    client = Port(network, C, Dtls(fingerprints(), "client"), A)
    await settle(lambda: server.keys and client.keys)
    assert server.keys[0][1] == C
    server.handshakes.close()
    client.handshakes.close()


async def test_a_client_is_answered_from_another_address_than_it_asked():
    """A far end of two addresses: SDP names one, and its packets leave by the other."""
    network = {}
    server = Port(network, C, Dtls(fingerprints(), "server"), B)
    network[A] = server
    client = Port(network, B, Dtls(fingerprints(), "client"), A)
    await settle(lambda: server.keys and client.keys)
    assert client.keys[0][1] == C
    server.handshakes.close()
    client.handshakes.close()


async def test_a_client_begins_where_other_packets_come_from():
    """A far end behind a NAT that waits for us at an address which nobody reaches."""
    network = {}
    server = Port(network, C, Dtls(fingerprints(), "server"), B)
    client = Port(network, B, Dtls(fingerprints(), "client"), ("10.0.0.5", 4000))
    await asyncio.sleep(0.05)
    client.handshakes.note_source(C)
    await settle(lambda: server.keys and client.keys)
    assert client.keys[0][1] == C
    server.handshakes.close()
    client.handshakes.close()


@pytest.mark.parametrize("role", ["client", "server"])
async def test_a_handshake_that_does_not_come_is_said_soon(monkeypatch, role):
    monkeypatch.setattr(dtls_io, "SLOW_HANDSHAKE_S", 0.1)
    network = {}
    port = Port(network, A, Dtls(fingerprints(), role), B)
    port.handshakes.receive(b"\x16\xfe\xfd" + bytes(10), C)
    await settle(lambda: port.slow)
    await asyncio.sleep(0.2)
    [said] = port.slow
    assert said.startswith("no DTLS keys after 0.1 s: ")
    assert f"from {B[0]}:{B[1]}, its address in SDP" in said
    assert said.endswith(f"; packets come from {C[0]}:{C[1]}")
    assert not port.failed
    port.handshakes.close()


async def test_a_handshake_that_is_through_is_not_slow(monkeypatch):
    monkeypatch.setattr(dtls_io, "SLOW_HANDSHAKE_S", 0.5)
    network = {}
    server = Port(network, A, Dtls(fingerprints(), "server"), B)
    client = Port(network, B, Dtls(fingerprints(), "client"), A)
    await settle(lambda: server.keys and client.keys)
    await asyncio.sleep(0.6)
    assert not server.slow + client.slow
    server.handshakes.close()
    client.handshakes.close()


async def test_strangers_with_another_certificate_neither_get_in_nor_in_the_way():
    network = {}
    expected = Dtls(wrong(), "server")  # nobody here has that certificate
    server = Port(network, A, expected, B)
    for number in range(MAX_UNKNOWN_SOURCES + 5):
        Port(network, ("198.51.100.1", number), Dtls(fingerprints(), "client"), A)
    await settle(lambda: sum(len(p.keys) for p in network.values()) >= MAX_UNKNOWN_SOURCES)
    assert not server.keys
    assert not server.failed  # the call does not end for what strangers do
    Port(network, B, Dtls(fingerprints(), "client"), A)
    await settle(lambda: server.failed)  # but for what the address of SDP does
    for port in network.values():
        port.handshakes.close()


async def test_only_so_many_strangers_are_heard_at_a_time():
    answered = []
    handshakes = Handshakes(
        Dtls(fingerprints(), "server"), B, lambda data, to: answered.append(to), None, None, None
    )
    hellos = []
    DtlsSrtp("client", fingerprints(), hellos.append, None, None).close()
    for port in range(20):
        handshakes.receive(hellos[0], ("198.51.100.1", port))
    assert len(set(answered)) == MAX_UNKNOWN_SOURCES
    handshakes.receive(hellos[0], B)
    assert B in answered
    handshakes.close()


async def test_a_client_answers_nobody_but_whom_it_asked():
    answered = []
    handshakes = Handshakes(
        Dtls(fingerprints(), "client"), B, lambda data, to: answered.append(to), None, None, None
    )
    handshakes.receive(b"\x16\xfe\xfd" + bytes(10), C)
    assert set(answered) == {B}
    handshakes.close()


# --- strangers while the far end shakes hands ---


class Slow:
    """A network on which a datagram takes a moment, so that a stranger is quicker."""

    def __init__(self, network):
        self.network = network

    def port(self, here, security, expected):
        port = Port.__new__(Port)
        port.keys, port.failed, port.slow = [], [], []
        self.network[here] = port

        def send(data, to):
            def deliver():
                if to in self.network:
                    self.network[to].handshakes.receive(data, here)

            asyncio.get_running_loop().call_later(0.05, deliver)

        def got(keys, source):
            port.keys.append((keys, source))

        port.handshakes = Handshakes(
            security, expected, send, got, port.failed.append, port.slow.append
        )
        return port


@pytest.mark.parametrize("kind", [*FORGERIES])
@pytest.mark.parametrize("fixed", [True, False])
async def test_what_a_stranger_forges_ends_no_handshake(kind, fixed):
    """From one address or from many, to a client and to a server, all the time."""
    slow = Slow({})
    server = slow.port(A, Dtls(fingerprints(), "server"), B)
    client = slow.port(B, Dtls(fingerprints(), "client"), A)
    number = 0
    while not (server.keys and client.keys) and number < 2000:
        number += 1
        stranger = "198.51.100.1", 9 if fixed else number
        data = FORGERIES[kind]()
        for port in (server, client):
            if data and 20 <= data[0] <= 63:
                port.handshakes.receive(data, stranger)
            else:
                port.handshakes.note_source(stranger)
        await asyncio.sleep(0.002)
    assert server.keys[0][1] == B
    assert client.keys[0][1] == A
    assert not server.failed + client.failed
    server.handshakes.close()
    client.handshakes.close()


async def test_a_stranger_with_the_right_look_does_not_draw_the_handshake_to_himself():
    """A server with another certificate answers sooner than the far end, as if it had two
    addresses."""
    slow = Slow({})
    server = slow.port(A, Dtls(fingerprints(), "server"), B)
    client = slow.port(B, Dtls(fingerprints(), "client"), A)
    [hello] = client.handshakes._client.first_flight
    flight = []
    other = End("server", context=foreign(), line=lambda data: [])
    other.start()
    other.dtls._send = flight.append
    other.dtls.receive(hello)
    assert flight
    for data in flight:
        client.handshakes.receive(data, C)
    await settle(lambda: server.keys and client.keys)
    assert client.keys[0][1] == A
    assert not client.failed
    other.dtls.close()
    server.handshakes.close()
    client.handshakes.close()


def foreign():
    """A context with another certificate than ours."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stranger")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    context = SSL.Context(SSL.DTLS_METHOD)
    context.use_certificate(certificate)
    context.use_privatekey(key)
    context.set_tlsext_use_srtp(b"SRTP_AES128_CM_SHA1_80")
    return context


async def test_strangers_who_hold_handshakes_do_not_keep_the_far_end_out(monkeypatch):
    """Behind a NAT the far end is one of many sources that SDP does not name."""
    monkeypatch.setattr(dtls_io, "UNKNOWN_SOURCE_S", 0.2)
    network, hellos = {}, []
    server = Port(network, A, Dtls(fingerprints(), "server"), ("10.0.0.5", 4000))
    DtlsSrtp("client", fingerprints(), hellos.append, None, None).close()
    for port in range(3 * MAX_UNKNOWN_SOURCES):
        server.handshakes.receive(hellos[0], ("198.51.100.1", port))
    assert len(server.handshakes._others) == 1 + MAX_UNKNOWN_SOURCES
    client = Port(network, C, Dtls(fingerprints(), "client"), A)
    await settle(lambda: server.keys and client.keys)
    assert server.keys[0][1] == C
    server.handshakes.close()
    client.handshakes.close()


async def test_a_flood_of_hellos_begins_few_handshakes(monkeypatch):
    monkeypatch.setattr(dtls_io, "UNKNOWN_SOURCE_S", 0.0)
    begun, hellos = [], []
    handshakes = Handshakes(
        Dtls(fingerprints(), "server"), B, lambda data, to: begun.append(to), None, None, None
    )
    DtlsSrtp("client", fingerprints(), hellos.append, None, None).close()
    for port in range(5000):
        handshakes.receive(hellos[0], ("198.51.100.1", port))
    assert len(set(begun)) <= dtls_io.BEGINS_AT_ONCE + 60  # those of 15 s, if it took so long
    assert len(handshakes._others) <= 1 + MAX_UNKNOWN_SOURCES
    handshakes.close()


async def test_a_far_end_elsewhere_that_wants_a_cookie_first_is_asked_again():
    network, cookie = {}, FORGERIES["HelloVerifyRequest"]()
    client = Port(network, B, Dtls(fingerprints(), "client"), ("10.0.0.5", 4000))
    client.handshakes.receive(cookie, C)
    server = Port(network, C, Dtls(fingerprints(), "server"), B)
    await settle(lambda: server.keys and client.keys)
    assert client.keys[0][1] == C
    server.handshakes.close()
    client.handshakes.close()
