"""A connection goes over from one server to another with all that was read of it: both on real
sockets, on both event loops."""

import asyncio
import os
import socket
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import uvloop
from aiohttp import web

from offhook.telephony.carriers.streams.frames import Opcode, frame
from offhook.web.edge import hand_over_io
from offhook.web.edge.hand_over_io import adopting, hand_over
from offhook.web.http.handed_over_io import HandedOver
from tests.support.waiting import HANGS_S
from tests.telephony.carriers.masked import sent

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
LOOPS = (asyncio.run, uvloop.run)
FILES = Path("/proc/self/fd")
on_both_loops = pytest.mark.parametrize("run", LOOPS, ids=("asyncio", "uvloop"))


def request(path="/there?a=%20b", *more: str) -> bytes:
    lines = (
        *(f"GET {path} HTTP/1.1", "Host: voice.example.org", "uPGRADE: websocket"),
        *("Connection: Upgrade", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {KEY}"),
        *("X-Twice: 1", "X-Twice: 2", *more, "", ""),
    )
    return "\r\n".join(lines).encode()


class Pair:
    """The server that connections come to, and the one that serves them."""

    def __init__(self, folder) -> None:
        self.path = str(folder / "sibling")
        self.port = 0
        self.seen: list[web.Request] = []
        self.answers: list[web.StreamResponse] = []

    async def pass_on(self, request):
        try:
            self.answers.append(await hand_over(request, self.path))
        except (OSError, TimeoutError):
            return web.Response(status=502)
        return self.answers[-1]

    async def echo(self, request):
        self.seen.append(request)
        websocket = web.WebSocketResponse(compress=False)
        await websocket.prepare(request)
        async for message in websocket:
            await websocket.send_bytes(message.data)
        return websocket


@asynccontextmanager
async def serving(handler):
    app = web.Application()
    app.router.add_get("/there", handler)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        yield runner
    finally:
        await runner.cleanup()


@asynccontextmanager
async def pair(folder):
    both = Pair(folder)
    async with serving(both.pass_on) as first, serving(both.echo) as second:
        await web.TCPSite(first, "127.0.0.1", 0).start()
        both.port = first.addresses[0][1]
        async with adopting(both.path, second.server):
            yield both


async def connect(port):
    return await asyncio.open_connection("127.0.0.1", port)


async def head(reader) -> bytes:
    return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANGS_S)


@on_both_loops
def test_the_sibling_sees_the_request_as_it_came(run, tmp_path):
    async def scene():
        async with pair(tmp_path) as both:
            reader, writer = await connect(both.port)
            writer.write(request("/there?a=%20b&c=%zz", "X-Name: Jörg"))
            assert (await head(reader)).startswith(b"HTTP/1.1 101")
            (seen,) = both.seen
            assert seen.raw_path == "/there?a=%20b&c=%zz"
            assert seen.headers.getall("X-Twice") == ["1", "2"]
            assert seen.headers["X-Name"] == "Jörg"
            assert [name for name, _ in seen.raw_headers][1] == b"uPGRADE"
            assert seen.transport.get_extra_info("peername") == writer.get_extra_info("sockname")
            async with asyncio.timeout(HANGS_S):
                while not both.answers:  # the sibling can be faster than we are
                    await asyncio.sleep(0.01)
            assert isinstance(both.answers[0], HandedOver)
            writer.close()

    run(scene())


@on_both_loops
def test_what_comes_behind_the_request_is_not_lost_and_stays_in_order(run, tmp_path):
    async def scene():
        async with pair(tmp_path) as both:
            reader, writer = await connect(both.port)
            data = request() + b"".join(sent(Opcode.BINARY, bytes([n])) for n in range(200))
            for start in range(0, len(data), 97):
                writer.write(data[start : start + 97])
                await asyncio.sleep(0)
            await head(reader)
            for n in range(200):
                answer = await asyncio.wait_for(reader.readexactly(3), HANGS_S)
                assert answer == frame(bytes([n]))
            writer.close()

    run(scene())


