"""The server against a peer that does on its socket what Asterisk does."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import numpy as np
import pytest

from offhook.media.clock_io import PacketClock
from offhook.media.leg import LegError
from offhook.telephony.carriers.audiosocket import server_io
from offhook.telephony.carriers.audiosocket.server_io import AudioSocketServer
from offhook.telephony.carriers.audiosocket.stream import AudioSocketStream
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.streams.stream import Message, Started
from tests.support.listening import Listening
from tests.support.waiting import HANGS_S, until

Result = TypeVar("Result")
UUID = bytes.fromhex("01 0010 6f1e9f5c3a524c0b9d0e5b7a3f2c1d00")
UUID_TEXT = "6f1e9f5c-3a52-4c0b-9d0e-5b7a3f2c1d00"
FIRST_SOUND = b"\x13\x03\xc0" + bytes(960)
"""20 ms at 24 kHz: 48 kB a second are sent in answer."""
LOCAL = ("127.0.0.0/8", "::1")
TONE = (np.sin(np.arange(24_000) * 2 * np.pi * 1000 / 24_000) * 8000).astype(np.int16)
"""1 s of 1 kHz at 24 kHz."""


class Calls:
    """What the edge does with legs: keeps them, and ticks them by the packet clock."""

    def __init__(self) -> None:
        self.legs: list[CarrierLeg] = []
        self.peers: list[str] = []
        self.starts: list[Started] = []
        self.digits: list[str] = []
        self.clock = PacketClock()

    def open(
        self, stream: AudioSocketStream, send: Callable[[Message], None], peer: str
    ) -> CarrierLeg:
        leg = CarrierLeg(f"call-{len(self.legs)}", stream, send, self)
        leg.listener = Listening(
            on_dtmf=self.digits.append, on_closed=lambda reason: self.clock.remove(leg)
        )
        self.legs.append(leg)
        self.peers.append(peer)
        self.clock.add(leg)
        return leg

    def started(self, leg: CarrierLeg, started: Started) -> None:
        self.starts.append(started)

    async def hang_up(self) -> None:
        """Asterisk is told by the stream."""

    async def transfer(self, target: str) -> None:
        raise LegError("nobody to ask")


class Asterisk:
    """One connection, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> "Asterisk":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, kind: int, payload: bytes = b"") -> None:
        self.writer.write(bytes([kind]) + struct.pack(">H", len(payload)) + payload)

    async def read(self) -> tuple[int, bytes]:
        """One frame. Raises IncompleteReadError at the end, ConnectionError when it broke."""
        kind, length = struct.unpack(">BH", await self.reader.readexactly(3))
        return kind, await self.reader.readexactly(length)

    async def ended(self) -> bytes:
        """What is left until the connection ends in whatever way."""
        rest = b""
        with suppress(ConnectionError):
            async with asyncio.timeout(HANGS_S):
                while data := await self.reader.read(65536):
                    rest += data
        return rest

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def server(
    calls: Calls, addresses: tuple[str, ...] = LOCAL, **options: int
) -> AsyncIterator[tuple[AudioSocketServer, int]]:
    listening = AudioSocketServer("127.0.0.1", 0, addresses, calls.open, **options)
    _, port = await listening.start()
    try:
        yield listening, port
    finally:
        await listening.close()
    assert len(listening) == 0
    assert all(leg.closed for leg in calls.legs)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "AudioSocket"]


