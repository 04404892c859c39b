"""Ports of calls: pairs, opened and given back, on the loopback."""

import asyncio
import socket

import pytest

from offhook.telephony.sip.media.rtp_ports_io import EXPEDITED_FORWARDING, NoPorts, RtpPorts
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.usefixtures("nothing_left")

LOW = 47_310
"""Out of the way of what else the tests open."""


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def ignore(data, source, now):
    pass


def ports(low=LOW, high=LOW + 7, **options):
    return RtpPorts("127.0.0.1", low, high, **options)


@pytest.fixture
def stranger():
    """A socket of somebody else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock


async def test_a_pair_is_an_even_port_and_the_next():
    pair = await ports(LOW + 1, LOW + 8).open_pair(ignore, ignore)
    try:
        assert pair.port % 2 == 0
        assert LOW + 1 < pair.port < LOW + 8
        assert pair.rtcp_port == pair.port + 1
    finally:
        pair.close()


async def test_each_socket_hears_its_own_and_answers_from_its_own(stranger):
    heard = []
    pair = await ports().open_pair(
        lambda *rtp: heard.append(("rtp", *rtp[:2])), lambda *rtcp: heard.append(rtcp[:2])
    )
    here = stranger.getsockname()
    try:
        stranger.sendto(b"sound", ("127.0.0.1", pair.port))
        stranger.sendto(b"report", ("127.0.0.1", pair.rtcp_port))
        async with asyncio.timeout(HANGS_S):
            while len(heard) < 2:
                await asyncio.sleep(0.005)
        assert ("rtp", b"sound", here) in heard
        assert (b"report", here) in heard
        pair.send_rtp(b"a", here)
        assert stranger.recvfrom(100) == (b"a", ("127.0.0.1", pair.port))
        pair.send_rtcp(b"b", here)
        assert stranger.recvfrom(100) == (b"b", ("127.0.0.1", pair.rtcp_port))
    finally:
        pair.close()


async def test_a_port_rests_before_it_is_given_to_another_call():
    clock = Clock()
    two = ports(LOW, LOW + 3, drain_seconds=30, now=clock)
    first = await two.open_pair(ignore, ignore)
    second = await two.open_pair(ignore, ignore)
    assert {first.port, second.port} == {LOW, LOW + 2}
    with pytest.raises(NoPorts):
        await two.open_pair(ignore, ignore)
    first.close()
    first.close()
    clock.now += 29
    with pytest.raises(NoPorts):
        await two.open_pair(ignore, ignore)
    clock.now += 1
    third = await two.open_pair(ignore, ignore)
    assert third.port == first.port
    first.close()  # not its port any more
    with pytest.raises(NoPorts):
        await two.open_pair(ignore, ignore)
    second.close()
    third.close()


async def test_ports_taken_by_other_programs_are_passed_over():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as rtp:
        rtp.bind(("127.0.0.1", LOW))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as rtcp:
            rtcp.bind(("127.0.0.1", LOW + 3))
            three = ports(LOW, LOW + 5)
            pair = await three.open_pair(ignore, ignore)
            assert pair.port == LOW + 4
            with pytest.raises(NoPorts):
                await three.open_pair(ignore, ignore)
    other = await three.open_pair(ignore, ignore)
    assert other.port in (LOW, LOW + 2)
    pair.close()
    other.close()


async def test_where_the_next_call_gets_its_port_cannot_be_told():
    many = ports(LOW, LOW + 63, drain_seconds=0)
    seen = set()
    for _ in range(40):
        pair = await many.open_pair(ignore, ignore)
        seen.add(pair.port)
        pair.close()
    assert len(seen) > 8


async def test_a_far_end_without_a_socket_disturbs_nothing(stranger):
    """The kernel hears "port unreachable" for what we send there."""
    heard = []
    pair = await ports().open_pair(lambda data, source, now: heard.append(data), ignore)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        nobody = gone.getsockname()
    try:
        for _ in range(3):
            pair.send_rtp(b"x" * 172, nobody)
            pair.send_rtcp(b"x" * 80, nobody)
            await asyncio.sleep(0.01)
        stranger.sendto(b"still here", ("127.0.0.1", pair.port))
        async with asyncio.timeout(HANGS_S):
            while not heard:
                await asyncio.sleep(0.005)
        assert heard == [b"still here"]
    finally:
        pair.close()


async def test_what_the_system_will_not_send_is_counted_and_dropped():
    pair = await ports().open_pair(ignore, ignore)
    pair.send_rtp(b"x", ("255.255.255.255", 9))  # broadcast is not allowed
    pair.send_rtcp(b"x", ("127.0.0.1", 0))
    pair.send_rtp(b"x" * 70_000, ("127.0.0.1", 9))
    assert pair.unsent == 3
    pair.close()
    pair.send_rtp(b"x", ("127.0.0.1", 9))
    pair.send_rtcp(b"x", ("127.0.0.1", 9))
    assert pair.unsent == 5


async def test_sound_is_marked_for_expedited_forwarding(stranger):
    stranger.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    pair = await ports().open_pair(ignore, ignore)
    for send in (pair.send_rtp, pair.send_rtcp):
        send(b"x", stranger.getsockname())
        _, [(level, kind, tos)], _, _ = stranger.recvmsg(10, 64)
        assert (level, kind, tos[0]) == (socket.IPPROTO_IP, socket.IP_TOS, EXPEDITED_FORWARDING)
    pair.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
async def test_ipv6_sources_are_address_and_port_alone():
    try:
        stranger = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        stranger.bind(("::1", 0))
    except OSError:
        pytest.skip("there is no IPv6 loopback here")
    heard = []
    pair = await RtpPorts("::1", LOW, LOW + 7).open_pair(lambda *rtp: heard.append(rtp[:2]), ignore)
    with stranger:
        stranger.sendto(b"six", ("::1", pair.port))
        async with asyncio.timeout(HANGS_S):
            while not heard:
                await asyncio.sleep(0.005)
        assert heard == [(b"six", ("::1", stranger.getsockname()[1]))]
        pair.send_rtp(b"back", heard[0][1])
        assert stranger.recv(10) == b"back"
    pair.close()


async def test_an_address_that_is_not_ours_is_said_so():
    with pytest.raises(NoPorts, match=r"192\.0\.2\.1"):
        await RtpPorts("192.0.2.1", LOW, LOW + 7).open_pair(ignore, ignore)


@pytest.mark.parametrize(("low", "high"), [(10, 10), (11, 12), (65_534, 65_536), (20, 10), (-2, 5)])
def test_a_range_without_a_pair_is_refused(low, high):
    with pytest.raises(ValueError, match="contain no pair"):
        ports(low, high)
