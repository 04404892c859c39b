"""A peer of a WebSocket that sends tiny frames as fast as it can."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import WSMsgType, web

from offhook.media import fair_websocket_io
from offhook.media.fair_websocket_io import BYTES_AT_ONCE, FRAMES_AT_ONCE, FairWebSocket
from tests.support.waiting import HANGS_S

PING = b"\x89\x81\0\0\0\0x"
TEXT = b"\x81\x81\0\0\0\0x"
HEAD = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
COUNT = 1_500


@asynccontextmanager
async def flooded(frame: bytes, *, autoping: bool, count: int = COUNT) -> AsyncIterator[list[int]]:
    """Yields how many frames a server read in each turn of the event loop, of `count` that came at
    once."""
    turns = [0]

    class Counting(FairWebSocket):
        async def _give_way(self, size: int) -> None:
            turns[-1] += 1
            await super()._give_way(size)

    async def serve(request: web.Request) -> web.StreamResponse:
        socket = Counting(autoping=autoping)
        await socket.prepare(request)
        async for message in socket:
            assert message.type in (WSMsgType.TEXT, WSMsgType.PING)
            assert not (autoping and message.type is WSMsgType.PING)
        return socket

    async def others() -> None:
        while True:
            await asyncio.sleep(0)
            if turns[-1]:
                turns.append(0)

    app = web.Application()
    app.router.add_get("/", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    counting = asyncio.create_task(others())
    reader, writer = await asyncio.open_connection(*runner.addresses[0])
    try:
        writer.write(HEAD)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(frame * count)
        yield turns
    finally:
        counting.cancel()
        writer.transport.abort()
        await runner.cleanup()


@pytest.mark.parametrize("frame", [PING, TEXT])
@pytest.mark.parametrize("autoping", [True, False])
async def test_others_have_their_turn_between_frames(frame: bytes, autoping: bool) -> None:
    async with flooded(frame, autoping=autoping) as turns, asyncio.timeout(HANGS_S):
        while sum(turns) < COUNT:
            await asyncio.sleep(0.01)
    assert max(turns) <= 2 * FRAMES_AT_ONCE


@pytest.mark.parametrize("frame", [PING, TEXT])
async def test_a_peer_is_read_no_faster_than_its_rate(
    frame: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_websocket_io, "FRAMES_PER_SECOND", 0.0)
    monkeypatch.setattr(fair_websocket_io, "FRAMES_BURST", 50.0)
    monkeypatch.setattr(fair_websocket_io, "PAUSE_S", 1000.0)
    async with flooded(frame, autoping=True) as turns:
        async with asyncio.timeout(HANGS_S):
            while sum(turns) < 51:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert sum(turns) == 51


async def test_others_have_their_turn_after_each_long_message() -> None:
    text = bytes((0x81, 0xFF)) + BYTES_AT_ONCE.to_bytes(8, "big") + bytes(4) + b"x" * BYTES_AT_ONCE
    async with flooded(text, autoping=True, count=40) as turns, asyncio.timeout(HANGS_S):
        while sum(turns) < 40:
            await asyncio.sleep(0.01)
    assert max(turns) <= 2
