"""Browsers on `[webrtc] port`: offers without candidates, ICE-TCP, and ICE restarts."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aioice.ice import get_host_addresses

from tests.browser.conftest import HERE, serving
from tests.browser.firefox_io import firefox
from tests.support.cutting import Way, way_to
from tests.support.ice import Nat
from tests.support.networks import Network
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.browser


def check(result: dict[str, Any], port: int, transport: str) -> None:
    """Of a call by this transport that was heard."""
    assert result["connected"]["protocol"] == transport
    assert result["connected"]["port"] == port
    assert "failed" not in result["states"]
    assert result["end"] == "connected"


async def test_chromium_calls_by_udp_and_tcp_and_restarts(drive: Callable[..., Any]) -> None:
    port = free_port()
    ways = [
        {"transport": "udp", "restart": True},
        {"transport": "tcp", "restart": False},
        {"transport": "tcp", "restart": True},
    ]
    async with serving(OFFHOOK_WEBRTC_PORT=str(port)) as server:
        seen = await drive("ice_calls.mjs", url=f"{server.url}/", ways=ways)
        calls = server.calls()
    assert seen["troubles"] == []
    assert len(calls) == len(ways)
    for way, result in zip(ways, seen["results"], strict=True):
        check(result, port, way["transport"])
        assert result["first"]["candidates"] == 0
        if way["restart"]:
            assert result["second"]["ufrag"] != result["first"]["ufrag"]
            assert result["restarted"]["protocol"] == way["transport"]
            assert result["restarted"]["dtls"] == "connected"
            assert result["restarted"]["heard"] > result["connected"]["heard"]
    assert server.faults() == []


@pytest.mark.slow
async def test_chromium_hardly_notices_that_its_nat_gives_it_another_port(
    drive: Callable[..., Any],
) -> None:
    """Its own checks come each 2.5 s; its audio tells sooner."""
    port = free_port()
    nat = await Nat(port).open()
    way = {"transport": "udp", "through": nat.port, "microphone": True, "watch_ms": 12_000}

    async def rebind() -> list[tuple[str, int]]:
        before = nat.address
        while not nat.packets:
            await asyncio.sleep(0.05)
        await asyncio.sleep(6)  # Chromium checks less often by then
        await nat.rebind()
        return [before, nat.address]

    async with serving(OFFHOOK_WEBRTC_PORT=str(port), OFFHOOK_OPUS_DTX="false") as server:
        rebinding = asyncio.create_task(rebind())
        seen = await drive("ice_calls.mjs", url=f"{server.url}/", ways=[way])
        before, after = await rebinding
    nat.close()
    (result,) = seen["results"]
    assert before != after
    assert result["end"] == "connected"
    assert result["longest_ms"] < 2000
    assert len(server.calls()) == 1
    assert server.faults() == []


@pytest.mark.slow
async def test_chromium_keeps_its_call_when_its_tcp_connection_is_cut(
    drive: Callable[..., Any],
) -> None:
    port = free_port()

    async def cut(proxy: Way) -> None:
        await until(lambda: proxy.connections)
        await asyncio.sleep(4)
        proxy.cut()

    async with (
        way_to(port) as proxy,
        serving(OFFHOOK_WEBRTC_PORT=str(port), OFFHOOK_OPUS_DTX="false") as server,
    ):
        cutting = asyncio.create_task(cut(proxy))
        way = {"transport": "tcp", "through": proxy.port, "microphone": True, "watch_ms": 14_000}
        seen = await drive("ice_calls.mjs", url=f"{server.url}/", ways=[way])
        await cutting
    (result,) = seen["results"]
    assert result["connected"]["protocol"] == "tcp"
    assert proxy.connections >= 2
    assert result["end"] == "connected"
    assert result["heard_last_s"] > 20
    assert len(server.calls()) == 1
    assert server.faults() == []


async def _call_of_firefox(profile: Path, way: str) -> tuple[dict[str, Any], int]:
    """The result of a call, and the port."""
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("needs Firefox: apt-get install firefox-esr")
    addresses = get_host_addresses(use_ipv4=True, use_ipv6=False)
    if not addresses:
        pytest.skip("needs an address: pages without a microphone do not use loopback")
    port, script = free_port(), (HERE / "ice_call.js").read_text()
    async with (
        serving(
            OFFHOOK_WEBRTC_PORT=str(port), OFFHOOK_WEBRTC_ADDRESSES=json.dumps(addresses[:1])
        ) as server,
        firefox(program, profile) as page,
    ):
        await page.goto(f"{server.url}/")
        result = await page.evaluate(f"({script})({way})")
    assert server.faults() == []
    return result, port


@pytest.mark.slow
async def test_firefox_calls_by_tcp(tmp_path: Path) -> None:
    result, port = await _call_of_firefox(tmp_path, "{transport: 'tcp'}")
    check(result, port, "tcp")


# --- a firewall that lets no UDP through ---

FIREWALL = """
ip link set lo up
ip link add office type veth peer name street
ip address add 10.53.0.1/24 dev office
ip link set office up
ip link set street up
ip route add default via 10.53.0.2 dev office
nft add table inet firewall
nft add chain inet firewall in { type filter hook input priority 0 ; }
nft add rule inet firewall in meta l4proto udp counter drop
"""


@pytest.fixture
def firewall() -> Iterator[None]:
    """Has what the test starts run in a network of its own, without UDP."""
    if shutil.which("nft") is None:
        pytest.skip("needs nft: apt-get install nftables")
    network = Network()
    try:
        network.run(FIREWALL)
        with network.entered():
            yield
            rules = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True)
        dropped = re.search(r"packets (\d+)", rules.stdout)
        assert dropped is not None
        assert int(dropped[1]) > 0
    finally:
        network.close()


@pytest.mark.slow
@pytest.mark.usefixtures("firewall")
async def test_chromium_calls_through_a_firewall_without_udp(drive: Callable[..., Any]) -> None:
    """It is offered UDP as well."""
    port = free_port()
    ways = [{"transport": "any"}, {"transport": "any", "restart": True}]
    async with serving(OFFHOOK_WEBRTC_PORT=str(port)) as server:
        seen = await drive("ice_calls.mjs", url=f"{server.url}/", ways=ways)
    for result in seen["results"]:
        check(result, port, "tcp")
    assert server.faults() == []


@pytest.mark.slow
@pytest.mark.usefixtures("firewall")
async def test_firefox_calls_through_a_firewall_without_udp(tmp_path: Path) -> None:
    result, port = await _call_of_firefox(tmp_path, "{transport: 'any'}")
    check(result, port, "tcp")
