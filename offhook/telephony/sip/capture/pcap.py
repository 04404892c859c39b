"""Writes captured packets as a pcap file (draft-ietf-opsawg-pcap), for Wireshark and the like.

Packets are raw IP without a link layer. What came by a stream is written as the segments of a TCP
connection that was open before, each message one segment: TLS and WebSockets are undone, so that a
reader needs no keys.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable

from offhook.telephony.sip.capture.packet import Captured, hosts_of

PCAP = "application/vnd.tcpdump.pcap"
"""Media type of these files."""
MAX_PAYLOAD_BYTES = 65_000
"""Bytes of a packet that are written; a longer one, which no IP packet carries, is cut off."""

_MAGIC = 0xA1B2_C3D4
"""The times are in microseconds."""
_LINK_TYPE_RAW = 101
"""Packets begin with an IPv4 or IPv6 header."""
_SNAP_BYTES = 65_535
_TTL = 64
_TCP, _UDP = 6, 17
_TCP_WORDS = 5
_PUSH_ACK = 0x18
_WINDOW = 65_535


HEADER_BYTES = 24
"""Size of a file without packets."""


def capture(packets: Iterable[Captured]) -> bytes:
    """Return a pcap file of the packets."""
    parts = [struct.pack("!IHHiIII", _MAGIC, 2, 4, 0, 0, _SNAP_BYTES, _LINK_TYPE_RAW)]
    sent: dict[tuple[object, ...], int] = defaultdict(lambda: 1)
    for packet in packets:
        data = _datagram(packet, sent)
        seconds, microseconds = divmod(round(packet.time * 1_000_000), 1_000_000)
        parts += struct.pack("!IIII", seconds, microseconds, len(data), len(data)), data
    return b"".join(parts)


def _datagram(packet: Captured, sent: dict[tuple[object, ...], int]) -> bytes:
    """Return an IP packet. `sent` has the next sequence number of each direction of each TCP
    connection."""
    source, destination = hosts_of(packet)
    payload = packet.payload[:MAX_PAYLOAD_BYTES]
    ports = packet.source[1], packet.destination[1]
    if packet.transport == "UDP":
        protocol = _UDP
        header = struct.pack("!HHHH", *ports, 8 + len(payload), 0)
        checksum_at = 6
    else:
        protocol = _TCP
        there, back = (packet.source, packet.destination), (packet.destination, packet.source)
        numbers = sent[there], sent[back]
        sent[there] += len(payload)
        flags = _TCP_WORDS << 12 | _PUSH_ACK
        header = struct.pack("!HHIIHHHH", *ports, *numbers, flags, _WINDOW, 0, 0)
        checksum_at = 16
    length = len(header) + len(payload)
    # The pseudo header: RFC 768, RFC 9293 §3.1, RFC 8200 §8.1.
    pseudo = source.packed + destination.packed + struct.pack("!II", length, protocol)
    checksum = _checksum(pseudo + header + payload)
    if protocol == _UDP:
        checksum = checksum or 0xFFFF  # 0 means none (RFC 768)
    header = header[:checksum_at] + struct.pack("!H", checksum) + header[checksum_at + 2 :]
    if source.version == 6:
        ip = struct.pack("!IHBB", 6 << 28, length, protocol, _TTL)
        return ip + source.packed + destination.packed + header + payload
    fields = (0x45, 0, 20 + length, 0, 0, _TTL, protocol)
    ends = source.packed + destination.packed
    ip = struct.pack("!BBHHHBB", *fields)
    return ip + struct.pack("!H", _checksum(ip + ends)) + ends + header + payload


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    data += b"\x00" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
