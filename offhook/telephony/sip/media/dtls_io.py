"""DTLS-SRTP on the socket of the media (RFC 5763, RFC 5764): the keys come from a handshake, and
SDP's fingerprints say whose it must be. OpenSSL does the handshake, in memory.

The certificate is our own, made anew by each process: the fingerprint in SDP is all that vouches
for it.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from OpenSSL import SSL

from offhook.telephony.sip.media.keying import Dtls
from offhook.telephony.sip.media.latch import Address
from offhook.telephony.sip.media.srtp import SdesSrtp

MTU_BYTES = 1200
"""Of a datagram we send: fits in what tunnels leave of 1280 bytes."""
HELLO_AGAIN_S = (0.1, 0.3, 0.7)
"""When the first ClientHello is sent again, while OpenSSL waits for its first second (RFC 6347
§4.2.4.1). It goes out with our answer, and often the far end listens a moment later."""
TIMEOUTS = 5
"""OpenSSL's waits of 1, 2, 4, 8 and 16 s without an answer, after which the handshake failed:
31 s, as long as SIP waits."""
SLOW_S = 4.0
"""After which it is said that a handshake is not through: nobody hears anything meanwhile."""
STRANGERS = 4
"""Sources that SDP did not name which may be in the middle of a handshake."""
CERTIFICATE_DAYS = 365
HANDSHAKE = b"\x16"
"""Content type of the record that a first flight begins with."""
RECORD_HEADER_BYTES = 13
SERVER_HELLO, HELLO_VERIFY_REQUEST = 2, 3
"""Messages of a handshake (RFC 6347 §4.3.2)."""
WRITTEN_BYTES = 16_384
"""Taken from OpenSSL at a time."""
CONTENT_TYPES = range(20, 24)
"""Of DTLS 1.2 records: change of cipher, alert, handshake, application data."""
DTLS_1_2 = 0xFEFD
CIPHERS = (
    b"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:"
    b"ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384:"
    b"ECDHE-RSA-CHACHA20-POLY1305:ECDHE-RSA-AES128-SHA"
)
"""Forward secret only; RSA for far ends whose certificate is of that kind."""
HASHES = {"sha-512": "sha512", "sha-384": "sha384", "sha-256": "sha256", "sha-1": "sha1"}
"""Hashes of fingerprints (RFC 8122 §5), the strongest first, with OpenSSL's names."""

_PROFILES = {
    b"SRTP_AEAD_AES_128_GCM": ("AEAD_AES_128_GCM", 16, 12),
    b"SRTP_AES128_CM_SHA1_80": ("AES_CM_128_HMAC_SHA1_80", 16, 14),
}
"""Of use_srtp, preferred first: the suite, bytes of key and of salt (RFC 5764 §4.1.2, RFC 7714
§14.2)."""

Fingerprints = Sequence[tuple[str, str]]
"""(hash, hexadecimal digits with or without colons)."""


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
    """Of this process's certificate, as it stands in `a=fingerprint`: "sha-256 AB:CD:…"."""
    digest = _certificate()[1].fingerprint(hashes.SHA256())
    return "sha-256 " + digest.hex(":").upper()


@cache
def _context() -> SSL.Context:
    key, certificate = _certificate()
    context = SSL.Context(SSL.DTLS_METHOD)
    context.set_min_proto_version(DTLS_1_2)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_QUERY_MTU | SSL.OP_NO_RENEGOTIATION)
    # Any certificate passes here: it is checked against SDP when the handshake is through.
    context.set_verify(
        SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, lambda *chain_is_of_no_matter: True
    )
    context.set_cipher_list(CIPHERS)
    context.use_certificate(certificate)
    context.use_privatekey(key)
    context.set_tlsext_use_srtp(b":".join(_PROFILES))
    return context


