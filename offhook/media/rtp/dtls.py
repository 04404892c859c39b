"""DTLS records (RFC 6347 §4.1), as datagrams carry them."""

RECORD_HEADER_BYTES = 13
CONTENT_TYPES = range(20, 24)
"""Of DTLS 1.2: change of cipher, alert, handshake, application data."""


def records(datagram: bytes) -> list[bytes]:
    """Returns the records of a datagram, none unless it consists of whole ones: OpenSSL, which
    reads from a buffer without borders, would take the start of the next datagram for the rest."""
    found, at = [], 0
    while at + RECORD_HEADER_BYTES <= len(datagram) and datagram[at] in CONTENT_TYPES:
        length = int.from_bytes(datagram[at + 11 : at + RECORD_HEADER_BYTES], "big")
        end = at + RECORD_HEADER_BYTES + length
        found.append(datagram[at:end])
        at = end
    return found if at == len(datagram) else []
