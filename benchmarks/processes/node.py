"""Another machine for a benchmark: a network namespace with a link to this one (Linux). When the
link goes down, nothing tells either side: neither a FIN nor a RST."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv4Address
from pathlib import Path
from shutil import which

NETWORK = IPv4Address("198.18.0.0")
"""Addresses for benchmarks, a /15 (RFC 2544, appendix C)."""
PAIRS = 1 << 15
"""Pairs of them, each in a /30."""
CAPABILITIES = (1 << 12) | (1 << 21)
"""CAP_NET_ADMIN and CAP_SYS_ADMIN."""


class NodeError(RuntimeError):
    """Raised when a node cannot be made or changed."""


def missing() -> str:
    """Returns what is needed for a node and is not there; empty: nothing."""
    if which("ip") is None:
        return "there is no ip (iproute2)"
    effective = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.M)
    if effective is None or CAPABILITIES & ~int(effective[1], 16):
        return "only root makes network namespaces"
    return ""


class Node:
    """The machine at `address`. A command after `within` runs there, in the same process."""

    def __init__(self) -> None:
        pid = os.getpid()
        self._here, self._there = f"oh{pid}h", f"oh{pid}n"
        """The names of both ends of the link."""
        self.name = f"offhook-{pid}"
        """The name of its namespace."""
        pair = NETWORK + 4 * (pid % PAIRS)
        self._own, self.address = str(pair + 1), str(pair + 2)
        self.within = ("ip", "netns", "exec", self.name)

    async def connect(self) -> None:
        """Raises NodeError."""
        ends = (self._here, "type", "veth", "peer", "name", self._there, "netns", self.name)
        await _ip("link", "add", *ends)
        await _ip("addr", "add", f"{self._own}/30", "dev", self._here)
        await _ip("link", "set", self._here, "up")
        await _ip("-n", self.name, "addr", "add", f"{self.address}/30", "dev", self._there)
        await self.set_link("up")

    async def set_link(self, state: str) -> None:
        """Takes the link "down" or "up" at the node's end: here its route stays, as to a machine
        elsewhere. Raises NodeError."""
        await _ip("-n", self.name, "link", "set", self._there, state)

    async def remove(self) -> None:
        """Raises NodeError."""
        with suppress(NodeError):  # it was never made
            await _ip("link", "del", self._here)
        await _ip("netns", "del", self.name)


async def _ip(*arguments: str) -> None:
    """Raises NodeError."""
    process = await asyncio.create_subprocess_exec("ip", *arguments, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    if process.returncode:
        raise NodeError(f"ip {' '.join(arguments)}: {errors.decode().strip()}")


@asynccontextmanager
async def node() -> AsyncIterator[Node]:
    """Yields another machine, whose programs have to end in the block. Raises NodeError."""
    other = Node()
    await _ip("netns", "add", other.name)
    try:
        await other.connect()
        yield other
    finally:
        await other.remove()