class DtlsSrtp:
    """One DTLS association, from the first flight to the keys and for as long as the far end may
    repeat its last flight. Calls `on_keys` or `on_failed` once."""

    def __init__(
        self,
        role: Literal["client", "server"],
        fingerprints: Fingerprints,
        send: Callable[[bytes], None],
        on_keys: Callable[[SdesSrtp], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """`fingerprints` are the far end's; `send` takes each datagram. A client begins at once
        (RFC 5763 §5: the active side); its first datagram is sent before this returns."""
        self._role = role
        self._fingerprints = fingerprints
        self._send = send
        self._on_keys = on_keys
        self._on_failed = on_failed
        self._done = False
        """There are keys, or there will be none."""
        self._closed = False
        self._timeouts = 0
        self._timer: asyncio.TimerHandle | None = None
        self._hellos: list[asyncio.TimerHandle] = []
        self._first: list[bytes] = []
        """What a client began with, until something comes back."""
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
        self._first = list(self._datagrams())
        for datagram in self._first:
            self._send(datagram)
            for seconds in HELLO_AGAIN_S:
                self._hellos.append(loop.call_later(seconds, self._send, datagram))
        self._set_timer()

    def begin_again(self) -> None:
        """A client's first flight, as long as nothing has come back."""
        for datagram in self._first:
            self._send(datagram)

    def receive(self, data: bytes) -> None:
        """Take a datagram that is not RTP (RFC 7983 §7). What is not whole DTLS records is
        dropped: OpenSSL would wait for the rest of a record cut off."""
        if self._closed or not _is_whole(data):
            return
        self._stop_hellos()
        self._connection.bio_write(data)
        if self._done:
            with contextlib.suppress(SSL.Error):
                self._connection.recv(len(data))  # answers a repeated last flight
            self._flush()
        else:
            self._handshake()

    def close(self) -> None:
        """No callback comes from now on and nothing is sent: the call ends by SIP."""
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
            self._fail("the far end's certificate is not the one whose fingerprint its SDP gave")
            return
        profile = self._connection.get_selected_srtp_profile()
        if profile not in _PROFILES:
            self._fail("the DTLS handshake agreed on no SRTP profile")
            return
        self._settle()
        self._on_keys(self._keys(*_PROFILES[profile]))

    def _is_expected(self) -> bool:
        """Whether the certificate has one of the fingerprints of the strongest hash we know of
        those in SDP (RFC 8122 §5)."""
        certificate = self._connection.get_peer_certificate()
        if certificate is None:
            return False
        for name, openssl_name in HASHES.items():
            given = [digits for hash_name, digits in self._fingerprints if hash_name == name]
            if given:
                actual = certificate.digest(openssl_name).replace(b":", b"").lower()
                return any(
                    hmac.compare_digest(digits.replace(":", "").lower().encode(), actual)
                    for digits in given
                )
        return False

    def _keys(self, suite: str, key: int, salt: int) -> SdesSrtp:
        """RFC 5764 §4.2: the client's key, the server's, the client's salt, the server's."""
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
        """What OpenSSL has written, whole records to a datagram (RFC 6347 §4.1.1)."""
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
        """Repeat the last flight (RFC 6347 §4.2.4)."""
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
        self._first = []
        for handle in self._hellos:
            handle.cancel()
        self._hellos.clear()


class Handshakes:
    """The handshakes of one port. The fingerprint tells who is the far end: behind a NAT, or on a
    machine of several addresses, it is elsewhere than its SDP says.

    A server has an association with the address in SDP and, while none is through, with the few
    others who begin one. A client has a single one, which its far end would not know again under
    another first flight: it goes to where the far end's packets come from, until it is answered.
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
        """`on_keys` tells the keys and who has them; `on_failed`, why the far end gets none;
        `on_slow`, after SLOW_S, what is being waited for."""
        self._security = security
        self._expected = expected
        self._send = send
        self._on_keys = on_keys
        self._on_failed = on_failed
        self._on_slow = on_slow
        self._associations: dict[Address, DtlsSrtp] = {}
        self._through: Address | None = None
        self._answered = False
        """A client's far end has begun to shake hands."""
        self._elsewhere: Address | None = None
        """Where packets came from last that SDP does not name."""
        loop = asyncio.get_running_loop()
        self._slow = loop.call_later(SLOW_S, self._say_slow)
        if expected is not None:
            self._begin(expected)

    def receive(self, data: bytes, source: Address) -> None:
        """Take a datagram of DTLS."""
        if source != self._expected:
            self._elsewhere = source
        association = self._associations.get(source)
        if association is None and self._security.role == "client" and _is_answer(data):
            association = self._move(source)
        elif association is None and self._may_begin(data):
            association = self._begin(source)
        if association is not None:
            self._answered |= _is_answer(data)
            association.receive(data)

    def heard(self, source: Address) -> None:
        """Something else came before there were keys, as sound that is not understood yet."""
        if source == self._expected or self._through is not None:
            return
        self._elsewhere = source
        if self._security.role == "client" and source not in self._associations:
            association = self._move(source)
            if association is not None:
                association.begin_again()

    def close(self) -> None:
        self._slow.cancel()
        for association in self._associations.values():
            association.close()
        self._associations.clear()

    def _may_begin(self, data: bytes) -> bool:
        return (
            self._security.role == "server"
            and self._through is None
            and len(self._associations) <= STRANGERS
            and data[:1] == HANDSHAKE
        )

    def _begin(self, remote: Address) -> DtlsSrtp:
        association: DtlsSrtp | None = None

        def place() -> Address:
            return next(
                (a for a, known in self._associations.items() if known is association), remote
            )

        association = self._associations[remote] = DtlsSrtp(
            self._security.role,
            self._security.remote_fingerprints,
            lambda data: self._send(data, place()),
            lambda keys: self._got_keys(keys, place()),
            lambda reason: self._failed(reason, place()),
        )
        return association

    def _move(self, source: Address) -> DtlsSrtp | None:
        """The client's association, there from now on; None when it has been answered."""
        if self._answered:
            return None
        if not self._associations:
            return self._begin(source)
        _, association = self._associations.popitem()
        self._associations[source] = association
        return association

    def _got_keys(self, keys: SdesSrtp, remote: Address) -> None:
        self._through = remote
        self._slow.cancel()
        for other in [a for a in self._associations if a != remote]:
            self._associations.pop(other).close()
        self._on_keys(keys, remote)

    def _failed(self, reason: str, remote: Address) -> None:
        self._associations.pop(remote, None)
        if remote == self._expected or self._security.role == "client":
            self._slow.cancel()
            self._on_failed(reason)

    def _say_slow(self) -> None:
        told = f"{self._expected[0]}:{self._expected[1]}" if self._expected else "the far end"
        waiting = {"client": "an answer to our handshake", "server": "its handshake"}
        text = f"no DTLS keys after {SLOW_S:g} s: {waiting[self._security.role]} does not come"
        text += f" from {told}, where its SDP says it is"
        if self._elsewhere is not None:
            text += f"; packets come from {self._elsewhere[0]}:{self._elsewhere[1]}"
        self._on_slow(text)


def _is_answer(data: bytes) -> bool:
    """Whether it begins as a server's first flight does (RFC 6347 §4.2.1)."""
    begins = data[:1] == HANDSHAKE and len(data) > RECORD_HEADER_BYTES
    return begins and data[RECORD_HEADER_BYTES] in (SERVER_HELLO, HELLO_VERIFY_REQUEST)


def _is_whole(data: bytes) -> bool:
    """Whether a datagram is DTLS records and nothing else."""
    position = 0
    while position + RECORD_HEADER_BYTES <= len(data) and data[position] in CONTENT_TYPES:
        length = int.from_bytes(data[position + 11 : position + RECORD_HEADER_BYTES], "big")
        position += RECORD_HEADER_BYTES + length
    return position == len(data) > 0


def _reason(error: SSL.Error) -> str:
    """OpenSSL's own words for it: (library, function, reason) of the first error."""
    try:
        return str(error.args[0][0][2])
    except (IndexError, TypeError):
        return type(error).__name__