async def slow_peer(port: int) -> socket.socket:
    """Connected, with little room for what it does not read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return sock


async def is_soon(waiting: Awaitable[Result]) -> Result:
    return await asyncio.wait_for(waiting, HANGS_S)


async def test_a_call_is_heard_and_spoken_to_and_hung_up_by_us() -> None:
    calls = Calls()
    async with server(calls) as (_, port):
        asterisk = await Asterisk.connect(port)
        asterisk.writer.write(UUID)
        assert await asterisk.read() == (0x10, bytes(320))  # before any sound of its own
        for packet in range(15):
            part = np.arange(160) + packet * 160
            tone = (np.sin(part * 2 * np.pi * 500 / 8000) * 8000).astype("<i2")
            asterisk.send(0x10, tone.tobytes())
            await asyncio.sleep(0.02)
            if packet == 3:
                calls.legs[0].playout.write(TONE)
        assert calls.starts[0].call_id == UUID_TEXT
        assert calls.peers == ["127.0.0.1"]
        frames = [await asterisk.read() for _ in range(40)]
        assert {kind for kind, _ in frames} == {0x10}
        said = np.frombuffer(b"".join(payload for _, payload in frames), "<i2")
        spectrum = np.abs(np.fft.rfft(said[-3200:]))
        assert abs(spectrum.argmax() * 8000 / 3200 - 1000) < 10
        assert calls.legs[0].statistics().packets_received >= 12
        hanging_up = asyncio.create_task(calls.legs[0].hang_up("done"))
        while (await asterisk.read())[0] != 0x00:
            pass
        await asterisk.close()
        await is_soon(hanging_up)


async def test_what_the_caller_says_is_heard() -> None:
    calls = Calls()
    async with server(calls) as (_, port):
        asterisk = await Asterisk.connect(port)
        asterisk.writer.write(UUID)
        await until(lambda: calls.legs)
        heard: list[float] = []
        calls.legs[0].listen(lambda pcm, said, now: heard.append(float(np.abs(pcm).max())))
        for packet in range(30):
            part = np.arange(320) + packet * 320
            tone = (np.sin(part * 2 * np.pi * 500 / 16000) * 8000).astype("<i2")
            asterisk.send(0x12, tone.tobytes())
            await asyncio.sleep(0.02)
        assert calls.starts[0].format_in.rate == 16_000
        await until(lambda: sum(peak > 6000 for peak in heard) > 10)
        await asterisk.close()


async def test_silence_is_sent_all_the_time() -> None:
    calls = Calls()
    async with server(calls) as (_, port):
        asterisk = await Asterisk.connect(port)
        asterisk.writer.write(UUID)
        asterisk.send(0x10, bytes(320))
        frames = [await asterisk.read() for _ in range(30)]
        assert set(frames) == {(0x10, bytes(320))}
        await asterisk.close()


async def test_a_caller_without_sound_is_spoken_to_after_a_second() -> None:
    calls = Calls()
    async with server(calls) as (_, port):
        asterisk = await Asterisk.connect(port)
        asterisk.writer.write(UUID)
        await until(lambda: calls.starts)
        assert calls.starts[0].format_out.rate == 8000
        await asterisk.close()


async def test_keys_are_told() -> None:
    calls = Calls()
    async with server(calls) as (_, port):
        asterisk = await Asterisk.connect(port)
        asterisk.writer.write(UUID)
        asterisk.send(0x10, bytes(320))
        asterisk.send(0x03, b"7")
        await until(lambda: calls.digits)
        assert calls.digits == ["7"]
        await asterisk.close()


@pytest.mark.parametrize("last", [b"\x00\x00\x00", b""])
async def test_asterisk_ends_the_call_by_a_frame_or_by_closing(last: bytes) -> None:
    calls = Calls()
    async with server(calls) as (listening, port):
        asterisk = await Asterisk.connect(port)
        asterisk.writer.write(UUID + last)
        await until(lambda: calls.legs)
        if not last:
            await asterisk.close()
        reason = await is_soon(calls.legs[0].until_closed())
        assert "Asterisk" in reason
        await asterisk.close()
        await until(lambda: len(listening) == 0)


async def test_our_hanging_up_is_read_by_a_peer_that_goes_on_sending() -> None:
    calls = Calls()
    async with server(calls) as (listening, port):
        asterisk = await Asterisk.connect(port)
        asterisk.writer.write(UUID)
        await until(lambda: calls.legs)
        hanging_up = asyncio.create_task(calls.legs[0].hang_up("done"))
        for _ in range(20):
            asterisk.send(0x10, bytes(320))
            await asyncio.sleep(0.01)
        kind = 0x10
        while kind == 0x10:
            kind, _ = await asterisk.read()
        assert kind == 0x00
        await asterisk.close()
        await is_soon(hanging_up)
        assert calls.legs[0].closed == "done"
        await until(lambda: len(listening) == 0)


async def test_a_call_that_is_not_taken_ends_without_breaking_the_connection() -> None:
    calls = Calls()
    async with server(calls) as (_, port):
        sock = await slow_peer(port)
        with sock:
            loop = asyncio.get_running_loop()
            sock.send(UUID + FIRST_SOUND)
            await until(lambda: calls.starts)
            await asyncio.sleep(0.1)
            sock.send(FIRST_SOUND)  # which is not read before the end
            calls.legs[0].close("there are too many calls")
            for _ in range(5):
                await asyncio.sleep(0.02)
                sock.send(FIRST_SOUND)  # nor is this
            received = b"x"
            async with asyncio.timeout(HANGS_S):
                while received:  # ConnectionResetError, if it were broken
                    received = await loop.sock_recv(sock, 65536)


async def test_a_peer_that_does_not_close_after_we_hung_up_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_io, "HANG_UP_TIMEOUT_S", 0.1)
    calls = Calls()
    async with server(calls) as (listening, port):
        asterisk = await Asterisk.connect(port)
        asterisk.writer.write(UUID)
        await until(lambda: calls.legs)
        calls.legs[0].close("something else ended it")
        await until(lambda: len(listening) == 0)
        await asterisk.close()


async def test_peers_from_elsewhere_are_refused() -> None:
    calls = Calls()
    async with server(calls, ("192.0.2.0/24", "2001:db8::1")) as (_, port):
        asterisk = await Asterisk.connect(port)
        with suppress(ConnectionError):
            asterisk.writer.write(UUID)
        assert await asterisk.ended() == b""
        assert calls.legs == []
        await asterisk.close()


def test_addresses_must_be_addresses() -> None:
    with pytest.raises(ValueError, match="example"):
        AudioSocketServer("127.0.0.1", 0, ("pbx.example",), Calls().open)


async def test_connections_over_the_limit_are_refused_until_one_ends() -> None:
    calls = Calls()
    async with server(calls, max_connections=2) as (listening, port):
        peers = [await Asterisk.connect(port) for _ in range(2)]
        await until(lambda: len(listening) == 2)
        third = await Asterisk.connect(port)
        assert await third.ended() == b""
        await peers[0].close()
        await until(lambda: len(listening) == 1)
        fourth = await Asterisk.connect(port)
        await until(lambda: len(listening) == 2)
        for peer in (*peers, third, fourth):
            await peer.close()
        assert len(calls.legs) == 3


async def test_a_peer_that_says_no_uuid_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_io, "START_TIMEOUT_S", 0.2)
    calls = Calls()
    async with server(calls) as (_, port):
        asterisk = await Asterisk.connect(port)
        asterisk.writer.write(UUID[:-1])
        await until(lambda: calls.legs)
        assert "UUID" in await is_soon(calls.legs[0].until_closed())
        assert await asterisk.ended() == b""
        await asterisk.close()


async def test_a_peer_that_speaks_something_else_is_cut_off() -> None:
    calls = Calls()
    async with server(calls) as (_, port):
        asterisk = await Asterisk.connect(port)
        asterisk.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await asterisk.ended() == b""
        assert "UUID" in str(calls.legs[0].closed)
        assert calls.starts == []
        await asterisk.close()


async def test_a_far_end_that_does_not_read_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_io, "SEND_TIMEOUT_S", 0.2)
    monkeypatch.setattr(server_io, "KERNEL_BUFFER_BYTES", 2048)
    calls = Calls()
    async with server(calls) as (_, port):
        with await slow_peer(port) as sock:
            sock.send(UUID + FIRST_SOUND)
            await until(lambda: calls.legs)
            reason = await is_soon(calls.legs[0].until_closed())
            assert reason == "Asterisk does not read its audio"


async def test_what_waits_for_a_far_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_io, "WRITE_BUFFER_BYTES", 30_000)
    monkeypatch.setattr(server_io, "KERNEL_BUFFER_BYTES", 2048)
    calls = Calls()
    async with server(calls) as (_, port):
        with await slow_peer(port) as sock:
            sock.send(UUID + FIRST_SOUND)
            await until(lambda: calls.legs)
            reason = await is_soon(calls.legs[0].until_closed())
            assert reason == "Asterisk does not read its audio"


async def test_a_far_end_that_reads_again_in_time_keeps_its_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_io, "SEND_TIMEOUT_S", 0.5)
    monkeypatch.setattr(server_io, "KERNEL_BUFFER_BYTES", 2048)
    calls = Calls()
    async with server(calls) as (listening, port):
        with await slow_peer(port) as sock:
            loop = asyncio.get_running_loop()
            sock.send(UUID + FIRST_SOUND)
            await until(lambda: listening._connections)
            [connection] = listening._connections
            for _ in range(3):
                await until(lambda: connection._stalled)
                await asyncio.sleep(0.3)
                while connection._stalled:
                    await loop.sock_recv(sock, 65536)
            await until(lambda: calls.legs[0].ticks > 60)
            assert calls.legs[0].closed is None


async def test_closing_the_server_ends_its_calls_in_the_protocols_way() -> None:
    calls = Calls()
    async with server(calls) as (listening, port):
        peers = [await Asterisk.connect(port) for _ in range(3)]
        for peer in peers:
            peer.writer.write(UUID + b"\x10\x01\x40" + bytes(320))
        await until(lambda: len(calls.starts) == 3)
        closing = asyncio.create_task(listening.close())
        for peer in peers:
            while (await peer.read())[0] != 0x00:
                pass
            await peer.close()
        await is_soon(closing)
        with pytest.raises(ConnectionRefusedError):
            await Asterisk.connect(port)


async def test_small_packets_leave_at_once() -> None:
    calls = Calls()
    async with server(calls) as (listening, port):
        asterisk = await Asterisk.connect(port)
        await until(lambda: len(listening) == 1)
        [connection] = listening._connections
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await asterisk.close()
