"""HEP 3, in which capture agents send copies of packets to a collector such as Homer.

A datagram is "HEP3", its length, and chunks of vendor (0), type, length and value (HEP3 Network
Protocol Specification, sipcapture). RTCP is sent as JSON with the names that Homer's own agents
use.
"""

import json
import struct
from ipaddress import IPv4Address
from typing import Any

from aiortc.rtp import RTCP_RR, RTCP_SR, RtcpByePacket, RtcpRrPacket, RtcpSrPacket

from offhook.media.rtp.rtcp import RtcpError, parse_datagram
from offhook.telephony.sip.capture.hep_settings import HepSettings
from offhook.telephony.sip.capture.packet import Captured, hosts_of

SIP = 1
RTCP = 5
"""Protocol types (chunk 11)."""

_MAGIC = b"HEP3"
_FAMILY, _PROTOCOL = 1, 2
_SOURCE_V4, _DESTINATION_V4, _SOURCE_V6, _DESTINATION_V6 = 3, 4, 5, 6
_SOURCE_PORT, _DESTINATION_PORT = 7, 8
_SECONDS, _MICROSECONDS = 9, 10
_TYPE, _AGENT, _KEY = 11, 12, 14
_PAYLOAD, _CORRELATION = 15, 17
_IPV4, _IPV6 = 2, 10
_TCP, _UDP = 6, 17


def encode(packet: Captured, kind: int, correlation_id: str, settings: HepSettings) -> bytes:
    """Return the datagram for a packet of `kind`, SIP or RTCP. The correlation id is the Call-ID,
    by which the collector finds what belongs together."""
    source, destination = hosts_of(packet)
    seconds, microseconds = divmod(round(packet.time * 1_000_000), 1_000_000)
    v4 = isinstance(source, IPv4Address)
    chunks = [
        _chunk(_FAMILY, struct.pack("!B", _IPV4 if v4 else _IPV6)),
        _chunk(_PROTOCOL, struct.pack("!B", _UDP if packet.transport == "UDP" else _TCP)),
        _chunk(_SOURCE_V4 if v4 else _SOURCE_V6, source.packed),
        _chunk(_DESTINATION_V4 if v4 else _DESTINATION_V6, destination.packed),
        _chunk(_SOURCE_PORT, struct.pack("!H", packet.source[1])),
        _chunk(_DESTINATION_PORT, struct.pack("!H", packet.destination[1])),
        _chunk(_SECONDS, struct.pack("!I", seconds)),
        _chunk(_MICROSECONDS, struct.pack("!I", microseconds)),
        _chunk(_TYPE, struct.pack("!B", kind)),
        _chunk(_AGENT, struct.pack("!I", settings.agent_id)),
    ]
    if settings.auth_key:
        chunks.append(_chunk(_KEY, settings.auth_key.encode()))
    if correlation_id:
        chunks.append(_chunk(_CORRELATION, correlation_id.encode("utf-8", "replace")))
    chunks.append(_chunk(_PAYLOAD, packet.payload))
    body = b"".join(chunks)
    return _MAGIC + struct.pack("!H", len(_MAGIC) + 2 + len(body)) + body


def _chunk(kind: int, value: bytes) -> bytes:
    return struct.pack("!HHH", 0, kind, 6 + len(value)) + value


def reports_as_json(data: bytes) -> list[bytes]:
    """Return the sender and receiver reports (RFC 3550 §6.4) of an RTCP datagram as JSON; none of
    one that has no reports, or is malformed."""
    try:
        packets = parse_datagram(data)
    except RtcpError:
        return []
    reports = (_report(packet) for packet in packets if not isinstance(packet, RtcpByePacket))
    return [json.dumps(report, separators=(",", ":")).encode() for report in reports]


def _report(packet: RtcpSrPacket | RtcpRrPacket) -> dict[str, Any]:
    report: dict[str, Any] = {}
    if isinstance(packet, RtcpSrPacket):
        info = packet.sender_info
        report["sender_information"] = {
            "ntp_timestamp_sec": info.ntp_timestamp >> 32,
            "ntp_timestamp_usec": info.ntp_timestamp & 0xFFFF_FFFF,
            "rtp_timestamp": info.rtp_timestamp,
            "packets": info.packet_count,
            "octets": info.octet_count,
        }
    return report | {
        "ssrc": packet.ssrc,
        "type": RTCP_SR if isinstance(packet, RtcpSrPacket) else RTCP_RR,
        "report_count": len(packet.reports),
        "report_blocks": [
            {
                "source_ssrc": block.ssrc,
                "fraction_lost": block.fraction_lost,
                "packets_lost": block.packets_lost,
                "highest_seq_no": block.highest_sequence,
                "ia_jitter": block.jitter,
                "lsr": block.lsr,
                "dlsr": block.dlsr,
            }
            for block in packet.reports
        ],
    }