@on_both_loops
def test_a_slow_client_is_served_all_the_same(run, tmp_path):
    async def scene():
        async with pair(tmp_path) as both:
            reader, writer = await connect(both.port)
            for byte in request() + sent(Opcode.BINARY, b"hello"):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.0005)
            await head(reader)
            assert await asyncio.wait_for(reader.readexactly(7), HANGS_S) == frame(b"hello")
            await asyncio.sleep(0.05)
            writer.write(sent(Opcode.BINARY, b"again"))
            assert await asyncio.wait_for(reader.readexactly(7), HANGS_S) == frame(b"again")
            writer.write(sent(Opcode.CLOSE, b""))
            assert (await asyncio.wait_for(reader.read(), HANGS_S))[0] == 0x80 | Opcode.CLOSE
            writer.close()

    run(scene())


@on_both_loops
def test_many_connections_at_once_do_not_mix(run, tmp_path):
    async def scene():
        async with pair(tmp_path) as both, aiohttp.ClientSession() as http:

            async def talk(number):
                async with http.ws_connect(f"http://127.0.0.1:{both.port}/there") as websocket:
                    for n in range(5):
                        await websocket.send_bytes(b"%d.%d" % (number, n))
                        answer = await websocket.receive_bytes(timeout=HANGS_S)
                        assert answer == b"%d.%d" % (number, n)

            await asyncio.gather(*(talk(number) for number in range(30)))

    run(scene())


@pytest.mark.skipif(not FILES.is_dir(), reason="there is no /proc")
@on_both_loops
def test_the_first_server_keeps_nothing_of_the_connection(run, tmp_path):
    async def scene():
        async with pair(tmp_path) as both:
            before = len(os.listdir(FILES))
            reader, writer = await connect(both.port)
            writer.write(request())
            await head(reader)
            # The client's end and the one the sibling has.
            async with asyncio.timeout(HANGS_S):
                while len(os.listdir(FILES)) != before + 2:
                    await asyncio.sleep(0.01)
            writer.close()

    run(scene())


@on_both_loops
def test_without_a_sibling_the_request_can_be_answered(run, tmp_path):
    async def scene():
        both = Pair(tmp_path)
        async with serving(both.pass_on) as first:
            await web.TCPSite(first, "127.0.0.1", 0).start()
            reader, writer = await connect(first.addresses[0][1])
            writer.write(request())
            assert (await head(reader)).startswith(b"HTTP/1.1 502")
            writer.close()

    run(scene())


@on_both_loops
def test_a_sibling_that_takes_nothing_leaves_no_connection_open(run, tmp_path, monkeypatch):
    monkeypatch.setattr(hand_over_io, "HAND_OVER_S", 0.2)

    async def scene():
        both = Pair(tmp_path)
        async with serving(both.pass_on) as first:
            await web.TCPSite(first, "127.0.0.1", 0).start()
            with socket.socket(socket.AF_UNIX) as deaf:
                deaf.bind(both.path)
                deaf.listen()
                reader, writer = await connect(first.addresses[0][1])
                writer.write(request())
                await asyncio.sleep(0.4)
            # The connection was in the queue of a process that is gone now.
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await head(reader)
            writer.close()

    run(scene())


@on_both_loops
def test_garbage_on_the_sibling_s_socket_does_not_stop_it(run, tmp_path):
    async def scene():
        async with pair(tmp_path) as both:
            _, garbage = await asyncio.open_unix_connection(both.path)
            garbage.write(b"GET / HTTP/1.1\r\n\r\n")
            _, silent = await asyncio.open_unix_connection(both.path)
            reader, writer = await connect(both.port)
            writer.write(request())
            assert (await head(reader)).startswith(b"HTTP/1.1 101")
            for each in (writer, garbage, silent):
                each.close()

    run(scene())
