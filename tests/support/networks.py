"""Networks of a test's own, as only root makes them: ours, a NAT, and a phone's behind it.

What a test starts while it is in a network runs there; a socket stays where it was made.
"""

import ctypes
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

OURS, PUBLIC = "10.53.0.1", "10.53.0.2"
"""Our address, and the NAT's, as we see what comes from the phone."""
PHONE = "192.168.77.2"
"""The phone's own."""
NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of <sched.h>."""
FLUSH_CONNECTIONS = struct.pack("=LHHLL BBH", 20, 1 << 8 | 2, 1 | 4, 1, 0, 0, 0, 0)
"""Of <linux/netfilter/nfnetlink_conntrack.h>: IPCTNL_MSG_CT_DELETE of all."""
NAT = """
ip link set lo up
ip link add wan type veth peer name net netns {ours}
ip link add lan type veth peer name net netns {phone}
ip address add 10.53.0.2/24 dev wan
ip address add 192.168.77.1/24 dev lan
ip link set wan up
ip link set lan up
sysctl -qw net.ipv4.ip_forward=1
nft add table ip nat
nft add chain ip nat out { type nat hook postrouting priority 100 ; }
nft add rule ip nat out oifname wan masquerade fully-random
nft add table ip firewall
nft add chain ip firewall in { type filter hook input priority 0 ; policy drop ; }
"""
HOST = """
ip link set lo up
ip address add {address}/24 dev net
ip link set net up
"""


class Network:
    """A network, which exists as long as it is open."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._setns = libc.setns
        with open("/proc/thread-self/ns/net") as before:
            if libc.unshare(NEW_NETWORK):
                pytest.skip(f"needs a network of its own: {os.strerror(ctypes.get_errno())}")
            self._file = open("/proc/thread-self/ns/net")  # noqa: SIM115
            assert self._setns(before.fileno(), NEW_NETWORK) == 0

    @property
    def path(self) -> str:
        """As `ip` names it."""
        return f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is there meanwhile."""
        with open("/proc/thread-self/ns/net") as before:
            assert self._setns(self._file.fileno(), NEW_NETWORK) == 0
            try:
                yield
            finally:
                assert self._setns(before.fileno(), NEW_NETWORK) == 0

    def run(self, lines: str, **names: str) -> None:
        """Run commands there, one a line."""
        with self.entered():
            for line in lines.strip().splitlines():
                words = [word.format(**names) if len(word) > 1 else word for word in line.split()]
                subprocess.run(words, check=True)

    def close(self) -> None:
        self._file.close()


class NatNetwork:
    """A phone behind a NAT that calls us."""

    def __init__(self) -> None:
        self.ours, self._nat, self.phone = Network(), Network(), Network()
        self._nat.run(NAT, ours=self.ours.path, phone=self.phone.path)
        self.ours.run(HOST, address=OURS)
        self.phone.run(HOST, address=PHONE)
        self.phone.run("ip route add default via 192.168.77.1")

    def rebind(self) -> None:
        """The NAT forgets all connections, as when it is restarted: what was sent to the phone does
        not arrive any more, and what the phone sends comes from other ports."""
        with self._nat.entered(), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as netlink:
            netlink.send(FLUSH_CONNECTIONS)
            (error,) = struct.unpack_from("=i", netlink.recv(64), 16)
            assert error == 0, os.strerror(-error)

    def forgets_after(self, seconds: int) -> None:
        """The NAT forgets what it has seen no datagrams of for that long."""
        for what in ("timeout", "timeout_stream"):
            self._nat.run(f"sysctl -qw net.netfilter.nf_conntrack_udp_{what}={seconds}")

    def close(self) -> None:
        for network in (self.ours, self._nat, self.phone):
            network.close()
