"""The WebSocket under a carrier's stream, with a real client at its other end."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from offhook.media.leg import LegListener
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.streams import websocket_io
from offhook.telephony.carriers.streams.connections_io import Connections
from offhook.telephony.carriers.streams.frames import Opcode
from offhook.telephony.carriers.streams.websocket_io import StreamSocket
from offhook.telephony.carriers.twilio.stream import TwilioStream
from tests.media.native.paths import needs_compiled, path
from tests.support.waiting import HANGS_S, until
from tests.telephony.carriers.masked import sent

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
        return socket.response

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
            assert await client.receive_str(timeout=HANGS_S) == "é" * (size // 2)
            assert await client.receive_bytes(timeout=HANGS_S) == b"\x07" * size
        assert (await client.receive(timeout=HANGS_S)).type is aiohttp.WSMsgType.CLOSE


async def test_nothing_is_sent_into_a_closed_socket():
    after = asyncio.Event()

    async def serve(socket, leg):
        assert await leg.until_closed() == "the carrier closed the stream"
        socket.send("too late")
        after.set()

    async with connected(serve) as client:
        await client.send_str(START)
        await client.close()
        await asyncio.wait_for(after.wait(), HANGS_S)


async def test_a_carrier_that_does_not_read_loses_the_call(monkeypatch):
    monkeypatch.setattr(websocket_io, "WRITE_BUFFER_BYTES", 10_000)
    why = asyncio.get_running_loop().create_future()

    async def serve(socket, leg):
        while leg.closed is None:
            socket.send(b"x" * 50_000)
            await asyncio.sleep(0)
        why.set_result(leg.closed)

    async with connected(serve) as client:
        transport = client._response.connection.transport
        transport.pause_reading()
        assert await asyncio.wait_for(why, HANGS_S) == "the carrier does not read"
        transport.resume_reading()


async def test_what_the_protocol_forbids_ends_the_line_with_its_words():
    why = asyncio.get_running_loop().create_future()

    async def serve(socket, leg):
        why.set_result(await leg.until_closed())

    async with connected(serve) as client:
        await client.send_str('{"event":"media","media":{"payload":"AAAA"}}')
        assert "start" in await asyncio.wait_for(why, HANGS_S)
        assert (await client.receive(timeout=HANGS_S)).type is aiohttp.WSMsgType.CLOSE


async def test_a_carrier_that_floods_the_line_loses_it(monkeypatch):
    monkeypatch.setattr(websocket_io, "FRAMES_PER_SECOND", 1.0)
    monkeypatch.setattr(websocket_io, "FRAMES_BURST", 20.0)
    why = asyncio.get_running_loop().create_future()

    async def serve(socket, leg):
        why.set_result(await leg.until_closed())

    async with connected(serve) as client:
        client._response.connection.transport.write(sent(Opcode.PING, b"", bytes(4)) * 100)
        assert "more than 1 frames a second" in await asyncio.wait_for(why, HANGS_S)
        while (
            message := await client.receive(timeout=HANGS_S)
        ).type is not aiohttp.WSMsgType.CLOSE:
            pass
        assert message.data == 1008


# --- the WebSocket itself, by a client that sends what it likes ---


def head(**changed):
    """The request for a WebSocket; None leaves a header out."""
    headers = {
        "Host": "x",
        "Upgrade": "websocket",
        "Connection": "keep-alive, Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        **{name.replace("_", "-"): value for name, value in changed.items()},
    }
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join(("GET / HTTP/1.1", *lines, "", "")).encode()


class RawClient:
    """Reads frames, and sends bytes."""

    def __init__(self, reader, writer, server):
        self._reader, self._writer, self._server = reader, writer, server

    def send(self, *frames):
        self._writer.write(b"".join(frames))

    async def answer(self):
        """The head of the answer."""
        return (await self._within(self._reader.readuntil(b"\r\n\r\n"))).decode()

    async def frame(self):
        first, length = await self._within(self._reader.readexactly(2))
        if length == 126:
            length = int.from_bytes(await self._within(self._reader.readexactly(2)), "big")
        return first, await self._within(self._reader.readexactly(length))

    async def closed(self):
        """The code that it was closed with, at the end of the connection."""
        while (got := await self.frame())[0] != 0x88:
            pass
        assert await self._within(self._reader.read()) == b""
        return int.from_bytes(got[1][:2], "big")

    async def left(self):
        """The server has no connection any more."""
        async with asyncio.timeout(HANGS_S):
            while self._server.connections:
                await asyncio.sleep(0.01)

    def _within(self, reading):
        return asyncio.wait_for(reading, HANGS_S)


@asynccontextmanager
async def raw(serve, first=None, protocols=()):
    """As `connected`."""
    app = web.Application()

    async def handle(request):
        socket = StreamSocket(protocols, getattr(serve, "connections", None))
        leg = CarrierLeg("call", TwilioStream(), socket.send)
        await socket.accept(request)
        async with socket.line(leg):
            await serve(socket, leg)
        return socket.response

    app.router.add_get("/", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    reader, writer = await asyncio.open_connection("127.0.0.1", runner.addresses[0][1])
    writer.write(head() if first is None else first)
    yield RawClient(reader, writer, runner.server)
    writer.close()
    await runner.cleanup()


class Ended:
    """Serves until the leg closes, and keeps why. With `connections` ticks are those of a clock
    that reads them."""

    def __init__(self, ticks=False, connections=None):
        self.ticks, self.connections, self.leg = ticks, connections, None
        if connections is not None:
            connections.follow(True)
        self._why = asyncio.get_running_loop().create_future()

    async def __call__(self, socket, leg):
        self.leg = leg
        while leg.closed is None:
            await asyncio.sleep(0.005)
            if self.connections is not None:
                self.connections.read()
            if self.ticks:
                leg.tick(asyncio.get_running_loop().time())
        if self.connections is not None:
            self.connections.follow(False)
        self._why.set_result(leg.closed)

    async def why(self):
        return await asyncio.wait_for(self._why, HANGS_S)


@pytest.fixture(params=["before its first tick", "ticking", "read by the clock"])
def ended(request):
    ticks, clocked = request.param != "before its first tick", request.param == "read by the clock"
    return lambda: Ended(ticks, Connections() if clocked else None)


async def test_what_comes_with_the_request_is_read(ended):
    serve = ended()
    stop = b'{"event":"stop","streamSid":"MZ","stop":{}}'
    both = (head(), sent(Opcode.TEXT, START.encode()), sent(Opcode.TEXT, stop))
    async with raw(serve, b"".join(both)) as client:
        assert (await client.answer()).startswith("HTTP/1.1 101")
        assert await serve.why() == "Twilio ended the stream"
        assert serve.leg.connected


async def test_what_was_said_before_the_connection_broke_is_read_first(ended):
    serve = ended()
    async with raw(serve) as client:
        await client.answer()
        client.send(sent(Opcode.TEXT, START.encode()))
        await asyncio.sleep(0.05)
        client.send(sent(Opcode.TEXT, b'{"event":"stop","streamSid":"MZ","stop":{}}'))
        client._writer.close()
        assert await serve.why() == "Twilio ended the stream"


async def test_a_ping_is_answered_with_what_it_says(ended):
    async with raw(ended()) as client:
        await client.answer()
        for n in range(3):
            client.send(sent(Opcode.PING, b"%d" % n))
            assert await client.frame() == (0x8A, b"%d" % n)
            await asyncio.sleep(0.02)


async def test_messages_in_fragments_and_between_them_a_ping_arrive(ended):
    serve = ended()
    async with raw(serve) as client:
        await client.answer()
        text = START.encode()
        client.send(sent(Opcode.TEXT, text[:30], fin=False), sent(Opcode.PING, b"?"))
        assert await client.frame() == (0x8A, b"?")
        client.send(sent(Opcode.CONTINUATION, text[30:]))
        async with asyncio.timeout(HANGS_S):
            while not serve.leg.connected:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("frames", "code", "word"),
    [
        (sent(Opcode.TEXT, b"\xff"), 1007, "UTF-8"),
        (sent(Opcode.TEXT, b"x", masked=False), 1002, "masked"),
        (sent(Opcode.BINARY, bytes(600_000))[:100], 1009, "exceeds"),
        (sent(Opcode.CONTINUATION, b"x"), 1002, "continuation"),
    ],
)
async def test_a_broken_protocol_closes_the_socket_with_its_code(ended, frames, code, word):
    serve = ended()
    async with raw(serve) as client:
        await client.answer()
        await asyncio.sleep(0.02)
        client.send(frames)
        assert word in await serve.why()
        assert await client.closed() == code


async def test_a_close_is_answered_with_its_code(ended):
    serve = ended()
    async with raw(serve) as client:
        await client.answer()
        client.send(sent(Opcode.CLOSE, (4001).to_bytes(2, "big") + b"bye"))
        assert await serve.why() == "the carrier closed the stream"
        assert await client.closed() == 4001


async def test_when_the_call_ends_all_that_was_said_comes_before_the_close(ended):
    async def serve(socket, leg):
        for n in range(100):
            socket.send(f"{n}")

    async with raw(serve) as client:
        await client.answer()
        said = [await client.frame() for _ in range(101)]
        assert said == [*((0x81, b"%d" % n) for n in range(100)), (0x88, b"\x03\xe8")]


async def test_a_far_end_that_never_closes_is_left(monkeypatch):
    monkeypatch.setattr(websocket_io, "CLOSE_TIMEOUT_S", 0.1)
    async with raw(lambda socket, leg: asyncio.sleep(0)) as client:
        await client.answer()
        await client.frame()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.frame()


async def test_who_says_nothing_is_pinged_and_then_taken_for_gone(ended, monkeypatch):
    monkeypatch.setattr(websocket_io, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(websocket_io, "PONG_TIMEOUT_S", 0.2)
    serve = ended()
    async with raw(serve) as client:
        await client.answer()
        assert await client.frame() == (0x89, b"")
        client.send(sent(Opcode.PONG, b""))  # then it is there
        assert await client.frame() == (0x89, b"")
        client.send(sent(Opcode.TEXT, b"{}"))  # any word says so
        assert await client.frame() == (0x89, b"")
        assert serve.leg.closed is None
        assert await serve.why() == "the carrier does not answer"


async def test_pings_that_nobody_reads_the_answers_of_end_the_call(monkeypatch):
    monkeypatch.setattr(websocket_io, "FRAMES_BURST", 1e9)
    monkeypatch.setattr(websocket_io, "WRITE_BUFFER_BYTES", 10_000)
    monkeypatch.setattr(websocket_io, "CLOSE_TIMEOUT_S", 0.1)
    serve = Ended()
    async with raw(serve) as client:
        await client.answer()
        client._writer.transport.pause_reading()
        ping = sent(Opcode.PING, bytes(125)) * 1000
        async with asyncio.timeout(HANGS_S):
            while serve.leg.closed is None:
                client.send(ping)
                await client._writer.drain()
                await asyncio.sleep(0)
        assert await serve.why() == "the carrier does not read"
        await client.left()


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"Upgrade": "h2c"}, 400),
        ({"Connection": "keep-alive"}, 400),
        ({"Sec_WebSocket_Version": "8"}, 426),
        ({"Sec_WebSocket_Key": None}, 400),
        ({"Sec_WebSocket_Key": "AAAA"}, 400),
        ({"Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ=!"}, 400),
    ],
)
async def test_what_asks_for_no_websocket_is_refused(changed, status):
    async with raw(Ended(), head(**changed)) as client:
        assert (await client.answer()).startswith(f"HTTP/1.1 {status}")


async def test_the_handshake_is_the_one_of_the_rfc():
    """RFC 6455 §1.3."""
    async with raw(Ended(), head(Sec_WebSocket_Protocol="x, media"), ("media",)) as client:
        answer = await client.answer()
        assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in answer
        assert "Sec-WebSocket-Protocol: media" in answer
        assert "Content-" not in answer
        assert "Transfer-" not in answer


# --- connections that are read before ticks ---


class Keys(LegListener):
    def __init__(self):
        self.pressed = ""

    def on_dtmf(self, digit):
        self.pressed += digit


def key(digit):
    return sent(Opcode.TEXT, b'{"event":"dtmf","dtmf":{"digit":"%c"}}' % digit)


@needs_compiled
async def test_clocks_that_come_and_go_change_no_order():
    serve, keys, pressed = Ended(True, Connections()), Keys(), b"0123456789*#ABCD" * 20
    async with raw(serve) as client:
        await client.answer()
        client.send(sent(Opcode.TEXT, START.encode()))
        await until(lambda: serve.leg is not None and serve.leg.connected)
        serve.leg.attach(keys)
        for n, digit in enumerate(pressed):
            frame = key(digit)
            client.send(frame[: n % 50])
            if n % 3 == 0:
                await asyncio.sleep(0.003)
            client.send(frame[n % 50 :])
            if n % 10 == 0:
                serve.connections.follow(n % 20 == 0)
        await until(lambda: len(keys.pressed) == len(pressed))
        assert keys.pressed == pressed.decode()


@needs_compiled
async def test_a_connection_that_a_clock_reads_is_not_read_by_the_event_loop(monkeypatch):
    fed = []
    monkeypatch.setattr(StreamSocket, "feed_data", lambda self, data: fed.append(data))
    with path(True):
        serve = Ended(True, Connections())
        async with raw(serve) as client:
            await client.answer()
            await until(lambda: serve.leg is not None)
            client.send(sent(Opcode.TEXT, START.encode()))
            await until(lambda: serve.leg.connected)
            assert fed == []
            client._writer.close()
            assert await serve.why() == "the carrier closed the stream"
            assert not serve.connections._by_fd


async def test_without_the_compiled_path_the_event_loop_reads():
    with path(False):
        serve = Ended(True, Connections())
        async with raw(serve) as client:
            await client.answer()
            client.send(sent(Opcode.TEXT, START.encode()))
            await until(lambda: serve.leg is not None and serve.leg.connected)
            assert not serve.connections._by_fd


@needs_compiled
async def test_connections_of_many_calls_are_read_and_written_each_by_itself():
    connections = Connections()
    serves = [Ended(True, connections) for _ in range(20)]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw(serve)) for serve in serves]
        for client in clients:
            await client.answer()
        for number, client in enumerate(clients):
            client.send(sent(Opcode.PING, b"%d" % number))
        for number, client in enumerate(clients):
            assert await client.frame() == (0x8A, b"%d" % number)
        for client in clients[::2]:
            client._writer.transport.abort()
        for serve in serves[::2]:
            assert await serve.why() == "the carrier closed the stream"
        connections.follow(True)  # the others' clock
        for client in clients[1::2]:
            client.send(sent(Opcode.PING, b"still"))
        for client in clients[1::2]:
            assert await client.frame() == (0x8A, b"still")


@needs_compiled
async def test_what_the_kernel_does_not_take_at_once_is_written_later(monkeypatch):
    """In order, whoever writes it."""
    monkeypatch.setattr(websocket_io, "WRITE_BUFFER_BYTES", 10_000_000)
    size = 100_000

    async def serve(socket, leg):
        for n in range(20):
            socket.send(bytes((n,)) * size)
            await asyncio.sleep(0)

    serve.connections = Connections()
    async with raw(serve) as client:
        await client.answer()
        await asyncio.sleep(0.1)
        for n in range(20):
            first, length = await client._within(client._reader.readexactly(2))
            assert (first, length) == (0x82, 127)
            await client._reader.readexactly(8)
            assert await client._within(client._reader.readexactly(size)) == bytes((n,)) * size
