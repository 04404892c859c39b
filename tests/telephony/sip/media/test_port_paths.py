"""A call's port is read alike on both paths: which packets are heard, refused and left out."""

import asyncio
import select
import socket
from contextlib import asynccontextmanager
from time import monotonic
from types import SimpleNamespace

import pytest

from benchmarks.callers.rtp import offer
from offhook.media import native
from offhook.media.rtp.rtp import RtpPacket
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.offer_answer import MediaSettings
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from offhook.telephony.sip.media.rtp_transport_io import RtpTransport
from tests.media.native.paths import needs_compiled, path
from tests.support.waiting import until

HOST = "127.0.0.1"
PACKETS = 40
paths = pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_compiled)])


@pytest.fixture
def by_python(monkeypatch):
    """Datagrams that Python has looked at."""
    seen, received = [], RtpTransport._rtp_received

    def noted(self, data, source, now):
        seen.append(data)
        received(self, data, source, now)

    monkeypatch.setattr(RtpTransport, "_rtp_received", noted)
    return seen


@asynccontextmanager
async def a_line(compiled):
    """A leg that ticks by hand, its phone's socket and another one."""
    phone, stranger = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    for one in (phone, stranger):
        one.bind((HOST, 0))
    with path(compiled):
        leg = SipLeg("call", MediaSettings(), RtpPorts(HOST, 28_000, 28_100), HOST)
        await leg.bind()
        leg.answer(offer(phone.getsockname()[1]))
        to = (HOST, leg._transport.sockets.port)
        try:
            yield SimpleNamespace(leg=leg, phone=phone, stranger=stranger, to=to)
        finally:
            await leg.hang_up("done")
            phone.close()
            stranger.close()


def packet(number: int, kind: int = 0) -> bytes:
    return RtpPacket(kind, number, 160 * number, 7, bytes([number & 0x7F]) * 160).serialize()


def counted(leg):
    stats = leg._receiver.stats
    return stats.received, stats.ignored, leg.refused_packets


async def send(line, numbers, by=None, kind=0):
    """Each is read, and a tick goes by, before the next."""
    for number in numbers:
        before = counted(line.leg)
        (by or line.phone).sendto(packet(number, kind), line.to)
        await until(lambda before=before: counted(line.leg) != before)
        line.leg.tick(monotonic())


@paths
async def test_the_stream_is_heard_and_another_source_is_refused(compiled, by_python):
    async with a_line(compiled) as line:
        leg, latch = line.leg, line.leg._transport._latch
        began = monotonic()
        await send(line, range(1, PACKETS))
        assert counted(leg) == (PACKETS - 1, 0, 0)
        assert latch._last == packet(PACKETS - 1)
        assert latch._received_at == leg.last_packet_at
        assert began <= leg.last_packet_at <= monotonic()
        assert (len(by_python) < 10) is compiled
        await send(line, [90, 91], by=line.stranger)
        assert counted(leg) == (PACKETS - 1, 0, 2)
        assert latch._candidates
        await send(line, range(PACKETS, PACKETS + 5))
        assert counted(leg) == (PACKETS + 4, 0, 2)
        assert not latch._candidates


@paths
async def test_a_held_call_hears_nothing_and_hears_again(compiled):
    async with a_line(compiled) as line:
        await send(line, range(1, 20))
        sdp = offer(line.phone.getsockname()[1])
        line.leg.answer(sdp.replace("a=rtcp-mux", "a=rtcp-mux\r\na=inactive"))
        await send(line, range(20, 25))
        assert counted(line.leg) == (19, 5, 0)
        line.leg.answer(sdp)
        await send(line, range(25, 30))
        assert counted(line.leg) == (24, 5, 0)


@paths
async def test_a_phone_that_moves_is_followed_and_its_old_place_too(compiled):
    """Its stream goes on elsewhere after a silence, and then where its description has it."""
    async with a_line(compiled) as line:
        await send(line, range(1, 20))
        await asyncio.sleep(0.1)
        for number in range(20, 30):
            line.stranger.sendto(packet(number), line.to)
            await asyncio.sleep(0.02)
        await until(lambda: line.leg._transport.destination == line.stranger.getsockname())
        heard, _, refused = counted(line.leg)
        assert heard > 19
        await send(line, range(30, 40), by=line.stranger)
        assert counted(line.leg) == (heard + 10, 0, refused)
        await send(line, range(40, 45))
        assert counted(line.leg) == (heard + 15, 0, refused)
        assert line.leg._transport.destination == line.phone.getsockname()
        await send(line, [45, 46], by=line.stranger)
        assert counted(line.leg) == (heard + 15, 0, refused + 2)


@paths
async def test_other_payload_types_and_garbage_are_told_apart(compiled):
    async with a_line(compiled) as line:
        await send(line, range(1, 20))
        await send(line, [20], kind=8)  # not offered
        await send(line, range(21, 25))
        line.phone.sendto(b"\x80", line.to)
        await until(lambda: line.leg.malformed_packets == 1)
        await send(line, [25], kind=101)
        assert counted(line.leg) == (23, 2, 0)


@needs_compiled
def test_ports_without_calls_pass_on_what_is_read():
    """And what `receive` raises is raised once the others are read; no source is trusted that is
    not latched; a port that is no more is left alone."""
    ours, other, theirs = (socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) for _ in range(3))
    with ours, other, theirs, select.epoll() as epoll:
        for sock in (ours, other, theirs):
            sock.bind(("::1", 0))
        for sock in (ours, other):
            epoll.register(sock, select.EPOLLIN)
        read = []
        latch = SimpleNamespace(_locked=None, _secure=False, _candidates={})
        port = native.Port(ours.fileno(), lambda *one: read.append(one), object(), object(), latch)
        by_fd = {ours.fileno(): port}
        ports = native.Ports(epoll.fileno(), by_fd)
        assert ports.read(1.0, False) == 0
        assert not read
        for number in range(3):
            theirs.sendto(packet(number), ours.getsockname())
            assert ports.read(float(number), False) == 1
            latch._locked = read[0][1]
        here = theirs.getsockname()[:2]
        assert read == [(packet(number), here, float(number)) for number in range(3)]
        by_fd[other.fileno()] = native.Port(
            other.fileno(), lambda *one: 1 / 0, object(), object(), latch
        )
        for sock in (other, ours):
            theirs.sendto(b"", sock.getsockname())
        with pytest.raises(ZeroDivisionError):
            ports.read(1.0, False)
        assert len(read) == 4
        del by_fd[ours.fileno()]
        theirs.sendto(b"", ours.getsockname())
        assert ports.read(1.0, False) == 1
        assert len(read) == 4
