"""The WebSocket under a carrier's stream, with a real client at its other end."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from offhook.telephony.carriers import websocket_io
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.twilio import TwilioStream
from offhook.telephony.carriers.websocket_io import StreamSocket

pytestmark = pytest.mark.asyncio

SIZES = (0, 1, 125, 126, 65_535, 65_536, 200_000)
START = '{"event":"start","streamSid":"MZ","start":{"streamSid":"MZ","callSid":"CA"}}'


@asynccontextmanager
async def connected(serve):
    """A client of a server that runs `serve(socket, leg)` on each connection."""
    app = web.Application()

    async def handle(request):
        socket = StreamSocket()
        leg = CarrierLeg("call", TwilioStream(), socket.send)
        await socket.accept(request)
        async with socket.line(leg):
            await serve(socket, leg)
        return socket.websocket

    app.router.add_get("/", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    async with aiohttp.ClientSession() as http, http.ws_connect(url) as client:
        yield client
    await runner.cleanup()


async def test_messages_of_any_length_arrive_in_order():
    async def serve(socket, leg):
        for size in SIZES:
            socket.send("é" * (size // 2))
            socket.send(b"\x07" * size)

    async with connected(serve) as client:
        for size in SIZES:
            assert await client.receive_str(timeout=5) == "é" * (size // 2)
            assert await client.receive_bytes(timeout=5) == b"\x07" * size
        assert (await client.receive(timeout=5)).type is aiohttp.WSMsgType.CLOSE


async def test_nothing_is_sent_into_a_closed_socket():
    after = asyncio.Event()

    async def serve(socket, leg):
        assert await leg.until_closed() == "the carrier closed the stream"
        socket.send("too late")
        after.set()

    async with connected(serve) as client:
        await client.send_str(START)
        await client.close()
        await asyncio.wait_for(after.wait(), 5)


async def test_a_carrier_that_does_not_read_loses_the_call(monkeypatch):
    monkeypatch.setattr(websocket_io, "WRITE_BUFFER_BYTES", 10_000)
    why = asyncio.get_running_loop().create_future()

    async def serve(socket, leg):
        while leg.closed is None:
            socket.send(b"x" * 50_000)
            await asyncio.sleep(0)
        why.set_result(leg.closed)

    async with connected(serve) as client:
        client._response.connection.transport.pause_reading()
        assert await asyncio.wait_for(why, 5) == "the carrier does not read"


async def test_what_the_protocol_forbids_ends_the_line_with_its_words():
    why = asyncio.get_running_loop().create_future()

    async def serve(socket, leg):
        why.set_result(await leg.until_closed())

    async with connected(serve) as client:
        await client.send_str('{"event":"media","media":{"payload":"AAAA"}}')
        assert "start" in await asyncio.wait_for(why, 5)
        assert (await client.receive(timeout=5)).type is aiohttp.WSMsgType.CLOSE
