"""A DTLS server's first flight (RFC 6347 §4.2), read before it is believed: whether it has the
certificate that the far end's SDP vouches for (RFC 8122).

A client has one handshake, which whatever claims to answer it would end. So what comes from an
address that SDP does not name waits until it shows that certificate.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Literal

from offhook.media.rtp.dtls import RECORD_HEADER_BYTES, records

MAX_FLIGHT_BYTES = 16 * 1024
"""Maximum size of a flight that is read so; a longer one is dropped. One with two RSA certificates
has 4 kB."""
HASHES = ("sha-512", "sha-384", "sha-256", "sha-1")
"""Fingerprint hashes (RFC 8122 §5), the strongest first."""

Fingerprints = Sequence[tuple[str, str]]
"""(hash, hex digits with or without colons)."""

_HANDSHAKE = 22
_CERTIFICATE = 11
_MESSAGE_HEADER_BYTES = 12


def kind_of_answer(data: bytes) -> Literal["flight", "cookie"] | None:
    """Returns how a server answers with this datagram: with its flight, or first with a cookie for
    another ClientHello (RFC 6347 §4.2.1); None if it is neither."""
    if len(data) <= RECORD_HEADER_BYTES or data[0] != _HANDSHAKE:
        return None
    match data[RECORD_HEADER_BYTES]:
        case 2:  # ServerHello
            return "flight"
        case 3:  # HelloVerifyRequest
            return "cookie"
    return None


def is_expected(certificate: bytes, fingerprints: Fingerprints) -> bool:
    """Returns whether a certificate in DER matches a fingerprint of the strongest hash known among
    those in SDP (RFC 8122 §5)."""
    for name in HASHES:
        given = [digits for hash_name, digits in fingerprints if hash_name == name]
        if given:
            actual = hashlib.new(name.replace("-", ""), certificate).hexdigest()
            return any(
                hmac.compare_digest(digits.replace(":", "").lower().encode(), actual.encode())
                for digits in given
            )
    return False


class FirstFlight:
    """The datagrams of one source, until they show a certificate."""

    def __init__(self, fingerprints: Fingerprints) -> None:
        self._fingerprints = fingerprints
        self.datagrams: list[bytes] = []
        """In the order in which they came."""
        self._bytes = 0
        self._certificate = bytearray()
        """The Certificate message so far; its fragments are taken in order."""

    def receive(self, data: bytes) -> bool:
        """Takes a datagram. Returns whether the expected certificate is there now."""
        if self._bytes + len(data) > MAX_FLIGHT_BYTES:
            return False
        self._bytes += len(data)
        self.datagrams.append(data)
        return any(
            self._read(record[RECORD_HEADER_BYTES:])
            for record in records(data)
            if record[0] == _HANDSHAKE
        )

    def _read(self, messages: bytes) -> bool:
        """Reads the handshake messages of a record, whole ones or fragments (RFC 6347 §4.2.3)."""
        at = 0
        while at + _MESSAGE_HEADER_BYTES <= len(messages):
            length = _uint24(messages, at + 1)
            offset, size = _uint24(messages, at + 6), _uint24(messages, at + 9)
            body = messages[at + _MESSAGE_HEADER_BYTES : at + _MESSAGE_HEADER_BYTES + size]
            if messages[at] == _CERTIFICATE and offset == len(self._certificate):
                self._certificate += body
                if len(self._certificate) == length:
                    # Length of the list, length of the first certificate, its DER.
                    end = 6 + _uint24(self._certificate, 3) if length > 6 else 0
                    return is_expected(bytes(self._certificate[6:end]), self._fingerprints)
            at += _MESSAGE_HEADER_BYTES + size
        return False


def _uint24(data: bytes | bytearray, at: int) -> int:
    return int.from_bytes(data[at : at + 3], "big")
