"""DTLS-SRTP on the media socket (RFC 5763, RFC 5764): keys come from a handshake, authenticated by
the fingerprints in SDP. OpenSSL does the handshake, in memory.

The certificate is self-signed and made anew by each process; the fingerprint in SDP vouches for it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL

from offhook.media.budget import Budget
from offhook.media.rtp.dtls import RECORD_HEADER_BYTES, records
from offhook.telephony.sip.media.first_flight import (
    Fingerprints,
    FirstFlight,
    is_expected,
    kind_of_answer,
)
from offhook.telephony.sip.media.keying import Dtls
from offhook.telephony.sip.media.latch import Address
from offhook.telephony.sip.media.srtp import SdesSrtp

MTU_BYTES = 1200
"""Size of a datagram we send: fits a 1280-byte MTU minus tunnel overhead."""
HELLO_RETRANSMIT_S = (0.1, 0.3, 0.7)
"""When the first ClientHello is retransmitted before OpenSSL's first timeout of 1 s (RFC 6347
§4.2.4.1). It is sent with our answer, often a moment before the far end listens."""
TIMEOUTS = 5
"""OpenSSL's timeouts of 1, 2, 4, 8 and 16 s, after which the handshake has failed: 31 s, as long as
SIP waits."""
SLOW_HANDSHAKE_S = 4.0
"""Time in s after which an incomplete handshake is reported in the log: nothing is audible
meanwhile."""
MAX_UNKNOWN_SOURCES = 4
"""Sources not named in SDP that may have a handshake in progress, and from which one may come late;
the oldest gives way to a further one."""
UNKNOWN_SOURCE_S = 2.0
"""...once it has had this long, two retransmissions, to complete its handshake."""
MAX_ANSWERS = 16
"""Sources not named in SDP whose answer to us is read until it shows a certificate; the oldest
gives way to a further one."""
BEGINS_PER_SECOND = 4
"""Handshakes that sources not named in SDP may begin, or make us begin, each of which costs a
signature; further ones are dropped, and the far end retransmits."""
BEGINS_AT_ONCE = 2 * MAX_UNKNOWN_SOURCES
"""Handshakes that such sources may begin at once after some silence."""
CERTIFICATE_DAYS = 365
HANDSHAKE = b"\x16"
"""Content type of the record that starts a first flight."""
WRITTEN_BYTES = 16_384
"""Bytes read from OpenSSL at a time."""
DTLS_1_2 = 0xFEFD
CIPHERS = (
    b"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:"
    b"ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384:"
    b"ECDHE-RSA-CHACHA20-POLY1305:ECDHE-RSA-AES128-SHA"
)
"""Forward secrecy only; RSA for far ends with an RSA certificate."""
_PROFILES = {
    b"SRTP_AEAD_AES_128_GCM": ("AEAD_AES_128_GCM", 16, 12),
    b"SRTP_AES128_CM_SHA1_80": ("AES_CM_128_HMAC_SHA1_80", 16, 14),
}
"""use_srtp profiles, preferred first: suite, bytes of key and of salt (RFC 5764 §4.1.2, RFC 7714
§14.2)."""


@cache
def _certificate() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "offhook")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=CERTIFICATE_DAYS))
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def local_fingerprint() -> str:
    """Return the value of our `a=fingerprint`: "sha-256 AB:CD:…", of this process's certificate."""
    digest = _certificate()[1].fingerprint(hashes.SHA256())
    return "sha-256 " + digest.hex(":").upper()


@cache
def _context() -> SSL.Context:
    key, certificate = _certificate()
    context = SSL.Context(SSL.DTLS_METHOD)
    context.set_min_proto_version(DTLS_1_2)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_QUERY_MTU | SSL.OP_NO_RENEGOTIATION)
    # Accept any certificate: its fingerprint is checked against SDP after the handshake.
    context.set_verify(
        SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, lambda *chain_is_of_no_matter: True
    )
    context.set_cipher_list(CIPHERS)
    context.use_certificate(certificate)
    context.use_privatekey(key)
    context.set_tlsext_use_srtp(b":".join(_PROFILES))
    return context


