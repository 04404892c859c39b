"""Readers of pcap files and HEP datagrams, by their specifications alone, and tshark."""

import shutil
import socket
import struct
import subprocess
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest

from tests.support.waiting import HANGS_S

needs_tshark = pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")


@dataclass(frozen=True)
class Packet:
    time: float
    source: tuple[str, int]
    destination: tuple[str, int]
    protocol: int
    payload: bytes
    sequence: int = 0
    acknowledged: int = 0


def packets_of(file: bytes) -> list[Packet]:
    """What a pcap file of link type RAW holds; every length and checksum is right."""
    magic, major, minor, zone, digits, snap, link = struct.unpack("!IHHiIII", file[:24])
    assert (magic, major, minor, zone, digits, link) == (0xA1B2C3D4, 2, 4, 0, 0, 101)
    at, found = 24, []
    while at < len(file):
        seconds, microseconds, held, whole = struct.unpack("!IIII", file[at : at + 16])
        assert held == whole <= snap
        assert microseconds < 1_000_000
        found.append(_packet(seconds + microseconds / 1e6, file[at + 16 : at + 16 + held]))
        at += 16 + held
    assert at == len(file)
    return found


def _packet(time: float, data: bytes) -> Packet:
    if data[0] >> 4 == 4:
        assert data[0] & 15 == 5
        assert struct.unpack("!H", data[2:4])[0] == len(data)
        assert _sum(data[:20]) == 0xFFFF  # RFC 1071: with its checksum, all ones
        protocol, hosts, body = data[9], (data[12:16], data[16:20]), data[20:]
    else:
        assert data[0] >> 4 == 6
        assert struct.unpack("!H", data[4:6])[0] == len(data) - 40
        protocol, hosts, body = data[6], (data[8:24], data[24:40]), data[40:]
    pseudo = hosts[0] + hosts[1] + struct.pack("!II", len(body), protocol)
    assert _sum(pseudo + body) == 0xFFFF
    ports = struct.unpack("!HH", body[:4])
    source, destination = (
        (str(ip_address(host)), port) for host, port in zip(hosts, ports, strict=True)
    )
    if protocol == socket.IPPROTO_UDP:
        assert struct.unpack("!H", body[4:6])[0] == len(body)
        return Packet(time, source, destination, protocol, body[8:])
    assert protocol == socket.IPPROTO_TCP
    numbers = struct.unpack("!II", body[4:12])
    return Packet(time, source, destination, protocol, body[4 * (body[12] >> 4) :], *numbers)


def _sum(data: bytes) -> int:
    total = 0
    for high, low in zip(data[::2], data[1::2] + b"\0", strict=False):
        total += high << 8 | low
        total = (total & 0xFFFF) + (total >> 16)
    return total


def chunks_of(datagram: bytes) -> dict[int, bytes]:
    """The chunks of a HEP 3 datagram by their types: each occurs once, and all are generic."""
    assert datagram[:4] == b"HEP3"
    assert struct.unpack("!H", datagram[4:6])[0] == len(datagram)
    at, found = 6, {}
    while at < len(datagram):
        vendor, kind, length = struct.unpack("!HHH", datagram[at : at + 6])
        assert vendor == 0
        assert length >= 6
        assert kind not in found
        found[kind] = datagram[at + 6 : at + length]
        at += length
    assert at == len(datagram)
    return found


def tshark(file: Path, *options: str) -> list[list[str]]:
    """The fields, of one packet a line, that the options ask for by -e."""
    command = ["tshark", "-n", "-r", str(file), "-T", "fields", "-E", "separator=|", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANGS_S)
    return [line.split("|") for line in done.stdout.splitlines()]