class DtlsSrtp:
    """One DTLS association, from the first flight to the keys, and as long as the far end may
    retransmit its last flight. Calls `on_keys` or `on_failed` once."""

    def __init__(
        self,
        role: Literal["client", "server"],
        fingerprints: Fingerprints,
        send: Callable[[bytes], None],
        on_keys: Callable[[SdesSrtp], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """`fingerprints` are the far end's; `send` is called with each datagram. A client (the
        active side, RFC 5763 §5) sends its first datagram before this returns."""
        self._role = role
        self._fingerprints = fingerprints
        self._send = send
        self._on_keys = on_keys
        self._on_failed = on_failed
        self._done = False
        """The handshake has succeeded or failed."""
        self._closed = False
        self._timeouts = 0
        self._timer: asyncio.TimerHandle | None = None
        self._hellos: list[asyncio.TimerHandle] = []
        self.first_flight: list[bytes] = []
        """A client's, until there is a response."""
        self._connection = SSL.Connection(_context(), None)
        self._connection.set_ciphertext_mtu(MTU_BYTES)
        if role == "server":
            self._connection.set_accept_state()
        else:
            self._connection.set_connect_state()
            self._begin()

    def _begin(self) -> None:
        with contextlib.suppress(SSL.WantReadError):
            self._connection.do_handshake()
        loop = asyncio.get_running_loop()
        self.first_flight = list(self._datagrams())
        for datagram in self.first_flight:
            self._send(datagram)
            for seconds in HELLO_RETRANSMIT_S:
                self._hellos.append(loop.call_later(seconds, self._send, datagram))
        self._set_timer()

    def receive(self, data: bytes) -> None:
        """Process a datagram that is not RTP (RFC 7983 §7). Incomplete DTLS records are dropped:
        OpenSSL would wait for the rest."""
        if self._closed or not records(data):
            return
        self._stop_hellos()
        self._connection.bio_write(data)
        if self._done:
            with contextlib.suppress(SSL.Error):
                self._connection.recv(len(data))  # answers a retransmitted last flight
            self._flush()
        else:
            self._handshake()

    def close(self) -> None:
        """Stop sending and calling back: SIP ends the call."""
        self._closed = True
        self._settle()

    def _settle(self) -> None:
        self._done = True
        self._stop_hellos()
        self._stop_timer()

    # --- the handshake ---

    def _handshake(self) -> None:
        try:
            self._connection.do_handshake()
        except SSL.WantReadError:
            self._flush()
            self._set_timer()
        except SSL.Error as error:
            self._flush()
            self._fail(f"the DTLS handshake failed: {_reason(error)}")
        else:
            self._flush()
            self._finish()

    def _finish(self) -> None:
        if not self._is_expected():
            self._fail("the far end's certificate does not match its fingerprint in SDP")
            return
        profile = self._connection.get_selected_srtp_profile()
        if profile not in _PROFILES:
            self._fail("the DTLS handshake negotiated no SRTP profile")
            return
        self._settle()
        self._on_keys(self._keys(*_PROFILES[profile]))

    def _is_expected(self) -> bool:
        """Whether the certificate is the one that SDP vouches for."""
        certificate = self._connection.get_peer_certificate(as_cryptography=True)
        if certificate is None:
            return False
        return is_expected(certificate.public_bytes(Encoding.DER), self._fingerprints)

    def _keys(self, suite: str, key: int, salt: int) -> SdesSrtp:
        """Derive the keys: client's key, server's key, client's salt, server's salt (RFC 5764
        §4.2)."""
        material = self._connection.export_keying_material(b"EXTRACTOR-dtls_srtp", 2 * (key + salt))
        salts = material[2 * key :]
        client = material[:key] + salts[:salt]
        server = material[key : 2 * key] + salts[salt:]
        if self._role == "client":
            return SdesSrtp(suite, client, server)
        return SdesSrtp(suite, server, client)

    def _fail(self, reason: str) -> None:
        self._settle()
        self._on_failed(reason)

    # --- datagrams and timers ---

    def _flush(self) -> None:
        for datagram in self._datagrams():
            self._send(datagram)

    def _datagrams(self) -> Iterator[bytes]:
        """Split what OpenSSL has written into datagrams of whole records (RFC 6347 §4.1.1)."""
        written = b""
        with contextlib.suppress(SSL.WantReadError):
            while True:
                written += self._connection.bio_read(WRITTEN_BYTES)
        datagram = b""
        while written:
            size = RECORD_HEADER_BYTES + int.from_bytes(written[11:RECORD_HEADER_BYTES], "big")
            if datagram and len(datagram) + size > MTU_BYTES:
                yield datagram
                datagram = b""
            datagram += written[:size]
            written = written[size:]
        if datagram:
            yield datagram

    def _set_timer(self) -> None:
        self._stop_timer()
        seconds = self._connection.DTLSv1_get_timeout()
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._timed_out)

    def _timed_out(self) -> None:
        """Retransmit the last flight (RFC 6347 §4.2.4)."""
        self._timer = None
        if self._timeouts >= TIMEOUTS:
            self._fail("the far end did not answer the DTLS handshake")
            return
        try:
            self._timeouts += self._connection.DTLSv1_handle_timeout()
        except SSL.Error as error:
            self._fail(f"the DTLS handshake failed: {_reason(error)}")
            return
        self._flush()
        self._set_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_hellos(self) -> None:
        self.first_flight = []
        for handle in self._hellos:
            handle.cancel()
        self._hellos.clear()


class Handshakes:
    """The DTLS handshakes of one port. The far end is identified by its fingerprint: behind a NAT,
    or on a multihomed host, its packets come from another address than its SDP says. Nobody else's
    packets end them, or keep the far end out.

    A server has an association with the address in SDP and, until one completes, one each with a
    few other sources. A client has one, which the far end would not recognize after another first
    flight: it is sent to the address in SDP and to other sources of packets, and continues with the
    one from which a flight comes that has the far end's certificate. Who wants a cookie first gets
    an association of its own, as what it sends is no proof of anything.
    """

    def __init__(
        self,
        security: Dtls,
        expected: Address | None,
        send: Callable[[bytes, Address], None],
        on_keys: Callable[[SdesSrtp, Address], None],
        on_failed: Callable[[str], None],
        on_slow: Callable[[str], None],
    ) -> None:
        """`on_keys` receives the keys and the address they belong to; `on_failed` why the handshake
        failed; `on_slow`, after SLOW_S, what is being waited for."""
        self._security = security
        self._expected = expected
        self._send = send
        self._on_keys = on_keys
        self._on_failed = on_failed
        self._on_slow = on_slow
        self._client: DtlsSrtp | None = None
        """The association of a client."""
        self._contacted: list[Address] = []
        """Where its first flight is sent; first the address in SDP."""
        self._answered: Address | None = None
        """Where it was answered."""
        self._answers: dict[Address, FirstFlight] = {}
        """Of other sources, the oldest first."""
        self._others: dict[Address, tuple[DtlsSrtp, float]] = {}
        """Associations of a server, and those of a client with sources that wanted a cookie; when
        they began. The oldest first."""
        self._completed: Address | None = None
        self._begins = Budget(BEGINS_PER_SECOND, BEGINS_AT_ONCE)
        self._elsewhere: Address | None = None
        """Last source address that SDP does not name."""
        self._loop = asyncio.get_running_loop()
        self._slow = self._loop.call_later(SLOW_HANDSHAKE_S, self._report_slow)
        if expected is not None and security.role == "client":
            self._ask(expected)
        elif expected is not None:
            self._begin(expected)

    def receive(self, data: bytes, source: Address) -> None:
        """Process a DTLS datagram."""
        if source != self._expected:
            self._elsewhere = source
        if source in self._others:
            self._others[source][0].receive(data)
        elif self._security.role == "client":
            self._receive_as_client(data, source)
        elif self._completed is None and data[:1] == HANDSHAKE and self._may_begin():
            self._begin(source).receive(data)

    def _receive_as_client(self, data: bytes, source: Address) -> None:
        kind = kind_of_answer(data)
        if source == self._answered:
            assert self._client is not None
            self._client.receive(data)
        elif self._answered is None and source == self._expected and self._client is not None:
            if kind is not None:
                self._answered = source
            self._client.receive(data)
        elif self._answered is None and kind == "cookie":
            if self._completed is None and self._may_begin():
                self._begin(source)
        elif self._answered is None and self._client is not None:
            self._read_flight(data, source)

    def _read_flight(self, data: bytes, source: Address) -> None:
        """Continues with this source if its flight has the far end's certificate."""
        flight = self._answers.get(source)
        if flight is None:
            if kind_of_answer(data) is None:
                return
            if len(self._answers) >= MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
            flight = self._answers[source] = FirstFlight(self._security.remote_fingerprints)
        if flight.receive(data):
            assert self._client is not None
            self._answered = source
            self._answers.clear()
            for datagram in flight.datagrams:
                self._client.receive(datagram)

    def note_source(self, source: Address) -> None:
        """Note a packet of another kind before there are keys, e.g. SRTP that cannot be decrypted
        yet."""
        if source == self._expected or self._completed is not None:
            return
        self._elsewhere = source
        if self._security.role == "client" and self._answered is None:
            self._ask(source)

    def close(self) -> None:
        self._slow.cancel()
        if self._client is not None:
            self._client.close()
        for association, _ in self._others.values():
            association.close()
        self._others.clear()

    # --- associations ---

    def _ask(self, place: Address) -> None:
        """Send the client's first flight to this address too, the first time."""
        if place in self._contacted or place in self._others:
            return
        if place != self._expected and not self._begins.spend(1, self._loop.time()):
            return
        strangers = [a for a in self._contacted if a != self._expected]
        if len(strangers) >= MAX_UNKNOWN_SOURCES:
            self._contacted.remove(strangers[0])
        self._contacted.append(place)
        if self._client is None:
            self._client = self._association(self._send_as_client, lambda: self._answered or place)
        else:
            for datagram in self._client.first_flight:
                self._send(datagram, place)

    def _send_as_client(self, data: bytes) -> None:
        for place in self._contacted if self._answered is None else (self._answered,):
            self._send(data, place)

    def _may_begin(self) -> bool:
        """Whether a source that SDP does not name gets an association; makes room for it."""
        now = self._loop.time()
        strangers = [a for a in self._others if a != self._expected]
        if len(strangers) >= MAX_UNKNOWN_SOURCES:
            association, began = self._others[strangers[0]]
            if now - began < UNKNOWN_SOURCE_S:
                return False
        if not self._begins.spend(1, now):
            return False
        if len(strangers) >= MAX_UNKNOWN_SOURCES:
            association.close()
            del self._others[strangers[0]]
        return True

    def _begin(self, remote: Address) -> DtlsSrtp:
        association = self._association(lambda data: self._send(data, remote), lambda: remote)
        self._others[remote] = association, self._loop.time()
        return association

    def _association(self, send: Callable[[bytes], None], place: Callable[[], Address]) -> DtlsSrtp:
        return DtlsSrtp(
            self._security.role,
            self._security.remote_fingerprints,
            send,
            lambda keys: self._handle_keys(keys, place()),
            lambda reason: self._failed(reason, place()),
        )

    def _handle_keys(self, keys: SdesSrtp, remote: Address) -> None:
        self._completed = remote
        self._slow.cancel()
        for other in [a for a in self._others if a != remote]:
            self._others.pop(other)[0].close()
        if self._client is not None and remote in self._others:
            self._client.close()
        self._on_keys(keys, remote)

    def _failed(self, reason: str, remote: Address) -> None:
        stranger = self._others.pop(remote, None) is not None and remote != self._expected
        if not stranger and self._completed is None:
            self._slow.cancel()
            self._on_failed(reason)

    def _report_slow(self) -> None:
        expected = f"{self._expected[0]}:{self._expected[1]}" if self._expected else "the far end"
        waiting = {"client": "no response to our handshake", "server": "no handshake"}
        text = f"no DTLS keys after {SLOW_HANDSHAKE_S:g} s: {waiting[self._security.role]}"
        text += f" from {expected}, its address in SDP"
        if self._elsewhere is not None:
            text += f"; packets come from {self._elsewhere[0]}:{self._elsewhere[1]}"
        self._on_slow(text)


def _reason(error: SSL.Error) -> str:
    """OpenSSL's reason: the third of (library, function, reason) of the first error."""
    try:
        return str(error.args[0][0][2])
    except (IndexError, TypeError):
        return type(error).__name__
